"""What MCP promises in a session, at each door to one. Numbers refer to the conformance cases."""

from __future__ import annotations

import asyncio
import gc
import json
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import pytest

from tests.wires.mcp_wire import (
    DOORS,
    HANDSHAKE,
    INITIALIZE,
    META,
    MODERN,
    PNG,
    SERVER_INFO,
    Client,
    Door,
    Many,
    Open,
    Played,
    Told,
    modern_headers,
)
from tests.wires.verl_wire import gate
from tests.wires.wire import H, request_bytes, talk, until
from toolyard.protocols.mcp.core import Following
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

Opening = Callable[..., AbstractAsyncContextManager[Client]]

both = pytest.mark.parametrize("era", ["handshake", "modern"])


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played, Open, Many]) as server:
        yield server


@pytest.fixture(params=DOORS, ids=lambda door: door.name)
def opened(request: pytest.FixtureRequest, world: Running) -> Iterator[Opening]:
    """Open a session, and return a client of it."""
    gate.opened.clear()
    door: Door = request.param()

    @asynccontextmanager
    async def opened(
        environment: str = "played", server: Running | None = None, **task: object
    ) -> AsyncIterator[Client]:
        url = (server or world).url
        sid, path = await door.open(url, environment, task)
        async with Client(url, path) as client:
            client.sid = sid
            yield client

    yield opened
    gate.opened.set()


@pytest.fixture
def key() -> str:
    """The name of a gate that no other test uses."""
    return uuid.uuid4().hex


# How a client begins.


async def test_initialize_tells_versions_capabilities_and_who_the_server_is(opened):
    async with opened(name="gold") as client:  # F1
        told = await client.h("initialize", INITIALIZE, headers={"MCP-Protocol-Version": None})
        assert told.status == 200
        assert told.result["protocolVersion"] == HANDSHAKE
        assert set(told.result["capabilities"]) == {"tools", "prompts", "resources"}
        assert told.result["serverInfo"].keys() == {"name", "version"}
        assert told.result["instructions"] == "Find gold."


@pytest.mark.parametrize(
    ("asked", "agreed"),
    [("2025-06-18", "2025-06-18"), ("2024-11-05", "2024-11-05"), ("1999-01-01", HANDSHAKE), (MODERN, HANDSHAKE)],
)
async def test_a_version_that_is_known_is_agreed_on_and_else_the_latest_with_a_handshake(opened, asked, agreed):
    async with opened() as client:  # F2
        told = await client.h("initialize", {**INITIALIZE, "protocolVersion": asked})
        assert told.result["protocolVersion"] == agreed


async def test_initialize_that_lacks_something_is_an_error_that_is_answered_200(opened):
    async with opened() as client:  # F3
        for params in (None, {}, {**INITIALIZE, "clientInfo": {}}, {**INITIALIZE, "protocolVersion": 1}):
            told = await client.h("initialize", params)
            assert told.refusal == (200, -32602)
            assert told.error["message"].startswith("Invalid request parameters")


async def test_notifications_are_taken_without_an_answer(opened):
    async with opened() as client:  # F4
        told = await client.notify("notifications/initialized")
        assert (told.status, told.body) == (202, b"")
        assert (await client.notify("notifications/unheard_of", {"a": 1})).status == 202
        assert (await client.say({"jsonrpc": "2.0", "id": 1, "result": {}})).status == 202, "a response to nothing"


async def test_tools_are_listed_without_notifications_initialized_before(opened):
    async with opened() as client:  # F5
        assert (await client.h("tools/list")).result["tools"]


async def test_ping_exists_only_with_a_handshake(opened):
    async with opened() as client:  # F6
        assert (await client.h("ping")).result == {}
        assert (await client.m("ping")).refusal == (404, -32601)


async def test_an_unknown_method_is_named_in_the_error(opened):
    async with opened() as client:  # F7
        told = await client.h("no/such")
        assert (*told.refusal, told.error["data"]) == (200, -32601, "no/such")
        told = await client.m("no/such")
        assert (*told.refusal, told.error["data"]) == (404, -32601, "no/such")


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN, None])
@pytest.mark.parametrize("body", [b"{bad", b"", b"\xff", b"[" * 100_000])
async def test_what_is_no_json_is_a_parse_error(opened, version, body):
    async with opened() as client:  # F8
        told = await client.say(body, {"MCP-Protocol-Version": version})
        assert (*told.refusal, told.answer["id"]) == (400, -32700, None)


@pytest.mark.parametrize("version", [HANDSHAKE, MODERN])
@pytest.mark.parametrize(
    ("body", "id"),
    [
        ([{"jsonrpc": "2.0", "id": 1, "method": "ping"}], None),  # F9
        ("ping", None),
        ({"jsonrpc": "1.0", "id": 7, "method": "ping"}, 7),
        ({"jsonrpc": "2.0", "id": "a", "method": 5}, "a"),
        ({"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": []}, 7),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": 1.5, "method": "ping"}, None),
        ({"jsonrpc": "2.0", "id": True, "method": "ping"}, None),
        ({}, None),
    ],
)
async def test_what_is_no_request_is_refused_under_its_id(opened, version, body, id):
    async with opened() as client:
        told = await client.say(body, {"MCP-Protocol-Version": version})
        assert (*told.refusal, told.answer["id"]) == (400, -32600, id)


async def test_a_session_that_the_url_names_needs_no_header_and_gets_none(opened):
    async with opened() as client:  # F11
        assert "mcp-session-id" not in (await client.h("initialize", INITIALIZE)).headers
        assert "mcp-session-id" not in (await client.call_tool("handshake", "nothing")).headers


async def test_there_is_no_stream_to_get_and_no_session_to_delete(opened):
    async with opened() as client:  # F13, F23
        for method in ("GET", "DELETE", "PUT", "HEAD"):
            for version in (HANDSHAKE, MODERN):
                told = await client.say(None, {"MCP-Protocol-Version": version, "Accept": "text/event-stream"}, method)
                assert (told.status, told.headers["allow"], told.body) == (405, "POST", b"")
        assert (await client.call_tool("handshake", "nothing")).text == "nothing"


async def test_discover_tells_versions_capabilities_and_who_the_server_is(opened):
    async with opened(name="gold") as client:  # F15
        result = (await client.m("server/discover")).result
        assert result["supportedVersions"] == [MODERN]
        assert set(result["capabilities"]) == {"tools", "prompts", "resources"}
        assert (result["ttlMs"], result["cacheScope"], result["resultType"]) == (0, "private", "complete")
        assert result["_meta"][SERVER_INFO]["name"]
        assert result["instructions"] == "Find gold."
        assert (await client.h("server/discover")).refusal == (200, -32601)


# The checks of headers in the modern era.

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.parametrize("wrong", [None, "tools/list", "TOOLS/CALL"])
async def test_the_header_of_the_method_must_be_there_and_right(opened, wrong):
    async with opened() as client:  # F16
        assert (await client.m("tools/call", ADD, id="x", headers={"Mcp-Method": wrong})).refusal == (400, -32020)


@pytest.mark.parametrize(
    "wrong", [None, "sub", "=?base64?YWRk", "=?base64?YWR?=", "=?base64?YWRk==?=", "=?base64?/w==?="]
)
async def test_the_header_of_the_name_must_be_there_and_right(opened, wrong):
    async with opened() as client:  # F17, F18
        assert (await client.m("tools/call", ADD, headers={"Mcp-Name": wrong})).refusal == (400, -32020)
        assert (await client.m("tools/list", headers={"Mcp-Name": wrong})).status == 200, "where it means nothing"


async def test_a_name_may_be_encoded(opened):
    async with opened() as client:  # F18
        assert (await client.m("tools/call", ADD, headers={"Mcp-Name": "=?base64?YWRk?="})).text == "3"


async def test_routing_headers_may_have_spaces_around(opened, world):
    async with opened() as client:  # F19
        body = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {**ADD, "_meta": META}}
        headers = {name: f"  {value} " for name, value in modern_headers("tools/call", ADD).items()}
        sent = request_bytes("POST", client.path, {**client.always, **headers}, json.dumps(body).encode())
        assert b'"text":"3"' in await asyncio.to_thread(talk, world.url, sent)


async def test_a_routing_header_may_not_stand_there_twice(opened):
    async with opened() as client:  # F19
        for name, value in modern_headers("tools/call", ADD).items():
            body = {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {**ADD, "_meta": META}}
            told = await client.say(body, [*modern_headers("tools/call", ADD).items(), (name, value)])
            assert (*told.refusal, told.answer["id"]) == (400, -32020, 4)


async def test_an_unknown_version_is_refused_with_those_that_are_served(opened):
    async with opened() as client:  # F20
        meta = {"io.modelcontextprotocol/protocolVersion": "2027-01-01"}
        told = await client.m("tools/list", meta=meta, headers={"MCP-Protocol-Version": "2027-01-01"})
        assert told.refusal == (400, -32022)
        assert told.error["data"] == {"supported": [MODERN], "requested": "2027-01-01"}


async def test_a_version_that_differs_between_header_and_body_is_a_mismatch_before_all_else(opened):
    async with opened() as client:  # F21
        assert (await client.m("tools/list", headers={"MCP-Protocol-Version": "2027-01-01"})).refusal == (400, -32020)


async def test_a_request_says_what_its_client_can_and_need_not_say_who_it_is(opened):
    async with opened() as client:  # F22
        for missing in ("clientCapabilities", "protocolVersion"):
            told = await client.m("tools/list", meta={f"io.modelcontextprotocol/{missing}": None})
            assert told.refusal == (400, -32602)
            assert missing in told.error["message"]
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
        assert (await client.say(body, modern_headers("tools/list", {}))).refusal == (400, -32602)
        assert (await client.m("tools/list", meta={"io.modelcontextprotocol/clientInfo": None})).status == 200


async def test_a_notification_without_handshake_is_taken_if_its_version_is_known(opened):
    async with opened() as client:  # F24
        name = "notifications/cancelled"
        told = await client.notify(name, {"requestId": 1}, headers=modern_headers(name, {}))
        assert (told.status, told.body) == (202, b"")
        told = await client.notify(name, headers={"MCP-Protocol-Version": "2027-01-01", "Mcp-Method": name})
        assert told.refusal == (400, -32022)
        assert (
            await client.say({"jsonrpc": "2.0", "id": 1, "result": {}}, {"MCP-Protocol-Version": MODERN})
        ).status == 400


async def test_nobody_initializes_without_handshakes(opened):
    async with opened() as client:  # F25
        assert (await client.m("initialize", INITIALIZE)).refusal == (404, -32601)


@pytest.mark.parametrize(
    ("accept", "status"),
    [
        ("application/json", 406),
        ("text/event-stream", 406),
        ("text/html", 406),
        ("*/*", 200),
        ("application/*, text/*", 200),
        ("text/event-stream;q=0.9 , application/json", 200),
    ],
)
async def test_a_client_must_accept_json_and_events(opened, accept, status):
    async with opened() as client:  # F26
        for version in (HANDSHAKE, None):
            told = await client.say(
                {"jsonrpc": "2.0", "id": 1, "method": "ping"}, {"Accept": accept, "MCP-Protocol-Version": version}
            )
            assert told.status == status
        params = {"_meta": META}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": params}
        assert (await client.say(body, {**modern_headers("tools/list", params), "Accept": accept})).status == status


@pytest.mark.parametrize(
    ("kind", "status"),
    [("text/plain", 415), (None, 415), ("application/json; charset=utf-8", 200), ("Application/JSON", 200)],
)
async def test_a_body_must_say_that_it_is_json(opened, kind, status):
    async with opened() as client:  # F27
        headers = {"Content-Type": kind, "MCP-Protocol-Version": HANDSHAKE}
        assert (await client.say(b'{"jsonrpc": "2.0", "id": 1, "method": "ping"}', headers)).status == status


async def test_a_body_that_is_too_large_runs_nothing(opened, key):
    with running([Played], body_bytes=2000) as server:  # F29
        async with opened(server=server) as client:
            response = await client.post(
                client.path,
                headers=client.always,
                json={"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "note", "x": "y" * 2000}},
            )
            assert response.status_code == 413
            assert "2000 bytes" in Told.of(response).error["message"]
            assert (await client.call_tool("handshake", "note", text="first")).text == "first"


# Tools.


@both
async def test_a_session_lists_its_own_tools_each_with_a_description_and_an_object_for_arguments(opened, era):
    async with opened(tools=2) as one, opened() as other:  # F30
        listed = [(await client.ask(era, "tools/list")).result["tools"] for client in (one, other)]
        names = [[tool["name"] for tool in tools] for tools in listed]
        assert {"add", "hidden", "dyn0", "dyn1"} <= set(names[0])
        assert set(names[0]) - set(names[1]) == {"dyn0", "dyn1"}
        for tool in listed[0]:
            assert tool["description"]
            assert tool["inputSchema"]["type"] == "object"
            assert tool.keys() == {"name", "description", "inputSchema"}
        assert (await one.call_tool(era, "dyn1", x=5)).text == "dyn1 got 5"


@both
async def test_schemas_arrive_as_they_are_and_one_without_parameters_is_an_object(opened, era):
    async with opened() as client:  # F31
        tools = {tool["name"]: tool["inputSchema"] for tool in (await client.ask(era, "tools/list")).result["tools"]}
        assert tools["nothing"] == {"type": "object", "properties": {}}
        assert tools["go"] == Played._definition.tools["go"].spec.input_schema
        assert "$defs" in tools["go"]
        assert "$ref" in tools["go"]["properties"]["to"]


@both
async def test_text_and_pictures_arrive_in_order(opened, era):
    async with opened() as client:  # F32
        assert (await client.call_tool(era, "look")).result["content"] == [
            {"type": "text", "text": "before"},
            {"type": "image", "data": PNG, "mimeType": "image/png"},
            {"type": "text", "text": "after"},
        ]


@both
async def test_a_tool_that_says_no_is_a_result_that_the_agent_reads(opened, era):
    async with opened() as client:  # F33
        assert (await client.call_tool(era, "fail")).complaint == "Tool 'fail' failed: not today"


@both
async def test_wrong_arguments_are_a_result_that_names_the_field_and_run_nothing(opened, era):
    async with opened() as client:  # F34
        assert "'b'" in (await client.call_tool(era, "add", a=1, b="two")).complaint
        assert "'text'" in (await client.call_tool(era, "note")).complaint
        assert (await client.call_tool(era, "note", text="x")).text == "x"
        told = await client.ask(era, "tools/call", {"name": "add", "arguments": [1, 2]})
        assert told.refusal == (400 if era == "modern" else 200, -32602)


async def test_an_unknown_tool_is_an_error(opened):
    async with opened() as client:  # F35
        assert (await client.call_tool("handshake", "nope")).refusal == (200, -32602)
        told = await client.call_tool("modern", "nope")
        assert told.refusal == (400, -32602)
        assert told.error["message"].startswith("Unknown tool: nope. ")


@both
async def test_a_tool_that_breaks_is_an_error_that_keeps_its_exception_to_itself(opened, era):
    async with opened() as client:  # F36
        told = await client.call_tool(era, "boom")
        assert told.refusal == (200, -32603)
        assert b"it broke" not in told.body
        assert (await client.call_tool(era, "nothing")).text == "nothing"


async def test_who_runs_the_server_may_have_exceptions_told_but_not_to_agents(opened):
    with running([Played], errors="stacktrace") as server:  # F36
        async with opened(server=server) as client:
            said = (await client.call_tool("handshake", "boom")).error["message"]
            assert ("it broke" in said) == client.path.startswith("/mcp/")


@both
async def test_a_call_after_the_end_is_refused_in_words_for_the_agent(opened, era):
    async with opened() as client:  # F37
        assert (await client.call_tool(era, "guess", number=7)).text == "7!"
        assert "the episode has finished" in (await client.call_tool(era, "guess", number=7)).complaint
        outcome = (await client.get(f"/sessions/{client.sid}/outcome")).json()  # F48
        assert (outcome["rewards"], outcome["return"], outcome["finished"]) == ([1.0, None], 1.0, True), "graded once"
        assert (outcome["calls"], outcome["failure"]) == (2, None)


@both
async def test_what_the_infrastructure_lost_is_an_error_with_its_reason(opened, era):
    async with opened() as client:  # F38
        told = await client.call_tool(era, "lose")
        assert told.refusal == (200, -32000)
        assert (told.error["data"]["reason"], told.error["data"]["retryAfter"]) == ("lost", 2)


@both
async def test_a_session_that_ends_under_a_call_is_no_mistake_of_the_agent(opened, world, era, key):
    async with opened() as client:  # F38
        calling = asyncio.ensure_future(client.call_tool(era, "wait", key=key))
        await until(lambda: gate.came[key])
        assert (await client.post("/delete", headers=H(client.sid))).status_code == 200
        told = await calling
        assert (*told.refusal, told.error["data"]["reason"]) == (200, -32000, "cancelled")
        told = await client.say({"jsonrpc": "2.0", "id": 1, "method": "ping"})  # F39
        assert told.refusal == (404, -32600)
        told = await client.say({"jsonrpc": "2.0", "id": 1, "method": "tools/list"}, modern_headers("tools/list", {}))
        assert told.refusal == (404, -32600)


@both
async def test_a_call_that_takes_too_long_is_a_result_that_the_agent_reads(opened, era, key):
    with running([Played], call_seconds=0.2, sweep_seconds=0.05) as server:
        async with opened(server=server) as client:
            said = (await client.call_tool(era, "wait", key=key)).complaint
            assert ("no answer within 0.2 s" if client.path.startswith("/mcp/") else "took too long") in said


async def test_a_server_that_is_full_says_so_and_takes_the_call_later(opened, key):
    with running([Played], max_concurrent_calls=1, max_queued_calls=0) as server:  # F14
        async with opened(server=server) as one, opened(server=server) as other:
            waiting = asyncio.ensure_future(one.call_tool("handshake", "wait", key=key))
            await until(lambda: gate.came[key])
            told = await other.call_tool("handshake", "nothing")
            assert told.refusal == (200, -32000)
            assert told.error["data"] == {"reason": "busy", "retryAfter": 1}
            gate.opened.set()
            assert (await waiting).text == f"{key} came 1 times"
            assert (await other.call_tool("handshake", "nothing")).text == "nothing"


async def test_a_server_that_stops_says_so(opened, key):
    with running([Played]) as server:  # F14
        async with opened(server=server) as client:
            assert (await client.call_tool("handshake", "nothing")).text == "nothing"
            waiting = asyncio.ensure_future(client.call_tool("handshake", "wait", key=key))
            await until(lambda: gate.came[key])
            server.server.stop()
            await until(lambda: server.server.runtime.draining)
            told = await client.call_tool("handshake", "nothing")
            assert (*told.refusal, told.error["data"]["reason"]) == (200, -32000, "draining")
            gate.opened.set()
            assert (await waiting).text == f"{key} came 1 times"


@both
async def test_pages_of_tools_hold_each_tool_once_and_a_cursor_must_be_known(opened, era):
    async with opened("many") as client:  # F44
        names, cursor = [], {}
        for _ in range(3):
            result = (await client.ask(era, "tools/list", cursor)).result
            names += [tool["name"] for tool in result["tools"]]
            cursor = {"cursor": result.get("nextCursor")}
        assert names == [f"tool_{n}" for n in range(2500)]
        assert cursor == {"cursor": None}
        for unknown in ("999", "-1", "x", "", "3000", "0", 1000, "1000" * 1000):
            told = await client.ask(era, "tools/list", {"cursor": unknown})
            assert told.refusal == (400 if era == "modern" else 200, -32602)


@both
async def test_half_over_mcp_and_half_over_ors_is_one_session(opened, era):
    async with opened() as client:  # F51
        assert (await client.call_tool(era, "note", text="a")).text == "a"
        assert (await client.call(client.sid, "note", {"text": "b"}, env="played")).text == "a b"
        assert (await client.call_tool(era, "note", text="c")).text == "a b c"
        assert (await client.call(client.sid, "guess", {"number": 7}, env="played")).output["reward"] == 1.0
        assert "the episode has finished" in (await client.call_tool(era, "note", text="d")).complaint


@both
async def test_no_header_leads_from_one_session_to_another(opened, era):
    async with opened() as client, opened() as other:  # F50
        assert (await other.call_tool(era, "note", text="of the other")).text == "of the other"
        client.always |= {**H(other.sid), "Mcp-Session-Id": other.sid, "Cookie": f"node_id={other.sid}"}
        if client.path.startswith("/mcp/"):
            told = await client.h("tools/call", {"name": "note", "arguments": {"text": "a"}})
            assert told.refusal == (400, -32600)
        else:
            assert (await client.call_tool(era, "note", text="a")).text == "a", "an agent's headers count for nothing"


# The task.


@both
async def test_the_prompt_of_the_session_is_a_prompt_called_task(opened, era):
    async with opened(name="gold", picture=True) as client:  # F45
        (prompt,) = (await client.ask(era, "prompts/list")).result["prompts"]
        assert prompt["name"] == "task"
        assert (await client.ask(era, "prompts/get", {"name": "task"})).result["messages"] == [
            {"role": "user", "content": {"type": "text", "text": "Find gold."}},
            {"role": "user", "content": {"type": "image", "data": PNG, "mimeType": "image/png"}},
        ]
        told = await client.ask(era, "prompts/get", {"name": "other"})
        assert told.refusal == (400 if era == "modern" else 200, -32602)


@both
async def test_an_unknown_resource_is_an_error_that_names_it_and_no_task_is_one_by_default(opened, era):
    async with opened(answer="42") as client:  # F46
        assert (await client.ask(era, "resources/list")).result["resources"] == []
        assert (await client.ask(era, "resources/templates/list")).result["resourceTemplates"] == []
        for uri in ("toolyard://task", "file:///etc/passwd"):
            told = await client.ask(era, "resources/read", {"uri": uri})
            assert told.refusal == (400 if era == "modern" else 200, -32602)
            assert told.error["data"] == {"uri": uri}


@both
async def test_a_task_that_agents_may_see_is_a_resource(opened, era):
    async with opened("open", name="gold") as client:
        (resource,) = (await client.ask(era, "resources/list")).result["resources"]
        (content,) = (await client.ask(era, "resources/read", {"uri": resource["uri"]})).result["contents"]
        assert (content["text"], content["mimeType"]) == ('{"name":"gold"}', "application/json")


async def episode(client: Client, era: str) -> list[bytes]:
    """Everything that an agent can see of an episode."""
    begin = ("initialize", INITIALIZE) if era == "handshake" else ("server/discover", None)
    asked = [begin, ("tools/list", None), ("prompts/list", None), ("prompts/get", {"name": "task"})]
    seen = [await client.ask(era, *one) for one in [*asked, ("resources/list", None)]]
    seen.append(await client.call_tool(era, "look"))
    seen.append(await client.call_tool(era, "guess", number=1, last=False))
    seen.append(await client.call_tool(era, "guess", number=7))
    return [told.body for told in seen]


@both
async def test_nothing_that_an_agent_sees_tells_of_reward_end_metadata_or_task(opened, era):
    async with opened(answer="xyzzy") as client:  # F47
        for body in await episode(client, era):
            assert not any(word in body for word in (b"reward", b"finished", b"secret", b"xyzzy"))


@both
async def test_rewards_are_shown_if_wanted_and_only_in_meta(opened, era):
    with running([Played], agent_sees_rewards=True) as server:  # F47
        async with opened(server=server) as client:
            result = (await client.call_tool(era, "guess", number=7)).result
            shown = {name: value for name, value in result.pop("_meta").items() if name != SERVER_INFO}
            assert shown == {"toolyard/reward": 1.0, "toolyard/finished": True}
            assert set(result) - {"resultType"} == {"content", "isError"}


async def test_the_prompt_can_be_kept_out_of_the_instructions(opened):
    with running([Played], mcp_instructions=False) as server:
        async with opened(server=server) as client:
            assert "instructions" not in (await client.h("initialize", INITIALIZE)).result
            assert "instructions" not in (await client.m("server/discover")).result


# Calls that take a while.


@both
async def test_progress_is_told_as_events_to_who_wants_it_and_the_result_comes_last(opened, era, key):
    with running([Played], ping_seconds=0.05) as server:  # F40
        async with opened(server=server) as client:
            for token in ("p1", 7):
                calling = asyncio.ensure_future(client.call_tool(era, "wait", meta={"progressToken": token}, key=key))
                await asyncio.sleep(0.3)  # for some progress to arrive
                gate.opened.set()
                told = await calling
                gate.opened.clear()
                assert told.is_stream
                *notices, _ = told.messages
                assert {notice["method"] for notice in notices} == {"notifications/progress"}
                assert {notice["params"]["progressToken"] for notice in notices} == {token}
                steps = [notice["params"]["progress"] for notice in notices]
                assert len(steps) > 1
                assert steps == sorted(set(steps)), "it increases"
                assert "came" in told.text
            assert not (await client.call_tool(era, "nothing")).is_stream
            for wrong in ([1], 1.5, "x" * 1001):  # each notice repeats it
                told = await client.call_tool(era, "nothing", meta={"progressToken": wrong})
                assert told.error["code"] == -32602


@both
async def test_a_large_result_is_json_that_no_client_cuts(opened, era):
    async with opened() as client:  # F43
        told = await client.call_tool(era, "large", size=2_000_000)
        assert not told.is_stream
        assert told.text == "x" * 2_000_000


@both
async def test_a_long_call_is_kept_alive_with_comments(opened, era, key):
    with running([Played], ping_seconds=0.05) as server:
        async with opened(server=server) as client:
            calling = asyncio.ensure_future(client.call_tool(era, "wait", key=f"é\u2028{key}"))
            await asyncio.sleep(0.2)  # for some to be sent
            gate.opened.set()
            told = await calling
            assert told.body.count(b": ping\r\n\r\n") > 1
            assert told.text == f"é\u2028{key} came 1 times"


async def test_a_call_of_a_few_moments_is_answered_as_json(opened, key):
    async with opened() as client:  # F40
        calling = asyncio.ensure_future(client.call_tool("handshake", "wait", meta={"progressToken": 1}, key=key))
        await until(lambda: gate.came[key])
        gate.opened.set()
        assert not (await calling).is_stream


async def test_a_client_cancels_its_own_call_and_no_other_of_that_id(opened, key):
    async with opened() as one, opened() as other:  # F41
        calls = [
            asyncio.ensure_future(client.call_tool("handshake", "wait", id=77, key=key)) for client in (one, other)
        ]
        await until(lambda: gate.came[key] == 2)
        told = await one.notify("notifications/cancelled", {"requestId": 77, "reason": "user"})
        assert (told.status, told.body) == (202, b"")
        assert (await calls[0]).error == {"code": -32800, "message": "Request cancelled"}
        assert (await one.notify("notifications/cancelled", {"requestId": 77})).status == 202, "it is over"
        assert (await one.notify("notifications/cancelled", {"requestId": [77]})).status == 202
        assert not calls[1].done()
        gate.opened.set()
        assert (await calls[1]).text == f"{key} came 2 times"
        assert (await one.call_tool("handshake", "nothing")).text == "nothing"


@both
async def test_a_call_whose_client_hangs_up_goes_on_and_is_found_by_its_id(opened, world, era, key):
    meta = {"toolyard/callId": f"call {key}"}  # F42
    async with opened() as client:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):  # then it hangs up
                await client.call_tool(era, "wait", meta=meta, key=key)
        await until(lambda: gate.came[key] == 1)
        gate.opened.set()
        assert (await client.call_tool(era, "wait", meta=meta, key=key)).text == f"{key} came 1 times"
        assert gate.came[key] == 1
        told = await client.call_tool(era, "wait", meta=meta, key="other")
        assert told.error["code"] == -32602, "an id names one call"
        assert (await client.call_tool(era, "nothing", meta={"toolyard/callId": " x"})).error["code"] == -32602
        assert not any(isinstance(one, Following) for one in gc.get_objects()), "nobody waits for it any more"
