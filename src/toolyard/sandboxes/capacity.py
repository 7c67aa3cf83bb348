"""Whether this process and its machine have room for one more sandbox that stays. Asked before anything is made."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

DESCRIPTORS_EACH = 12
"""What a sandbox takes of this process when its interpreter, its shell and a program run."""
_DESCRIPTORS_NOW = 12
"""What it takes, at most, while it is made."""
_PROCESSES_NOW = 16
_MEMORY_RESERVE = 256 * 2**20
"""Bytes that are left for everything else, unless the machine is so small that a sixteenth of it is less."""


def shortage(count: int) -> str:
    """What there is too little of for one more beside `count` of them, and what to do about it; empty if nothing."""
    return next(_shortages(count), "")


def _shortages(count: int) -> Iterator[str]:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if most != resource.RLIM_INFINITY:
        spoken_for = count * DESCRIPTORS_EACH + most // 8  # the rest is for connections, and for what runs only once
        if spoken_for > most or _descriptors_used() + _DESCRIPTORS_NOW > most:
            yield f"{count} sandboxes need most of the {most} files that the server may open (ulimit -n)"
    used, processes = _processes()
    if used + _PROCESSES_NOW > processes:
        yield f"{used} of the {processes} processes of this machine are there already (kernel.pid_max)"
    total, available = _memory()
    if available < min(_MEMORY_RESERVE, total // 16):
        yield f"{available // 2**20} MiB of memory are left on this machine"


def _descriptors_used() -> int:
    """At least: the lowest number that is free. To count them all would take longer with each."""
    try:
        free = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    os.close(free)
    return free


def _processes() -> tuple[int, int]:
    """Threads count as such."""
    try:
        used = int(Path("/proc/loadavg").read_text().split()[3].partition("/")[2])
        kernel = Path("/proc/sys/kernel")
        return used, min(int((kernel / name).read_text()) for name in ("pid_max", "threads-max"))
    except (OSError, ValueError, IndexError):  # not Linux, or it is hidden from us
        return 0, 2**22


def _memory() -> tuple[int, int]:
    """All of it, and what is available, in bytes."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        found = {name: int(size.split()[0]) * 1024 for name, _, size in (line.partition(":") for line in lines[:4])}
        return found["MemTotal"], found["MemAvailable"]
    except (OSError, ValueError, KeyError, IndexError):
        return 0, 0
