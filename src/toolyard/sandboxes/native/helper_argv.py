"""Command lines of helper processes. They run this Python or that of sandboxes, without our environment, and load the
sandbox's modules without the server's packages around them."""

from __future__ import annotations

import sys
from pathlib import Path

TEMPLATE_ENVIRONMENT = {"LD_BIND_NOW": "1"}
"""A template's whole environment. It makes the linker resolve functions now, and not in every copy."""
_PACKAGES = {"toolyard": 2, "toolyard.sandboxes": 1}
"""Packages whose own code does not run, and how far above this folder they lie."""


def command(entry: str, *args: int | str, python: str = sys.executable) -> list[str]:
    """The argv of a process that calls `main(*args)` of a module below `toolyard.sandboxes`."""
    folder = Path(__file__).parent
    stubs = {name: str(folder.parents[above - 1]) for name, above in _PACKAGES.items()}
    code = (
        "import os, sys, types\n"
        "register, os.register_at_fork = os.register_at_fork, lambda **_: None\n"
        "import random\n"  # its hook would reseed in every child; `session` decides that
        "os.register_at_fork = register\n"
        f"for name, path in {stubs!r}.items():\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__path__ = [path]\n"
        f"from toolyard.sandboxes.{entry} import main\n"
        f"main{args!r}\n"
    )
    return [python, "-I", "-S", "-X", "utf8", "-c", code]
