"""Environments that extend `openreward.environments.Environment`, served unmodified."""

from __future__ import annotations

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire

pytestmark = pytest.mark.anyio


@pytest.fixture
async def wire(openreward_url):
    async with Wire(openreward_url) as wire:
        yield wire


async def listed(wire, env, sid=None):
    path = f"/{env}/task_tools" if sid else f"/{env}/tools"
    response = await wire.get(path, headers=H(sid) if sid else {})
    assert response.status_code == 200, response.text
    return response.json()


async def names(wire, env, sid=None):
    return [tool["name"] for tool in (await listed(wire, env, sid))["tools"]]


async def test_the_tools_depend_on_the_task(wire):
    assert await names(wire, "interfaceenv") == ["answer"]
    choice, closed = [await wire.open(env_name="interfaceenv", split="train", index=index) for index in (0, 2)]
    assert await names(wire, "interfaceenv", choice) == ["answer", "search", "select"]
    assert await names(wire, "interfaceenv", closed) == ["answer", "search"]
    assert (await wire.call(closed, "search", {"query": "rivers"}, env="interfaceenv")).text == "found rivers"
    assert (await wire.call(closed, "answer", {"reply": "4"}, env="interfaceenv")).output["reward"] == 1.0
    await wire.end(choice)
    await wire.end(closed)


async def test_a_tool_without_a_method_is_answered_by_their_call_tool(wire):
    sid = await wire.open(env_name="catalogenv", split="train", index=0)
    assert await names(wire, "catalogenv", sid) == ["answer", "search", "alpha", "beta"]
    assert (await wire.call(sid, "alpha", {"n": 1}, env="catalogenv")).text == "alpha {'n': 1} after ['alpha']"
    small = await wire.call(sid, "beta", {"n": -1}, env="catalogenv")
    assert small.failure == {"ok": False, "error": "Tool 'beta' failed: too small"}
    bad = await wire.call(sid, "beta", {"n": "many"}, env="catalogenv")
    assert bad.failure["reason"] == "input_validation"
    assert (await wire.call(sid, "gamma", {"n": 1}, env="catalogenv")).failure["reason"] == "not_found"
    # Tools that have a method pass through it as well: it may count or log them.
    assert (await wire.call(sid, "search", {"query": "x"}, env="catalogenv")).text == "found x"
    after = await wire.call(sid, "beta", {"n": 2}, env="catalogenv")
    assert after.text == "beta {'n': 2} after ['alpha', 'beta', 'search', 'beta']"
    ended = await wire.call(sid, "answer", {"reply": "!"}, env="catalogenv")
    assert (ended.output["reward"], ended.output["finished"]) == (1.0, True)
    assert (await wire.call(sid, "alpha", {"n": 1}, env="catalogenv")).failure["reason"] == "episode_finished"
    await wire.end(sid)


async def test_a_conversation_is_served_as_messages_and_as_a_prompt(wire):
    sid = await wire.open(env_name="talkenv", split="train", index=0)
    messages = (await wire.get("/talkenv/messages", headers=H(sid))).json()
    assert [message["role"] for message in messages] == ["user", "assistant"]
    assert messages[1]["detail"] == {"k": 1}
    assert [block["type"] for block in messages[1]["blocks"]] == ["reasoning", "text"]
    prompt = (await wire.get("/talkenv/prompt", headers=H(sid))).json()
    assert [block["text"] for block in prompt] == ["[user]", "hello", "[assistant]", "<think>so</think>", "hi"]
    await wire.end(sid)


async def test_the_terminal_tool_is_named_and_not_listed(wire):
    tools = await listed(wire, "talkenv")
    assert tools["terminal_tool"] == {"name": "grade", "arg": "reply", "description": "Grade the last message."}
    assert "grade" not in [tool["name"] for tool in tools["tools"]]
    sid = await wire.open(env_name="talkenv", split="train", index=0)
    assert (await wire.call(sid, "grade", {"reply": "12345"}, env="talkenv")).output["reward"] == 0.5
    await wire.end(sid)


async def test_answers_are_compared_by_the_authors_score_group(wire):
    assert (await listed(wire, "talkenv"))["supports_score_group"] is True
    assert (await listed(wire, "interfaceenv"))["supports_score_group"] is False
    sid = await wire.open(env_name="talkenv", split="train", index=0)
    candidates = [
        {"messages": [{"role": "assistant", "blocks": [{"type": "text", "text": text}]}], "metadata": {"was": text}}
        for text in ("a", "bcd")
    ]
    response = await wire.post("/talkenv/score_group", headers=H(sid), json={"candidates": candidates})
    assert Answer.of(response).result == {
        "scores": [{"reward": 1.0, "metadata": {"was": "a"}}, {"reward": 3.0, "metadata": None}]
    }
    await wire.end(sid)


def most_at_once(steps, name):
    """How many calls of a tool, or of any, ran at the same time."""
    running = [0]
    for step in steps:
        if step[:-1] == name or not name:
            running.append(running[-1] + (1 if step.endswith("+") else -1))
    return max(running)


async def test_tools_wait_for_each_other_as_they_are_marked(wire):
    sid = await wire.open(env_name="talkenv", split="train", index=0)

    async def call(name):
        await wire.call(sid, name, env="talkenv")

    async with anyio.create_task_group() as calls:
        for name in ("free", "free", "turn", "turn"):
            calls.start_soon(call, name)
    steps = (await wire.call(sid, "alone", env="talkenv")).text.split()
    assert most_at_once(steps, "free") == 2
    assert most_at_once(steps, "turn") == 1
    assert most_at_once(steps, "") == 3
    async with anyio.create_task_group() as calls:
        for name in ("alone", "free", "alone"):
            calls.start_soon(call, name)
    steps = (await wire.call(sid, "free", env="talkenv")).text.split()
    starts = [at for at, step in enumerate(steps) if step == "alone+"]
    assert [steps[at + 1] for at in starts] == ["alone-"] * 3
    await wire.end(sid)


async def test_a_toolset_finds_what_setup_made_and_says_when_it_does_not(wire):
    sid = await wire.open(env_name="talkenv", split="train", index=1)
    assert (await wire.call(sid, "where", env="talkenv")).text == "a sandbox of 1"
    await wire.end(sid)
    sid = await wire.open(env_name="talkenv", split="train", index=2)
    assert "requires `env.sandbox` to be set" in (await wire.call(sid, "where", env="talkenv")).error
    assert (await wire.call(sid, "turn", env="talkenv")).text == "turn+ turn-", "the rest of the session works"
    await wire.end(sid)


async def test_secrets_reach_the_environment(wire):
    sid = await wire.open(env_name="talkenv", split="train", index=0, secrets={"token": "t"})
    assert (await wire.call(sid, "token", env="talkenv")).text == "t"
    await wire.end(sid)


async def test_the_packages_own_toolsets_can_be_asked_for_by_name(wire):
    unknown = await wire.post(
        "/create",
        headers=H("toolset unknown"),
        json={"env_name": "talkenv", "split": "train", "index": 0, "toolset_name": "nope"},
    )
    assert unknown.status_code == 400
    assert "'claude-code', 'cli', 'codex'" in unknown.json()["detail"]
    missing = await wire.post(
        "/create",
        headers=H("toolset missing"),
        json={"env_name": "interfaceenv", "split": "train", "index": 0, "toolset_name": "codex"},
    )
    assert missing.status_code == 400
    assert "requires `env.sandbox` to be set" in missing.json()["detail"]
