"""`Session.start`, the one way to make a call: over at once where nothing waits, in a task of its own in any case."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import threading
from collections.abc import Iterator, Mapping
from typing import Annotated

import anyio
import pytest

from tests.runtime.test_runtime import World, runtime_of, settled, spec
from toolyard import Given, tool
from toolyard.core.errors import CallConflict, Overloaded, SessionClosed, ToolError
from toolyard.core.output import AskAgain, ToolFailure, ToolOutput
from toolyard.runtime.eager import eagerly
from toolyard.runtime.lifecycle import State
from toolyard.runtime.session import Session

pytestmark = pytest.mark.anyio

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="nothing")


class Unreadable(Mapping[str, object]):
    """As a view of something that is closed by now."""

    def __getitem__(self, key: str) -> object:
        raise KeyError(key)

    def __iter__(self) -> Iterator[str]:
        return iter(["key"])

    def __len__(self) -> int:
        return 1


class Many(World):
    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.tasks: list[asyncio.Task[object] | None] = []

    @tool
    async def count(self) -> str:
        self.log.append("count")
        return f"{len(self.log)} of {self.task_spec.get('number')}"

    @tool
    async def looks_later(self) -> str | AskAgain:
        return AskAgain("count")

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
    def double(self, number: int) -> str:
        return str(number * 2)

    @tool
    def breaks(self) -> str:
        raise ValueError("broken")

    @tool
    def hands_out_a_coroutine(self):
        async def later():
            await asyncio.sleep(0)
            return "later"

        return later()

    @tool
    async def knows_its_task(self) -> str:
        self.tasks.append(asyncio.current_task())
        await asyncio.sleep(0)
        self.tasks.append(asyncio.current_task())
        return "done"

    @tool
    async def gives_up(self) -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.sleep(30)
        except TimeoutError:
            return "gave up"
        return "slept"

    @tool
    async def gives_up_anyhow(self) -> str:
        with anyio.move_on_after(0.01):
            await anyio.sleep(30)
        return "moved on"

    @tool
    async def shares_work(self) -> str:
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(asyncio.sleep(0, number)) for number in range(3)]
        return str(sum(part.result() for part in parts))

    @tool
    async def says(self, what: str) -> str:
        before, token = word.get(), word.set(what)
        await asyncio.sleep(0)
        word.reset(token)
        word.set(what)
        return before

    @tool
    async def says_at_once(self, what: str) -> str:
        before = word.get()
        word.set(what)
        return before


class Bare(Many):
    def __init__(self, task_spec={}, secrets={}):
        """Keeps nothing, not even its task."""
        super().__init__()

    async def setup(self):
        pass

    async def teardown(self):
        pass

    @tool
    async def thrice(self, word: str) -> str:
        return word * 3


async def ready(runtime, name: str = "s", environment=Many, **task) -> Session:
    session = await runtime.open(dataclasses.replace(spec(name, **task), environment=environment))
    await session.ready()
    assert session.state is State.READY
    return session


async def several(runtime, count: int) -> list[Session]:
    return [await ready(runtime, f"s{i}", number=i) for i in range(count)]


# Where nothing waits.


async def test_a_tool_that_never_waits_has_answered_when_start_returns():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("long", {}, kept=False)
        assert call.done
        assert call.result == "x" * 1000
        assert (runtime.calls, session.running) == (0, 0)


async def test_calls_in_many_sessions_are_answered_where_they_were_made():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 300)
        calls = [session.start("count", {}, kept=False) for session in sessions]
        assert [call.result for call in calls] == [f"2 of {i}" for i in range(300)]
        assert runtime.calls == 0


async def test_every_result_is_checked():
    async with runtime_of(Many, output_bytes=100).running() as runtime:
        session = await ready(runtime)
        assert "cut here" in session.start("long", {}).result.text
        assert session.start("nothing_like_it", {}).result.reason == "no_such_tool"
        assert isinstance(session.start("not_json", {}).result, ToolFailure)
        assert session.start("end", {}).result.reward == 1
        assert session.start("long", {}).result.reason == "episode_finished"


@pytest.mark.parametrize("tool", ["exits", "cancels_itself", "stops_everything", "interrupts"])
async def test_what_a_tool_raises_is_its_answer(tool):
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        assert session.start(tool, {}).result.reason == "tool_raised"
        assert session.start("long", {}).result == "x" * 1000


async def test_an_exception_that_is_returned_is_not_taken_for_one_that_was_raised():
    async with runtime_of(Many).running() as runtime:
        returned = (await ready(runtime)).start("returns_an_error", {}).result
        assert isinstance(returned, ToolFailure)
        assert "Object of type ToolError is not JSON serializable" in returned.message


@pytest.mark.parametrize("name", ["cannot_be_written", "cannot_be_written_in_a_thread"])
async def test_an_output_that_cannot_be_written_does_no_harm_to_other_calls(name):
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 3)
        calls = [session.start(which, {}) for session, which in zip(sessions, ["count", name, "count"], strict=True)]
        results = [await call.finished() for call in calls]
        assert [results[0], results[2]] == ["2 of 0", "2 of 2"]
        assert results[1].reason == "tool_raised"


async def test_what_the_trainer_says_reaches_the_tool_and_nobody_else_needs_the_task():
    async with runtime_of(Bare).running() as runtime:
        session = await ready(runtime, environment=Bare)
        assert session.start("thrice", {"word": "x"}).result == "xxx"
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        assert session.start("guided", {"hint": "of the model"}, given={"hint": "of the trainer"}).result == (
            "of the trainer"
        )


# Where something waits.


async def test_a_tool_that_waits_is_a_running_call_until_it_ends():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        calls = [session.start("one", {}) for _ in range(3)]  # the others take their turn behind
        assert log == ["setup", "one in"]
        assert (runtime.calls, session.running, session.waiting) == (3, 3, 2)
        gate.set()
        assert [await call.finished() for call in calls] == ["one"] * 3
        assert log[1:] == ["one in", "one out"] * 3
        assert (runtime.calls, session.running) == (0, 0)


async def test_a_tool_runs_in_one_task_from_its_first_step_to_its_last():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        assert await session.start("knows_its_task", {}).finished() == "done"
        placed = await session.ready()
        first, second = placed.environment.tasks
        assert first is second
        assert first is not asyncio.current_task()


@pytest.mark.parametrize(
    ("name", "said"), [("gives_up", "gave up"), ("gives_up_anyhow", "moved on"), ("shares_work", "3")]
)
async def test_time_limits_and_groups_of_tasks_work_in_a_tool_from_its_first_step_on(name, said):
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        with anyio.fail_after(10):
            assert await session.start(name, {}).finished() == said
        assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("name", ["says", "says_at_once"])
async def test_what_a_tool_puts_into_its_context_stays_there(name):
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        for what in ("first", "second"):
            assert await session.start(name, {"what": what}).finished() == "nothing"
        assert word.get() == "nothing"


async def test_a_call_past_its_deadline_is_stopped_and_the_others_go_on():
    async with runtime_of(Many, call_seconds=0.1).running() as runtime:
        first, second = await several(runtime, 2)
        late, call = first.start("one", {}), second.start("count", {})
        assert (await late.finished()).reason == "timed_out"
        assert call.result == "2 of 1"
        assert first.start("long", {}).result == "x" * 1000


async def test_a_call_that_is_stopped_in_the_turn_in_which_it_began_hears_of_it():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("one", {})
        call.stop("cancelled")
        assert not call.done
        with anyio.fail_after(5):
            assert (await call.finished()).reason == "cancelled"
        assert session.spec.task.spec["log"] == ["setup", "one in"]
        assert session.start("long", {}).done, "its turn was given back"


async def test_whoever_stops_waiting_stops_nobody():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("one", {})
        waiting = [asyncio.ensure_future(call.finished()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[1].cancel()
        await asyncio.wait([waiting[1]])
        assert not await call.wait(0.01)
        session.spec.task.spec["gate"].set()
        assert [await one for one in (waiting[0], waiting[2])] == ["one", "one"]
        assert waiting[1].cancelled()


async def test_closing_the_session_ends_its_calls():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("one", {})
        await runtime.close("s")
        assert call.result.reason == "cancelled"
        with pytest.raises(SessionClosed):
            session.start("long", {})


async def test_before_setup_is_over_a_call_waits_for_that():
    async with runtime_of(Many).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(setup="waits"), environment=Many))
        assert session.state is State.STARTING
        call = session.start("long", {})
        assert not call.done
        session.spec.task.spec["gate"].set()
        assert await call.finished() == "x" * 1000


async def test_a_setup_that_never_waits_is_over_when_the_session_is_open():
    async with runtime_of(Many).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(), environment=Many))
        assert session.state is State.READY


async def test_a_tool_that_knows_later_is_asked_again_unless_the_caller_does_that():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime, number=7)
        assert session.start("looks_later", {}, follow=False).result == AskAgain("count")
        assert await session.start("looks_later", {}).finished() == "2 of 7"


async def test_a_server_that_shuts_down_takes_none():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        runtime.shared.draining = True
        for name in ("count", "double"):
            with pytest.raises(Overloaded):
                session.start(name, {"number": 1})
        assert (runtime.calls, session.running) == (0, 0)
        runtime.shared.draining = False


async def test_an_id_finds_the_call_that_it_names_whether_that_runs_or_is_over():
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("one", {}, call_id="mine")
        assert session.start("one", {}, call_id="mine") is call
        session.spec.task.spec["gate"].set()
        await call.finished()
        assert session.start("one", {}, call_id="mine") is session.find("mine") is call
        with pytest.raises(CallConflict, match="'mine' names another call"):
            session.start("end", {}, call_id="mine")


# Plain functions.


async def test_plain_functions_of_several_sessions_run_beside_the_loop_and_each_has_its_own_answer():
    async with runtime_of(Many).running() as runtime:
        sessions = await several(runtime, 5)
        calls = [
            sessions[0].start("double", {"number": 21}),
            sessions[1].start("breaks", {}),
            sessions[2].start("double", {"number": "many"}),
            sessions[3].start("exits_in_a_thread", {}),
            sessions[4].start("hands_out_a_coroutine", {}),
        ]
        assert [session.running for session in sessions] == [1] * 5
        good, broken, unfit, ended, awaited = [await call.finished() for call in calls]
        assert good == "42"
        assert (broken.reason, unfit.reason, ended.reason) == ("tool_raised", "bad_arguments", "tool_raised")
        assert awaited.text == "later"
        assert [session.running for session in sessions] == [0] * 5


async def test_a_plain_function_that_hangs_is_timed_out_and_the_others_keep_their_answers():
    async with runtime_of(Many, call_seconds=0.3).running() as runtime:
        release = threading.Event()
        sessions = [await ready(runtime, name, thread=release) for name in ("s0", "s1")]
        calls = [sessions[0].start("double", {"number": 4}), sessions[1].start("hangs_in_a_thread", {})]
        with anyio.fail_after(10):
            good, late = [await call.finished() for call in calls]
        assert good == "8"
        assert late.reason == "timed_out"
        assert await sessions[0].start("double", {"number": 5}).finished() == "10"
        release.set()


# The first step by hand.


async def test_what_is_started_eagerly_and_never_waits_is_done():
    done = []

    async def work():
        done.append("work")
        return 3

    task = eagerly(work())
    assert done == ["work"]
    assert await task == 3


async def test_what_is_raised_in_the_first_step_is_raised_by_the_task():
    async def work():
        raise ValueError("at once")

    with pytest.raises(ValueError, match="at once"):
        await eagerly(work())


async def test_a_task_that_is_cancelled_right_after_its_first_step_can_clean_up_and_cancels_what_it_waits_for():
    told = []

    async def inner():
        try:
            await asyncio.sleep(30)
        finally:
            told.append("inner")

    async def work():
        waited_for = asyncio.ensure_future(inner())
        await asyncio.sleep(0)
        try:
            await waited_for
        finally:
            told.append("work")

    task = eagerly(work())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["inner", "work"]
    told.clear()

    async def waits_at_once():
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            told.append("cleaned up")

    task = eagerly(waits_at_once())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert told == ["cleaned up"]


async def test_eager_work_may_start_eager_work():
    async def inner():
        return asyncio.current_task()

    async def outer():
        task = eagerly(inner())
        return asyncio.current_task(), task, await task

    mine = asyncio.current_task()
    task = eagerly(outer())
    assert asyncio.current_task() is mine
    current, inner_task, inner_current = await task
    assert current is task
    assert inner_current is inner_task


async def test_a_call_waits_for_its_gate():
    """The shared world of these tests does wait, or the tests above would show nothing."""
    async with runtime_of(Many).running() as runtime:
        session = await ready(runtime)
        call = session.start("one", {})
        await settled(runtime, session.spec.task.spec["log"], "one in")
        assert not call.done
        await runtime.close("s")
