"""How the helper processes are started: this interpreter or that of sandboxes, nothing of our environment, and the
modules of the sandbox without those of the server around them."""

from __future__ import annotations

import sys
from pathlib import Path

TEMPLATE_ENVIRONMENT = {"LD_BIND_NOW": "1"}
"""All that a template is started with: functions of libraries are looked up then, and not in every copy of it."""
_PACKAGES = {"toolyard": 2, "toolyard.sandboxes": 1}
"""Packages whose own code is not run, and how far above this folder they lie."""


def command(entry: str, *args: int | str, python: str = sys.executable) -> list[str]:
    """The argv of a process that calls `main(*args)` of a module below `toolyard.sandboxes`."""
    folder = Path(__file__).parent
    stubs = {name: str(folder.parents[above - 1]) for name, above in _PACKAGES.items()}
    code = (
        "import os, sys, types\n"
        "register, os.register_at_fork = os.register_at_fork, lambda **_: None\n"
        "import random\n"  # which would draw anew in every child; whether it should is for `session` to say
        "os.register_at_fork = register\n"
        f"for name, path in {stubs!r}.items():\n"
        "    sys.modules[name] = types.ModuleType(name)\n"
        "    sys.modules[name].__path__ = [path]\n"
        f"from toolyard.sandboxes.{entry} import main\n"
        f"main{args!r}\n"
    )
    return [python, "-I", "-S", "-X", "utf8", "-c", code]
