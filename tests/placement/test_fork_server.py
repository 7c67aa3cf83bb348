"""The fork server, from the server's side: many concurrent requests for workers, and some cancelled ones."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.placement.worlds import Counting
from tests.wires.wire import until
from toolyard.placement.fork_server import ForkServer, ForkServerLost, ProcessLimits
from toolyard.placement.worker_side import Served

pytestmark = pytest.mark.anyio

_NOBODY = 2**22
"""A pid that no process has: none is that high."""


@pytest.fixture
async def fork_server() -> AsyncIterator[ForkServer]:
    fork_server = ForkServer(Served({"counting": Counting}, {}, 4, lambda: None), ProcessLimits())
    yield fork_server
    fork_server.close()


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def workers_of(fork_server: ForkServer) -> list[int]:
    (process,) = children_of(fork_server._guard)
    return children_of(process)


async def test_more_questions_than_a_socket_takes_are_all_answered(fork_server):
    codes = await asyncio.gather(*(fork_server.end(_NOBODY) for _ in range(2000)))
    assert codes == [0] * 2000


async def test_a_worker_that_nobody_waits_for_any_more_is_ended_and_reaped(fork_server):
    kept = await fork_server.start()
    unwanted = [asyncio.ensure_future(fork_server.start()) for _ in range(5)]
    await asyncio.sleep(0)
    for start in unwanted:
        start.cancel()
    await asyncio.wait(unwanted)
    other = await fork_server.start()
    await until(lambda: sorted(workers_of(fork_server)) == sorted([kept[0], other[0]]))
    await until(lambda: fork_server.workers == 2)
    for pid, *ends in (kept, other):
        assert await fork_server.end(pid) == -signal.SIGKILL
        close_all(ends)


async def test_who_waits_for_an_answer_of_one_that_is_closed_is_told():
    fork_server = ForkServer(Served({"counting": Counting}, {}, 4, lambda: None), ProcessLimits())
    waiting = [asyncio.ensure_future(fork_server.start()) for _ in range(100)]  # more than it serves at once
    await asyncio.sleep(0)
    fork_server.close()
    async with asyncio.timeout(10):
        for one in waiting:
            with pytest.raises(ForkServerLost):
                await one
    with pytest.raises(ForkServerLost):
        await fork_server.end(_NOBODY)


async def test_a_process_that_is_not_one_of_its_own_is_not_ended(fork_server):
    other = await asyncio.create_subprocess_exec("sleep", "600")
    assert await fork_server.end(other.pid) == 0
    other.terminate()
    assert await other.wait() == -signal.SIGTERM


def close_all(ends: list[socket.socket]) -> None:
    for end in ends:
        end.close()
