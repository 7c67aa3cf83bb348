"""MCP at the agent's door: agents of one session stay apart, and one that asks for too much gets an error."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from tests.wires.mcp_wire import AgentsDoor, Client, Played
from tests.wires.verl_wire import gate
from tests.wires.wire import H, Wire, until
from toolyard.protocols.agent.door import MOST
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("era", ["handshake", "modern"])


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played], agent_port=0) as server:
        yield server


@pytest.fixture
def key() -> Iterator[str]:
    """The name of a gate that no other test uses."""
    gate.opened.clear()
    yield uuid.uuid4().hex
    gate.opened.set()


@asynccontextmanager
async def two_agents(world: Running) -> AsyncIterator[tuple[Client, Client]]:
    """Two agents of one session, each with its own token."""
    sid, path = await AgentsDoor().open(world.url, "played", {})
    async with Wire(world.url) as trainer:
        given = (await trainer.post("/played/agent", headers=H(sid))).json()
    paths = path.removeprefix(world.agent_url), f"/agent/{given['token']}/mcp"
    async with Client(world.agent_url, paths[0]) as one, Client(world.agent_url, paths[1]) as other:
        yield one, other


async def test_an_agent_cannot_cancel_what_another_agent_of_its_session_calls(world, key):
    async with two_agents(world) as (one, other):  # F41
        calls = []
        for client in (one, other):
            calls.append(asyncio.ensure_future(client.call_tool("handshake", "rest", id=1, seconds=1)))
        await until(lambda: sum(session.running for session in world.server.runtime.sessions.values()) == 2)
        assert (await one.notify("notifications/cancelled", {"requestId": 1})).status == 202
        assert (await calls[0]).error["code"] == -32800
        assert (await calls[1]).text == "1.0 s"


@both
async def test_one_call_too_many_is_an_error_under_its_id_and_those_that_run_can_be_cancelled(world, key, era):
    async with two_agents(world) as (one, other):  # F14
        running = world.server.runtime.sessions
        before = sum(session.running for session in running.values())
        asked = [asyncio.ensure_future(one.call_tool("handshake", "wait", id=n, key=key)) for n in range(MOST)]
        await until(lambda: sum(session.running for session in running.values()) == before + MOST)
        for client in (one, other):
            told = await client.call_tool(era, "nothing", id="late")
            assert (told.status, told.answer["id"]) == (200, "late")
            assert told.error["code"] == -32000
            assert told.error["data"]["reason"] == "busy"
            assert (await client.ask(era, "tools/list")).error["code"] == -32000
        for n in range(MOST):
            assert (await one.notify("notifications/cancelled", {"requestId": n})).status == 202
        assert {(await call).error["code"] for call in asked} == {-32800}
        assert (await other.call_tool(era, "nothing")).text == "nothing"


async def test_a_client_that_hung_up_is_not_waited_for_and_may_still_cancel_its_call(world, key):
    async with two_agents(world) as (one, _):  # F42
        granted = world.server.runtime.grants.find(one.path.split("/")[2])
        for params in ({}, {"progressToken": 1}):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.3):  # then it hangs up
                    await one.call_tool("handshake", "rest", id=5, meta=params, seconds=60)
            await until(lambda: granted.requests == 0)
            assert granted.session.running == 1, "the call goes on"
            assert (await one.notify("notifications/cancelled", {"requestId": 5})).status == 202
            await until(lambda: granted.session.running == 0)
        assert (await one.call_tool("handshake", "nothing")).text == "nothing"
