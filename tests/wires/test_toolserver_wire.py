"""The ToolServer's wire, apart from single tools: nodes, names, results, failures, repeated requests."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Iterator

import anyio
import pytest

from tests.wires.toolserver_wire import PNG, Many, Node, Toolbox
from tests.wires.wire import until
from tests.worlds import MathEnv
from toolyard import Environment, tool
from toolyard.core.errors import DefinitionError
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([MathEnv, Toolbox, Many], toolserver_wait_seconds=0.6) as server:
        yield server


@pytest.fixture
async def node(served: Running) -> AsyncIterator[Node]:
    async with Node(served.url) as node:
        await node.cookie()
        yield node
        await node.post("/release_session")
    await until(lambda: not served.server.runtime.sessions)


async def test_105_every_spelling_of_get_cookies_makes_a_new_node(served):
    async with Node(served.url) as node:
        seen = set()
        for method, path in (("POST", "/get_cookie"), ("GET", "/get_cookies"), ("POST", "/toolserver/get_cookies")):
            response = await node.request(method, path)
            assert (response.status_code, response.json()) == (200, {"message": "add cookie", "version": "0.2"})
            assert response.headers["server"] == "ToolServerManager/0.2"
            assert response.headers["set-cookie"] == f"node_id={node.node_id}; Path=/; HttpOnly; SameSite=Strict"
            assert len(bytes.fromhex(node.node_id)) == 32
            seen.add(node.node_id)
        assert len(seen) == 3


async def test_106_107_who_has_no_cookie_or_a_wrong_one_is_told_so(served):
    async with Node(served.url) as node:
        assert await node.detail("stand_alone", 403) == "invalid node_id: None"
        for path in ("/close_session", "/reconnect_session", "/release_session"):
            assert await node.answer(path) == "invalid node_id: None"
        node.cookies["node_id"] = "nonsense"
        assert await node.detail("stand_alone", 403) == "invalid node_id: nonsense"
        for path in ("/close_session", "/reconnect_session", "/release_session"):
            assert await node.answer(path) == "invalid node_id: nonsense"


async def test_108_a_closed_node_answers_503_until_it_is_opened_again(node):
    assert await node.answer("/close_session") == f"Close session: {node.node_id}"
    assert await node.detail("stand_alone", 503) == f"node is not running: {node.node_id}"
    assert await node.answer("/close_session") == f"Close session: {node.node_id}"
    assert await node.answer("/reconnect_session") == f"Reconnect session: {node.node_id}"
    assert await node.execute("stand_alone") == 1


async def test_109_a_released_node_is_unknown(node, served):
    await node.execute("stand_alone")
    assert served.server.runtime.sessions
    assert await node.answer("/release_session") == f"Release session: {node.node_id}"
    assert await node.detail("stand_alone", 403) == f"invalid node_id: {node.node_id}"
    assert not served.server.runtime.sessions


@pytest.mark.parametrize("body", [{}, None, [], {"anything": 1}])
async def test_110_all_that_is_not_hidden_is_listed(node, body):
    listed = await node.answer("/get_available_tools", body)
    assert set(listed) == {"available_envs", "available_tools", "tools_json"}
    names = listed["available_tools"]
    assert {"MathEnv_submit", "Values_value", "Patience_begin", "stand_alone", "Many_submit"} <= set(names)
    assert not any("unlisted" in name for name in names)
    assert [about["name"] for about in listed["tools_json"]] == names
    for about in listed["tools_json"]:
        assert set(about) == {"name", "description", "parameters"}
        assert about["parameters"]["type"] == "object"
    worlds = {world["name"]: world for world in listed["available_envs"]}
    assert {"Values", "Patience", "MathEnv", "Many"} <= set(worlds)
    assert worlds["Values"]["description"] == "Tools that return\none thing each."
    assert worlds["Values"]["tools"][0] == "value"


async def test_111_of_many_tools_fifty_are_named_and_all_when_asked(node):
    listed = await node.answer("/get_available_tools", {})
    many = next(world for world in listed["available_envs"] if world["name"] == "Many")
    assert (len(many["tools"]), many["total_tools"]) == (50, 60)
    whole = await node.answer("/get_json_schema_for_envs", ["Many"])
    assert len(whole["envs_json"][0]["tools"]) == 60


async def test_112_a_description_is_cut(node):
    about = await node.answer("/get_json_schema_for_tools", ["Values_long_words"])
    assert about["tools_json"][0]["description"] == "w" * 1024


NAMES = ["Values_value", "Values_unlisted_3", "nope"]


@pytest.mark.parametrize("body", [NAMES, {"tools": NAMES}, {"tool_names": NAMES}, {"names": NAMES}])
async def test_113_schemas_of_tools_hidden_ones_too(node, body):
    told = await node.answer("/get_json_schema_for_tools", body)
    assert told["missing_tools"] == ["nope"]
    value, hidden = told["tools_json"]
    assert value == {
        "name": "Values_value",
        "description": "Return one.\nOf whatever kind.",
        "parameters": {
            "type": "object",
            "properties": {"kind": {"type": "string", "description": "Which."}},
            "required": ["kind"],
        },
    }
    assert hidden["name"] == "Values_unlisted_3"


@pytest.mark.parametrize("key", [None, "envs", "env_names"])
async def test_114_schemas_of_worlds(node, key):
    names = ["Values", "Patience", "nope"]
    told = await node.answer("/get_json_schema_for_envs", {key: names} if key else names)
    assert told["missing_envs"] == ["nope"]
    values, patience = told["envs_json"]
    assert (len(values["tools"]), values["total_tools"]) == (63, 63)
    assert patience["tools"] == ["begin", "end", "wait", "open", "fail"]


async def test_119_a_tool_that_is_not_there_is_404_and_a_body_that_is_none_422(node):
    assert (await node.detail("nope", 404)).startswith("The tool nope is not found! The tools are: ")
    body = {"tool_name": "value", "arguments": {}, "env_name": "Nowhere"}
    response = await node.post("/execute_tool", json=body)
    assert response.status_code == 404
    assert response.json()["detail"].startswith("The tool Nowhere_value is not found! ")
    body["env_name"] = "Patience"
    detail = (await node.post("/execute_tool", json=body)).json()["detail"]
    assert detail.startswith("The tool Patience_value is not found! ")
    for wrong in ({"tool_name": "x"}, {"arguments": {}}, {"tool_name": "x", "arguments": "str"}, [], "x", None, 7):
        response = await node.post("/execute_tool", json=wrong)
        assert response.status_code == 422, wrong
        assert isinstance(response.json()["detail"], list)
    assert "validation error" in await node.detail("Values_value", 500, nonsense=1)


async def test_120_methods_that_are_no_tools_are_not_there(node):
    for name in ("Values_teardown", "Values_call_task_tool", "Patience___init__", "Values__private"):
        assert (await node.detail(name, 404)).startswith(f"The tool {name} is not found! ")


async def test_a_tool_can_be_called_without_the_name_of_its_world_if_it_is_the_only_one(node):
    assert await node.execute("value", kind="number") == 3
    told = await node.detail("submit", 404)  # two environments have one
    assert told.startswith("The tool submit is not found! Did you mean 'Many_submit' or 'MathEnv_submit'? The tools ")
    body = {"tool": "value", "parameters": {"kind": "number"}, "env_name": "Values"}
    assert (await node.post("/execute_tool", json=body)).json() == 3
    both = {"tool": "nope", "parameters": {}, "tool_name": "value", "arguments": {"kind": "text"}}
    assert (await node.post("/execute_tool", json=both)).json() == "words"


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("text", "words"),
        ("none", None),
        ("number", 3),
        ("nan", None),
        ("list", [1, {"a": 2}]),
        ("dict", {"type": "simple", "data": {"a": 1}}),
        ("wrapped", {"type": "simple", "data": 7}),
        ("wrapped by XAgent", {"type": "composite", "data": ["a", {"type": "binary", "data": "AP8="}]}),
        ("pair", {"type": "composite", "data": ["a", {"type": "simple", "data": {"b": 2}}]}),
        ("single", {"type": "simple", "data": 5}),
        ("empty", {"type": "simple", "data": None}),
        ("bytes", {"type": "binary", "media_type": "bytes", "data": "AP8="}),
        ("nested", {"type": "composite", "data": ["x", [1]]}),
        ("picture", {"type": "binary", "media_type": "image/png", "data": base64.b64encode(PNG).decode()}),
        (
            "blocks",
            {
                "type": "composite",
                "data": [
                    "one",
                    {"type": "binary", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
                ],
            },
        ),
    ],
)
async def test_124_values_are_told_as_the_client_takes_them_apart(node, kind, told):
    assert await node.execute("Values_value", kind=kind) == told


async def test_blocks_that_belong_together_are_one_part(node):
    picture = {"type": "binary", "media_type": "image/png", "data": "AAAA"}
    together = {"type": "composite", "data": ["<Figure>", picture]}
    assert await node.execute("Values_grouped") == {"type": "composite", "data": ["first", together]}


async def test_125_a_tool_that_is_not_ready_says_which_to_call_next(node):
    detail = await node.detail("Patience_begin", 450)
    assert detail == {"type": "retry", "next_calling": "Patience_end", "arguments": {"n": 2}}
    assert (await node.detail(detail["next_calling"], 450, **detail["arguments"]))["next_calling"] == "Patience_end"
    assert await node.execute(detail["next_calling"], **detail["arguments"]) == "done after 2"
    assert await node.execute("Patience_end") == "done after 3"


async def test_126_a_call_that_takes_long_is_gone_on_with_and_runs_once(node):
    detail = await node.detail("Patience_wait", 450, text="x")
    assert detail["type"] == "retry"
    again = await node.detail(detail["next_calling"], 450, **detail["arguments"])
    assert again == detail
    async with anyio.create_task_group() as group:
        told: list[object] = []

        async def follow() -> None:
            told.append(await node.execute(detail["next_calling"], **detail["arguments"]))

        group.start_soon(follow)
        assert await node.execute("Patience_open") == "opened"
    assert told == ["x 1"]
    assert await node.execute(detail["next_calling"], **detail["arguments"]) == "x 1"


async def test_nobody_else_can_go_on_with_a_call(node, served):
    detail = await node.detail("Patience_wait", 450)
    async with Node(served.url) as other:
        await other.cookie()
        await other.execute("Patience_open")
        assert "there is no call" in await other.detail(detail["next_calling"], 500, **detail["arguments"])
        await other.answer("/release_session")
    for wrong in ({}, {"call_id": 7}, {"call_id": ""}):
        assert "there is no call" in await node.detail(detail["next_calling"], 500, **wrong)


async def test_over_ors_the_same_call_simply_goes_on(served):
    async with Node(served.url) as client:
        sid = await client.open(env_name="toolbox", task_spec={})
        assert (await client.call(sid, "begin", env="toolbox")).text == "done after 2"
        await client.end(sid)


async def test_failures_are_told_in_the_words_of_the_tool_and_ours_with_a_reason(node):
    assert await node.detail("Patience_fail", how="words") == "it cannot be done"
    assert await node.detail("Patience_fail", how="object") == {"ReturnCode": 3}
    assert await node.detail("Patience_fail", how="otherwise") == "broken"
    response = await node.asked("Patience_fail", how="lost")
    assert response.status_code == 500
    assert response.json()["reason"] == "lost"
    assert response.json()["retryable"] is True
    assert "the engine is down" in response.json()["detail"]


async def test_128_tools_are_found_by_a_question_hidden_ones_too(node):
    found = await node.answer("/retrieving_tools", {"question": "martian credits for currency number 7"})
    assert len(found["retrieved_tools"]) == 5
    assert found["retrieved_tools"][0] == "Values_unlisted_7"
    assert [about["name"] for about in found["tools_json"]] == found["retrieved_tools"]
    two = await node.answer("/retrieving_tools", {"question": "martian credits", "top_k": 2})
    assert len(two["retrieved_tools"]) == 2
    none = await node.answer("/retrieving_tools", {"question": "martian credits", "top_k": 0})
    assert none == {"retrieved_tools": [], "tools_json": []}
    for wrong in ({}, {"question": 1}, {"question": "x", "top_k": "many"}):
        assert (await node.post("/retrieving_tools", json=wrong)).status_code == 422
    assert await node.execute("Values_unlisted_7", amount="2.5") == {"type": "simple", "data": {"unlisted_7": 2.5}}


async def test_136_it_is_alive_and_says_hello(served):
    async with Node(served.url) as node:
        assert (await node.get("/alive")).json() == "alive"
        for response in (await node.get("/"), await node.post("/"), await node.get("/toolserver/")):
            assert response.json() == {"message": "Hello World"}
        assert (await node.get("/execute_tool")).status_code == 405


async def test_tools_that_only_a_session_knows_are_listed_once_it_is_there(node):
    await node.execute("stand_alone")
    assert "only_here" in (await node.answer("/get_available_tools", {}))["available_tools"]
    assert (await node.answer("/get_json_schema_for_tools", ["only_here"]))["missing_tools"] == []
    assert await node.execute("only_here") == "only_here ran"


async def test_a_node_can_be_for_a_task_and_its_reward_comes_with_the_result(served):
    async with Node(served.url) as node:
        response = await node.post("/get_cookies", json={"environment": "many", "split": "train", "index": -1})
        assert [block["text"] for block in response.json()["prompt"]] == ["The answer is 2."]
        told = {"type": "simple", "data": {"reward": 1.0, "finished": True}}
        assert await node.execute("Many_submit", answer=2) == {"type": "composite", "data": ["graded", told]}
        assert "finished" in await node.detail("Many_submit", answer=2)
        assert await node.execute("stand_alone", n=4) == 4
        await node.answer("/release_session")
        await node.cookie({"env_name": "Many", "task_spec": {"answer": 9}})
        told = {"type": "simple", "data": {"reward": 0.0, "finished": True}}
        assert (await node.execute("Many_submit", answer=2))["data"][1] == told
        await node.answer("/release_session")


async def test_what_breaks_for_want_of_a_task_says_where_to_name_one(node):
    assert await node.detail("Many_submit", answer=2) == (
        "'answer' (this node has no task of 'Many': name one in the body of /get_cookies)"
    )
    assert await node.detail("Patience_fail", how="otherwise") == "broken"  # unrelated to tasks


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"environment": "nowhere"}, 404),
        ({"environment": "many", "split": "train", "index": 99}, 400),
        ({"environment": "many", "split": "nope", "index": 0}, 400),
        ({"environment": "many", "split": "train"}, 422),
        ({"split": "train", "index": 0}, 422),
        ({"environment": 7}, 422),
        ([1], 422),
    ],
)
async def test_a_task_that_is_not_there_makes_no_node(served, body, status):
    async with Node(served.url) as node:
        response = await node.post("/get_cookies", json=body)
        assert response.status_code == status, response.text
        assert "set-cookie" not in response.headers
    assert not served.server.runtime.sessions


async def test_two_who_close_and_open_a_node_at_once_do_not_break_it(node):
    for _ in range(5):
        await asyncio.gather(*(node.answer(path) for path in ("/close_session", "/reconnect_session") * 3))
    await node.answer("/reconnect_session")
    assert await node.execute("stand_alone", n=2) == 2


async def test_an_idle_node_is_closed_and_can_be_opened_again(served):
    with running([Toolbox], idle_seconds=0.3, sweep_seconds=0.05) as server:
        async with Node(server.url) as node:
            await node.cookie()
            await node.execute("stand_alone")
            await until(lambda: not server.server.runtime.sessions)
            assert await node.detail("stand_alone", 503) == f"node is not running: {node.node_id}"
            await node.answer("/reconnect_session")
            assert await node.execute("stand_alone") == 1


async def test_a_node_that_was_closed_long_enough_is_forgotten():
    with running([Toolbox], toolserver_keep_seconds=0.1) as server:
        async with Node(server.url) as node:
            await node.cookie()
            await node.answer("/close_session")
            with anyio.fail_after(5):
                while await node.answer("/reconnect_session") != f"invalid node_id: {node.node_id}":
                    await node.answer("/close_session")
                    await anyio.sleep(0.15)


async def test_without_a_workspace_there_are_no_files_and_no_new_tools(node):
    for path in ("/download_workspace", "/get_workspace_structure"):
        assert (await node.post(path)).status_code == 404
    response = await node.post("/register_new_tool", json={"tool_name": "x", "code": ""})
    assert response.status_code == 406


def test_an_environment_cannot_be_called_as_a_path_of_this_wire():
    class Alive(Environment):
        @classmethod
        def list_splits(cls):
            return ["train"]

        @classmethod
        def list_tasks(cls, split):
            return []

        def get_prompt(self):
            return ""

        @tool
        def act(self) -> str:
            return ""

    with pytest.raises(DefinitionError, match="cannot be called 'alive'"), running([Alive]):
        pass


async def test_138_the_paths_of_this_wire_are_never_redirected(served):
    async with Node(served.url) as node:
        for path in ("/execute_tool", "/get_observation", "/get_cookie"):
            assert (await node.post(path, json={})).status_code not in (307, 308)
