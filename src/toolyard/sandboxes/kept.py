"""Keeps idle interpreters for trusted code, each of which serves many. None of them ever runs an agent's code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from toolyard.sandboxes.base import Interpreter, Profile

_IDLE_SECONDS = 2.0
_IDLE_MOST = 4
_USES_MOST = 200
"""So that leftovers, such as fragmented memory, do not add up."""


@dataclass(slots=True)
class _Kept:
    interpreter: Interpreter
    profile: Profile
    uses: int = 0
    idle_since: float = 0.0


class KeptInterpreters:
    """Idle interpreters. They end after a while, or when their owner calls `close`."""

    def __init__(self, end: Callable[[Interpreter], None]) -> None:
        self._end = end
        self._idle: list[_Kept] = []
        self._closing: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._idle)

    @asynccontextmanager
    async def use(self, profile: Profile, opens: Callable[[], Awaitable[Interpreter]]) -> AsyncIterator[Interpreter]:
        """An idle interpreter, or a new one. It is kept only if the block ends without an exception."""
        kept = self._taken(profile) or _Kept(await opens(), profile)
        try:
            yield kept.interpreter
        except BaseException:  # failed work may still be running
            self._end(kept.interpreter)
            raise
        self._give_back(kept)

    def close(self) -> None:
        if self._closing is not None:
            self._closing.cancel()
            self._closing = None
        while self._idle:
            self._end(self._idle.pop().interpreter)

    def _taken(self, profile: Profile) -> _Kept | None:
        for kept in reversed([one for one in self._idle if one.profile == profile]):
            self._idle.remove(kept)
            if getattr(kept.interpreter, "alive", True):
                return kept
            self._end(kept.interpreter)
        return None

    def _give_back(self, kept: _Kept) -> None:
        kept.uses += 1
        if kept.uses >= _USES_MOST or len(self._idle) >= _IDLE_MOST:
            self._end(kept.interpreter)
            return
        loop = asyncio.get_running_loop()
        kept.idle_since = loop.time()
        self._idle.append(kept)
        if self._closing is None:
            self._closing = loop.call_later(_IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0].idle_since + _IDLE_SECONDS <= loop.time():
            self._end(self._idle.pop(0).interpreter)
        due = self._idle[0].idle_since + _IDLE_SECONDS if self._idle else None
        self._closing = None if due is None else loop.call_at(due, self._close_idle)
