"""A server that stalled: it answers calls that ended in time, and ends those that take too long."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import pytest

from toolyard import Client, Environment, Split, TextBlock, ToolOutput, tool
from toolyard.client.errors import ToolLost
from toolyard.testing import Running, running


class Sleepy(Environment):
    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return [TextBlock(text="Sleep.")]

    @tool
    async def nap(self, steps: int, block: float) -> ToolOutput:
        """Wait for a child process, a tenth of a second at a time, while somebody blocks the loop."""
        asyncio.get_running_loop().call_later(0.1, time.sleep, block)
        for _ in range(steps):
            waiting = await asyncio.create_subprocess_exec("sleep", "0.1")
            await waiting.wait()
        return ToolOutput(blocks=[TextBlock(text="rested")])


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Sleepy], call_seconds=2, sweep_seconds=0.1) as server:
        yield server


def test_a_call_that_needs_less_than_it_may_is_answered_although_the_server_stood_still(server: Running):
    with Client(server.url) as client, client.environment("sleepy").session({}) as session:
        assert session.call_tool("nap", {"steps": 6, "block": 2.5}).text == "rested"


def test_a_call_that_takes_too_long_is_ended_although_the_server_stood_still(server: Running):
    with Client(server.url) as client, client.environment("sleepy").session({}) as session:
        began = time.monotonic()
        with pytest.raises(ToolLost, match="no answer within 2 s"):
            session.call_tool("nap", {"steps": 600, "block": 2.5})
        assert time.monotonic() - began < 20
