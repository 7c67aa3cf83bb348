"""Decides whether the program or the host is to blame for an end: only the program's own excess is a result.

Every backend uses this module, so that the same trouble reads the same everywhere. `HostExhausted` makes a call `lost`:
the client may retry it, and no program is blamed.
"""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Sequence
from pathlib import Path

from toolyard.core.errors import NoRoom, SandboxLost
from toolyard.sandboxes.base import Finished, Level

_SHORT = {
    errno.EAGAIN: "processes",
    errno.ENOMEM: "memory",
    errno.EMFILE: "open files",
    errno.ENFILE: "open files",
    errno.ENOSPC: "namespaces",
}
_FRESH_SECONDS = 1.0


class HostExhausted(SandboxLost):
    """The host, and not the program, was short of something."""

    @classmethod
    def of(cls, what: str) -> HostExhausted:
        return cls(f"the host ran out of {what} while the program ran: it may be right, and can be tried again")


def is_short(error: OSError) -> bool:
    """Whether the error means that a resource is short, rather than a fault of the program."""
    return error.errno in _SHORT


def unstarted(error: OSError | ValueError, level: Level, *, own: bool) -> Finished:
    """The result of a program that could not start: its request was invalid, or its sandbox is full (`own`). Raises
    `HostExhausted` if the host or the server has no room for it."""
    if isinstance(error, OSError) and is_short(error) and not own:
        raise HostExhausted(f"the host has no room for another program: {_words(error)}") from error
    return Finished.unstarted(error.strerror if isinstance(error, OSError) and error.strerror else error, level)


def how_ended(status: int) -> str:
    """`ended with code 3`, or `was ended by SIGSEGV`. `status` is as in `subprocess`."""
    if status >= 0:
        return f"ended with code {status}"
    try:
        return f"was ended by {signal.Signals(-status).name}"
    except ValueError:  # one that has no name
        return f"was ended by signal {-status}"


def no_room(error: OSError) -> NoRoom:
    """The error for a sandbox that could not be made because the host is short of a resource."""
    return NoRoom(f"the host has no room for another sandbox now: {_words(error)}")


def _words(error: OSError) -> str:
    return f"it is short of {_SHORT[error.errno or 0]} ({error.strerror})"


class HostKills:
    """Counts the processes that the kernel killed because the whole machine was out of memory. Where no control group
    counts kills, this is the only evidence. Asking is cheap: readings are cached for a moment.

    The kernel's counter includes kills for limits of control groups. Only for the machine itself does it also stall
    allocations (`allocstall`): kills without a stall belong to another group's limit.
    """

    def __init__(self, path: str = "/proc/vmstat") -> None:
        self._path = Path(path)
        self._count = 0
        self._kills: int | None = None
        self._waits = 0
        self._read_at = -_FRESH_SECONDS

    def recent(self) -> int:
        """As of the last second."""
        return self._count if time.monotonic() - self._read_at < _FRESH_SECONDS else self.now()

    def now(self) -> int:
        kills = waits = 0
        for name, _, number in (line.partition(" ") for line in self._lines()):
            if name == "oom_kill":
                kills = int(number)
            elif name.startswith("allocstall"):
                waits += int(number)
        if self._kills is not None and waits > self._waits:
            self._count += max(kills - self._kills, 0)
        self._kills, self._waits, self._read_at = kills, waits, time.monotonic()
        return self._count

    def _lines(self) -> Sequence[str]:
        try:
            return self._path.read_text().splitlines()
        except OSError:  # not Linux, or we may not read it
            return []


host_kills = HostKills()
