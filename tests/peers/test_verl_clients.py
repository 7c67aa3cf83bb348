"""verl-tool's own clients against this server: none raises, and none ever repeats a request in vain."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterator

import numpy
import pytest

from tests.peers.verl_agent_loop import AgentLoop, EvalService, new_trajectory, script
from tests.wires.verl_wire import Steps, answered, call, gate
from tests.wires.wire import until
from tests.worlds import MathEnv
from toolyard.testing import Running, running
from toolyard.tools.environment import named_toolsets, toolbox

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Steps, MathEnv]) as server:
        yield server


@pytest.fixture(scope="module")
def code() -> Iterator[Running]:
    with running([toolbox(named_toolsets("python_code"), block_lists=True)], protocol=("verl",)) as server:
        yield server


@pytest.fixture
async def loop(steps: Running) -> AsyncIterator[AgentLoop]:
    gate.opened.clear()
    async with AgentLoop(f"{steps.url}/get_observation") as loop:
        yield loop
    gate.opened.set()


async def follow(loop: AgentLoop, number: int, turns: int) -> None:
    """A trajectory that knows what it must see."""
    trajectory = new_trajectory()
    for turn in range(turns):
        seen = await loop.interact(trajectory, f"<note>{number}</note>", {"index": number, "answer": math.nan})
        assert seen["obs"] == f"\n<notes>{' '.join([str(number)] * (turn + 1))}</notes>\n"
        assert (seen["success"], seen["done"], seen["valid_action"]) == (True, 0, 1)
        assert seen["queue_time_ms"] >= 0
        assert seen["X-Process-Time"] >= 0
    loop.close(trajectory)


async def test_103_many_trajectories_at_once_see_their_own_state_and_leave_nothing(loop, steps):
    await asyncio.gather(*(follow(loop, number, turns=5) for number in range(300)))
    await loop.closed()
    assert loop.failures == []
    assert not steps.server.runtime.sessions


async def test_103_programs_of_many_trajectories_at_once(code):
    async def one(loop: AgentLoop, number: int) -> None:
        trajectory = new_trajectory()
        seen = await loop.interact(trajectory, f"Let me see.\n```python\nprint({number} ** 2)\n```", {})
        assert seen["obs"] == f"\n```result\n{number**2}\n```\n"
        none = await loop.interact(trajectory, "The answer is \\boxed{4}.", {})
        assert (none["obs"], none["done"], none["valid_action"]) == ("", 0, 0)
        loop.close(trajectory)

    async with AgentLoop(f"{code.url}/get_observation") as loop:
        await asyncio.gather(*(one(loop, number) for number in range(64)))
    assert loop.failures == []
    assert not code.server.runtime.sessions


async def test_what_goes_wrong_with_an_action_is_no_reason_to_send_it_again(loop):
    trajectory = new_trajectory()
    for text, valid, done in [
        (call("boom"), 0, 0),
        (call("fail"), 1, 0),
        (call("guess", number="many"), 0, 0),
        ("no call", 0, 0),
        (call("lose"), 0, 1),
    ]:
        seen = await loop.interact(trajectory, text)
        assert (seen["success"], seen["valid_action"], seen["done"]) == (True, valid, done)
        assert seen["reward"] is None
    for extra in ({"environment": "nope"}, {"constructor_boom": True}, {"setup_boom": True}):
        seen = await loop.interact(new_trajectory(), "<note>x</note>", extra)
        assert (seen["success"], seen["valid_action"], seen["done"], seen["reward"]) == (True, 0, 1, None)
    assert loop.failures == []


async def test_rewards_reach_the_trainer_as_numbers(loop):
    seen = await loop.interact(new_trajectory(), call("guess", number=7), {})
    assert (seen["obs"], seen["reward"], seen["done"]) == (answered("7!"), 1.0, 1)
    seen = await loop.interact(
        new_trajectory(), call("submit", answer="1"), {"environment": "mathenv", "task_spec": {}}
    )
    assert (seen["reward"], seen["done"]) == (1.0, 1)


async def test_what_a_dataset_holds_is_sent_as_it_is(loop):
    extra = {
        "name": "nul\x00 and bell\x07",
        "scores": numpy.array([1.5, math.inf]),
        "nested": [{"deep": (1, None)}],
        "index": 3,
        "split": "test",
    }
    seen = await loop.interact(new_trajectory(), "<note>a\x00b</note>", {"task_spec": extra})
    assert seen["obs"] == "\n<notes>ab</notes>\n"
    assert loop.failures == []


async def test_whoever_loses_patience_and_asks_again_gets_the_answer_of_the_first(steps):
    gate.opened.clear()
    trajectory = new_trajectory()
    async with AgentLoop(f"{steps.url}/get_observation", timeout=1) as loop:
        waiting = asyncio.ensure_future(loop.interact(trajectory, call("wait", key=trajectory)))
        await until(lambda: loop.failures)
        gate.opened.set()
        seen = await waiting
        assert seen["obs"] == answered(f"{trajectory} came 1 times"), "it was carried out once"
        assert loop.failures == ["Tool call timeout after 1 seconds."]
        again = await loop.interact(trajectory, call("wait", key=trajectory))
        assert again["obs"] == answered(f"{trajectory} came 2 times"), "and the same words later are another action"


async def test_a_finish_that_is_fired_while_an_action_runs_does_no_harm(loop):
    trajectory = new_trajectory()
    waiting = asyncio.ensure_future(loop.interact(trajectory, call("wait", key=trajectory)))
    await until(lambda: gate.came[trajectory])
    loop.close(trajectory)
    seen = await waiting
    assert (seen["success"], seen["done"], seen["valid_action"]) == (True, 1, 0)
    await loop.closed()
    assert loop.failures == []


async def test_the_evaluation_service_gets_text_that_a_tokenizer_takes(code):
    service = EvalService(f"{code.url}/get_observation")
    ids = [new_trajectory() for _ in range(8)]
    programs = [f"<python>print({n})</python>" if n % 2 else "no tool here" for n in range(8)]
    answers = await asyncio.to_thread(service.call, ids, programs, [False] * 8)
    assert answers == [
        (f"\n<result>\n{n}\n</result>\n", False, True) if n % 2 else ("", False, False) for n in range(8)
    ]
    answers = await asyncio.to_thread(service.call, ids, [""] * 8, [True] * 8)
    assert answers == [("", True, True)] * 8


async def test_the_requests_of_the_test_scripts_are_answered(code, steps):
    url = f"{code.url}/get_observation"
    answer = await asyncio.to_thread(script, url, "<python>print('Hello')</python>")
    assert answer["observations"] == ["\n<result>\nHello\n</result>\n"]
    assert isinstance(answer["processing_time_ms"], float)
    stdin = await asyncio.to_thread(script, url, "```python\nprint(input())\n```", stdin=["beside"])
    assert stdin["observations"] == ["\n```result\nbeside\n```\n"]
    ended = await asyncio.to_thread(script, url, "", finish=[True])
    assert (ended["observations"], ended["dones"], ended["valids"]) == ([""], [True], [True])
    numbered = await asyncio.to_thread(script, f"{steps.url}/get_observation", "<note>x</note>", trajectory=7)
    assert numbered["valids"] == [True]
