"""Calls whose tool uses a service that is down, or returns a reward that is no number: how each wire reports it."""

from __future__ import annotations

import asyncio
import errno
import math
import os
import socket
import urllib.request
from collections.abc import AsyncIterator, Iterator

import httpx2
import pytest

from tests.wires.dialects import DIALECTS, Came, Dialect
from tests.wires.wire import Answer, H, Wire
from tests.worlds import OneTask
from toolyard import Client, GroupScore, ServiceUnavailable, ToolOutput, terminal, tool
from toolyard.client import ToolCallFailed, ToolLost
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


def nobody() -> str:
    """The address of a service that is down."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


class Judged(OneTask):
    """Each tool uses a service that does not answer, each in its own way."""

    @tool
    def with_urllib(self) -> str:
        with urllib.request.urlopen(nobody()) as answer:
            return str(answer.read())

    @tool
    async def with_httpx(self) -> str:
        async with httpx2.AsyncClient(trust_env=False) as client:
            return (await client.get(nobody())).text

    @tool
    async def side_by_side(self) -> str:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.with_httpx())
        return "never"

    @tool
    async def in_words(self) -> str:
        raise ServiceUnavailable("the judge is down")

    @tool
    def without_files(self) -> str:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    @tool
    async def with_a_timer(self) -> str:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()
        return "never"

    @tool
    async def with_a_bug(self) -> str:
        return {}["judge"]

    @tool
    @terminal
    async def grade(self, message: str) -> ToolOutput:
        return ToolOutput(reward=float(message), finished=True)

    async def score_group(self, candidates):
        if len(candidates) > 1:
            await self.with_httpx()
        return [GroupScore(reward=math.nan) for _ in candidates]


LOST = {
    "with_urllib": "a service that it asks failed: URLError: <urlopen error [Errno 111] Connection refused>",
    "with_httpx": "a service that it asks failed: ConnectError: All connection attempts failed",
    "side_by_side": "a service that it asks failed: ConnectError: All connection attempts failed",
    "in_words": "the judge is down",
    "without_files": "the server ran short of something: OSError: [Errno 24] Too many open files",
    "with_a_timer": "it gave up waiting: TimeoutError",
}
NO_NUMBER = "the tool's output cannot be used: its reward is {}, and a reward is a finite number or None"


@pytest.fixture(scope="module", params=["local", "process"])
def yard(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running([Judged], placement=request.param) as server:
        yield server


@pytest.fixture
async def wire(yard: Running) -> AsyncIterator[Wire]:
    async with Wire(yard.url) as client:
        yield client


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
async def session(request: pytest.FixtureRequest, yard: Running) -> AsyncIterator[Dialect]:
    async with request.param(yard.url) as session:
        await session.open("judged", {})
        yield session
        await session.close()


def why(name: str) -> tuple[str, str]:
    """The message and the reason of a tool whose service is down."""
    return f"Tool {name!r} could not be run: {LOST[name]}", "timed_out" if name == "with_a_timer" else "lost"


@pytest.mark.parametrize("name", LOST)
async def test_a_service_that_is_down_is_named_and_never_the_agents_failure(session, name):
    message, reason = why(name)
    assert await session.call(name) == Came("lost", message, reason=reason)


@pytest.mark.parametrize("name", LOST)
async def test_openrewards_clients_and_ours_are_told_of_a_service_that_is_down(wire, yard, name):
    message, reason = why(name)
    sid = await wire.open()
    body = {"name": name, "input": {}}
    as_openreward = await wire.post("/judged/call", headers={**H(sid), "user-agent": "openreward/0.1"}, json=body)
    assert Answer.of(as_openreward).error == message
    with Client(yard.url) as client, client.environments.get("judged").session({}) as session:
        with pytest.raises(ToolLost) as lost:
            await asyncio.to_thread(session.call_tool, name, {})
        assert (lost.value.reason, lost.value.message) == (reason, message)


async def test_a_bug_of_the_tool_stays_one(yard):
    with Client(yard.url) as client, client.environments.get("judged").session({}) as session:
        with pytest.raises(ToolCallFailed) as failed:
            await asyncio.to_thread(session.call_tool, "with_a_bug", {})
        assert (failed.value.reason, failed.value.message) == ("tool_raised", "'judge'")


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
async def test_a_reward_that_is_no_number_is_told_as_what_it_is(session, reward):
    came = await session.call("grade", message=reward)
    assert (came.kind, came.reward, came.finished) == ("failed", None, False)
    assert (NO_NUMBER.format(reward) in came.text) == session.tells_exceptions


@pytest.mark.parametrize("reward", ["nan", "inf", "-inf"])
async def test_after_a_reward_that_is_no_number_our_client_goes_on(yard, reward):
    with Client(yard.url) as client, client.environments.get("judged").session({}) as session:
        with pytest.raises(ToolCallFailed, match="its reward is"):
            await asyncio.to_thread(session.call_tool, "grade", {"message": reward})
        assert (await asyncio.to_thread(session.call_tool, "grade", {"message": "1"})).reward == 1


async def test_scores_of_a_group_are_lost_with_the_judge_and_no_score_is_null(wire):
    sid = await wire.open()

    async def scored(count: int) -> tuple[str, bytes]:
        one = {"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": "x"}]}]}
        response = await wire.post("/judged/score_group", headers=H(sid), json={"candidates": [one] * count})
        return Answer.of(response).error, response.content

    words, raw = await scored(2)
    assert words == "score_group() asked a service that failed: ConnectError: All connection attempts failed"
    assert b": reason lost" in raw
    words, raw = await scored(1)
    assert words == "score_group returned a reward of nan: a reward is a finite number"
    assert b": reason" not in raw
