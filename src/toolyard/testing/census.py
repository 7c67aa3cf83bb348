"""What a process holds on to: threads, open files, child processes, asyncio tasks. Two counts show what leaks."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_LASTING_THREADS = ("toolyard-plain", "toolyard-loopwatch", "asyncio_")
"""Prefixes of the names of threads that live on: Toolyard's, and those that all share through `asyncio.to_thread`."""
_LOOKS, _LOOK_SECONDS = 10, 0.1


@dataclass(frozen=True, slots=True)
class Census:
    threads: Sequence[str]
    files: Sequence[str]
    """Open files, sockets and pipes; empty on a system that does not list them."""
    processes: Sequence[str]
    coroutines: Sequence[str]
    """asyncio's tasks, by the name of what they run."""

    @classmethod
    def take(cls) -> Census:
        """Count now, in the running loop."""
        gc.collect()
        return cls(
            threads=[thread.name for thread in threading.enumerate() if not thread.name.startswith(_LASTING_THREADS)],
            files=_open_files(),
            processes=_children(),
            coroutines=[str(getattr(task.get_coro(), "__qualname__", task)) for task in asyncio.all_tasks()],
        )

    def growth(self, before: Census) -> dict[str, list[str]]:
        """What was added since `before`, by kind."""
        kinds = {
            "threads": (self.threads, before.threads),
            "open files": (self.files, before.files),
            "child processes": (self.processes, before.processes),
            "asyncio tasks": (self.coroutines, before.coroutines),
        }
        return {kind: _more(now, then) for kind, (now, then) in kinds.items() if len(now) > len(then)}


async def growth_since(before: Census) -> dict[str, list[str]]:
    """What was added since `before`; waits a moment for what is about to end."""
    for _ in range(_LOOKS):
        growth = Census.take().growth(before)
        if not growth:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return growth


def _more(now: Sequence[str], then: Sequence[str]) -> list[str]:
    """The last `len(now) - len(then)` new names; names may repeat, and the system reuses numbers."""
    left = list(then)
    new = []
    for name in now:
        if name in left:
            left.remove(name)
        else:
            new.append(name)
    return new[-(len(now) - len(then)) :]


def _open_files() -> Sequence[str]:
    folder = Path("/proc/self/fd") if Path("/proc/self/fd").is_dir() else Path("/dev/fd")
    if not folder.is_dir():
        return []
    found = []
    for number in os.listdir(folder):
        try:
            found.append(os.readlink(folder / number))
        except OSError:
            continue  # the descriptor that listed the folder
    return found


def _children() -> Sequence[str]:
    """Child processes that still run, or that wait to be reaped. Linux only."""
    lists = Path("/proc/self/task").glob("*/children")
    return [pid for children in lists for pid in children.read_text().split()]
