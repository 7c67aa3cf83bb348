"""The conformance cases of verl-tool's wire, by number. Those of single tools are with the tools' tests."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.verl_wire import Observed, Steps, Trainer, answered, call, gate
from tests.wires.wire import until
from toolyard.testing import Running, running
from toolyard.tools.environment import named_toolsets, toolbox

pytestmark = pytest.mark.anyio

BLOCKED = "Execution blocked: Code contains potentially dangerous operations or imports."


def result(text: str) -> Observed:
    return Observed(f"\n<result>\n{text}\n</result>\n", False, True)


@pytest.fixture(scope="module")
def dropin() -> Iterator[Running]:
    """The server that the drop-in command starts."""
    tools = toolbox(named_toolsets("python_code"), block_lists=True)
    with running([tools], protocol=("verl",), max_concurrent_calls=77) as server:
        yield server


@pytest.fixture
async def trainer(dropin: Running) -> AsyncIterator[Trainer]:
    async with Trainer(dropin.url) as trainer:
        yield trainer


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Steps], verl_request_seconds=1) as server:
        yield server


@pytest.fixture
async def walker(steps: Running) -> AsyncIterator[Trainer]:
    gate.opened.clear()
    async with Trainer(steps.url) as trainer:
        yield trainer
    gate.opened.set()


async def test_66_the_request_of_the_documents_gets_its_answer(trainer):
    text = "```<python>\nprint('Hello from Python!')</python> ... <python>print('Hello again!')</python>``` ..."
    assert await trainer.act("traj_1", text, {}) == result("Hello from Python!\nHello again!")


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        pytest.param("```python\nprint(1)\n```", "\n```result\n1\n```\n", id="67"),
        pytest.param("```py\nprint(1)\n```", "\n<result>\n1\n</result>\n", id="68"),
        pytest.param("```python\nprint(1)\n```\n```output", "\n1\n```\n", id="69"),
        pytest.param("<python>print(1)</python>\n<result>", "\n1\n</result>\n", id="70"),
        pytest.param("<python>print(1)</python>\n<result> \n", "\n1\n</result>\n", id="70-space-after"),
        pytest.param(
            "<python>print(1)</python><tool_call></tool_call>",
            "\n<tool_response>\n```result\n1\n```\n</tool_response>\n",
            id="71",
        ),
        pytest.param("```python3\nprint(1)\n```", "\n```result\n1\n```\n", id="python3"),
        pytest.param("<python></python>", "\n<result>\n\n</result>\n", id="empty"),
    ],
)
async def test_67_to_71_the_result_is_wrapped_as_the_text_asks_for_it(trainer, action, observation):
    assert await trainer.act("forms", action) == (observation, False, True)


async def test_72_nothing_is_kept_from_one_program_to_the_next(trainer):
    assert await trainer.act("t72", "<python>x=1</python>") == result("")
    second = await trainer.act("t72", "<python>print(x)</python>")
    assert "NameError: name 'x' is not defined" in second.text
    assert (second.done, second.valid) == (False, True)


async def test_73_standard_input_comes_from_the_trainer_unless_the_model_writes_its_own(trainer):
    echo = "<python>print(input())</python>"
    assert await trainer.act("t73", echo, {"stdin": "hey"}) == result("hey")
    assert await trainer.act("t73", f"{echo}\n```input\nho\n```", {"stdin": "hey"}) == result("ho")


async def test_74_words_on_the_list_are_refused_and_the_trajectory_goes_on(trainer):
    assert await trainer.act("t74", "<python>import subprocess</python>") == result(BLOCKED)
    assert await trainer.act("t74", "<python>print('os.system')</python>") == result(BLOCKED)
    assert await trainer.act("t74", "<python>print('import a socket')</python>") == result("import a socket")


@pytest.mark.thorough  # `tests/tools/test_python_code.py` shows it with a shorter limit
async def test_75_a_program_that_takes_too_long_is_stopped_and_what_it_printed_is_shown(trainer):
    program = "<python>import time\nprint('begun', flush=True)\ntime.sleep(30)</python>"
    began = time.monotonic()
    one = await trainer.act("t75", program)
    assert time.monotonic() - began < 13
    assert one.text == result("begun\n\nExecution timed out after 10 seconds.").text
    assert (one.done, one.valid) == (False, True)


async def test_76_of_a_long_output_exactly_a_hundred_thousand_characters_are_shown(trainer):
    one = await trainer.act("t76", "<python>print('x' * 200_000)</python>")
    assert one == result("x" * 100_000)


async def test_77_text_that_calls_no_tool_is_invalid_and_ends_a_trajectory_only_if_told_so(trainer):
    assert await trainer.act("t77", "plain text") == ("", False, False)
    with running([Steps], verl_done_if_invalid=True, verl_explain_invalid=True) as other:
        async with Trainer(other.url) as strict:
            observation, done, valid = await strict.act("t77", "plain text")
    assert (done, valid) == (True, False)
    assert observation["obs"] == ""
    assert observation["invalid_reason"] == "No valid tool found for action"
    assert observation["available_tools"].startswith("Available tools:\n• note: Write something down.\n• wait: ")


async def test_78_finish_is_answered_for_any_trajectory_known_or_not(trainer):
    await trainer.finish("never-seen")
    await trainer.act("t78", "<python>print(1)</python>")
    await trainer.finish("t78")


async def test_79_finish_may_stand_in_the_extra_fields(trainer):
    assert await trainer.act("t79", "<python>print(1)</python>", {"finish": True}) == ("", True, True)


async def test_80_finish_counts_wherever_it_is_said(trainer):
    both = await trainer.batch(["a", "b"], ["", ""], extra_fields=[{"finish": False}, {}], finish=[True, True])
    assert both == [("", True, True)] * 2
    first = await trainer.batch(["a", "b"], ["no tool", "no tool"], finish=[True])
    assert first == [("", True, True), ("", False, False)], "a list that is too short is about the first ones"


async def test_81_a_mixed_batch_is_answered_in_its_order(trainer):
    answers = await trainer.batch(
        ["a", "b", "c"], ["no tool", "<python>print(1)</python>", "ignored"], finish=[False, False, True]
    )
    assert answers == [("", False, False), result("1"), ("", True, True)]


async def test_83_a_number_may_name_a_trajectory(walker):
    await walker.batch([1], ["<note>a</note>"])
    (one,) = await walker.batch(["1"], ["<note>b</note>"])
    assert one.text == "\n<notes>a b</notes>\n", "and it is the trajectory '1'"


async def test_84_optional_lists_may_be_null(trainer):
    (one,) = await trainer.batch(
        ["t84"], ["<python>print(1)</python>"], extra_fields=None, finish=None, is_last_step=None
    )
    assert one == result("1")


async def test_85_not_a_number_is_accepted_where_trainers_send_it(trainer):
    body = (
        b'{"trajectory_ids":["t85"],"actions":["<python>print(1)</python>"],"extra_fields":[{"a":NaN,"b":-Infinity}]}'
    )
    response = await trainer.post("/get_observation", content=body)
    assert response.json()["observations"] == [result("1").observation]
    assert b"NaN" not in response.content


async def test_86_lists_beside_the_batch_are_extra_fields_of_its_items():
    tests = '{"inputs":["1"],"outputs":["2"]}'
    with running([], tools="python_oj") as server:
        async with Trainer(server.url) as trainer:
            right, wrong = await trainer.batch(
                ["a", "b"],
                ["<python>print(int(input()) + 1)</python>", "<python>print(input())</python>"],
                public_tests=[tests, tests],
            )
    assert right == ("All public test cases passed!\n", True, True)
    assert "wrong answer" in wrong.text
    assert not wrong.done


@pytest.mark.parametrize(("tools", "said"), [("python_code,bash_terminal", "py"), ("bash_terminal,python_code", "sh")])
async def test_94_the_first_tool_that_takes_a_text_for_its_own_runs(tools, said):
    with running([], tools=tools) as server:
        async with Trainer(server.url) as trainer:
            one = await trainer.act("t94", "<bash>echo sh</bash><python>print('py')</python>")
    assert said in re.split(r"\s+", one.text)
    assert {"py": "sh", "sh": "py"}[said] not in re.split(r"\s+", one.text)


async def test_98_an_action_that_breaks_its_tool_is_no_matter_to_the_others(walker):
    broken, fine, refused = await walker.batch(
        ["a98", "b98", "c98"], [call("boom"), "<note>x</note>", call("guess", number="many")]
    )
    assert broken == (answered("it broke"), False, False)
    assert fine == ("\n<notes>x</notes>\n", False, True)
    assert "validation error" in refused.text
    assert not refused.valid


async def test_99_state_survives_any_place_in_any_batch_and_finish_frees_it(walker, steps):
    await walker.batch(["x99"], ["<note>one</note>"])
    ids = [f"y{n}" for n in range(10)]
    answers = await walker.batch([*ids, "x99"], ["<note>other</note>"] * 10 + ["<note>two</note>"])
    assert answers[-1].text == "\n<notes>one two</notes>\n"
    assert {one.text for one in answers[:-1]} == {"\n<notes>other</notes>\n"}
    await walker.finish(*ids, "x99")
    assert not [name for name in steps.server.runtime.sessions if name in ("verl:x99", *(f"verl:{i}" for i in ids))]
    assert (await walker.act("x99", "<note>three</note>")).text == "\n<notes>three</notes>\n"


async def test_99_the_last_step_is_answered_before_the_state_is_freed(walker, steps):
    await walker.act("z99", "<note>one</note>")
    last = await walker.act("z99", "<note>two</note>", is_last_step=[True])
    assert last == ("\n<notes>one two</notes>\n", False, True)
    assert "verl:z99" not in steps.server.runtime.sessions


async def test_100_the_same_request_twice_at_once_is_carried_out_once(walker):
    twice = [asyncio.ensure_future(walker.act("t100", call("wait", key="t100"))) for _ in range(2)]
    await until(lambda: gate.came["t100"])
    gate.opened.set()
    assert [await one for one in twice] == [(answered("t100 came 1 times"), False, True)] * 2


@pytest.mark.parametrize("prefix", ["", "/verl"])
async def test_101_health_and_metrics_say_what_launchers_look_for(trainer, prefix):
    health = (await trainer.get(f"{prefix}/health")).json()
    assert health["status"] == "healthy"
    assert health["tools"] == ["python_code", "finish"]
    assert health["max_concurrent"] == health["thread_pool_size"] == 77
    assert health["concurrent_requests"] == health["active_tasks"] == 0
    assert health["uptime_seconds"] > 0
    metrics = (await trainer.get(f"{prefix}/metrics")).json()
    assert metrics["config"] == {"max_concurrent": 77, "timeout": None, "hashing_enabled": True}
    assert metrics["tools_initialized"] == 2
    assert metrics["active_requests"] == metrics["cached_responses"] == 0


async def test_101_beside_other_protocols_the_root_stays_theirs(walker):
    assert (await walker.get("/health")).json()["status"] == "ok"
    assert (await walker.get("/verl/health")).json()["status"] == "healthy"
    assert (await walker.post("/verl/get_observation", json={"trajectory_ids": ["a"], "actions": ["x"]})).is_success


async def test_104_a_request_that_takes_too_long_is_answered_408_and_found_again(walker):
    body = {"trajectory_ids": ["t104"], "actions": [call("wait", key="t104")]}
    late = await walker.post("/get_observation", json=body)
    assert (late.status_code, late.json()["detail"]) == (408, "Request processing timeout")
    gate.opened.set()
    again = await walker.post("/get_observation", json=body)
    assert again.json()["observations"] == [answered("t104 came 1 times")]
