"""Calls in many sessions at once: cheap where nothing waits, and as any other where something does."""

from __future__ import annotations

import asyncio
import dataclasses
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated

import anyio
import pytest

from tests.loops import counted_turns
from tests.runtime.test_runtime import World, runtime_of, settled, spec
from toolyard import Given, tool
from toolyard.core.errors import Overloaded, SessionClosed, ToolError
from toolyard.core.output import AskAgain, ToolFailure, ToolOutput
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session

pytestmark = pytest.mark.anyio


class Unreadable(Mapping[str, object]):
    """As a view of something that is closed by now."""

    def __getitem__(self, key: str) -> object:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1


class Many(World):
    @tool
    async def count(self) -> str:
        self.log.append("count")
        return f"{len(self.log)} of {self.task_spec['number']}"

    @tool
    async def takes_its_time(self) -> str:
        until = time.perf_counter() + 0.0003
        while time.perf_counter() < until:
            self.log.append("not waiting")
        return "done"

    @tool
    async def looks_later(self) -> str | AskAgain:
        return AskAgain("count")

    @tool
    async def breaks(self) -> str:
        raise ValueError("broken")

    @tool
    async def returns_an_error(self):
        return ToolError("which was not raised")

    @tool
    async def guided(self, hint: Annotated[str, Given()] = "") -> str:
        return hint

    @tool
    async def cannot_be_written(self) -> ToolOutput:
        return ToolOutput(metadata={"view": Unreadable()})

    @tool
    def cannot_be_written_in_a_thread(self) -> ToolOutput:
        return ToolOutput(metadata={"view": Unreadable()})

    @tool
    def in_a_thread(self) -> str:
        return threading.current_thread().name


async def several(runtime: Runtime, count: int) -> list[Session]:
    specs = [dataclasses.replace(spec(f"s{i}", number=i), environment=Many) for i in range(count)]
    opened = [await runtime.open(one) for one in specs]
    for session in opened:
        await session.ready()
    return opened


def each(sessions: Sequence[Session], *tools: str):
    """One call in each session, of these tools, the last one for all that are left."""
    names = [*tools, *[tools[-1]] * (len(sessions) - len(tools))]
    return [(session, name, {}, {}) for session, name in zip(sessions, names, strict=True)]


async def test_calls_that_never_wait_are_made_in_the_task_of_the_caller_and_answered_in_order():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 300)
        before = len(asyncio.all_tasks())
        assert await runtime.call_all(each(sessions, "count")) == [f"2 of {i}" for i in range(300)]
        assert len(asyncio.all_tasks()) == before
        assert (runtime.calls, sum(session.running for session in sessions)) == (0, 0)


async def test_what_becomes_of_one_call_is_checked_as_of_any_other_and_the_next_are_made():
    async with runtime_of(Many, output_bytes=100).running() as runtime:
        sessions = await several(runtime, 8)
        told = await runtime.call_all(
            each(sessions, "breaks", "cancels_itself", "nothing_like_it", "not_json", "long", "end", "append", "count")
        )
        assert [one.reason for one in told[:4]] == ["tool_raised", "tool_raised", "no_such_tool", "tool_raised"]
        assert "cut here" in told[4].text
        assert (told[5].reward, told[6].text, told[7]) == (1, "x", "2 of 7")
        again = await runtime.call_all(each(sessions, "count"))
        assert again[5].reason == "episode_finished"
        assert again[7] == "3 of 7"


async def test_those_that_wait_hold_up_no_other_and_are_calls_as_any_other_until_they_end():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 6)
        calling = asyncio.ensure_future(runtime.call_all(each(sessions, "one", "count", "two", "free", "count")))
        logs, gates = zip(*[(one.spec.task.spec["log"], one.spec.task.spec["gate"]) for one in sessions], strict=True)
        await settled(runtime, logs[5], "count")
        await settled(runtime, logs[3], "free in")
        assert (runtime.calls, [session.running for session in sessions]) == (3, [1, 0, 1, 1, 0, 0])
        second = sessions[0].call("one", {})  # takes its turn behind
        await asyncio.sleep(0.05)
        assert logs[0] == ["setup", "one in"]
        for gate in gates:
            gate.set()
        told = await calling
        assert [getattr(one, "text", one) for one in told] == ["one", "2 of 1", "two", "free", "2 of 4", "2 of 5"]
        assert (await second.finished()).text == "one"
        assert logs[0][1:] == ["one in", "one out"] * 2
        assert (runtime.calls, sum(session.running for session in sessions)) == (0, 0)


async def test_one_past_its_deadline_is_stopped_alone_and_its_lane_goes_on():
    async with runtime_of(Many, call_seconds=0.2).running() as runtime:
        sessions = await several(runtime, 3)
        with anyio.fail_after(5):
            late, *others = await runtime.call_all(each(sessions, "one", "count"))
        assert late.reason == "timed_out"
        assert others == ["2 of 1", "2 of 2"]
        await asyncio.sleep(0)  # would raise, had the task been cancelled
        assert await runtime.call_all(each(sessions, "count")) == ["3 of 0", "3 of 1", "3 of 2"]


async def test_who_gives_up_takes_the_calls_with_him():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        calling = asyncio.ensure_future(runtime.call_all(each(sessions, "one")))
        for session in sessions:
            await settled(runtime, session.spec.task.spec["log"], "one in")
        calling.cancel()
        with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
            await calling
        with anyio.fail_after(5):
            while runtime.calls:
                await asyncio.sleep(0)
        assert await runtime.call_all(each(sessions, "count")) == ["3 of 0", "3 of 1", "3 of 2"]


async def test_a_session_that_is_busy_is_waited_for_and_one_that_is_closed_is_said_so():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        running = sessions[0].call("alone", {})
        await settled(runtime, sessions[0].spec.task.spec["log"], "alone in")
        await runtime.close("s1")
        calling = asyncio.ensure_future(runtime.call_all(each(sessions, "count")))
        await settled(runtime, sessions[2].spec.task.spec["log"], "count")
        sessions[0].spec.task.spec["gate"].set()
        waited, closed, free = await calling
        assert (waited.text, free) == ("4 of 0", "2 of 2")
        assert isinstance(closed, SessionClosed)
        assert (await running.finished()).text == "alone"


async def test_a_tool_that_knows_later_is_asked_again_while_the_others_go_on():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        told = await runtime.call_all(each(sessions, "looks_later", "count"))
        assert [getattr(one, "text", one) for one in told] == ["2 of 0", "2 of 1", "2 of 2"]


async def test_plain_functions_and_coroutines_are_called_together():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 4)
        first, counted, _, last = await runtime.call_all(
            each(sessions, "in_a_thread", "count", "breaks", "in_a_thread")
        )
        assert first.startswith("toolyard-plain")
        assert last.startswith("toolyard-plain")
        assert counted == "2 of 1"
        assert (runtime.calls, sum(session.running for session in sessions)) == (0, 0)
        assert await runtime.call_all([]) == []


async def test_who_gives_up_at_once_leaves_every_session_free():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 4)
        calling = asyncio.ensure_future(runtime.call_all(each(sessions, "in_a_thread", "count")))
        await asyncio.sleep(0)  # it has begun, and nothing that it started has
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling
        with anyio.fail_after(10):
            again = await runtime.call_all(each(sessions, "in_a_thread", "count"))
            assert [isinstance(one, str) for one in again] == [True] * 4
        assert (runtime.calls, sum(session.running for session in sessions)) == (0, 0)


@pytest.mark.parametrize("name", ["count", "in_a_thread"])
async def test_a_server_that_shuts_down_takes_none_of_them(name):
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        runtime.shared.draining = True
        told = await runtime.call_all(each(sessions, name))
        runtime.shared.draining = False
        assert [type(one) for one in told] == [Overloaded] * 3
        again = await runtime.call_all(each(sessions, name))
        assert not any(isinstance(one, Exception | ToolFailure | ToolOutput) for one in again)


async def test_others_on_the_loop_have_their_turn_between():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 300)
        async with counted_turns() as turns:
            await runtime.call_all(each(sessions, "takes_its_time"))
            assert turns() >= 300 / 4 - 1  # for four calls take more than a millisecond


async def test_each_call_is_told_once_with_the_seconds_that_it_ran_itself():
    runtime = runtime_of(Many)
    told: list[tuple[str, str, str, float]] = []
    runtime.journal.answered.append(
        lambda spec, tool, outcome, _, ran: told.append((spec.session_id, tool, outcome, ran))
    )
    runtime.journal.answered_at_once.append(
        lambda calls, seconds: told.extend(
            (spec.session_id, tool, "at once", ran) for (spec, tool), ran in zip(calls, seconds, strict=True)
        )
    )
    async with runtime.running():
        sessions = await several(runtime, 9)
        calls = each(
            sessions, "count", "takes_its_time", "append", "count", "breaks", "looks_later", "one", "takes_its_time"
        )
        began = time.monotonic()
        calling = asyncio.ensure_future(runtime.call_all(calls))
        await settled(runtime, sessions[6].spec.task.spec["log"], "one in")
        took = time.monotonic() - began
        await asyncio.sleep(0.05)
        sessions[6].spec.task.spec["gate"].set()
        await calling
    outcomes = {session: (tool, outcome) for session, tool, outcome, _ in told}
    assert len(told) == len(outcomes) == 9
    assert outcomes == {
        "s0": ("count", "at once"),
        "s1": ("takes_its_time", "at once"),
        "s2": ("append", "ok"),
        "s3": ("count", "at once"),
        "s4": ("breaks", "tool_raised"),
        "s5": ("count", "ok"),  # which it was to be asked again with
        "s6": ("one", "ok"),
        "s7": ("takes_its_time", "at once"),
        "s8": ("takes_its_time", "at once"),
    }
    seconds = {session: ran for session, _, _, ran in told}
    assert all(seconds[session] >= 0.0003 for session in ("s1", "s7", "s8"))
    assert seconds["s6"] >= 0.05
    assert sum(seconds[f"s{i}"] for i in range(5)) <= took, "one after the other"


async def test_a_call_that_cannot_even_begin_is_the_failure_of_its_tool():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        told: list[tuple[str, str]] = []
        runtime.journal.answered.append(lambda spec, tool, outcome, *_: told.append((spec.session_id, outcome)))
        sessions[1]._placed.environment.task_spec = None  # as an author may have it, who has read it
        results = await runtime.call_all(each(sessions, "count", "guided", "count"))
        assert results[0] == "2 of 0"
        assert isinstance(results[1], ToolFailure)
        assert results[1].reason == "tool_raised"
        assert results[1] == await sessions[1].call("guided", {}).finished()
        assert results[2] == "2 of 2"
        assert told[0] == ("s1", "tool_raised")


async def test_an_exception_that_is_returned_is_not_taken_for_one_that_was_raised():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 2)
        (returned, _) = await runtime.call_all(each(sessions, "returns_an_error"))
        assert isinstance(returned, ToolFailure)
        assert returned.reason == "tool_raised"
        assert returned == await sessions[0].call("returns_an_error", {}).finished()


@pytest.mark.parametrize(
    ("wrong", "right"), [("cannot_be_written", "count"), ("cannot_be_written_in_a_thread", "in_a_thread")]
)
async def test_an_output_that_cannot_be_written_does_no_harm_to_other_calls(wrong, right):
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 4)
        results = await runtime.call_all(each(sessions, right, wrong, right))
        assert [type(result) for result in results] == [str, ToolFailure, str, str]
        assert "cannot be written as JSON" in results[1].message
        assert [session.running for session in sessions] == [0] * 4
