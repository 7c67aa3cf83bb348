"""What others on the event loop notice while something runs there."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager


@asynccontextmanager
async def counted_turns() -> AsyncGenerator[Callable[[], int]]:
    """How many turns somebody has had so far who wants every turn that there is."""
    turns = 0

    async def tick() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.ensure_future(tick())
    try:
        yield lambda: turns
    finally:
        ticking.cancel()
