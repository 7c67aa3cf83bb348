"""How many sandboxes are made or used once at the same time. The others wait here, first come, first served."""

from __future__ import annotations

import asyncio
import resource
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

from toolyard.sandboxes import capacity
from toolyard.sandboxes.processors import Idleness, usable

PER_PROCESSOR = 8
"""Programs that compute only wait for each other when there are more, and each uses up its own time limit meanwhile:
with 32 for each processor, one that computes for a third of a second takes ten."""
IDLE_PER_PROCESSOR = 32
"""So many there may be while processors are idle. Programs that sleep or wait for input then hold up nobody: 50 that
hang would otherwise keep the others waiting for as long as they may run."""
_FILES_EACH = 6
"""What a program that runs once takes of this process. All of them together may take half of what it may open."""
_LOOK_SECONDS = 0.1


class Places(Protocol):
    """Whoever takes a place gives it back."""

    async def take(self) -> None:
        """Wait for a place. Whoever gives up waiting has none."""

    def give_back(self) -> None: ...


class OwnPlaces:
    """The places of this process: `most`, or what is usual for one of `share` processes that divide the machine.

    Those who wait get more than usual while processors are idle. A number that was asked for is never exceeded.
    """

    def __init__(self, most: int = 0, *, share: int = 1) -> None:
        self._most = most or usual(share)
        self._most_idle = most or usual(share, IDLE_PER_PROCESSOR)
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idleness: Idleness | None = None
        """While somebody waits."""

    async def take(self) -> None:
        if self._taken < self._most and not self._waiting:
            self._taken += 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        self._watch()
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had a place already
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        self._admit(self._most)

    def _admit(self, most: int) -> None:
        """Until so many are taken."""
        while self._waiting and (self._taken < most or self._waiting[0].done()):
            turn = self._waiting.popleft()
            if not turn.done():  # by giving up
                turn.set_result(None)
                self._taken += 1

    def _watch(self) -> None:
        if self._idleness is None and self._most_idle > self._most:
            self._idleness = Idleness()
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """Let in half as many again while processors are idle: what those do is seen before the next are let in."""
        assert self._idleness is not None
        if self._idleness.seen() and not capacity.is_tight():
            self._admit(min(self._most_idle, self._taken + self._taken // 2 + 1))
        if self._waiting:
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)
        else:
            self._idleness = None


def usual(share: int = 1, per_processor: int = PER_PROCESSOR) -> int:
    """The number of places for one of `share` processes that divide this machine."""
    places = per_processor * usable()
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files != resource.RLIM_INFINITY:
        places = min(places, max(1, files // 2 // _FILES_EACH))
    return -(-places // share)


_has_place: ContextVar[bool] = ContextVar("toolyard place", default=False)


def has_place() -> bool:
    """Whether this is part of work that has a place. Such work never waits for a second one: if all did, none of them
    would ever get on."""
    return _has_place.get()


@contextmanager
def in_place() -> Iterator[None]:
    """Everything in here is part of work that has a place."""
    before = _has_place.get()
    _has_place.set(True)
    try:
        yield
    finally:
        _has_place.set(before)  # not by a token: a generator may be closed in another context than its own
