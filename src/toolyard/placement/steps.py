"""Work that may never wait: done on the spot if it does not, and beside the rest only if it does."""

from __future__ import annotations

import asyncio
import time
import types
from collections.abc import Callable, Coroutine, Generator, Iterator, Sequence
from itertools import islice
from operator import length_hint
from typing import Any, TypeAlias, TypeVar

T = TypeVar("T")
R = TypeVar("R")

Later: TypeAlias = R | Coroutine[Any, Any, R]
"""Something now, or the rest of what has to wait for it."""

_PORTION = 128
"""So much is done without waiting before a look at the clock."""
BREATH = 0.001
"""Seconds of such work before others have their turn on the loop."""


def at_once(work: Coroutine[Any, Any, R]) -> Later[R]:
    """Begin it here and now; if it turns out to wait, the task of the caller has to await the rest."""
    try:
        waits_for = work.send(None)
    except StopIteration as done:
        result: R = done.value
        return result

    async def rest() -> R:
        return await rest_of(work, waits_for)

    return rest()


@types.coroutine
def rest_of(work: Coroutine[Any, Any, R], waits_for: object) -> Generator[object, Any, R]:
    """Go on with a coroutine that was begun with `send(None)`, in the same task, when it turned out to wait."""
    while True:
        try:
            sent = yield waits_for
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            thrown: BaseException | None = error
        else:
            thrown = None
        try:
            waits_for = work.send(sent) if thrown is None else work.throw(thrown)
        except StopIteration as done:
            result: R = done.value
            return result


async def all_of(items: Sequence[T], work: Callable[[T], Later[R]], *, portion: int = _PORTION) -> list[R]:
    """What the work comes to for each item: done all at once where it waits; where not, no dearer than in a loop.

    Work that waits returns a coroutine, which is then awaited in the task in which it began. After each portion that
    did not wait, others may have their turn.
    """
    results: list[Any] = [None] * len(items)

    async def put(i: int, rest: Coroutine[Any, Any, R]) -> None:
        results[i] = await rest

    def some(left: Iterator[int]) -> Coroutine[Any, Any, None] | None:
        for i in islice(left, portion):
            result = work(items[i])
            if isinstance(result, types.CoroutineType):
                return put(i, result)
            results[i] = result
        return None

    await in_lanes(len(items), some)
    return results


async def in_lanes(count: int, work: Callable[[Iterator[int]], Coroutine[Any, Any, None] | None]) -> None:
    """Work that takes numbers below `count` from what is left of them, until it waits: then it returns the rest of
    that. Or until others should have their turn: then it returns None."""
    await _Lanes(count, work).run()


_RESTING: set[asyncio.Task[Any] | None] = set()
"""Tasks that do not wait, but let others have their turn. A lane may do so in lanes that its work has in turn: no other
is to be opened for that, or together they would keep the loop for as long as all of them may."""


async def _rest() -> None:
    task = asyncio.current_task()
    _RESTING.add(task)
    try:
        await asyncio.sleep(0)
    finally:
        _RESTING.discard(task)


class _Lanes:
    """Tasks that share a queue. Whichever waits leaves the rest of it to others, of which there are more and more."""

    def __init__(self, count: int, work: Callable[[Iterator[int]], Coroutine[Any, Any, None] | None]) -> None:
        self._left = iter(range(count))
        self._work = work
        self._first = asyncio.current_task()
        self._others: list[asyncio.Task[None]] = []
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.call_soon(self._open)  # which is when this task waits, or has ended

    async def run(self) -> None:
        try:
            await self._lane()
            for other in self._others:
                await other
        finally:
            self._opening.cancel()
            for other in self._others:
                other.cancel()

    async def _lane(self) -> None:
        until = time.monotonic() + BREATH
        while length_hint(self._left):
            if (rest := self._work(self._left)) is not None:
                await rest
            elif length_hint(self._left) and time.monotonic() > until:
                await _rest()
            else:
                continue
            until = time.monotonic() + BREATH

    def _open(self) -> None:
        left = length_hint(self._left)
        rests = self._first in _RESTING or not _RESTING.isdisjoint(self._others)
        for _ in range(0 if rests else min(left, len(self._others) + 1)):
            self._others.append(self._loop.create_task(self._lane()))
        if left:
            self._opening = self._loop.call_soon(self._open)
