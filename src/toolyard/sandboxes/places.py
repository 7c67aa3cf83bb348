"""Limits how many sandboxes are made, or used once, at the same time. Others wait here, first come, first served."""

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
"""More programs than this that only compute delay each other while their time limits run: with 32 for each processor,
one that computes for a third of a second takes ten."""
IDLE_PER_PROCESSOR = 32
"""The limit while processors are idle. Otherwise 50 programs that hang would keep the others waiting until their time
limits end them."""
_FILES_EACH = 6
"""Descriptors of this process that a program run once uses. All programs together may use half of its limit."""
_LOOK_SECONDS = 0.1


class Places(Protocol):
    """Every place taken must be given back."""

    async def take(self) -> None:
        """Wait for a place. If the wait is cancelled, no place is taken."""

    def give_back(self) -> None: ...


class OwnPlaces:
    """The places of this process: `most`, or the usual number for one of `share` processes that divide the machine.

    The usual number may be exceeded while processors are idle; an explicit `most` never is.
    """

    def __init__(self, most: int = 0, *, share: int = 1) -> None:
        self._most = most or usual(share)
        self._most_idle = most or usual(share, IDLE_PER_PROCESSOR)
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._idleness: Idleness | None = None
        """Set while there are waiters."""

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
            if not turn.cancelled():  # it already had its place
                self.give_back()
            raise

    def give_back(self) -> None:
        self._taken -= 1
        self._admit(self._most)

    def _admit(self, most: int) -> None:
        """Admit waiters until this many places are taken."""
        while self._waiting and (self._taken < most or self._waiting[0].done()):
            turn = self._waiting.popleft()
            if not turn.done():  # by cancellation
                turn.set_result(None)
                self._taken += 1

    def _watch(self) -> None:
        if self._idleness is None and self._most_idle > self._most:
            self._idleness = Idleness()
            asyncio.get_running_loop().call_later(_LOOK_SECONDS, self._look)

    def _look(self) -> None:
        """While processors are idle, admit half as many again. Their load shows before the next ones are admitted."""
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
    """Whether this is part of work that has a place. Such work never waits for a second place: if all work did, none
    would ever finish."""
    return _has_place.get()


@contextmanager
def in_place() -> Iterator[None]:
    """Marks everything in the block as part of work that has a place."""
    before = _has_place.get()
    _has_place.set(True)
    try:
        yield
    finally:
        _has_place.set(before)  # not by a token: a generator may be closed in a different context
