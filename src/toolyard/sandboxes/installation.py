"""The Python that code in sandboxes runs with: where it lies, and which packages it has.

It is the server's own unless the operator names another one. This module runs that one to ask about it.
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
"""For another Python to describe itself, on a host that may be busy."""
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
"""Every Python can run this, however old, so that one that is too old can report its version."""


@dataclass(frozen=True, slots=True)
class Installation:
    executable: str
    version: str
    base_prefix: str
    prefix: str
    library: Sequence[str]
    """The paths of the standard library."""
    installed: Sequence[str]
    """The folders in which packages are installed."""
    libraries: Mapping[str, str]
    """The installed ones of `LIBRARIES`, each with its file."""

    @classmethod
    def at(cls, path: str) -> Installation:
        """The Python at this path; default: our own. Raises `SandboxUnavailable`, which says what is wrong."""
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
        """sys.path of the interpreter inside: the standard library and installed packages, but nothing of the server's
        own, such as its working directory."""
        return list(dict.fromkeys([*self.library, *self.installed]))

    @property
    def prefixes(self) -> Sequence[str]:
        """The folders that it lies in: two for a virtual environment."""
        return list(dict.fromkeys([self.base_prefix, self.prefix]))

    @property
    def bins(self) -> Sequence[str]:
        """The folders of its programs; a virtual environment's first."""
        return [f"{prefix}/bin" for prefix in reversed(self.prefixes)]

    def __str__(self) -> str:
        return f"{self.version}, {self.executable}"


@functools.cache
def own() -> Installation:
    """The Python that runs this process."""
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
        said = " ".join(done.stderr.split())[:300] or "no error message"
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
"""The provider of the sandboxes in this context; before there is one, the Python that its sandboxes will have."""


def in_use() -> Installation:
    """The Python of the sandboxes in this context."""
    found = here.get()
    return own() if found is None else found.python


def use(python: Installation) -> None:
    """Make this the Python of the sandboxes, in this context and those copied from it."""
    here.set(python)


@contextmanager
def using(python: Installation) -> Iterator[None]:
    token = here.set(python)
    try:
        yield
    finally:
        here.reset(token)
