"""Every background task has this owner: none is forgotten, and none that breaks takes another with it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger("toolyard.runtime")


class Background:
    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self.own(task)
        return task

    def own(self, task: asyncio.Task[None]) -> None:
        """Look after a task that runs already."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self, seconds: float) -> None:
        """Wait for what still runs, such as teardowns, but not longer than this; then cancel it."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            log.error("this did not end within %g s: %s", seconds, task)
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a background task of ours broke", exc_info=error)
