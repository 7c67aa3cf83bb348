"""Sessions played over MCP, and their outcomes, are found over connections to any gateway."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid

import pytest

from tests.gateways.several import COUNT, Several, at
from tests.wires.mcp_wire import INITIALIZE, Client
from tests.wires.wire import H, until

pytestmark = pytest.mark.anyio


async def opened(several: Several) -> str:
    sid = f"s-{uuid.uuid4()}"
    async with at(several, 0) as wire:
        assert (await wire.post("/create", headers=H(sid), json={"task_spec": {"n": 1}})).status_code == 200
    return sid


def clients_of(several: Several, path: str, headers: dict[str, str] = {}) -> list[Client]:
    """More clients than gateways: each has its own connection, to any gateway."""
    return [Client(several.url, path, headers) for _ in range(4 * COUNT)]


@pytest.mark.parametrize("era", ["handshake", "modern"])
async def test_a_session_is_found_by_its_url_and_by_its_header(several, era):
    sid = await opened(several)
    told = []
    for client in (*clients_of(several, f"/mcp/s/{sid}"), *clients_of(several, "/mcp", H(sid))):
        async with client:
            assert (await client.ask(era, "prompts/get", {"name": "task"})).result["messages"]
            told.append((await client.call_tool(era, "tell", text="x")).text)
    assert told == [" ".join("x" * n) for n in range(1, len(told) + 1)]
    for number in range(COUNT):
        async with at(several, number) as wire:
            assert (await wire.get(f"/sessions/{sid}/outcome")).json()["calls"] == len(told)
    async with at(several, 1) as wire:
        await wire.end(sid)
    for number in range(COUNT):
        async with at(several, number) as wire:
            assert (await wire.get(f"/sessions/{sid}/outcome")).json()["calls"] == len(told)


async def test_sessions_that_handshakes_open_are_found_and_ended_from_anywhere(several):
    owners = set()
    for _ in range(8):
        clients = clients_of(several, "/mcp/yard?split=train&index=2")
        begun = await clients[0].h("initialize", INITIALIZE)
        assert begun.result["instructions"] == "Task 2"
        session = {"Mcp-Session-Id": begun.headers["mcp-session-id"]}
        owners.add(several.owner(session["Mcp-Session-Id"]))
        for n, client in enumerate(clients):
            client.always |= session
            assert (await client.call_tool("handshake", "tell", text="x")).text == " ".join("x" * (n + 1))
        assert (await clients[-1].say(None, method="DELETE")).status == 200
        for client in clients:
            assert (await client.h("ping")).refusal == (404, -32600)
            await client.aclose()
    assert len(owners) > 1


async def test_a_call_is_followed_and_cancelled_from_anywhere(several):
    sid = await opened(several)
    for client in clients_of(several, f"/mcp/s/{sid}"):
        async with client, Client(several.url, client.path) as other:
            key = uuid.uuid4().hex
            calling = asyncio.ensure_future(client.call_tool("handshake", "wait", id=7, key=key))
            await until(lambda key=key: several.came(key))
            await asyncio.sleep(0.2)  # for pings
            assert (await other.notify("notifications/cancelled", {"requestId": 7})).status == 202
            told = await calling
            assert told.error["code"] == -32800
            assert b": ping" in told.body


async def test_a_session_that_is_lost_with_its_gateway_is_no_mistake_of_the_agent(start):
    several = start("--log-level", "error").started()
    sid = await opened(several)
    key = uuid.uuid4().hex
    async with at(several, (several.owner(sid) + 1) % COUNT) as wire:
        client = Client(several.url, f"/mcp/s/{sid}")
        client._transport = wire._transport  # a connection to another gateway
        calling = asyncio.ensure_future(client.call_tool("handshake", "wait", id=7, key=key))
        await until(lambda: several.came(key))
        (came,) = several.folder.glob(f"{key}-came-*")
        os.kill(int(came.name.removeprefix(f"{key}-came-1-").split("-")[0]), signal.SIGKILL)
        told = await calling
        assert (*told.refusal, told.error["data"]["reason"]) == (200, -32000, "lost")
        await until_refused(client)


async def until_refused(client: Client) -> None:
    """The gateway that replaces the other does not know its session."""
    async with asyncio.timeout(20):
        while True:
            told = await client.h("ping")
            if told.status == 404:
                assert told.error["code"] == -32600
                return
            assert told.refusal == (200, -32000)
            await asyncio.sleep(0.05)
