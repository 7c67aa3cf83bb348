"""Which session a process belongs to: a mark that it hands down to everything it starts, and that nobody else uses.

It is a limit for a process that the kernel keeps, inherits and shows, but has not enforced since Linux 2.4. Neither a
new process group nor the loss of a parent nor exec() takes it away, as they do with everything else that could tell.
"""

from __future__ import annotations

import resource

_LOCKS = 10
"""The number of RLIMIT_LOCKS, which Python does not name."""


def mark(number: int) -> None:
    """From now on this process, and what it starts, belongs to that number."""
    resource.setrlimit(_LOCKS, (number, _most()))


def unmark() -> None:
    """For helpers that clean up after a session when it is over, and then end by themselves."""
    resource.setrlimit(_LOCKS, (_most(), _most()))


def mark_of(pid: int) -> int:
    """0 if it has none, or is gone, or somebody else's."""
    try:
        found, most = resource.prlimit(pid, _LOCKS)
    except (ProcessLookupError, PermissionError):
        return 0
    return 0 if found == most else found


def _most() -> int:
    return resource.getrlimit(_LOCKS)[1]
