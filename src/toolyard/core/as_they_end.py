"""`as_they_end`: does much work at once, but only so much, and yields each result when it is there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def as_they_end(work: Iterable[Awaitable[T]], at_once: int) -> AsyncGenerator[T]:
    """Yield the results of all as they end. Leaving early cancels the rest."""
    waiting = iter(work)
    under_way: set[asyncio.Future[T]] = set()
    try:
        while True:
            while len(under_way) < at_once and (following := next(waiting, None)) is not None:
                under_way.add(asyncio.ensure_future(following))
            if not under_way:
                return
            done, under_way = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                yield one.result()
    finally:
        for one in under_way:
            one.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
