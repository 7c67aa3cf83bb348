"""MCP at the trainer's door: how sessions are found and opened, and by whom. Numbers refer to the cases."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator

import pytest

from tests.wires.mcp_wire import HANDSHAKE, INITIALIZE, Client, Played, Told, TrainersDoor
from tests.wires.verl_wire import ended
from tests.wires.wire import H, Wire, until
from tests.worlds import OneTask
from toolyard import tool
from toolyard.core.errors import DefinitionError
from toolyard.runtime.session import Session
from toolyard.server import Server
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("era", ["handshake", "modern"])

PLAYED = "/mcp/played"


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played]) as server:
        yield server


async def opened(world: Running, **task: object) -> str:
    sid, _ = await TrainersDoor().open(world.url, "played", task)
    return sid


async def shake_hands(client: Client) -> str:
    """Open a session, and use it from now on."""
    told = await client.h("initialize", INITIALIZE)
    assert told.result["protocolVersion"] == HANDSHAKE
    client.always["Mcp-Session-Id"] = told.headers["mcp-session-id"]
    assert (await client.notify("notifications/initialized")).status == 202
    return client.always["Mcp-Session-Id"]


# Sessions opened by a handshake.


async def test_a_handshake_opens_a_session_of_the_task_that_the_url_names_and_delete_ends_it(world):
    async with Client(world.url, f"{PLAYED}?split=train&index=2") as client:  # F10
        told = await client.h("tools/list")
        assert told.refusal == (400, -32600)
        assert "Missing session ID" in told.error["message"]
        assert (await client.notify("notifications/initialized")).status == 400
        sid = await shake_hands(client)
        assert (await client.h("ping")).headers["mcp-session-id"] == sid
        prompt = (await client.h("prompts/get", {"name": "task"})).result["messages"]
        assert prompt[0]["content"]["text"] == "Find task 2."
        assert (await client.call_tool("handshake", "note", text="a")).text == "a"
        assert (await client.call_tool("handshake", "note", text="b")).text == "a b"
        assert (await client.get(f"/sessions/{sid}/outcome")).json()["calls"] == 2
        assert (await client.say(None, method="DELETE")).status == 200
        assert ended[-1] == "task 2"
        assert (await client.h("ping")).refusal == (404, -32600)
        assert (await client.say(None, method="DELETE")).refusal == (404, -32600)
        assert (await client.h("ping", headers={"Mcp-Session-Id": "never"})).refusal == (404, -32600)
        assert (await client.say(None, {"Mcp-Session-Id": None}, "DELETE")).refusal == (400, -32600)


async def test_without_a_task_the_url_means_the_first(world):
    async with Client(world.url, PLAYED) as client:
        assert (await client.h("initialize", INITIALIZE)).result["instructions"] == "Find task 0."


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("split=tset", "no split 'tset'"),
        ("index=3", "has 3 tasks, no number 3"),
        ("index=one", "index is 'one'"),
        ("spilt=train", "the URL says 'spilt'"),
    ],
)
async def test_a_url_that_names_no_task_opens_nothing_and_says_why(world, query, words):
    before = len(world.server.runtime.sessions)
    async with Client(world.url, f"{PLAYED}?{query}") as client:
        told = await client.h("initialize", INITIALIZE)
        assert told.refusal == (200, -32602)
        assert words in told.error["message"]
        assert "mcp-session-id" not in told.headers
    assert len(world.server.runtime.sessions) == before


async def test_an_environment_that_is_not_served_is_not_found(world):
    for path in ("/mcp/nowhere", "/mcp/played/more", "/mcp/s/", "/mcp/sse"):
        async with Client(world.url, path) as client:
            told = await client.h("initialize", INITIALIZE)
            assert told.refusal == (404, -32600)
            assert "there are 'played'" in told.error["message"]
            assert "/mcp/s/{session id}" in told.error["message"]


async def test_a_session_that_one_url_opened_is_not_known_at_another(world):
    async with Client(world.url, f"{PLAYED}?index=0") as client:  # F12
        sid = await shake_hands(client)
        for other in (PLAYED, f"{PLAYED}?index=1", f"{PLAYED}?index=0&split=train"):
            client.path = other
            assert (await client.h("ping")).refusal == (404, -32600)
            assert (await client.say(None, method="DELETE")).refusal == (404, -32600)
        client.path = f"{PLAYED}?index=0"
        assert (await client.h("ping")).result == {}
        foreign = await opened(world)
        assert (await client.h("ping", headers={"Mcp-Session-Id": foreign})).refusal == (404, -32600)
        assert sid in world.server.runtime.sessions


async def test_a_client_without_handshake_is_sent_to_shake_hands_where_sessions_open_so(world):
    async with Client(world.url, PLAYED) as client:
        told = await client.m("server/discover")
        assert told.refusal == (404, -32601)
        assert "initialize" in told.error["message"]


async def test_a_handshake_whose_setup_fails_leaves_no_session(world):
    class Broken(Played):
        @classmethod
        def list_tasks(cls, split):
            return [{"setup_boom": True}, {"constructor_boom": True}]

    with running([Broken]) as server:
        for index in range(2):
            async with Client(server.url, f"/mcp/broken?index={index}") as client:
                told = await client.h("initialize", INITIALIZE)
                assert (*told.refusal, told.error["data"]["reason"]) == (200, -32000, "failed")
                assert "boom" in told.error["message"]
                assert "mcp-session-id" not in told.headers
        assert not server.server.runtime.sessions


async def test_a_thousand_handshakes_that_nobody_ends_leave_nothing(world):
    with running([Played], idle_seconds=0.5, sweep_seconds=0.1, outcome_seconds=0.5) as server:  # F52
        async with Client(server.url, PLAYED) as client:
            for _ in range(1000):
                assert (await client.h("initialize", INITIALIZE)).status == 200
        runtime = server.server.runtime
        await until(lambda: not runtime.sessions and not runtime.ended.count)
        left = [one for one in gc.get_objects() if isinstance(one, Session) and one._shared is runtime.shared]
        assert not left


async def test_one_handshake_too_many_is_refused_with_a_reason(world):
    with running([Played], max_sessions=1) as server:
        async with Client(server.url, PLAYED) as client:
            await shake_hands(client)
            told = await client.h("initialize", INITIALIZE, headers={"Mcp-Session-Id": None})
            assert (*told.refusal, told.error["data"]) == (200, -32000, {"reason": "busy", "retryAfter": 5})


# Existing sessions.


@both
async def test_a_session_that_is_not_there_is_not_found(world, era):
    async with Client(world.url, "/mcp/s/never") as client:  # F39
        told = await client.say({"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"MCP-Protocol-Version": "2026-07-28"})
        assert told.refusal == (404, -32600)
        assert (await client.h("tools/list")).refusal == (404, -32600)


async def test_sessions_of_other_protocols_have_no_url_of_their_own(world):
    async with Wire(world.url) as wire:
        body = {"trajectory_ids": ["t"], "actions": [""], "extra_fields": [{"environment": "played"}]}
        assert (await wire.post("/get_observation", json=body)).status_code == 200
    assert "verl:t" in world.server.runtime.sessions
    async with Client(world.url, "/mcp/s/verl:t") as client:
        assert (await client.h("tools/list")).refusal == (404, -32600)


@both
async def test_a_header_names_the_session_as_well_as_the_url_does_but_not_another(world, era):
    sid, other = await opened(world, tools=1), await opened(world)  # F50
    async with Client(world.url, "/mcp", H(sid)) as by_header, Client(world.url, f"/mcp/s/{sid}") as by_url:
        listed = [(await client.ask(era, "tools/list")).result["tools"] for client in (by_header, by_url)]
        assert listed[0] == listed[1]
        assert (await by_header.call_tool(era, "note", text="a")).text == "a"
        assert (await by_url.call_tool(era, "note", text="b")).text == "a b"
        by_url.always |= H(other)
        assert (await by_url.h("tools/list")).refusal == (400, -32600)
        by_url.always |= H(sid)
        assert (await by_url.h("tools/list")).status == 200


@both
async def test_without_a_session_there_are_the_shared_tools_and_a_call_opens_none(world, era):
    before = len(world.server.runtime.sessions)
    async with Client(world.url, "/mcp/") as client:
        names = {tool["name"] for tool in (await client.ask(era, "tools/list")).result["tools"]}
        assert "add" in names
        assert "hidden" not in names
        assert "has no session" in (await client.call_tool(era, "add", a=1, b=2)).complaint
        assert (await client.ask(era, "prompts/list")).result["prompts"] == []
        assert (await client.ask(era, "prompts/get", {"name": "task"})).error["code"] == -32602
        assert (await client.ask(era, "resources/list")).result["resources"] == []
    assert len(world.server.runtime.sessions) == before


async def test_a_session_is_played_half_over_mcp_and_half_over_ors_as_one(world):
    sid = await opened(world)  # F51
    async with Client(world.url, f"/mcp/s/{sid}") as client, Wire(world.url) as wire:
        assert (await client.call_tool("modern", "note", text="a")).text == "a"
        assert (await wire.call(sid, "note", {"text": "b"}, env="played")).text == "a b"
        assert (await client.call_tool("handshake", "note", text="c")).text == "a b c"
        assert (await wire.call(sid, "guess", {"number": 7}, env="played")).output["reward"] == 1.0
        assert "the episode has finished" in (await client.call_tool("modern", "note", text="d")).complaint
        outcome = (await wire.get(f"/sessions/{sid}/outcome")).json()
        assert outcome["rewards"] == [None, None, None, 1.0, None]


async def test_calls_of_two_wires_wait_for_each_other(world):
    sid = await opened(world)  # F51
    async with Client(world.url, f"/mcp/s/{sid}") as client, Wire(world.url) as wire:
        over_mcp = [client.call_tool("handshake", "note", text=f"m{n}", id=n) for n in range(10)]
        over_ors = [wire.call(sid, "note", {"text": f"o{n}"}, env="played") for n in range(10)]
        lengths = [len(told.text.split()) for told in await asyncio.gather(*over_mcp, *over_ors)]
        assert sorted(lengths) == list(range(1, 21)), "each saw all that came before it"


async def test_a_session_that_agents_use_does_not_idle():
    with running([Played], idle_seconds=0.4, sweep_seconds=0.05) as server:
        sid = await opened(server)
        async with Client(server.url, f"/mcp/s/{sid}") as client:
            for _ in range(8):
                await asyncio.sleep(0.1)
                assert (await client.h("ping")).status == 200
        await until(lambda: not server.server.runtime.sessions)


# Permissions.


async def test_a_foreign_name_or_page_is_turned_away(world):
    async with Client(world.url, "/mcp") as client:  # F28
        body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        port = world.url.rpartition(":")[2]
        for headers, status in [
            ({"Host": "evil.example"}, 421),
            ({"Origin": "http://evil.example"}, 403),
            ({"Host": f"localhost:{port}"}, 200),
            ({"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}, 200),
            ({}, 200),
        ]:
            response = await client.post("/mcp", headers={**client.always, **headers}, json=body)
            assert response.status_code == status


async def test_with_a_key_nobody_gets_in_without_it_and_no_login_is_offered():
    with running([Played], api_key="k e y") as server:  # F48, F49
        async with Client(server.url, "/mcp") as client:
            body = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
            for path in ("/mcp", "/mcp/played", "/mcp/s/x", "/sessions/x/outcome"):
                response = await client.request("POST", path, headers=client.always, json=body)
                assert response.status_code == 401
                assert "resource_metadata" not in response.headers.get("www-authenticate", "")
            for path in ("/mcp", "/mcp/played", "/mcp/s/x", "/mcp/nowhere"):
                told = Told.of(await client.request("POST", path, headers=client.always, json=body))
                assert told.refusal == (401, -32600)
                assert "a valid API key is required, as X-API-Key" in told.error["message"], "clients show these words"
            assert (await client.get("/.well-known/oauth-protected-resource/mcp")).status_code == 401
            for key in ({"Authorization": "Bearer k e y"}, {"X-API-Key": "k e y"}):
                assert (await client.h("ping", headers=key)).result == {}
            assert (await client.get("/sessions/x/outcome", headers={"X-API-Key": "k e y"})).status_code == 404


@both
async def test_a_key_opens_the_trainers_door_and_the_agents_needs_none(era):
    with running([Played], api_key="k e y") as server:  # F49
        key = {"X-API-Key": "k e y"}
        async with Wire(server.url, headers=key) as trainer:
            body = {"env_name": "played", "task_spec": {}}
            assert (await trainer.post("/create", headers=H("sid"), json=body)).status_code == 200
            token = (await trainer.post("/played/agent", headers=H("sid"))).json()["token"]
        async with Client(server.url, "/mcp/s/sid", key) as client:
            assert (await client.call_tool(era, "note", text="a")).text == "a"
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
            async with Client(server.url, f"/agent/{token}/mcp", headers) as agent:
                assert (await agent.call_tool(era, "nothing")).text == "nothing"
                response = await agent.post("/mcp/s/sid", headers=agent.always, json={})
                assert (response.status_code, "resource_metadata" in response.text) == (401, False)
                assert (await agent.get("/sessions/sid/outcome")).status_code == 401  # F48


@pytest.mark.parametrize("taken", ["s", "S", "mcp"])
def test_an_environment_may_not_have_the_name_of_a_path(taken):
    class Named(OneTask):
        @classmethod
        def name(cls):
            return taken

        @tool
        def go(self) -> str:
            """Go."""
            return "gone"

    with pytest.raises(DefinitionError, match="a part of MCP's paths"):
        Server([Named])
