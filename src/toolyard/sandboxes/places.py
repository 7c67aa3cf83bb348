"""How many sandboxes are made or used once at the same time. The others wait here, first come, first served."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Protocol

PER_PROCESSOR = 8
"""More of them than this only wait for each other, and each for its own time limit as well."""


class Places(Protocol):
    """Whoever takes a place gives it back."""

    async def take(self) -> None:
        """Wait for a place. Whoever gives up waiting has none."""

    def give_back(self) -> None: ...


class OwnPlaces:
    """The places of this process."""

    def __init__(self, most: int = 0) -> None:
        self._free = asyncio.Semaphore(most or usual())

    async def take(self) -> None:
        await self._free.acquire()

    def give_back(self) -> None:
        self._free.release()


def usual() -> int:
    """The number of places for all of this machine."""
    return PER_PROCESSOR * processors()


def processors() -> int:
    """Those that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
