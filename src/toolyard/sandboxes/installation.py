"""The Python that code in sandboxes runs with: where it lies, and which packages it has.

It is the server's own unless the operator names another one, which is then asked about itself by running it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from toolyard.core.errors import SandboxUnavailable

OLDEST = (3, 11)
LIBRARIES: Sequence[str] = ("IPython", "matplotlib", "numpy", "pandas", "scipy", "sympy")
"""The packages that profiles load."""
_SECONDS = 60.0
"""For another Python to tell about itself, on a host that may be busy."""
_TELL = """
import sys
told = {"version": list(sys.version_info[:3]), "executable": sys.executable}
if sys.version_info >= (3, 4):
    import importlib.util, os, site, sysconfig
    paths = sysconfig.get_paths()
    library = [paths["stdlib"], str(sysconfig.get_config_var("DESTSHARED"))]
    installed = [paths["purelib"], paths["platlib"]] + [one for one in site.getsitepackages() if os.path.isdir(one)]
    found = {name: importlib.util.find_spec(name) for name in LIBRARIES}
    told.update({
        "implementation": sys.implementation.name,
        "base_prefix": sys.base_prefix,
        "prefix": sys.prefix,
        "library": list(dict.fromkeys(library)),
        "installed": list(dict.fromkeys(installed)),
        "libraries": {name: str(spec.origin) for name, spec in found.items() if spec is not None},
    })
"""
"""Any Python understands it, however old, so that one that is too old can say so."""


@dataclass(frozen=True, slots=True)
class Installation:
    executable: str
    version: str
    base_prefix: str
    prefix: str
    library: Sequence[str]
    """Where the standard library lies."""
    installed: Sequence[str]
    """Where packages are installed."""
    libraries: Mapping[str, str]
    """Those of `LIBRARIES` that it has, each with its file."""

    @classmethod
    def at(cls, path: str) -> Installation:
        """The Python of this path; without one, our own. Raises `SandboxUnavailable`, which says what is wrong."""
        return _asked(os.path.abspath(os.path.expanduser(path))) if path else own()

    @classmethod
    def _of(cls, told: Mapping[str, Any]) -> Installation:
        names = [field.name for field in dataclasses.fields(cls) if field.name != "version"]
        return cls(version=".".join(map(str, told["version"])), **{name: told[name] for name in names})

    @property
    def python(self) -> Self:
        return self

    @property
    def packages(self) -> Sequence[str]:
        """sys.path of the interpreter inside: the standard library and what is installed, and nothing that is the
        server's own, such as the folder that it was started in."""
        return list(dict.fromkeys([*self.library, *self.installed]))

    @property
    def prefixes(self) -> Sequence[str]:
        """Where it lies: a virtual environment's Python in two places."""
        return list(dict.fromkeys([self.base_prefix, self.prefix]))

    @property
    def bins(self) -> Sequence[str]:
        """Where its programs lie; those of a virtual environment first."""
        return [f"{prefix}/bin" for prefix in reversed(self.prefixes)]

    def __str__(self) -> str:
        return f"{self.version}, {self.executable}"


@functools.cache
def own() -> Installation:
    """The Python that runs this."""
    names: dict[str, Any] = {"LIBRARIES": LIBRARIES}
    exec(_TELL, names)
    return Installation._of(names["told"])


@functools.cache
def _asked(path: str) -> Installation:
    if problem := _unusable(path):
        raise SandboxUnavailable(f"sandbox_python is {path!r}, and {problem}")
    code = f"LIBRARIES = {LIBRARIES!r}\n{_TELL}\nimport json; print(json.dumps(told))"
    try:
        done = subprocess.run(
            [path, "-I", "-"], input=code, capture_output=True, text=True, timeout=_SECONDS, check=False
        )
        told: Mapping[str, Any] = json.loads(done.stdout)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SandboxUnavailable(f"sandbox_python is {path!r}, which cannot be run: {error}") from error
    except ValueError:
        said = " ".join(done.stderr.split())[:300] or "it says nothing"
        raise SandboxUnavailable(
            f"sandbox_python is {path!r}, which is no Python that works: exit code {done.returncode}, {said}"
        ) from None
    if tuple(told["version"]) < OLDEST:
        found, wanted = (".".join(map(str, version)) for version in (told["version"], OLDEST))
        raise SandboxUnavailable(f"sandbox_python is {path!r}, which is Python {found}; it must be {wanted} or newer")
    if told["implementation"] != "cpython":
        raise SandboxUnavailable(f"sandbox_python is {path!r}, which is {told['implementation']}; it must be CPython")
    return Installation._of(told)


def _unusable(path: str) -> str:
    if os.path.islink(path) and not os.path.exists(path):
        return f"that is a link to {os.path.realpath(path)}, which is not there"
    if not os.path.exists(path):
        found = shutil.which(os.path.basename(path))
        return "there is no such file" + f": try {found!r}" * bool(found)
    if os.path.isdir(path):
        python = Path(path, "bin", "python")
        return "that is a directory" + f": try {str(python)!r}" * python.exists()
    return "" if os.access(path, os.X_OK) else "that file cannot be executed"


class HasPython(Protocol):
    @property
    def python(self) -> Installation: ...


here: ContextVar[HasPython | None] = ContextVar("toolyard sandboxes", default=None)
"""The provider of the sandboxes in this context; where there is none yet, the Python that they are going to have."""


def in_use() -> Installation:
    """The Python of the sandboxes here."""
    found = here.get()
    return own() if found is None else found.python


def use(python: Installation) -> None:
    """Make this the Python of the sandboxes, in this context and in what is started from it."""
    here.set(python)


@contextmanager
def using(python: Installation) -> Iterator[None]:
    token = here.set(python)
    try:
        yield
    finally:
        here.reset(token)
