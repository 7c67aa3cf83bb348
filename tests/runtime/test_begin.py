"""Calls in the caller's own task: made on the spot where nothing waits, and as any other where something does."""

from __future__ import annotations

import asyncio
import dataclasses
import threading

import anyio
import pytest

from tests.runtime.test_runtime import World, runtime_of, settled, spec
from toolyard import tool
from toolyard.core.errors import CallConflict, Overloaded, SessionClosed
from toolyard.core.output import AskAgain, ToolFailure
from toolyard.runtime.life import State
from toolyard.runtime.session import Session

pytestmark = pytest.mark.anyio


async def ready(runtime, **task) -> Session:
    session = await runtime.open(spec(**task))
    await session.ready()
    assert session.state is State.READY
    return session


async def test_a_tool_that_never_waits_has_answered_when_begin_returns():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        assert session.begin("long", {}, {}) == "x" * 1000
        assert runtime.calls == 0
        assert session.running == 0


async def test_the_same_is_checked_as_of_any_other_call():
    async with runtime_of(output_bytes=100).running() as runtime:
        session = await ready(runtime)
        assert "cut here" in session.begin("long", {}, {}).text
        assert session.begin("nothing_like_it", {}, {}).reason == "no_such_tool"
        failed = session.begin("not_json", {}, {})
        assert isinstance(failed, ToolFailure)
        assert session.begin("end", {}, {}).reward == 1
        refused = await session.begin("long", {}, {})
        assert refused.reason == "episode_finished"


@pytest.mark.parametrize("tool", ["exits", "cancels_itself", "stops_everything", "interrupts"])
async def test_what_a_tool_raises_is_its_answer(tool):
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        assert session.begin(tool, {}, {}).reason == "tool_raised"
        assert session.begin("long", {}, {}) == "x" * 1000


async def test_a_tool_that_waits_is_a_call_as_any_other_until_it_ends():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        begun = asyncio.ensure_future(session.begin("one", {}, {}))
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        await settled(runtime, log, "one in")
        await asyncio.sleep(0)
        assert (runtime.calls, session.running) == (1, 1)
        second = session.call("one", {})  # takes its turn behind
        third = asyncio.ensure_future(session.begin("one", {}, {}))
        await asyncio.sleep(0.05)
        assert log == ["setup", "one in"]
        gate.set()
        assert (await begun).text == "one"
        assert (await second.finished()).text == "one"
        assert (await third).text == "one"
        assert log[1:] == ["one in", "one out"] * 3
        assert (runtime.calls, session.running) == (0, 0)


async def test_a_call_past_its_deadline_is_stopped_and_the_callers_task_goes_on():
    async with runtime_of(call_seconds=0.1).running() as runtime:
        session = await ready(runtime)
        late = await session.begin("one", {}, {})
        assert late.reason == "timed_out"
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # would raise, had it been cancelled
        assert session.begin("long", {}, {}) == "x" * 1000


async def test_closing_the_session_ends_the_call_and_not_the_caller():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)

        async def caller():
            first = await session.begin("one", {}, {})
            await asyncio.sleep(0)
            return first.reason, "went on"

        calling = asyncio.ensure_future(caller())
        await settled(runtime, session.spec.task.spec["log"], "one in")
        await asyncio.sleep(0)
        await runtime.close("s")
        assert await calling == ("cancelled", "went on")


async def test_a_caller_that_gives_up_takes_its_call_with_it():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        calling = asyncio.ensure_future(session.begin("one", {}, {}))
        await settled(runtime, session.spec.task.spec["log"], "one in")
        await asyncio.sleep(0)
        calling.cancel()
        with anyio.fail_after(5), pytest.raises(asyncio.CancelledError):
            await calling
        assert (runtime.calls, session.running) == (0, 0)
        assert session.begin("long", {}, {}) == "x" * 1000


async def test_a_tool_that_does_not_let_itself_be_stopped_does_not_cancel_the_caller():
    async with runtime_of(call_seconds=0.1, teardown_seconds=0.1).running() as runtime:
        session = await ready(runtime)
        calling = asyncio.ensure_future(session.begin("cannot_be_stopped", {}, {}))
        await asyncio.sleep(0)
        with anyio.fail_after(5):
            while runtime.calls:
                await asyncio.sleep(0.02)
        session.spec.task.spec["gate"].set()
        assert (await calling).reason == "timed_out"


async def test_before_setup_is_over_it_waits_for_that():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        assert session.state is State.STARTING
        assert (await session.begin("long", {}, {})).text == "x" * 1000


class Plain(World):
    @tool
    def double(self, number: int) -> str:
        return str(number * 2)

    @tool
    def breaks(self) -> str:
        raise ValueError("broken")

    @tool
    def asks_again(self) -> str | AskAgain:
        return AskAgain("double", {"number": 3})

    @tool
    def hands_out_a_coroutine(self):
        async def later():
            await asyncio.sleep(0)
            return "later"

        return later()


async def several(runtime, count: int, **task) -> list[Session]:
    opened = [await runtime.open(dataclasses.replace(spec(f"s{i}", **task), environment=Plain)) for i in range(count)]
    for session in opened:
        await session.ready()
    return opened


async def test_plain_functions_of_several_sessions_are_run_together():
    async with runtime_of(Plain).running() as runtime:
        sessions = await several(runtime, 5)
        calls = [session.plain("double", {"number": i}, {}) for i, session in enumerate(sessions)]
        assert [session.running for session in sessions] == [1] * 5
        assert sessions[0].plain("double", {"number": 1}, {}) is None  # its turn is taken
        assert await runtime.run_plain(calls) == ["0", "2", "4", "6", "8"]
        assert [session.running for session in sessions] == [0] * 5
        assert runtime.calls == 0


async def test_what_goes_wrong_with_one_of_them_is_the_answer_to_that_one():
    async with runtime_of(Plain).running() as runtime:
        sessions = await several(runtime, 5)
        calls = [
            sessions[0].plain("double", {"number": 21}, {}),
            sessions[1].plain("breaks", {}, {}),
            sessions[2].plain("double", {"number": "many"}, {}),
            sessions[3].plain("exits_in_a_thread", {}, {}),
            sessions[4].plain("hands_out_a_coroutine", {}, {}),
        ]
        good, broken, unfit, ended, awaited = await runtime.run_plain(calls)
        assert good == "42"
        assert (broken.reason, unfit.reason, ended.reason) == ("tool_raised", "bad_arguments", "tool_raised")
        assert awaited.text == "later"


async def test_one_that_hangs_is_timed_out_and_the_others_keep_their_answers():
    async with runtime_of(Plain, call_seconds=0.3).running() as runtime:
        release = threading.Event()
        sessions = await several(runtime, 2, thread=release)
        calls = [sessions[0].plain("double", {"number": 4}, {}), sessions[1].plain("hangs_in_a_thread", {}, {})]
        with anyio.fail_after(10):
            good, late = await runtime.run_plain(calls)
        assert good == "8"
        assert late.reason == "timed_out"
        assert runtime.calls == 0
        assert await runtime.run_plain([sessions[0].plain("double", {"number": 5}, {})]) == ["10"]
        release.set()


async def test_one_that_cannot_be_asked_again_is_lost_and_the_others_keep_their_answers_and_their_turns():
    async with runtime_of(Plain).running() as runtime:
        sessions = await several(runtime, 3)
        tools = ("asks_again", "asks_again", "double")
        calls = [session.plain(tool, {"number": 4}, {}) for session, tool in zip(sessions, tools, strict=True)]
        await runtime.close("s0")
        lost, asked, good = await runtime.run_plain(calls)
        assert (lost.reason, asked.text, good) == ("lost", "6", "8")
        assert [session.running for session in sessions] == [0, 0, 0]
        assert await runtime.run_plain([sessions[2].plain("double", {"number": 5}, {})]) == ["10"]


async def test_those_that_may_not_begin_after_all_give_their_turns_back():
    async with runtime_of(Plain).running() as runtime:
        sessions = await several(runtime, 2)
        calls = [session.plain("double", {"number": 4}, {}) for session in sessions]
        runtime.shared.draining = True
        with pytest.raises(Overloaded):
            await runtime.run_plain(calls)
        runtime.shared.draining = False
        assert [session.running for session in sessions] == [0, 0]
        assert await runtime.run_plain([session.plain("double", {"number": 5}, {}) for session in sessions]) == [
            "10",
            "10",
        ]


async def test_coroutines_and_unknown_tools_are_not_plain():
    async with runtime_of(Plain).running() as runtime:
        (session,) = await several(runtime, 1)
        assert session.plain("long", {}, {}) is None
        assert session.plain("nothing_like_it", {}, {}) is None
        assert session.running == 0


class Bare(Plain):
    def __init__(self, task_spec={}, secrets={}):
        """Keeps nothing, not even its task."""

    async def setup(self):
        pass

    async def teardown(self):
        pass

    @tool
    def twice(self, word: str) -> str:
        return word * 2

    @tool
    async def thrice(self, word: str) -> str:
        return word * 3


async def test_a_tool_that_is_given_nothing_does_not_need_the_task():
    async with runtime_of(Bare).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(), environment=Bare))
        await session.ready()
        assert session.begin("thrice", {"word": "x"}, {}) == "xxx"
        assert await runtime.run_plain([session.plain("twice", {"word": "x"}, {})]) == ["xx"]


# With a ticket.


async def test_a_ticket_of_a_tool_that_never_waits_is_done_and_can_be_found_again():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        call = session.call_here("long", {}, "mine")
        assert call.done
        assert call.result.text == "x" * 1000
        assert session.call_here("long", {}, "mine") is call
        with pytest.raises(CallConflict, match="'mine' names another call"):
            session.call_here("end", {}, "mine")
        assert session.find("mine") is call
        assert (runtime.calls, session.running) == (0, 0)


async def test_a_ticket_of_a_tool_that_waits_is_found_while_the_caller_goes_on_with_it():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)

        async def caller():
            begun = session.call_here("one", {}, "mine")
            assert session.call_here("one", {}, "mine") is begun.call
            await begun.rest
            return begun.call.result.text

        calling = asyncio.ensure_future(caller())
        await settled(runtime, session.spec.task.spec["log"], "one in")
        call = session.find("mine")
        assert (call.done, runtime.calls) == (False, 1)
        session.spec.task.spec["gate"].set()
        assert await calling == "one"
        assert call.result.text == "one"
        assert session.spec.task.spec["log"] == ["setup", "one in", "one out"]


async def test_closing_the_session_ends_the_ticket_and_not_the_caller():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)

        async def caller():
            begun = session.call_here("one", {})
            await begun.rest
            await asyncio.sleep(0)
            return begun.call.result.reason

        calling = asyncio.ensure_future(caller())
        await settled(runtime, session.spec.task.spec["log"], "one in")
        await runtime.close("s")
        assert await calling == "cancelled"


async def test_no_ticket_is_had_of_a_session_that_is_closed():
    async with runtime_of().running() as runtime:
        session = await ready(runtime)
        await runtime.close("s")
        with pytest.raises(SessionClosed):
            session.call_here("long", {})
