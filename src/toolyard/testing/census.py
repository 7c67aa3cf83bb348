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
"""How the names of threads begin that are here to stay: ours, and those of `asyncio.to_thread`, which all share."""
_LOOKS, _LOOK_SECONDS = 10, 0.1


@dataclass(frozen=True, slots=True)
class Census:
    threads: Sequence[str]
    files: Sequence[str]
    """Open files, sockets and pipes; none where the system does not tell."""
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
        """What is here and was not there before, by kind."""
        kinds = {
            "threads": (self.threads, before.threads),
            "open files": (self.files, before.files),
            "child processes": (self.processes, before.processes),
            "asyncio tasks": (self.coroutines, before.coroutines),
        }
        return {kind: _more(now, then) for kind, (now, then) in kinds.items() if len(now) > len(then)}


async def growth_since(before: Census) -> dict[str, list[str]]:
    """What there is more of; what is about to end gets a moment to do so."""
    for _ in range(_LOOKS):
        growth = Census.take().growth(before)
        if not growth:
            break
        await asyncio.sleep(_LOOK_SECONDS)
    return growth


def _more(now: Sequence[str], then: Sequence[str]) -> list[str]:
    """The last `len(now) - len(then)` of those that are new; names may repeat, and numbers may be given again."""
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
            continue  # the one that listed the folder
    return found


def _children() -> Sequence[str]:
    """Processes that we started and that still run, or that nobody has waited for. Linux only."""
    lists = Path("/proc/self/task").glob("*/children")
    return [pid for children in lists for pid in children.read_text().split()]
