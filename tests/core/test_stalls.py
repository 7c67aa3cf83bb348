"""Deadlines of a process that stood still: what has arrived is taken, what really takes too long is given up."""

from __future__ import annotations

import asyncio
import os
import time

import pytest

from tests.sandboxes.backends import LOOPS
from toolyard.core.stalls import deadline, first_of

pytestmark = pytest.mark.anyio


@pytest.fixture(params=LOOPS)
def anyio_backend(request):
    return request.param


def answer_and_block(writes: int, seconds: float) -> None:
    os.write(writes, b"here")
    time.sleep(seconds)


@pytest.fixture
async def coming(anyio_backend):
    """What comes through a pipe, and where to write it."""
    reads, writes = os.pipe()
    loop = asyncio.get_running_loop()
    came: asyncio.Future[bytes] = loop.create_future()

    def read() -> None:
        loop.remove_reader(reads)
        came.set_result(os.read(reads, 10))

    loop.add_reader(reads, read)
    yield came, writes
    loop.remove_reader(reads)
    os.close(reads)
    os.close(writes)


async def test_an_answer_that_came_while_the_loop_was_blocked_wins_over_the_deadline(coming):
    came, writes = coming
    asyncio.get_running_loop().call_later(0.05, answer_and_block, writes, 0.5)
    async with deadline(0.2):
        assert await came == b"here"


async def test_the_first_of_several_that_came_meanwhile_is_seen(coming):
    came, writes = coming
    asyncio.get_running_loop().call_later(0.05, answer_and_block, writes, 0.5)
    assert await first_of((came,), 0.2)


async def test_who_needs_the_loop_to_go_on_gets_the_time_again_in_which_it_was_blocked(anyio_backend):
    async def in_steps() -> str:
        for _ in range(3):
            await asyncio.sleep(0.05)
        return "done"

    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.6)
    async with deadline(0.4):
        assert await in_steps() == "done"


async def test_what_does_not_come_is_given_up_after_a_bounded_time(anyio_backend):
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        async with deadline(0.2):
            await asyncio.sleep(60)
    assert 0.199 <= time.monotonic() - began < 5  # uvloop's timers count whole milliseconds
    asyncio.get_running_loop().call_later(0.01, time.sleep, 0.6)
    began = time.monotonic()
    assert not await first_of((asyncio.get_running_loop().create_future(),), 0.2)
    assert time.monotonic() - began < 10


async def test_a_deadline_leaves_errors_and_cancellation_as_they_are(anyio_backend):
    with pytest.raises(ZeroDivisionError):
        async with deadline(5):
            1 / 0  # noqa: B018
    waiting = asyncio.ensure_future(_wait())
    await asyncio.sleep(0.05)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _wait() -> None:
    async with deadline(60):
        await asyncio.sleep(60)
