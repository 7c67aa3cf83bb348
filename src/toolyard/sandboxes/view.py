"""The parts of this host that programs in sandboxes see beside its system programs: one Python, minus hidden paths."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import profiles
from toolyard.sandboxes.around import is_below
from toolyard.sandboxes.base import Profile
from toolyard.sandboxes.installation import Installation, own

log = logging.getLogger("toolyard.sandbox")

_PATH = ("/usr/local/bin", "/usr/bin", "/bin")


@dataclass(frozen=True, slots=True)
class View:
    """One view for every sandbox of a server, fixed before the first one is made."""

    python: Installation
    hidden: Sequence[str] = ()
    """Real paths of the host that no sandbox may show."""
    closed: Sequence[str] = ()
    """The server's own packages, if sandboxes have another Python: hidden too, but not from our own code."""
    lost: Sequence[str] = ()
    """Libraries of profiles that are hidden."""
    told: bool = False
    """The operator accepts that a backend without walls shows hidden paths."""

    @classmethod
    def of(cls, python: str = "", hidden: Iterable[str | os.PathLike[str]] = (), *, told: bool = False) -> View:
        """`python` is a path; default: the server's own."""
        installation = Installation.at(python)
        paths = _outermost(os.path.realpath(path) for path in hidden if os.path.exists(path))
        for path in paths:
            _check_harmless(path, installation)
        lost = [name for name, origin in installation.libraries.items() if _is_in(origin, paths)]
        if lost:
            log.warning(
                "%s: hidden from sandboxes, because an environment that is served extends a class of it, or names it "
                "in `hidden`. Code in sandboxes cannot import it, and profiles that need it cannot be used",
                ", ".join(lost),
            )
        closed = _closed(installation) if python else ()
        return cls(_without(installation, lost), paths, closed, lost, told)

    @classmethod
    def usual(cls) -> View:
        """The server's own Python, with nothing hidden."""
        return cls(own())

    @property
    def is_own(self) -> bool:
        """Whether its Python is the server's."""
        return self.python.executable == own().executable

    @property
    def covered(self) -> Sequence[str]:
        return [*self.hidden, *self.closed]

    @property
    def words(self) -> str:
        """A phrase for a report."""
        count = len(self.hidden)
        return f", {count} path{'s' * (count > 1)} hidden" if count else ""

    def path(self, bins: Sequence[str] | None = None) -> str:
        """PATH inside, with the Python's own programs first."""
        return os.pathsep.join([*(self.python.bins if bins is None else bins), *_PATH])

    def check(self, profile: Profile) -> None:
        """Raise `SandboxUnavailable` if this Python lacks what the profile needs."""
        if absent := profiles.missing(profile, self.python):
            there = ", ".join(name for name in absent if name in self.lost)
            how = f", and {there} is hidden from sandboxes" if there else f": {self._installing(absent)}"
            raise SandboxUnavailable(f"the profile {profile!r} needs {', '.join(absent)}{how}")

    def _installing(self, absent: Sequence[str]) -> str:
        if self.is_own:
            return "pip install it"
        return f"{self.python.executable} -m pip install {' '.join(absent)}"

    def stamps(self) -> Sequence[tuple[int, int, int] | None]:
        """Stamps that change when a hidden path is replaced."""
        return [_stamp(path) for path in self.hidden]

    def places(self, shown: Iterable[str]) -> Sequence[str]:
        """Where hidden paths would appear inside, if these paths of the host are shown at the same place."""
        roots = [(root, os.path.realpath(root)) for root in shown if not os.path.islink(root)]
        return _outermost(
            root + path.removeprefix(real) for path in self.covered for root, real in roots if is_below(path, real)
        )


def _outermost(paths: Iterable[str]) -> Sequence[str]:
    """Drops paths that lie in another one: nothing can be mounted below a cover."""
    kept: list[str] = []
    for path in sorted(set(paths), key=lambda path: path.split("/")):
        if not (kept and is_below(path, kept[-1])):
            kept.append(path)
    return kept


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:  # it is gone
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns


def _without(python: Installation, lost: Sequence[str]) -> Installation:
    kept = {name: origin for name, origin in python.libraries.items() if name not in lost}
    return dataclasses.replace(python, libraries=kept)


def _is_in(path: str, folders: Sequence[str]) -> bool:
    real = os.path.realpath(path)
    return any(is_below(real, folder) for folder in folders)


def _check_harmless(path: str, python: Installation) -> None:
    needed = [python.executable, *python.library]
    if lost := next((one for one in needed if _is_in(one, [path])), None):
        raise SandboxUnavailable(f"{path} cannot be hidden: {lost} lies in it, and nothing runs without that")


def _closed(python: Installation) -> Sequence[str]:
    """The folders of packages that only the server uses. A shared Python's folders stay visible."""
    shared = {os.path.realpath(path) for path in python.packages}
    ours = (os.path.realpath(path) for path in own().installed)
    return [path for path in dict.fromkeys(ours) if path not in shared and os.path.isdir(path)]
