"""Environments that extend `ors.Environment`, served unmodified."""

from __future__ import annotations

import base64
import json
import subprocess

import anyio
import pytest

from tests.adapters.conftest import HERE
from tests.peers import venvs
from tests.wires.wire import H, Wire

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wire(ors_url):
    async with Wire(ors_url) as wire:
        yield wire


async def tools(wire, path, sid=None):
    response = await wire.get(path, headers=H(sid) if sid else {})
    assert response.status_code == 200, response.text
    return {tool["name"]: tool for tool in response.json()["tools"]}


async def test_what_is_listed_is_what_ors_would_list(wire):
    assert (await wire.get("/list_environments")).json() == ["sumenv", "asyncsumenv"]
    listed = await tools(wire, "/sumenv/tools")
    assert list(listed) == ["boom", "guess", "wrong", "note", "tick"], "alphabetical, then those of each toolset"
    assert listed["guess"]["description"] == "Say a number.\n\n        It ends the episode."
    assert listed["guess"]["input_schema"]["properties"]["number"]["description"] == "what you think it is"
    assert listed["tick"] == {"name": "tick", "description": "Count a tick.", "input_schema": None}


async def test_splits_and_tasks_are_the_authors(wire):
    assert (await wire.get("/sumenv/splits")).json() == [
        {"name": "train", "type": "train"},
        {"name": "extra", "type": "validation"},
    ]
    task = await wire.post("/sumenv/task", json={"split": "train", "index": -1})
    assert task.json() == {"task": {"name": "three", "total": 5, "used": []}, "env_name": "sumenv"}
    assert (await wire.post("/sumenv/tasks", json={"split": "extra"})).json()["tasks"] == []


async def test_tasks_that_cannot_be_listed_are_asked_for_one_by_one(wire):
    assert (await wire.post("/asyncsumenv/tasks", json={"split": "train"})).status_code == 400
    assert (await wire.post("/asyncsumenv/num_tasks", json={"split": "train"})).json() == {"num_tasks": 1000}
    few = await wire.post("/asyncsumenv/task_range", json={"split": "train", "start": -2})
    assert few.json()["tasks"] == [{"n": 998}, {"n": 999}]


async def test_an_episode_has_its_prompt_tools_and_reward(wire):
    sid = await wire.open(env_name="sumenv", split="train", index=2)
    assert (await wire.get("/sumenv/prompt", headers=H(sid))).json() == [
        {"text": "How long is three?", "detail": {"from": "ors"}, "type": "text"},
        {"data": "aGk=", "mimeType": "image/png", "detail": None, "type": "image"},
    ]
    assert "peek" in await tools(wire, "/sumenv/task_tools", sid)
    answer = await wire.call(sid, "guess", {"number": "5"}, env="sumenv")
    assert answer.output == {
        "blocks": [{"text": "True", "detail": None, "type": "text"}],
        "metadata": None,
        "reward": 1.0,
        "finished": True,
    }
    refused = await wire.call(sid, "tick", env="sumenv")
    assert refused.failure["reason"] == "episode_finished"
    await wire.end(sid)


async def test_plain_hooks_run_in_threads_and_teardown_runs_at_the_end(wire):
    first = await wire.open(env_name="sumenv", task_spec={"name": "made up", "used": []})
    assert (await wire.call(first, "peek", env="sumenv")).text == "none ['setup'] True"
    await wire.end(first)
    second = await wire.open(env_name="sumenv", split="train", index=0)
    assert "made up" in (await wire.call(second, "peek", env="sumenv")).output["metadata"]["torn_down"]
    await wire.end(second)


async def test_a_session_that_changes_its_task_changes_no_other(wire):
    for _ in range(2):
        sid = await wire.open(env_name="sumenv", split="train", index=1)
        assert (await wire.call(sid, "peek", env="sumenv")).text == "none ['setup'] True"
        await wire.end(sid)


async def test_toolsets_are_made_with_and_without_the_environment_once_a_session(wire):
    one, two = [await wire.open(env_name="sumenv", split="train", index=index) for index in (0, 1)]
    assert (await wire.call(one, "note", {"text": "a"}, env="sumenv")).text == "one: ['a']"
    assert (await wire.call(one, "note", {"text": "b"}, env="sumenv")).text == "one: ['a', 'b']"
    assert (await wire.call(two, "note", {"text": "c"}, env="sumenv")).text == "two: ['c']"
    assert [(await wire.call(one, "tick", env="sumenv")).text for _ in range(2)] == ["1", "2"]
    await wire.end(one)
    await wire.end(two)


async def test_secrets_reach_the_constructor(wire):
    header = {"X-Secrets": base64.b64encode(json.dumps({"key": {"value": "from the header"}}).encode()).decode()}
    sid = "adapted secrets"
    created = await wire.post(
        "/create", headers={**H(sid), **header}, json={"env_name": "sumenv", "split": "train", "index": 0}
    )
    assert created.status_code == 200
    assert (await wire.call(sid, "peek", env="sumenv")).text.startswith("from the header")
    await wire.end(sid)


async def test_what_goes_wrong_in_a_tool_is_told_apart(wire):
    sid = await wire.open(env_name="sumenv", split="train", index=0)
    assert (await wire.call(sid, "boom", env="sumenv")).error == "it broke"
    assert (await wire.call(sid, "wrong", env="sumenv")).error == "'wrong' returned str; expected ToolOutput"
    bad = await wire.call(sid, "guess", {"number": "many"}, env="sumenv")
    assert bad.failure["error"].startswith("Tool input validation error: ")
    for name in ("forgotten", "not_a_tool", "setup", "_call_tool", "inner", "nope"):
        assert (await wire.call(sid, name, env="sumenv")).failure["error"].startswith(f"{name!r} is not a valid tool")
    await wire.end(sid)


async def test_coroutines_share_the_servers_loop(wire):
    sid = await wire.open(env_name="asyncsumenv", split="train", index=7)
    assert (await wire.get("/asyncsumenv/prompt", headers=H(sid))).json()[0]["text"] == "task 7"
    assert (await wire.call(sid, "same_loop", env="asyncsumenv")).text == "True"
    assert (await wire.call(sid, "later", env="asyncsumenv")).text == "awaited"
    listed = await tools(wire, "/asyncsumenv/task_tools", sid)
    assert list(listed) == ["later", "same_loop", "described"]
    described = await wire.call(sid, "described", {"number": 1}, env="asyncsumenv")
    said = "'described' is not a valid tool. The tools are: later, same_loop."
    assert described.failure["error"] == said, "as with ors-sdk: nobody answers for it"
    await wire.end(sid)


async def test_classes_that_cannot_be_served_are_refused_with_a_reason(served_python):
    done = await anyio.run_process(
        [served_python, HERE / "refused.py"],
        env=venvs.environ(PYTHONPATH=str(venvs.PROJECT / "src")),
        stderr=subprocess.STDOUT,
    )
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["Unfinished"] == "Unfinished is abstract: it has no get_prompt, list_tasks"
    assert "NoTool has no tool" in said["NoTool"]
    assert "NoPrompt has no prompt" in said["NoPrompt"]
    assert said["Clash"].startswith(
        "Tool name collision: 'look' is defined in both the environment and toolset 'Shelf'"
    )
    assert "TwoEnds: ValueError: Multiple @terminal tools defined" in said["TwoEnds"]
    assert "WideEnd: ValueError: Terminal tool 'end' must accept at most one argument" in said["WideEnd"]
    assert said["BadHint"] == "BadHint: NameError: name 'Nowhere' is not defined"
    assert "an environment cannot be called 'ping'" in said["Ping"]
    assert "two environments are called 'warned'" in said["twice"]
    assert said["Warned"] is None
    assert sorted(said["warnings"]) == [
        "SecondShelf.take is not served: Shelf has a tool of that name",
        "Warned.list_tools() is not called: Toolyard reads tools from the class",
        "Warned.unhinted is not served: a tool takes one pydantic model and is hinted -> ToolOutput",
    ]
