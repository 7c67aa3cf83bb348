"""Sandboxes made in advance, so that callers do not wait for one."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, Protocol, TypeVar

log = logging.getLogger("toolyard.sandbox")


_LATER_SECONDS = 0.005
"""Delay before replacing a sandbox that was taken: its new user has the processor first."""


class RehearsedSandbox(Protocol):
    @property
    def alive(self) -> bool: ...

    async def rehearse(self) -> None:
        """Do once what it will be asked to do, and leave no trace."""

    async def close(self) -> None: ...


S = TypeVar("S", bound=RehearsedSandbox)


class SandboxPool(Generic[S]):
    def __init__(self, make: Callable[[], Awaitable[S]], size: int) -> None:
        self._make = make
        self._size = size
        self._ready: deque[S] = deque()
        self._taken = asyncio.Event()
        self._filling = asyncio.ensure_future(self._fill())

    def __len__(self) -> int:
        return len(self._ready)

    async def take(self) -> S:
        while self._ready:
            self._taken.set()
            sandbox = self._ready.popleft()
            if sandbox.alive:
                return sandbox
            await sandbox.close()
        self._taken.set()
        return await self._make()

    async def close(self) -> None:
        self._filling.cancel()
        await asyncio.gather(self._filling, return_exceptions=True)
        while self._ready:  # while one ends, others may take one or close the pool
            await self._ready.popleft().close()

    async def _fill(self) -> None:
        while True:
            await self._taken.wait()
            self._taken.clear()
            await asyncio.sleep(_LATER_SECONDS)
            try:
                while len(self._ready) < self._size:
                    self._ready.append(await self._rehearsed())
            except Exception:  # the next caller makes its own and gets the exception
                log.exception("no sandbox could be made in advance")

    async def _rehearsed(self) -> S:
        sandbox = await self._make()
        try:
            await sandbox.rehearse()
        except BaseException:
            await sandbox.close()
            raise
        return sandbox
