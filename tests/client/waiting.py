"""Waiting for what must happen, with a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable

import anyio


def eventually(holds: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.01)


async def eventually_async(holds: Callable[[], object], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline, f"not within {seconds} s"
        await anyio.sleep(0.01)
