"""Marks which session a process belongs to. Every process that it starts inherits the mark, and no one else uses it.

The mark is a resource limit that the kernel keeps, inherits and shows, but has not enforced since Linux 2.4. Process
groups, reparenting and exec() do not remove it, as they do every other sign of origin.
"""

from __future__ import annotations

import resource

_LOCKS = 10
"""The number of RLIMIT_LOCKS, which Python does not name."""


def mark(number: int) -> None:
    """Mark this process, and those that it starts from now on, with the number."""
    resource.setrlimit(_LOCKS, (number, _most()))


def unmark() -> None:
    """For helpers that clean up after a session and then exit."""
    resource.setrlimit(_LOCKS, (_most(), _most()))


def mark_of(pid: int) -> int:
    """0 if the process has no mark, is gone, or belongs to another user."""
    try:
        found, most = resource.prlimit(pid, _LOCKS)
    except (ProcessLookupError, PermissionError):
        return 0
    return 0 if found == most else found


def _most() -> int:
    return resource.getrlimit(_LOCKS)[1]
