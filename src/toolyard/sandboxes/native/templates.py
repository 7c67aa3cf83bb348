"""The template processes of one profile. A sandbox is a copy of the least busy one."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

from toolyard.core.errors import SandboxError, SandboxLost
from toolyard.sandboxes.native.agent_client import within
from toolyard.sandboxes.native.channel import Channel

log = logging.getLogger("toolyard.sandbox")

_SECONDS = 60.0
"""Time for a helper process to get ready."""
_PAUSE_SECONDS = 1.0
"""Pause after a failed start, unless there is no other template."""


class Helper:
    """A channel to a process of ours, which reports once that it is ready."""

    def __init__(self, sock: socket.socket) -> None:
        self._told: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self.channel = Channel(sock, on_event=self._event, on_lost=self._lost, trusted=True)

    async def ready(self) -> Mapping[str, Any]:
        async with within(_SECONDS, "a process that it needs does not get ready"):
            return await self._told

    def _event(self, event: Mapping[str, Any]) -> None:
        if not self._told.done():
            self._told.set_result(event)

    def _lost(self, why: str) -> None:
        self._event({"failed": why})


class Templates:
    """Up to `most` templates, started as needed: the first at once, another one while all are busy."""

    def __init__(self, most: int, start: Callable[[], Awaitable[Helper]]) -> None:
        self._most = most
        self._start = start
        self._there: list[Helper] = []
        self._starting: asyncio.Task[None] | None = None
        self._not_before = 0.0
        """The earliest time to start another one, by the loop's clock."""

    @classmethod
    def of(cls, there: Sequence[Helper]) -> Self:
        """Use these and start no others."""
        templates = cls(0, _none)
        templates._there = [*there]
        return templates

    @property
    def alive(self) -> list[Helper]:
        self._there[:] = [one for one in self._there if not one.channel.lost]
        return self._there

    async def idlest(self) -> Helper:
        """The least busy template. Waits only if there is none, and raises what prevents starting one."""
        while not (there := self.alive):
            await self._another()
        chosen = min(there, key=lambda one: one.channel.unanswered)
        if chosen.channel.unanswered and len(there) < self._most:
            self._begin_in_time()
        there.remove(chosen)
        there.append(chosen)  # idle ones take turns
        return chosen

    async def all(self) -> Sequence[Helper]:
        """All templates that may exist, or fewer if no more can be started."""
        while len(self.alive) < self._most:
            try:
                await self._another()
            except SandboxError:
                if not self.alive:
                    raise
                break
        return [*self.alive]

    async def close(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            await asyncio.wait((self._starting,))
        for one in self._there:
            one.channel.close()

    async def _another(self) -> None:
        """Wait for one more. A cancelled caller does not cancel the start for the others."""
        starting = self._begin()
        await asyncio.wait((starting,))
        if starting.cancelled():
            raise SandboxLost("the sandbox is gone: what was to make it was closed")
        starting.result()

    def _begin_in_time(self) -> None:
        if asyncio.get_running_loop().time() >= self._not_before:
            self._begin()

    def _begin(self) -> asyncio.Task[None]:
        """Start one more, unless one is starting."""
        if self._starting is None:
            self._starting = asyncio.ensure_future(self._start_one())
            self._starting.add_done_callback(self._started)
        return self._starting

    async def _start_one(self) -> None:
        one = await self._start()
        self._there.append(one)

    def _started(self, starting: asyncio.Task[None]) -> None:
        self._starting = None
        if not starting.cancelled() and (error := starting.exception()) is not None:
            self._not_before = asyncio.get_running_loop().time() + _PAUSE_SECONDS
            if self.alive:  # otherwise the waiting callers get the exception
                log.warning("another process for sandboxes could not be started: %s", error)


async def _none() -> NoReturn:
    raise SandboxLost("the sandbox is gone: what was to make it has ended")
