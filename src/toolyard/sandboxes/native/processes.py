"""The processes of a sandbox, read by its agent from /proc."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping

_SWEEPS_MOST = 50
_QUIET_SWEEPS = 2
"""Consecutive sweeps that must find nothing: a process that forks and exits incessantly can escape one sweep."""
_DYING_SECONDS = 1.0
"""Time for killed processes to go. Dying takes processor time, of which the sandbox may have none left."""


def parents_of_all() -> dict[int, int]:
    """The living processes of this namespace except ourselves, each with its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and name != "1":
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                with open(f"/proc/{name}/stat", "rb") as file:
                    state, parent = file.read().rpartition(b")")[2].split()[:2]
                if state not in (b"Z", b"X"):
                    found[int(name)] = int(parent)
    return found


def children() -> set[int]:
    """Our own children, alive or not."""
    fd = os.open("/proc/self/task/1/children", os.O_RDONLY | os.O_CLOEXEC)
    try:
        return {int(pid) for pid in os.read(fd, 65536).split()}
    finally:
        os.close(fd)


def end_all(find: Callable[[], Iterable[int]]) -> bool:
    """Kill what `find` returns until it returns nothing new, and wait for the end. False if new ones kept coming."""
    killed: set[int] = set()  # these start nothing more, but may take a while to go
    quiet = 0
    for _ in range(_SWEEPS_MOST):
        fresh = [pid for pid in find() if pid not in killed]
        quiet = 0 if fresh else quiet + 1
        if quiet == _QUIET_SWEEPS:
            break
        for pid in fresh:
            killed.add(pid)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    else:
        return False
    deadline = time.monotonic() + _DYING_SECONDS
    while not killed.isdisjoint(parents_of_all()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return True


def used_by(pid: int) -> tuple[float, int]:
    """Seconds of processor time, including ended children, and bytes of memory."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"), int(fields[21]) * os.sysconf("SC_PAGE_SIZE")


def start_of(pid: int) -> float:
    """When a process started, in seconds since boot."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[19]) / os.sysconf("SC_CLK_TCK")
    except (FileNotFoundError, ProcessLookupError):
        return 0.0


def is_below(pid: int, roots: set[int], parents: Mapping[int, int]) -> bool:
    while pid in parents and pid not in roots:
        pid = parents[pid]
    return pid in roots
