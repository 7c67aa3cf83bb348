"""Checks, before a sandbox is made, whether this process, its control groups and its machine have room for it."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from toolyard.core.errors import NoRoom
from toolyard.sandboxes.groups import LimitedGroup, groups_around, number, statistic

DESCRIPTORS_EACH = 13
"""Descriptors of this process that a sandbox uses when its interpreter, its shell and a program run."""
_DESCRIPTORS_NOW = 12
"""Descriptors that it uses, at most, while it is made."""
_PROCESSES_NOW = 16
_MEMORY_RESERVE = 256 * 2**20
"""Bytes to leave for everything else; a sixteenth of all memory if that is less."""
_FRESH_SECONDS = 0.02
"""Readings stay valid for so long: ten thousand concurrent checks read a few times, not ten thousand."""
_FRESH_SHARE = 50
"""They also stay valid for this many times the time that reading took, so reading takes 2 % of a processor at most."""


class Bound(NamedTuple):
    """How much is used, the most that is allowed, and what sets that limit."""

    used: int
    most: int
    where: str
    """In words, with the name of a limit at the end in parentheses."""

    @property
    def limit(self) -> str:
        return self.where.rpartition("(")[2].rstrip(")")


class Readings(NamedTuple):
    processes: Sequence[Bound]
    """Including threads."""
    memory: Sequence[Bound]
    """In bytes."""


def check(count: int, making: int = 0) -> None:
    """Raise `NoRoom` if there is no room for one sandbox beside `count` others, of which `making` are being made."""
    files = Bound(_descriptors_used(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], "")
    if problem := next(shortages(count, making, files, _recent.read()), ""):
        raise NoRoom(f"there is no room for another sandbox now: {problem}")


def is_tight() -> bool:
    """Whether processes or memory run short, no matter which programs use them."""
    return any(shortages(0, 0, Bound(0, resource.RLIM_INFINITY, ""), _recent.read()))


def shortages(count: int, making: int, files: Bound, readings: Readings) -> Iterator[str]:
    """Names what is too short for one more sandbox, and what sets the limit."""
    now = making + 1  # the readings may not show these yet
    if files.most != resource.RLIM_INFINITY:
        spoken_for = count * DESCRIPTORS_EACH + files.most // 8  # the rest is for connections and one-shot programs
        if spoken_for > files.most or files.used + _DESCRIPTORS_NOW > files.most:
            yield f"{count} sandboxes need most of the {files.most} files that the server may open (ulimit -n)"
    for used, most, where in readings.processes:
        if used + now * _PROCESSES_NOW > most:
            yield f"{used} of the {most} processes are there already that {where}"
    for used, most, where in readings.memory:
        if most - used < min(_MEMORY_RESERVE, most // 16):
            yield f"{max(0, most - used) // 2**20} of {most // 2**20} MiB of memory are left {where}"


class _Recent:
    """Caches readings for a moment."""

    def __init__(self) -> None:
        self._readings = Readings((), ())
        self.until = 0.0
        """By the monotonic clock."""

    def read(self) -> Readings:
        if time.monotonic() >= self.until:
            began = time.thread_time()
            self._readings = read()
            self.until = time.monotonic() + max(_FRESH_SECONDS, _FRESH_SHARE * (time.thread_time() - began))
        return self._readings


_recent = _Recent()


def read() -> Readings:
    groups = groups_around()
    return Readings(
        [*_machines_processes(), *(bound for group in groups for bound in groups_processes(group))],
        [*_machines_memory(), *(bound for group in groups for bound in groups_memory(group))],
    )


def _descriptors_used() -> int:
    """A lower bound: the lowest free descriptor. Counting them all would take longer with each."""
    try:
        free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.close(free)
    return free


# The machine and the user.


def _machines_processes() -> Iterator[Bound]:
    try:
        used = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
        kernel = Path("/proc/sys/kernel")
        for name in ("pid_max", "threads-max"):
            yield Bound(used, int((kernel / name).read_text()), f"this machine may have (kernel.{name})")
        yield from _users_processes(used)
    except (OSError, ValueError, IndexError):  # not Linux, or we may not read it
        return


def _users_processes(all_users: int) -> Iterator[Bound]:
    """The kernel does not apply this limit to root. Counting a user's processes is slow where there are many, so count
    them only when the processes of all users come near the limit."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY and 2 * all_users > most:
        yield Bound(sum(_threads_of(os.geteuid())), most, "the server's user may have (ulimit -u)")


def _threads_of(user: int) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            about = os.stat(f"/proc/{name}/task")
        except OSError:  # it has ended
            continue
        if about.st_uid == user:
            yield about.st_nlink - 2  # one directory for each thread, `.` and `..`


def _machines_memory() -> Iterator[Bound]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines[:4])}
        yield Bound(found["MemTotal"] - found["MemAvailable"], found["MemTotal"], "on this machine")
    except (OSError, ValueError, KeyError, IndexError):
        return


# The control groups of the server, from its own up. Its sandboxes' groups are below its own.


def groups_processes(group: LimitedGroup) -> Iterator[Bound]:
    if "pids" in group.controllers:
        most = number(f"{group.path}/pids.max")
        if most is not None:
            yield Bound(
                number(f"{group.path}/pids.current") or 0, most, f"the control group {group.path} may have (pids.max)"
            )


def groups_memory(group: LimitedGroup) -> Iterator[Bound]:
    if "memory" not in group.controllers:
        return
    names = ("memory.max", "memory.current", "inactive_file")
    if group.version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    most = number(f"{group.path}/{names[0]}")
    if most is not None and most < 2**60:  # version 1 writes a huge number for no limit
        used = (number(f"{group.path}/{names[1]}") or 0) - statistic(f"{group.path}/memory.stat", names[2])
        yield Bound(max(0, used), most, f"in the control group {group.path} ({names[0]})")


# What the server needs for everything else that it opens: connections, files, threads, processes.

_FILES_RESERVE = 32
"""With fewer files left, no client should be sent here; a sixteenth of all files if that is less."""


def scarcities(*, memory: bool) -> Iterator[str]:
    """Names what this process has almost used up. The text names the limit and nothing else of the host."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY:
        enough = min(_FILES_RESERVE, most // 16)
        if (left := files_left(enough)) < enough:
            yield f"{left} more files can be opened, of {most} in all (ulimit -n)"
    readings = _recent.read()
    for bound in readings.processes:
        if bound.used + _PROCESSES_NOW > bound.most:
            left = max(0, bound.most - bound.used)
            yield f"{left} more processes and threads can be started, of {bound.most} in all ({bound.limit})"
    for used, most, _ in readings.memory if memory else ():
        if most - used < min(_MEMORY_RESERVE, most // 16):
            yield f"{max(0, most - used) // 2**20} of {most // 2**20} MiB of memory are left"


def files_left(most: int) -> int:
    """How many more files this process can open, up to `most`. It opens them: counting the open ones would take longer
    the more there are, and the lowest free number does not say how many are free above it."""
    tried: list[int] = []
    try:
        tried.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        while len(tried) < most:
            tried.append(os.dup(tried[0]))
    except OSError:
        pass
    finally:
        for one in tried:
            os.close(one)
    return len(tried)
