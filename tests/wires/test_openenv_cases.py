"""What OpenEnv promises on its WebSocket and its HTTP routes. Numbers refer to the conformance cases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.openenv_wire import Closed, Error, Player, Seen
from tests.wires.verl_wire import gate
from tests.wires.wire import H, Wire, call_body, until
from toolyard import Environment, ListToolsOutput, Split, TextBlock, ToolError, ToolOutput, ToolSpec, tool
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

BASE = "/openenv/played"
WS = f"{BASE}/ws"
ended: list[str] = []
graded: list[str] = []


class Played(Environment):
    """Find the gold."""

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.notes: list[str] = []

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), "odd"]

    @classmethod
    def list_tasks(cls, split):
        return [{"name": f"{split}-{n}", "answer": f"gold-{n}"} for n in range(3)]

    def setup(self):
        if self.task_spec.get("setup_boom"):
            raise ValueError("setup boom")

    def teardown(self):
        ended.append(self.task_spec.get("name", ""))

    def get_prompt(self):
        return [TextBlock(text=f"Find {self.task_spec.get('name')}.", detail={"answer": "hidden"})]

    def list_task_tools(self):
        tools = [ToolSpec(name="dyn", description="Of this task.", input_schema={"type": "object"})]
        return ListToolsOutput(tools=tools if self.task_spec.get("extra") else [])

    def call_task_tool(self, name, arguments):
        return f"{name} {arguments}"

    @tool
    async def note(self, text: str) -> ToolOutput:
        """Write something down."""
        self.notes.append(text)
        return ToolOutput(
            blocks=[TextBlock(text=" ".join(self.notes), detail={"d": 1})], metadata={"n": len(self.notes)}
        )

    @tool
    async def submit(self, answer: str) -> ToolOutput:
        """Hand in the answer."""
        graded.append(answer)
        return ToolOutput(reward=float(answer == self.task_spec["answer"]), finished=True)

    @tool
    async def refuse(self) -> str:
        """Say no."""
        raise ToolError("not today")

    @tool
    async def nan(self) -> ToolOutput:
        """A reward that is none."""
        return ToolOutput(reward=float("nan"))

    @tool
    async def wait(self, key: str) -> str:
        """Until somebody opens the gate."""
        await gate.passed(key)
        return "passed"

    @tool
    async def hang(self) -> str:
        """Never end."""
        await asyncio.Event().wait()
        return ""

    @tool
    async def large(self, size: int) -> str:
        """So much text."""
        return "é" * size

    @tool
    def die(self) -> str:
        """End the process."""
        os.kill(os.getpid(), signal.SIGKILL)
        return ""

    @tool
    async def reset(self) -> str:
        """A name that OpenEnv keeps for itself."""
        return "mine"


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played], call_seconds=600) as server:
        yield server


@pytest.fixture
async def player(world: Running) -> AsyncIterator[Player]:
    async with Player(world.url, WS) as player:
        yield player


@pytest.fixture
async def http(world: Running) -> AsyncIterator[Wire]:
    async with Wire(world.url) as wire:
        yield wire


def sessions(server: Running) -> int:
    return len(server.server.runtime.sessions)


async def rpc(http: Wire, method: str, **params: object) -> dict[str, object]:
    body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": params}
    answer = await http.post(f"{BASE}/mcp", json=body)
    assert answer.status_code == 200
    told: dict[str, object] = answer.json()
    assert list(told) in (["jsonrpc", "id", "result"], ["jsonrpc", "id", "error"])
    assert (told["jsonrpc"], told["id"]) == ("2.0", 7)
    return told


# HTTP.


async def test_health_is_healthy_in_openenvs_word_and_ok_in_that_of_ors(http):
    assert (await http.get(f"{BASE}/health")).json()["status"] == "healthy"  # G2
    assert (await http.get("/health")).json()["status"] == "ok"


async def test_a_full_server_is_not_healthy(world):
    with running([Played], max_sessions=1) as server:
        async with Player(server.url, WS) as player, Wire(server.url) as http:
            await player.reset()
            answer = await http.get(f"{BASE}/health")
            assert (answer.status_code, answer.json()["status"]) == (503, "full")


async def test_the_schema_of_the_action_is_titled_so_that_harnesses_ask_for_tools(http):
    schema = (await http.get(f"{BASE}/schema")).json()  # G3
    assert schema["action"]["title"] == "CallToolAction"
    assert {"action", "observation", "state"} <= schema.keys()
    assert all(isinstance(part, dict) for part in schema.values())


async def test_metadata_and_the_document_of_routes_say_what_is_here(http):
    metadata = (await http.get(f"{BASE}/metadata")).json()  # G4
    assert (metadata["name"], metadata["description"]) == ("Played", "Find the gold.")
    document = (await http.get(f"{BASE}/openapi.json")).json()  # G5
    assert isinstance(document["info"]["version"], str)
    assert {"/reset", "/step", "/state"} <= document["paths"].keys()


async def test_paths_that_are_none_are_refused_as_what_they_are(http):
    assert (await http.get("/openenv/nobody/health")).status_code == 404
    assert (await http.get(f"{BASE}/nothing")).status_code == 404
    assert (await http.get(f"{BASE}/web")).status_code == 404
    assert (await http.post(f"{BASE}/health")).status_code == 405
    answer = await http.get(WS)
    assert (answer.status_code, answer.headers["upgrade"]) == (426, "websocket")


async def test_the_task_api_answers_below_the_base_as_at_the_root(http):
    for path, body in [
        ("splits", None),
        ("tasks", {"split": "odd"}),
        ("num_tasks", {"split": "odd"}),
        ("task", {"split": "odd", "index": 1}),
        ("task", {"split": "odd", "index": 99}),
        ("task_range", {"split": "odd", "start": 1}),
        ("tasks", {"split": "odd", "more": 1}),
    ]:  # G28
        ask = (lambda at, body=body: http.post(at, json=body)) if body else http.get
        root, below = await ask(f"/played/{path}"), await ask(f"{BASE}/played/{path}")
        assert (below.status_code, below.content) == (root.status_code, root.content)
    assert (await http.post(f"{BASE}/played/task", json={"split": "odd", "index": 99})).status_code == 400
    assert (await http.get(f"{BASE}/nobody/splits")).status_code == 404
    assert (await http.get(f"{BASE}/list_environments")).json() == ["Played"]


async def test_over_http_a_reset_is_a_preview_and_a_step_is_refused_with_a_hint(http, world):
    before, was = sessions(world), len(ended)
    told = (await http.post(f"{BASE}/reset", json={"split": "odd", "index": 1, "unknown": 1})).json()  # G29
    seen = Seen.of(told)
    assert (seen.observation["prompt"], seen.reward, seen.done) == ("Find odd-1.", None, False)
    assert (await http.post(f"{BASE}/reset")).json()["observation"]["prompt"] == "Find train-0."
    await until(lambda: len(ended) == was + 2)
    assert sessions(world) == before
    answer = await http.post(f"{BASE}/step", json={"action": {"tool_name": "note", "arguments": {"text": "a"}}})
    assert answer.status_code == 409
    assert WS in answer.json()["detail"]
    assert (await http.get(f"{BASE}/state")).json() == {"episode_id": None, "step_count": 0}


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"seed": -1}, 422),
        ({"split": "odd"}, 400),
        ({"split": "none", "index": 0}, 400),
        ([1], 422),
        ({"task_spec": {"setup_boom": True}}, 500),
    ],
)
async def test_a_preview_of_nothing_is_an_error(http, world, body, status):
    before = sessions(world)
    assert (await http.post(f"{BASE}/reset", json=body)).status_code == status
    assert sessions(world) == before


# Resets.


async def test_a_connection_without_a_message_opens_no_session(world):
    before = sessions(world)
    async with Player(world.url, WS) as player:
        await player.connected()  # G6
        assert sessions(world) == before


async def test_a_reset_shows_the_prompt_and_neither_task_nor_detail(player):
    seen = await player.reset(split="train", index=1, unknown=1, seed=3)  # G7, G11
    assert (seen.reward, seen.done) == (None, False)
    assert seen.observation["prompt"] == "Find train-1."
    assert seen.metadata == seen.observation["metadata"] == {"prompt": [{"type": "text", "text": "Find train-1."}]}
    assert "gold" not in json.dumps(seen.observation)
    assert "hidden" not in json.dumps(seen.observation)


async def test_without_a_task_a_reset_begins_the_first_of_the_first_split(player):
    assert (await player.reset()).observation["prompt"] == "Find train-0."  # G8
    for half in ({"split": "odd"}, {"index": 1}):
        with pytest.raises(Error, match="EXECUTION_ERROR: split and index name a task together"):
            await player.reset(**half)
    assert (await player.reset(split="odd", index=2)).observation["prompt"] == "Find odd-2."


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ({"split": "none", "index": 0}, "EXECUTION_ERROR"),
        ({"split": "odd", "index": 99}, "EXECUTION_ERROR"),
        ({"split": "odd", "index": "many"}, "VALIDATION_ERROR"),
        ({"task_spec": {}, "split": "odd", "index": 0}, "EXECUTION_ERROR"),
        ({"task_spec": [1]}, "VALIDATION_ERROR"),
        ({"episode_id": "x" * 300}, "VALIDATION_ERROR"),
    ],
)
async def test_a_reset_to_nothing_is_an_error_and_the_socket_lives(player, data, code):
    with pytest.raises(Error) as refused:
        await player.reset(**data)
    assert refused.value.code == code
    assert (await player.reset()).observation["prompt"] == "Find train-0."


async def test_a_setup_that_fails_is_told_and_leaves_no_session(player, world):
    before = sessions(world)
    with pytest.raises(Error, match="setup boom") as refused:
        await player.reset(task_spec={"setup_boom": True})
    assert refused.value.more == {"reason": "setup_failed", "retryable": False}
    await until(lambda: sessions(world) == before)
    with pytest.raises(Error, match="send a reset first"):
        await player.step("note", text="a")


async def test_a_second_reset_closes_the_first_session(player, world):
    await player.reset(task_spec={"name": "first"})  # G9
    await player.step("note", text="a")
    await player.reset(task_spec={"name": "second"})
    assert ended.count("first") == 1
    assert (await player.step("note", text="b")).observation["result"]["data"] == "b"
    assert (await player.state())["step_count"] == 1


async def test_the_state_has_the_clients_id_of_the_episode_and_ours_of_the_session(player, http):
    assert await player.state() == {"episode_id": None, "step_count": 0}
    await player.reset(split="odd", index=2, episode_id="ep-7")  # G10
    state = await player.state()
    assert state.pop("session_id") in (await player.state()).values()
    assert state == {"episode_id": "ep-7", "step_count": 0, "env": "Played", "split": "odd", "index": 2}


# Steps.


async def test_tools_that_cannot_be_listed_are_no_failure_of_setup():
    class Unlisted(Played):
        def list_task_tools(self):
            raise ValueError("list boom")

    with running([Unlisted]) as server:
        async with Player(server.url, "/openenv/unlisted/ws") as player:
            await player.reset()
            with pytest.raises(Error, match="list boom") as refused:
                await player.tools()
            assert refused.value.more == {"reason": "failed", "retryable": False}
            assert (await player.step("note", text="a")).observation["result"]["data"] == "a"


async def test_tools_are_those_of_all_tasks_and_after_a_reset_those_of_the_task(player):
    assert "dyn" not in await player.tools()  # G12
    await player.reset(task_spec={"extra": True})
    tools = await player.tools()
    assert {"note", "dyn"} <= tools.keys()
    assert tools["note"]["input_schema"]["required"] == ["text"]
    assert (await player.step("dyn", x=1)).observation["result"]["data"] == "dyn {'x': 1}"


async def test_a_call_is_an_observation_and_the_reward_stays_beside_it(player):
    await player.reset(split="train", index=1)  # G13
    seen = await player.step("note", text="a")
    assert seen.observation == {
        "metadata": {},
        "tool_name": "note",
        "result": {"data": "a", "blocks": [{"type": "text", "text": "a"}]},
        "error": None,
    }
    assert (seen.reward, seen.done, seen.metadata) == (None, False, {"n": 1})
    seen = await player.step("submit", answer="gold-1")
    assert (seen.reward, seen.done, seen.observation["error"]) == (1.0, True, None)


async def test_an_action_without_a_type_is_a_call(player):
    await player.reset()  # G14
    data = {"tool_name": "note", "arguments": {"text": "a"}}
    assert Seen.of(await player.ask({"type": "step", "data": data})).observation["result"]["data"] == "a"


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [("nope", {}, "tool_not_found"), ("note", {}, "invalid_args"), ("refuse", {}, "execution_error")],
)
async def test_what_the_agent_did_wrong_it_can_see(player, name, arguments, kind):
    await player.reset()  # G15, G16
    seen = await player.step(name, **arguments)
    assert (seen.observation["error"]["error_type"], seen.reward, seen.done) == (kind, None, False)
    assert (await player.step("note", text="a")).observation["error"] is None


async def test_a_call_that_takes_too_long_is_a_timeout(world):
    with running([Played], call_seconds=0.2, sweep_seconds=0.05) as server:
        async with Player(server.url, WS) as player:
            await player.reset()
            seen = await player.step("hang")  # G16
            assert (seen.observation["error"]["error_type"], seen.reward) == ("timeout", None)


async def test_a_step_before_a_reset_is_an_error_and_the_socket_lives(player):
    with pytest.raises(Error, match="EXECUTION_ERROR: there is no episode here"):
        await player.step("note", text="a")  # G17
    await player.reset()


async def test_after_the_end_nothing_is_graded_again(player):
    await player.reset(split="train", index=1)
    await player.step("submit", answer="gold-1")
    count = len(graded)
    seen = await player.step("submit", answer="gold-1")  # G18
    assert (seen.observation["error"]["error_type"], seen.reward, seen.done) == ("execution_error", None, True)
    assert len(graded) == count


async def test_a_reward_that_is_no_number_is_null(player):
    await player.reset()
    seen = await player.step("nan")  # G32
    assert (seen.reward, seen.observation["error"]["error_type"]) == (None, "execution_error")


async def test_a_tool_with_a_name_that_openenv_keeps_has_another_here(player):
    await player.reset()
    tools = await player.tools()
    assert "env_reset" in tools
    assert "reset" not in tools
    assert (await player.step("env_reset")).observation["result"]["data"] == "mine"


async def test_an_observation_of_twenty_megabytes_arrives():
    with running([Played], output_bytes=2**26) as server:
        async with Player(server.url, WS) as player:
            await player.reset()
            seen = await player.step("large", size=10 * 2**20)  # G30
            assert len(seen.observation["result"]["data"].encode()) == 20 * 2**20


# Invalid messages.


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ('{"type": "zzz"}', "UNKNOWN_TYPE"),
        ("{}", "UNKNOWN_TYPE"),
        ('{"type": 1}', "UNKNOWN_TYPE"),
        ("{bad", "INVALID_JSON"),
        ("", "INVALID_JSON"),
        ("[" * 100_000, "INVALID_JSON"),
        ("[1]", "VALIDATION_ERROR"),
        ("null", "VALIDATION_ERROR"),
        ('{"type": "step"}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": 1}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"type": "dance"}}', "VALIDATION_ERROR"),
        ('{"type": "step", "data": {"tool_name": "note", "more": 1}}', "VALIDATION_ERROR"),
        ('{"type": "state", "more": 1}', "VALIDATION_ERROR"),
    ],
)
async def test_what_is_no_message_is_an_error_and_the_socket_lives(player, text, code):
    await player.reset()  # G19, G20
    await player.say(text)
    frame = await player.hear()
    assert (frame["type"], frame["data"]["code"]) == ("error", code)
    assert ("errors" in frame["data"]) == (code == "VALIDATION_ERROR")
    assert (await player.step("note", text="a")).observation["result"]["data"] == "a"


async def test_a_message_may_come_as_bytes_and_in_pieces(player):
    await player.reset()
    await player.say(b'{"type": "state"}')
    assert (await player.hear())["type"] == "state"
    await (await player.connected()).send(['{"type"', ': "sta', 'te"}'])
    assert (await player.hear())["type"] == "state"


async def test_a_message_that_is_too_long_ends_the_socket_and_the_session(world):
    with running([Played], body_bytes=10_000) as server:
        async with Player(server.url, WS) as player:
            await player.reset()
            with pytest.raises(Closed, match="1009"):
                await player.step("note", text="x" * 20_000)
        await until(lambda: not sessions(server))


# Many, and their ends.


async def test_a_full_server_says_so_and_closes_and_takes_the_next_when_one_has_left():
    with running([Played], max_sessions=2) as server:
        async with Player(server.url, WS) as one, Player(server.url, WS) as other:
            await one.reset()
            await other.reset()
            async with Player(server.url, WS) as third:
                frame = await third.hear()  # G21
                assert (frame["type"], frame["data"]["code"]) == ("error", "CAPACITY_REACHED")
                assert (frame["data"]["active_sessions"], frame["data"]["max_sessions"]) == (2, 2)
                with pytest.raises(Closed, match="1000"):
                    await third.hear()
            await other.close()
            await until(lambda: sessions(server) == 1)
            async with Player(server.url, WS) as third:
                await third.reset()
                async with Player(server.url, WS) as fourth:
                    with pytest.raises(Error, match="CAPACITY_REACHED"):
                        await fourth.reset()


async def test_who_connected_before_the_server_was_full_is_refused_a_reset_and_may_try_again():
    with running([Played], max_sessions=1) as server:
        async with Player(server.url, WS) as early, Player(server.url, WS) as other:
            await early.connected()
            await other.reset()
            with pytest.raises(Error, match="CAPACITY_REACHED"):
                await early.reset()
            await other.close()
            await until(lambda: not sessions(server))
            await early.reset()


async def test_a_client_that_vanishes_leaves_its_session_to_the_lease():
    with running([Played], idle_seconds=0.3, ping_seconds=0.1, sweep_seconds=0.05) as server:
        async with Player(server.url, WS) as player:
            await player.reset(task_spec={"name": "vanished"})  # G22
            await player.vanish()
            await until(lambda: "vanished" in ended)
            assert not sessions(server)


async def test_a_client_that_says_nothing_but_answers_pings_keeps_its_session():
    with running([Played], idle_seconds=0.2, ping_seconds=0.05, sweep_seconds=0.05, keep_alive_seconds=0.2) as server:
        async with Player(server.url, WS) as player:
            await player.reset()  # G30
            await asyncio.sleep(1)
            assert (await player.step("note", text="a")).observation["result"]["data"] == "a"


async def test_a_client_that_leaves_ends_its_session_and_the_call_in_it(world):
    async with Player(world.url, WS) as player:
        await player.reset(task_spec={"name": "left"})
        waiting = asyncio.ensure_future(player.step("hang"))
        await until(lambda: world.server.runtime.calls)
        (await player.connected()).transport.abort()
        with pytest.raises(Closed):
            await waiting
    await until(lambda: "left" in ended)
    await until(lambda: not world.server.runtime.calls)


async def test_close_is_answered_by_the_end_of_the_socket(player, world):
    await player.reset(task_spec={"name": "closed"})
    await player.say('{"type": "close"}')
    with pytest.raises(Closed, match="1000"):
        await player.hear()
    await until(lambda: "closed" in ended)


async def test_a_process_that_dies_is_an_error_and_no_reward_and_the_outcome_says_so():
    with running([Played], placement="process") as server:
        async with Player(server.url, WS) as player, Wire(server.url) as http:
            await player.reset()  # G31
            sid = (await player.state())["session_id"]
            with pytest.raises(Error, match="EXECUTION_ERROR") as lost:
                await player.step("die")
            assert lost.value.more == {"reason": "lost", "retryable": True}
            outcome = (await http.get(f"/sessions/{sid}/outcome")).json()
            assert (outcome["rewards"], outcome["failure"]) == ([None], {"reason": "lost", "retryable": True})
            await player.reset()
            assert (await player.step("note", text="a")).observation["result"]["data"] == "a"


async def test_sixty_four_sockets_have_sixty_four_sessions(world):
    async def play(number: int) -> str:
        async with Player(world.url, WS) as player:
            await player.reset()  # G33
            await player.step("note", text=str(number))
            text: str = (await player.step("note", text=str(number))).observation["result"]["data"]
            return text

    assert await asyncio.gather(*map(play, range(64))) == [f"{n} {n}" for n in range(64)]


async def test_a_session_that_is_played_over_two_wires_is_one(player, http):
    await player.reset(split="train", index=1)
    sid = (await player.state())["session_id"]
    await player.step("note", text="a")
    told = await http.call(sid, "note", {"text": "b"}, env="played")
    assert told.text == "a b"
    assert (await player.step("note", text="c")).observation["result"]["data"] == "a b c"
    await http.call(sid, "submit", {"answer": "gold-1"}, env="played")
    seen = await player.step("note", text="d")
    assert (seen.observation["error"]["error_type"], seen.done) == ("execution_error", True)
    outcome = (await http.get(f"/sessions/{sid}/outcome")).json()
    assert (outcome["return"], outcome["finished"], outcome["calls"]) == (1.0, True, 5)


async def test_a_session_that_its_trainer_ends_over_another_wire_is_over(player, http):
    await player.reset()
    await http.end((await player.state())["session_id"])
    with pytest.raises(Error, match="the session of this episode is over") as over:
        await player.step("note", text="a")
    assert over.value.more == {"reason": "lost", "retryable": True}
    await player.reset()


# JSON-RPC, and seats requested by name.


async def test_the_private_dialect_is_always_answered_200(http):
    for body, code in [(b"{}", -32600), (b"{bad", -32700), (b"[]", -32600), (b'{"jsonrpc":"2.0","method":1}', -32600)]:
        answer = await http.post(f"{BASE}/mcp", content=body)  # G23
        assert (answer.status_code, answer.json()["jsonrpc"], answer.json()["error"]["code"]) == (200, "2.0", code)
    assert (await rpc(http, "initialize"))["error"]["code"] == -32601
    assert (await rpc(http, "tools/call", name="note"))["error"]["code"] == -32602
    assert {spec["name"] for spec in (await rpc(http, "tools/list"))["result"]["tools"]} >= {"note", "env_reset"}


async def test_a_seat_is_shared_by_a_socket_and_by_http_until_it_is_closed(http, world):
    before = sessions(world)
    sid = (await rpc(http, "openenv/session/create"))["result"]["session_id"]  # G24
    async with Player(world.url, f"{WS}?session_id={sid}") as player:
        await player.reset(split="train", index=1)
        await player.step("note", text="a")
        told = (await rpc(http, "tools/call", session_id=sid, name="note", arguments={"text": "b"}))["result"]
        assert told == {
            "content": [{"type": "text", "text": "a b"}],
            "structured_content": None,
            "meta": None,
            "data": "a b",
            "is_error": False,
        }
        assert (await player.state())["step_count"] == 2
        async with Player(world.url, f"{WS}?session_id={sid}") as second:
            assert (await second.hear())["data"]["code"] == "SESSION_ERROR"  # G25
            with pytest.raises(Closed):
                await second.hear()
    assert sessions(world) == before + 1, "it stays until it is closed"
    again = (await rpc(http, "tools/call", session_id=sid, name="note", arguments={"text": "c"}))["result"]
    assert again["data"] == "a b c"
    closed = (await rpc(http, "openenv/session/close", session_id=sid))["result"]
    assert closed == {"session_id": sid, "closed": True}
    assert (await rpc(http, "openenv/session/close", session_id=sid))["error"]["code"] == -32602
    assert sessions(world) == before


async def test_a_session_that_a_socket_uses_is_closed_as_soon_as_that_goes(http, world):
    before = sessions(world)
    sid = (await rpc(http, "openenv/session/create"))["result"]["session_id"]  # G24
    async with Player(world.url, f"{WS}?session_id={sid}") as player:
        await player.reset(split="train", index=1)
        told = await rpc(http, "openenv/session/close", session_id=sid)
        assert told["result"] == {"session_id": sid, "closed": False, "closing": True}
        await player.step("note", text="a")
        assert sessions(world) == before + 1
    await until(lambda: sessions(world) == before)
    assert (await rpc(http, "openenv/session/close", session_id=sid))["error"]["code"] == -32602


async def test_a_reward_stays_out_of_the_private_dialect(http):
    sid = (await rpc(http, "openenv/session/create"))["result"]["session_id"]
    told = await rpc(http, "tools/call", session_id=sid, name="submit", arguments={"answer": "gold-0"})
    assert not {"reward", "done", "finished", "metadata"} & told["result"].keys()
    assert "1.0" not in json.dumps(told)
    over = (await rpc(http, "tools/call", session_id=sid, name="note", arguments={"text": "a"}))["result"]
    assert over["is_error"]
    await rpc(http, "openenv/session/close", session_id=sid)


async def test_a_seat_of_nobody_is_not_found(http, world):
    async with Player(world.url, f"{WS}?session_id=nobody") as player:
        assert (await player.hear())["data"]["code"] == "SESSION_ERROR"
    assert (await rpc(http, "tools/list", session_id="nobody"))["error"]["code"] == -32602


async def test_seats_that_nobody_uses_are_given_back():
    with running([Played], idle_seconds=0.2, sweep_seconds=0.05, max_sessions=2) as server:
        async with Wire(server.url) as http:
            played = (await rpc(http, "openenv/session/create"))["result"]["session_id"]
            await rpc(http, "tools/call", session_id=played, name="note", arguments={"text": "a"})
            await rpc(http, "openenv/session/create")
            refused = await rpc(http, "openenv/session/create")
            assert (refused["error"]["code"], refused["error"]["data"]["code"]) == (-32000, "CAPACITY_REACHED")
            await until(lambda: not sessions(server))

            async def is_free() -> bool:
                return "result" in await rpc(http, "openenv/session/create")

            for _ in range(100):
                if await is_free():
                    return
                await asyncio.sleep(0.05)
            raise AssertionError("no seat was given back")


async def test_json_rpc_on_the_socket_has_the_sockets_own_session(player, world):
    await player.reset()
    await player.step("note", text="a")
    told = await player.rpc("tools/list")  # G26
    assert {spec["name"] for spec in told["result"]["tools"]} >= {"note"}
    assert (await player.rpc("tools/call", name="note", arguments={"text": "b"}))["result"]["data"] == "a b"


async def test_the_socket_of_json_rpc_has_a_session_of_its_own(world):
    async with Player(world.url, f"{BASE}/mcp") as player:
        told = []
        for method, params in [("tools/list", {}), ("tools/call", {"name": "note", "arguments": {"text": "a"}})]:
            await player.say(json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}))
            told.append(await player.hear())
        assert told[0]["result"]["tools"]
        assert told[1]["result"]["data"] == "a"
        await player.say("{bad")
        assert (await player.hear())["error"]["code"] == -32700


# Doors.


async def test_behind_a_key_a_socket_needs_it_too():
    with running([Played], api_key="sesame") as server:
        for headers in ({}, {"X-API-Key": "wrong"}, {"Authorization": "Bearer wrong"}):
            with pytest.raises(Exception, match="HTTP 401"):
                await Player(server.url, WS, headers).connected()
        for headers in ({"X-API-Key": "sesame"}, {"Authorization": "Bearer sesame"}):
            async with Player(server.url, WS, headers) as player:
                await player.reset()


async def test_a_web_page_cannot_open_a_socket(world):
    with pytest.raises(Exception, match="HTTP 403"):
        await Player(world.url, WS, {"Origin": "http://evil.example"}).connected()
    with pytest.raises(Exception, match="HTTP 421"):
        await Player(world.url, WS, {"Host": "evil.example"}).connected()
    async with Player(world.url, WS, {"Origin": world.url}) as player:
        await player.reset()
    with running([Played], allow_origin=("http://ours.example",)) as server:
        async with Player(server.url, WS, {"Origin": "http://ours.example"}) as player:
            await player.reset()


@pytest.mark.parametrize("path", ["/ws", "/openenv/nobody/ws", "/mcp", "/health", "/agent/x/ws", "/played/call"])
async def test_no_socket_opens_where_none_is_spoken(world, path):
    with pytest.raises(Exception, match=r"HTTP (200|40[0-9])"):
        await Player(world.url, path).connected()


async def test_the_port_of_agents_opens_no_socket():
    with running([Played], agent_port=0) as server, pytest.raises(Exception, match="HTTP 404"):
        await Player(server.agent_url, WS).connected()


async def test_an_environment_cannot_be_called_as_the_path_is():
    class Openenv(Played):
        pass

    with pytest.raises(Exception, match="cannot be called 'openenv'"), running([Openenv]):
        pass


async def test_when_the_server_stops_a_running_call_ends_and_sockets_close():
    with running([Played], drain_seconds=0.1) as server:
        async with Player(server.url, WS) as player:
            await player.reset(task_spec={"name": "stopped"})
            waiting = asyncio.ensure_future(player.step("hang"))
            await until(lambda: server.server.runtime.calls)
            server.server.stop()
            with pytest.raises((Error, Closed)):
                await waiting
            with pytest.raises((Error, Closed)):
                await player.step("note", text="a")
    assert ended.count("stopped") == 1


async def test_secrets_reach_the_environment_and_not_the_state(player, http):
    await player.reset(secrets={"token": "s3cret"})
    assert "s3cret" not in json.dumps(await player.state())
    body = call_body("note", {"text": "a"})
    sid = (await player.state())["session_id"]
    assert (await http.post("/played/call", headers=H(sid), json=body)).status_code == 200
