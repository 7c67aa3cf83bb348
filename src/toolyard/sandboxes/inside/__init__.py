"""Code that runs in sandboxes, where a test in one uses a program in another.

`installation()` puts these modules into the Python of a sandbox, as text: Toolyard is not installed there.
"""

from __future__ import annotations

import functools
import zlib
from base64 import b64encode
from pathlib import Path

_NAMES = ("plain", "plain_reader", "deeds", "lengths", "proxies", "sides", "proving")
_MODULES = tuple(f"{__name__}.{name}" for name in _NAMES)
*_, SIDES, PROVING = _MODULES


@functools.cache
def installation() -> str:
    """Code that loads the modules in order of dependence. A template runs it for all of its copies. It is compressed:
    one message of an interpreter takes it."""
    texts = {name: Path(__file__).with_name(f"{name.rpartition('.')[2]}.py").read_text() for name in _MODULES}
    packed = b64encode(zlib.compress(repr(texts).encode()))
    return (
        "import ast, binascii, sys, types, zlib\n"
        f"texts = ast.literal_eval(zlib.decompress(binascii.a2b_base64({packed!r})).decode())\n"
        "for name, text in texts.items():\n"
        "    module = sys.modules[name] = types.ModuleType(name)\n"
        "    exec(compile(text, '<toolyard>', 'exec', dont_inherit=True), vars(module))\n"
    )


REHEARSAL = f"__import__('sys').modules[{PROVING!r}].rehearse()"
"""A template runs this after the installation."""
