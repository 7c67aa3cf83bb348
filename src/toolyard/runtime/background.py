"""`Background` owns the background tasks of the runtime: it logs those that break, and waits for all at the end."""

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
        """Own a task that runs already."""
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    async def stop(self, seconds: float) -> None:
        """Wait for tasks that still run, such as teardowns, but no longer than this. Then cancel them."""
        if not self._tasks:
            return
        _, late = await asyncio.wait(self._tasks, timeout=seconds)
        for task in late:
            log.error("this did not end within %g s: %s", seconds, task)
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("a background task of the server broke", exc_info=error)
