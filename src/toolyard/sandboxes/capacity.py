"""Whether this process, its control groups and its machine have room for one more sandbox that stays. Asked before
anything is made."""

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
"""What a sandbox takes of this process when its interpreter, its shell and a program run."""
_DESCRIPTORS_NOW = 12
"""What it takes, at most, while it is made."""
_PROCESSES_NOW = 16
_MEMORY_RESERVE = 256 * 2**20
"""Bytes that are left for everything else, unless there is so little in all that a sixteenth of it is less."""
_FRESH_SECONDS = 0.02
"""What was read holds for so long: ten thousand who ask at once read it a few times, not ten thousand."""
_FRESH_SHARE = 50
"""It also holds for so many times as long as it took to read, so that reading takes 2 % of a processor at most."""


class Bound(NamedTuple):
    """How much of something is used, of how much at most, and what sets that."""

    used: int
    most: int
    where: str


class Readings(NamedTuple):
    processes: Sequence[Bound]
    """Threads count as such."""
    memory: Sequence[Bound]
    """In bytes."""


def check(count: int, making: int = 0) -> None:
    """Raise `NoRoom` if one more beside `count` of them has no room. `making` of those are not there yet."""
    files = Bound(_descriptors_used(), resource.getrlimit(resource.RLIMIT_NOFILE)[0], "")
    if problem := next(shortages(count, making, files, _recent.read()), ""):
        raise NoRoom(f"there is no room for another sandbox now: {problem}")


def is_tight() -> bool:
    """Whether processes or memory run short, whoever uses them."""
    return any(shortages(0, 0, Bound(0, resource.RLIM_INFINITY, ""), _recent.read()))


def shortages(count: int, making: int, files: Bound, readings: Readings) -> Iterator[str]:
    """What there is too little of for one more, and what sets the limit."""
    now = making + 1  # none of which the readings need show
    if files.most != resource.RLIM_INFINITY:
        spoken_for = count * DESCRIPTORS_EACH + files.most // 8  # the rest is for connections, and what runs only once
        if spoken_for > files.most or files.used + _DESCRIPTORS_NOW > files.most:
            yield f"{count} sandboxes need most of the {files.most} files that the server may open (ulimit -n)"
    for used, most, where in readings.processes:
        if used + now * _PROCESSES_NOW > most:
            yield f"{used} of the {most} processes are there already that {where}"
    for used, most, where in readings.memory:
        if most - used < min(_MEMORY_RESERVE, most // 16):
            yield f"{max(0, most - used) // 2**20} of {most // 2**20} MiB of memory are left {where}"


class _Recent:
    """Readings that are at most a moment old."""

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
    """At least: the lowest number that is free. To count them all would take longer with each."""
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
    except (OSError, ValueError, IndexError):  # not Linux, or it is hidden from us
        return


def _users_processes(all_users: int) -> Iterator[Bound]:
    """The kernel does not hold root to this limit. To count a user's processes takes long where there are many, so they
    are counted only when those of all users come near the limit."""
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    if os.geteuid() != 0 and most != resource.RLIM_INFINITY and 2 * all_users > most:
        yield Bound(sum(_threads_of(os.geteuid())), most, "the server's user may have (ulimit -u)")


def _threads_of(user: int) -> Iterator[int]:
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            about = os.stat(f"/proc/{name}/task")
        except OSError:  # it has ended meanwhile
            continue
        if about.st_uid == user:
            yield about.st_nlink - 2  # a directory for each, beside itself and the one above


def _machines_memory() -> Iterator[Bound]:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines[:4])}
        yield Bound(found["MemTotal"] - found["MemAvailable"], found["MemTotal"], "on this machine")
    except (OSError, ValueError, KeyError, IndexError):
        return


# The control groups that the server is in, from its own up. Its sandboxes' are below its own.


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
    if most is not None and most < 2**60:  # version 1 has no word for none
        used = (number(f"{group.path}/{names[1]}") or 0) - statistic(f"{group.path}/memory.stat", names[2])
        yield Bound(max(0, used), most, f"in the control group {group.path} ({names[0]})")


# What is left for everything else that a server opens: connections, files, threads, processes.

_FILES_RESERVE = 32
"""Files with fewer of which left nobody should be sent here; a sixteenth of all if that is less."""


def scarcities(*, memory: bool) -> Iterator[str]:
    """What this process has next to nothing left of, in words that name the limit and nothing of the host."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY:
        enough = min(_FILES_RESERVE, most // 16)
        if (left := files_left(enough)) < enough:
            yield f"{left} more files can be opened, of {most} in all (ulimit -n)"
    readings = _recent.read()
    for used, most, where in readings.processes:
        if used + _PROCESSES_NOW > most:
            limit = where.rpartition("(")[2].rstrip(")")
            yield f"{max(0, most - used)} more processes and threads can be started, of {most} in all ({limit})"
    for used, most, _ in readings.memory if memory else ():
        if most - used < min(_MEMORY_RESERVE, most // 16):
            yield f"{max(0, most - used) // 2**20} of {most // 2**20} MiB of memory are left"


def files_left(most: int) -> int:
    """How many more this process can open, up to `most`. By trying: to count those that are open takes longer the more
    there are, and the lowest free number tells nothing of how many are free above it."""
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
