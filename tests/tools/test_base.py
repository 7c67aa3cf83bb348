"""`base`, which takes any text, and `finish`, a name without a tool."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.tools.acting import Seen, Trainer
from toolyard.testing import running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer]:
    with running([], tools="base,finish") as server:
        async with Trainer(server.url) as client:
            yield client


@pytest.mark.parametrize("text", ["", "anything", "<python>1</python>", '<tool_call>{"name": "x"}</tool_call>'])
async def test_any_text_is_answered_and_ends_the_trajectory(trainer, text):
    assert await trainer.act(text, "t") == Seen("Base observation for t in turn 0", done=True, valid=True)


async def test_turns_are_counted_for_each_trajectory_until_it_is_finished(trainer):
    assert (await trainer.act("x", "a")).text == "Base observation for a in turn 0"
    assert (await trainer.act("x", "a")).text == "Base observation for a in turn 1"
    assert (await trainer.act("x", "b")).text == "Base observation for b in turn 0"
    await trainer.finish("a")
    assert (await trainer.act("x", "a")).text == "Base observation for a in turn 0"


async def test_it_is_a_tool_over_ors_and_finish_adds_none(trainer):
    tools = (await trainer.get("/toolbox/tools")).json()["tools"]
    assert [tool["name"] for tool in tools] == ["base"]
    assert [*tools[0]["input_schema"]["properties"]] == ["action"]
    async with trainer.session() as sid:
        answer = await trainer.call(sid, "base", {"action": "hello"}, env="toolbox")
        assert answer.text == "Base observation for this session in turn 0"
        assert answer.output["finished"] is True
        assert (await trainer.call(sid, "base", env="toolbox")).text == "Base observation for this session in turn 1"


async def test_health_lists_the_tools_and_then_finish(trainer):
    assert (await trainer.get("/verl/health")).json()["tools"] == ["base", "finish"]
