"""Deadlines that are fair when this process stood still: they do not count stalls, and read first what has arrived.

When a process was stopped, or its event loop was blocked, its timers are due before it has read what others sent
meanwhile. `asyncio.timeout` then gives up on answers that have arrived. Use `deadline()`, `first_of()` or a `Countdown`
to wait for another process.
"""

from __future__ import annotations

import asyncio
import time
import weakref
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

_BEAT_SECONDS = 0.2
_LATE_SECONDS = 0.1
"""A timer that fires later than this shows a stall."""
_EXTENSIONS_MOST = 3
_TURNS = 8
"""Turns of the event loop before time is over: a message that has arrived passes through a few callbacks."""


class Stalls:
    """Measures how long one event loop stood still, by a heartbeat that runs while a countdown does."""

    _last: Stalls | None = None
    """That of the loop that asked last. Most processes have one loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._total = 0.0
        self._counting = 0
        self._due = 0.0
        """When the next heartbeat is due; 0 if there is none."""

    @classmethod
    def of(cls, loop: asyncio.AbstractEventLoop) -> Stalls:
        if (last := cls._last) is not None and last._loop() is loop:  # faster than a look-up by weak reference
            return last
        found = _stalls.get(loop)
        if found is None:
            found = _stalls[loop] = cls(loop)
        cls._last = found
        return found

    def begin(self) -> float:
        """Measure stalls until `end()`. Return the seconds so far."""
        self._counting += 1
        if not self._due:
            self._next()
            return self._total
        return self.seconds

    def end(self) -> None:
        self._counting -= 1

    @property
    def seconds(self) -> float:
        """Seconds of all stalls, including one that has just ended and whose heartbeat has not fired yet."""
        return self._total + (self._late() if self._due else 0.0)

    def _late(self) -> float:
        late = time.monotonic() - self._due
        return late + _BEAT_SECONDS if late > _LATE_SECONDS else 0.0  # it may have begun right after the last one

    def _next(self) -> None:
        loop = self._loop()
        if loop is not None:
            self._due = time.monotonic() + _BEAT_SECONDS
            loop.call_later(_BEAT_SECONDS, self._beat)

    def _beat(self) -> None:
        self._total += self._late()
        self._due = 0.0
        if self._counting:
            self._next()


_stalls: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Stalls] = weakref.WeakKeyDictionary()


class Countdown:
    """Calls `over` after so many seconds in which the event loop ran.

    After a stall it waits again, as long as the stall took but at most `seconds`, and at most a few times. Then it lets
    the loop read what has arrived: an owner that finds its answer there cancels the countdown.
    """

    __slots__ = (
        "_before",
        "_cancelled",
        "_extensions",
        "_given_for",
        "_loop",
        "_over",
        "_seconds",
        "_stalls",
        "_timer",
    )

    def __init__(self, seconds: float, over: Callable[[], None]) -> None:
        self._seconds = seconds
        self._over = over
        self._loop = asyncio.get_running_loop()
        self._stalls = Stalls.of(self._loop)
        self._before = self._given_for = self._stalls.begin()
        self._extensions = 0
        self._cancelled = False
        self._timer: asyncio.Handle = self._loop.call_later(seconds, self._due)

    @property
    def stalled_seconds(self) -> float:
        """How long the loop stood still since the beginning."""
        return self._stalls.seconds - self._before

    def cancel(self) -> None:
        if not self._cancelled:
            self._cancelled = True
            self._stalls.end()
            self._timer.cancel()
            self._over = _nothing  # the callback may refer to us, and a cycle would live on

    def _due(self) -> None:
        now = self._stalls.seconds
        owed, self._given_for = now - self._given_for, now
        if owed > 0 and self._extensions < _EXTENSIONS_MOST:
            self._extensions += 1
            self._timer = self._loop.call_later(min(owed, self._seconds), self._due)
        else:
            self._settle(_TURNS)

    def _settle(self, turns: int) -> None:
        if turns:
            self._timer = self._loop.call_soon(self._settle, turns - 1)
        else:
            over = self._over
            self.cancel()
            over()


def _nothing() -> None: ...


class deadline:
    """As `asyncio.timeout`, for the answer of another process: a `Countdown` decides when to raise TimeoutError."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._limit = asyncio.timeout(None)

    async def __aenter__(self) -> Self:
        await self._limit.__aenter__()
        self._countdown = Countdown(self._seconds, self._expire)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._countdown.cancel()
        await self._limit.__aexit__(kind, error, traceback)

    def _expire(self) -> None:
        self._limit.reschedule(asyncio.get_running_loop().time())


async def first_of(futures: Iterable[asyncio.Future[Any]], seconds: float) -> bool:
    """Wait until one of them is done, as `asyncio.wait` does. Return whether one was done in time."""
    futures = tuple(futures)
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    countdown = Countdown(seconds, lambda: over.set_result(None))
    try:
        await asyncio.wait((*futures, over), return_when=asyncio.FIRST_COMPLETED)
    finally:
        countdown.cancel()
    return any(future.done() for future in futures)
