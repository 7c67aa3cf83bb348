"""Sessions and calls, without any wire."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import threading
import time
from typing import Annotated

import anyio
import pytest
from pydantic import AfterValidator

from toolyard import Environment, TextBlock, ToolOutput, Toolset, terminal, tool
from toolyard.core.errors import (
    CallConflict,
    CallNotFound,
    DefinitionError,
    Overloaded,
    SessionClosed,
    SessionExists,
    SessionFailed,
    SessionNotFound,
    ToolsetUnavailable,
)
from toolyard.placement.base import SessionSpec, Task
from toolyard.placement.local import LocalPlacement
from toolyard.runtime.limits import Limits
from toolyard.runtime.runtime import Runtime
from toolyard.settings import Settings

pytestmark = pytest.mark.anyio


class Outcome(BaseException):
    """As test frameworks raise, which agents' code may well run."""


Checked = Annotated[str, AfterValidator(lambda given: f"{given} in {threading.current_thread().name}")]


class World(Environment):
    """Everything a session can go through, told from outside by events."""

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.log: list[str] = task_spec.get("log", [])
        match task_spec.get("constructor"):
            case "raises":
                raise ValueError("no world")
            case "hangs":
                task_spec["thread"].wait(20)
        self.gate: asyncio.Event = task_spec.get("gate")

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "p"

    async def setup(self):
        self.log.append("setup")
        match self.task_spec.get("setup"):
            case "hangs":
                await anyio.sleep_forever()
            case "waits":
                await self.gate.wait()
            case "raises":
                raise ValueError("setup boom")
            case "cancels":
                raise asyncio.CancelledError
            case "exits":
                raise SystemExit(3)

    async def teardown(self):
        self.log.append("teardown")
        match self.task_spec.get("teardown"):
            case "hangs":
                await anyio.sleep_forever()
            case "raises":
                raise ValueError("teardown boom")
            case "takes a while":
                await anyio.sleep(0.2)
                self.log.append("teardown over")

    async def _through(self, name):
        self.log.append(f"{name} in")
        await self.gate.wait()
        self.log.append(f"{name} out")
        return name

    @tool
    async def one(self) -> str:
        return await self._through("one")

    @tool
    async def two(self) -> str:
        return await self._through("two")

    @tool(concurrent=True)
    async def free(self) -> str:
        return await self._through("free")

    @tool(exclusive=True)
    async def alone(self) -> str:
        return await self._through("alone")

    @terminal
    @tool
    async def end(self) -> ToolOutput:
        self.log.append("end")
        return ToolOutput(reward=1, finished=True)

    @tool
    async def finish_slowly(self) -> ToolOutput:
        await self._through("finish_slowly")
        return ToolOutput(reward=0.25, finished=True)

    @tool
    async def exits(self) -> str:
        raise SystemExit(3)

    @tool
    async def cancels_itself(self) -> str:
        raise asyncio.CancelledError

    @tool
    def exits_in_a_thread(self) -> str:
        raise SystemExit(3)

    @tool
    def hangs_in_a_thread(self) -> str:
        self.task_spec["thread"].wait(20)
        return "late"

    @tool
    async def stops_everything(self) -> str:
        raise Outcome("of agent code")

    @tool
    async def interrupts(self) -> str:
        raise KeyboardInterrupt

    @tool
    async def cannot_be_stopped(self) -> str:
        while not self.gate.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await self.gate.wait()
        return "at last"

    @tool
    async def append(self) -> ToolOutput:
        self.log.append("more")
        return ToolOutput(blocks=[TextBlock(text="x", detail={"log": self.log})], metadata={"log": self.log})

    @tool
    async def heavy(self) -> ToolOutput:
        return ToolOutput(metadata={"text": "x" * 10_000})

    @tool
    async def not_json(self) -> ToolOutput:
        return ToolOutput(metadata={"what": object()}, finished=True)

    @tool
    def where(self, checked: Checked) -> str:
        return checked

    @tool
    async def long(self) -> str:
        return "x" * 1000


def limits(**changed) -> Limits:
    return Settings(**{"sweep_seconds": 0.02, "teardown_seconds": 2, "drain_seconds": 2, **changed}).pick(Limits)


def runtime_of(*environments, threads=4, **changed) -> Runtime:
    return Runtime(environments or [World], LocalPlacement(threads), limits(**changed))


def spec(session_id="s", **task) -> SessionSpec:
    return SessionSpec(session_id, World, Task({"gate": asyncio.Event(), "log": [], **task}))


async def settled(runtime: Runtime, log: list[str], *expected: str) -> None:
    """Wait until the log says this."""
    with anyio.fail_after(5):
        while log[-len(expected) :] != list(expected):
            await anyio.sleep(0.005)


async def test_setup_runs_before_a_call_and_teardown_after_the_last():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log = session.spec.task.spec["log"]
        session.spec.task.spec["gate"].set()
        assert (await session.start("one", {}).finished()) == "one"
        await runtime.close("s")
        assert log == ["setup", "one in", "one out", "teardown"]
        with pytest.raises(SessionNotFound):
            runtime.session("s")


async def test_an_id_is_free_again_after_a_constructor_that_raised():
    async with runtime_of().running() as runtime:
        with pytest.raises(ValueError, match="no world"):
            await runtime.open(spec(constructor="raises"))
        await runtime.open(spec())
        with pytest.raises(SessionExists):
            await runtime.open(spec())


async def test_closing_during_setup_gives_back_what_setup_took_and_tells_who_waits():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec(setup="hangs"))
        log = session.spec.task.spec["log"]
        call = session.start("one", {})
        await settled(runtime, log, "setup")
        async with anyio.create_task_group() as tasks:

            async def waits():
                with pytest.raises(SessionClosed):
                    await session.ready()

            tasks.start_soon(waits)
            await anyio.wait_all_tasks_blocked()
            await runtime.close("s")
        assert log == ["setup", "teardown"]
        assert (await call.finished()).reason in ("cancelled", "lost")


async def test_a_setup_that_raises_is_told_to_everybody_and_torn_down_once():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec(setup="raises"))
        for _ in range(2):
            with pytest.raises(SessionFailed, match="ValueError: setup boom"):
                await session.ready()
        result = await session.start("one", {}).finished()
        assert (result.reason, result.message) == ("lost", "ValueError: setup boom")
        await runtime.close("s")
        assert session.spec.task.spec["log"] == ["setup", "teardown"]


@pytest.mark.parametrize(("way", "said"), [("cancels", "was cancelled"), ("exits", "SystemExit: 3")])
async def test_a_setup_that_cancels_itself_or_exits_is_a_failed_one(way, said):
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec(setup=way))
        with anyio.fail_after(5), pytest.raises(SessionFailed, match=said):
            await session.ready()
        await runtime.close("s")
        assert session.spec.task.spec["log"] == ["setup", "teardown"]


async def test_a_call_that_is_stopped_in_the_turn_in_which_it_began_ends_all_the_same():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        await session.ready()
        call = session.start("one", {})
        with anyio.fail_after(5):
            await runtime.close("s")  # in the same turn of the loop
            assert (await call.finished()).reason == "cancelled"
        assert not runtime.shared.calls
        assert session.spec.task.spec["log"] == ["setup", "one in", "teardown"]


async def test_a_setup_that_never_ends_is_given_up():
    async with runtime_of(setup_seconds=0.05).running() as runtime:
        session = await runtime.open(spec(setup="hangs"))
        with pytest.raises(SessionFailed, match=r"setup\(\) took more than 0.05 s"):
            await session.ready()


@pytest.mark.parametrize("way", ["hangs", "raises"])
async def test_a_teardown_that_hangs_or_raises_does_not_keep_the_session(way):
    async with runtime_of(teardown_seconds=0.1).running() as runtime:
        await runtime.open(spec(teardown=way))
        with anyio.fail_after(2):
            await runtime.close("s")
        await runtime.open(spec())


async def test_giving_up_waiting_for_a_close_does_not_give_up_the_teardown():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log = session.spec.task.spec["log"]
        await session.ready()
        with anyio.CancelScope() as scope:
            scope.cancel()
            await runtime.close("s")
        await settled(runtime, log, "teardown")


async def test_calls_of_one_tool_take_turns_and_different_tools_overlap():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        calls = [session.start(name, {}) for name in ("one", "one", "two", "free", "free")]
        await settled(runtime, log, "setup", "one in", "two in", "free in", "free in")
        gate.set()
        for call in calls:
            await call.finished()
        assert log.count("one in") == 2


async def test_an_exclusive_call_waits_for_all_and_holds_back_those_after_it():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        first = session.start("free", {})
        await settled(runtime, log, "free in")
        alone, after = session.start("alone", {}), session.start("two", {})
        await anyio.wait_all_tasks_blocked()
        assert log == ["setup", "free in"]
        gate.set()
        for call in (first, alone, after):
            await call.finished()
        assert log == ["setup", "free in", "free out", "alone in", "alone out", "two in", "two out"]


async def test_an_exclusive_call_that_is_stopped_lets_the_others_go_on():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        first = session.start("free", {})
        await settled(runtime, log, "free in")
        alone, after = session.start("alone", {}), session.start("two", {})
        await anyio.wait_all_tasks_blocked()
        alone.stop("cancelled")
        await settled(runtime, log, "two in")
        gate.set()
        assert (await first.finished()) == "free"
        assert (await after.finished()) == "two"
        assert (await alone.finished()).reason == "cancelled"


async def test_after_the_end_no_tool_runs_but_unknown_ones_are_still_unknown():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        assert (await session.start("end", {}).finished()).reward == 1.0
        assert (await session.start("one", {}).finished()).reason == "episode_finished"
        assert (await session.start("nope", {}).finished()).reason == "no_such_tool"


async def test_of_several_running_calls_the_first_end_counts():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        log, gate = session.spec.task.spec["log"], session.spec.task.spec["gate"]
        slow = session.start("free", {})
        last = session.start("finish_slowly", {})
        await settled(runtime, log, "free in", "finish_slowly in")
        session.finished = True  # as if a third one had ended it meanwhile
        gate.set()
        assert (await slow.finished()).reason == "episode_finished"
        assert (await last.finished()).reason == "episode_finished"


async def test_the_latch_can_be_off():
    async with runtime_of(latch_finished=False).running() as runtime:
        session = await runtime.open(spec())
        for _ in range(2):
            assert (await session.start("end", {}).finished()).finished


async def test_a_call_past_its_deadline_is_stopped_and_says_so():
    async with runtime_of(call_seconds=0.05).running() as runtime:
        session = await runtime.open(spec())
        result = await session.start("one", {}).finished()
        assert result.reason == "timed_out"
        assert result.retryable
        assert "one out" not in session.spec.task.spec["log"]


async def test_a_hung_plain_function_costs_its_thread_and_nobody_elses():
    release = threading.Event()
    async with runtime_of(threads=1, call_seconds=0.05).running() as runtime:
        session = await runtime.open(spec(thread=release))
        assert (await session.start("hangs_in_a_thread", {}).finished()).reason == "timed_out"
        other = await runtime.open(spec("other"))
        result = await other.start("exits_in_a_thread", {}).finished()
        assert (result.reason, result.message) == ("tool_raised", "SystemExit: 3")
        release.set()


@pytest.mark.parametrize("name", ["exits", "cancels_itself", "stops_everything", "interrupts"])
async def test_a_tool_cannot_take_the_server_with_it(name):
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        assert (await session.start(name, {}).finished()).reason == "tool_raised"
        assert (await session.start("end", {}).finished()).finished


async def test_a_tool_that_does_not_let_itself_be_stopped_is_given_up():
    async with runtime_of(call_seconds=0.05, teardown_seconds=0.1).running() as runtime:
        session = await runtime.open(spec())
        call = session.start("cannot_be_stopped", {})
        with anyio.fail_after(5):
            while not await call.wait(0.05):
                pass
        assert call.result.reason == "timed_out"
        assert not runtime.shared.calls
        session.spec.task.spec["gate"].set()  # it ends after all, and changes nothing any more
        await anyio.sleep(0.05)
        assert call.result.reason == "timed_out"


async def test_calls_that_were_given_up_make_no_room_for_more_at_once():
    async with runtime_of(call_seconds=0.05, teardown_seconds=0.05, max_concurrent_calls=1).running() as runtime:
        stuck, session = await runtime.open(spec()), await runtime.open(spec("other"))
        await session.ready()
        assert (await stuck.start("cannot_be_stopped", {}).finished()).reason == "timed_out"
        assert (await session.start("free", {}).finished()).reason == "timed_out"
        has_room = runtime.shared.slots.take_at_once()
        stuck.spec.task.spec["gate"].set()
        assert not has_room


async def test_a_tool_that_does_not_let_itself_be_stopped_does_not_keep_its_session():
    async with runtime_of(teardown_seconds=0.1).running() as runtime:
        session = await runtime.open(spec())
        call = session.start("cannot_be_stopped", {})
        await session.ready()
        await anyio.sleep(0.02)
        with anyio.fail_after(5):
            await runtime.close("s")
        assert call.result.reason == "cancelled"
        assert not runtime.shared.calls
        assert session.spec.task.spec["log"][-1] == "teardown"
        session.spec.task.spec["gate"].set()


async def test_closing_waits_for_the_teardown_that_a_failed_setup_began():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec(setup="raises", teardown="takes a while"))
        with pytest.raises(SessionFailed):
            await session.ready()
        await runtime.close("s")
        assert session.spec.task.spec["log"] == ["setup", "teardown", "teardown over"]


async def test_a_constructor_that_never_ends_is_given_up_and_its_id_is_free():
    release = threading.Event()
    async with runtime_of(setup_seconds=0.05).running() as runtime:
        with pytest.raises(SessionFailed, match=r"the constructor took more than 0.05 s"):
            await runtime.open(spec(constructor="hangs", thread=release))
        await runtime.open(spec())
        release.set()


async def test_what_was_given_up_in_its_constructor_is_torn_down_before_the_server_ends():
    release = threading.Event()
    late = spec(constructor="hangs", thread=release, teardown="takes a while")
    runtime = runtime_of(setup_seconds=0.05)
    async with runtime.running():
        with pytest.raises(SessionFailed):
            await runtime.open(late)
        release.set()
        await settled(runtime, late.task.spec["log"], "teardown")
    await runtime.placement.stop()
    assert late.task.spec["log"] == ["teardown", "teardown over"]


async def test_a_replay_is_what_the_first_answer_was_whatever_the_author_changes_later():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        first = await session.start("append", {}, call_id="first").finished()
        await session.start("append", {}).finished()
        again = await session.start("append", {}, call_id="first").finished()
        assert again.metadata == first.metadata == {"log": ["setup", "more"]}
        assert again.blocks[0].detail == {"log": ["setup", "more"]}


async def test_metadata_counts_among_the_bytes_that_are_kept():
    async with runtime_of(replay_bytes=50_000).running() as runtime:
        session = await runtime.open(spec())
        for _ in range(10):
            await session.start("heavy", {}).finished()
        assert 1 <= len(runtime.shared.replays) <= 4


async def test_an_output_that_is_no_json_is_the_tools_fault():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        result = await session.start("not_json", {}).finished()
        assert result.reason == "tool_raised"
        assert "cannot be written as JSON" in result.message
        assert not session.finished


async def test_the_validators_of_a_plain_tool_run_in_its_thread():
    async with runtime_of().running() as runtime:
        session = await runtime.open(spec())
        assert (await session.start("where", {"checked": "x"}).finished()) == "x in toolyard-plain"
        assert (await session.start("where", {}).finished()).reason == "bad_arguments"


async def test_a_second_life_is_as_good_as_the_first():
    runtime = runtime_of()
    for _ in range(2):
        async with runtime.running():
            session = await runtime.open(spec())
            assert (await session.start("end", {}).finished()).finished


def test_without_a_lifespan_deadlines_and_leases_are_kept_all_the_same(caplog):
    runtime = runtime_of(call_seconds=0.05, idle_seconds=0.05)

    async def life():
        session = await runtime.open(spec())
        assert (await session.start("one", {}).finished()).reason == "timed_out"
        await settled(runtime, session.spec.task.spec["log"], "teardown")

    for _ in range(2):  # each on a loop of its own, as tests of an application do
        asyncio.run(life())
    assert caplog.text.count("started without a lifespan") == 2


async def test_the_same_id_is_the_same_call_and_other_sessions_do_not_see_it():
    async with runtime_of(replay_seconds=60).running() as runtime:
        session, other = await runtime.open(spec()), await runtime.open(spec("other"))
        session.spec.task.spec["gate"].set()
        other.spec.task.spec["gate"].set()
        call = session.start("one", {}, call_id="mine")
        assert session.start("one", {}, call_id="mine") is call
        await call.finished()
        assert session.start("one", {}, call_id="mine") is call
        assert session.spec.task.spec["log"].count("one in") == 1
        assert (await other.start("two", {}, call_id="mine").finished()) == "two"
        ours = session.start("two", {})
        await ours.finished()
        with pytest.raises(CallNotFound):
            other.start("two", {}, call_id=ours.id)
        with pytest.raises(CallNotFound):
            session.start("two", {}, call_id="")


async def test_an_id_that_was_forgotten_never_runs_again():
    async with runtime_of(replay_seconds=0.05).running() as runtime:
        session = await runtime.open(spec())
        session.spec.task.spec["gate"].set()
        call = session.start("one", {}, call_id="mine")
        await call.finished()
        with anyio.fail_after(5):
            while len(runtime.shared.replays):
                await anyio.sleep(0.01)
        for call_id in ("mine", call.id):
            with pytest.raises(CallNotFound):
                session.start("one", {}, call_id=call_id)
        assert session.spec.task.spec["log"].count("one in") == 1


async def test_an_id_never_runs_again_however_many_came_after_it():
    async with runtime_of(replay_bytes=0).running() as runtime:
        session = await runtime.open(spec())
        session.spec.task.spec["gate"].set()
        await session.start("one", {}, call_id="first").finished()
        for i in range(4300):
            await session.start("two", {}, call_id=f"later {i}").finished()
        with pytest.raises(CallNotFound):
            session.start("one", {}, call_id="first")
        assert session.spec.task.spec["log"].count("one in") == 1


async def test_a_session_that_remembers_as_many_ids_as_it_may_takes_no_more_but_goes_on(monkeypatch):
    monkeypatch.setattr("toolyard.runtime.session._FORGOTTEN_MOST", 3)
    async with runtime_of(replay_bytes=0).running() as runtime:
        session = await runtime.open(spec())
        session.spec.task.spec["gate"].set()
        for i in range(4):
            await session.start("two", {}, call_id=f"id {i}").finished()
        with pytest.raises(CallConflict, match="without task_id"):
            session.start("two", {}, call_id="one more")
        with pytest.raises(CallNotFound):
            session.start("two", {}, call_id="id 0")
        assert (await session.start("two", {}).finished()) == "two"


async def test_kept_results_never_take_more_than_their_bytes():
    async with runtime_of(replay_bytes=20_000).running() as runtime:
        session = await runtime.open(spec())
        for _ in range(50):
            await session.start("long", {}).finished()
        assert 1 <= len(runtime.shared.replays) <= 20_000 // 2536
        await runtime.close("s")
        assert len(runtime.shared.replays) == 0


async def test_an_idle_session_is_closed_but_not_while_a_call_runs():
    async with runtime_of(idle_seconds=0.1).running() as runtime:
        busy, idle = await runtime.open(spec("busy")), await runtime.open(spec("idle"))
        call = busy.start("one", {})
        await settled(runtime, idle.spec.task.spec["log"], "setup", "teardown")
        assert list(runtime.sessions) == ["busy"]
        busy.spec.task.spec["gate"].set()
        assert (await call.finished()) == "one"
        await settled(runtime, busy.spec.task.spec["log"], "teardown")
        assert not runtime.sessions


async def test_a_session_that_is_still_being_set_up_is_not_idle():
    async with runtime_of(idle_seconds=0.05).running() as runtime:
        starting, idle = await runtime.open(spec("starting", setup="hangs")), await runtime.open(spec("idle"))
        await settled(runtime, idle.spec.task.spec["log"], "setup", "teardown")
        assert list(runtime.sessions.values()) == [starting]


class Wanting(Toolset):
    def __init__(self, env):
        raise ValueError("no sandbox there")


async def test_an_environment_that_a_toolset_cannot_use_is_torn_down_again():
    async with runtime_of().running() as runtime:
        wanted = dataclasses.replace(spec(), toolset=Wanting)
        with pytest.raises(ToolsetUnavailable, match="no sandbox there"):
            await runtime.open(wanted)
        assert wanted.task.spec["log"] == ["teardown"]
        assert not runtime.sessions


class Endless(Toolset):
    def __init__(self, env):
        super().__init__(env)
        env.task_spec["thread"].wait(20)

    def teardown(self):
        self.env.log.append("toolset teardown")


async def test_an_environment_whose_toolset_takes_for_ever_is_torn_down_again():
    release = threading.Event()
    async with runtime_of(setup_seconds=0.05).running() as runtime:
        wanted = dataclasses.replace(spec(thread=release), toolset=Endless)
        with pytest.raises(SessionFailed, match=r"the constructor took more than 0.05 s"):
            await runtime.open(wanted)
        await settled(runtime, wanted.task.spec["log"], "teardown")
        release.set()
        await settled(runtime, wanted.task.spec["log"], "teardown", "toolset teardown")


async def test_limits_are_kept_by_refusing():
    async with runtime_of(max_sessions=1, max_concurrent_calls=1, max_queued_calls=1).running() as runtime:
        session = await runtime.open(spec())
        with pytest.raises(Overloaded):
            await runtime.open(spec("one more"))
        log = session.spec.task.spec["log"]
        running, queued = session.start("free", {}), session.start("two", {})
        with pytest.raises(Overloaded):
            session.start("one", {})
        await settled(runtime, log, "free in")
        assert "two in" not in log
        session.spec.task.spec["gate"].set()
        assert (await running.finished()) == "free"
        assert (await queued.finished()) == "two"
        assert (await session.start("one", {}).finished()) == "one"


async def test_a_call_that_is_stopped_while_it_waits_for_a_slot_waits_no_more():
    async with runtime_of(max_concurrent_calls=1, max_queued_calls=2).running() as runtime:
        session = await runtime.open(spec())
        running, queued = session.start("free", {}), session.start("two", {})
        await settled(runtime, session.spec.task.spec["log"], "free in")
        assert runtime.shared.slots.waiting == 1
        queued.stop("cancelled")
        assert (await queued.finished()).reason == "cancelled"
        assert not running.done
        assert runtime.shared.slots.waiting == 0


async def test_on_the_way_out_calls_end_and_every_session_is_torn_down():
    async with runtime_of().running() as runtime:
        session, other = await runtime.open(spec()), await runtime.open(spec("other"))
        call = session.start("one", {})
        log = session.spec.task.spec["log"]
        await settled(runtime, log, "one in")
        asyncio.get_running_loop().call_later(0.1, session.spec.task.spec["gate"].set)
    assert (await call.finished()) == "one"
    assert log[-1] == other.spec.task.spec["log"][-1] == "teardown"
    assert len(runtime.shared.background) == 0
    assert not runtime.sessions


class Forking(World):
    async def fork(self):
        self.log.append("forking")
        await self.gate.wait()
        return Forking(self.task_spec, self.secrets)


class Unforkable(Toolset):
    async def fork(self, env):
        raise ValueError("there is only one")


class HalfForking(Forking):
    toolsets = [Unforkable]


async def test_a_fork_that_fails_half_way_leaves_nothing():
    async with runtime_of(HalfForking).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(), environment=HalfForking))
        task = session.spec.task.spec
        task["gate"].set()
        with pytest.raises(ValueError, match="there is only one"):
            await runtime.fork(session, ["a"])
        assert task["log"] == ["setup", "forking", "teardown"]


class Tally(World):
    replayable = True

    @tool
    async def add(self) -> str:
        self.task_spec["count"] = self.task_spec.get("count", 0) + 1
        return str(self.task_spec["count"])


async def test_calls_are_repeated_from_the_task_as_it_was_and_forks_do_not_share_it():
    async with runtime_of(Tally).running() as runtime:
        session = await runtime.open(SessionSpec("s", Tally, Task({"log": []})))
        assert (await session.start("add", {}).finished()) == "1"
        assert await runtime.fork(session, ["a"]) == "replay"
        assert (await session.start("add", {}).finished()) == "2"
        fork = runtime.session("a")
        assert (await fork.start("add", {}).finished()) == "2"
        assert await runtime.fork(fork, ["b"]) == "replay"
        assert (await runtime.session("b").start("add", {}).finished()) == "3"
        assert (await fork.start("add", {}).finished()) == "3"


async def test_forks_that_are_made_on_the_way_out_are_torn_down_too():
    async with runtime_of(Forking).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(), environment=Forking))
        task = session.spec.task.spec
        async with anyio.create_task_group() as group:

            async def fork() -> None:
                with pytest.raises(Overloaded, match="shutting down"):
                    await runtime.fork(session, ["a", "b"])

            group.start_soon(fork)
            await settled(runtime, task["log"], "forking")
            runtime.shared.draining = True
            task["gate"].set()
        assert list(runtime.sessions) == ["s"]
        assert task["log"][-2:] == ["teardown", "teardown"]


async def test_sessions_that_are_being_forked_count_among_those_that_may_be_open():
    async with runtime_of(Forking, max_sessions=3).running() as runtime:
        session = await runtime.open(dataclasses.replace(spec(), environment=Forking))
        task = session.spec.task.spec
        async with anyio.create_task_group() as group:
            group.start_soon(runtime.fork, session, ["a", "b"])
            await settled(runtime, task["log"], "forking")
            with pytest.raises(Overloaded, match="all 3 sessions"):
                await runtime.open(dataclasses.replace(spec("c"), environment=Forking))
            with pytest.raises(Overloaded, match="all 3 sessions"):
                await runtime.fork(session, ["d"])
            task["gate"].set()
        assert list(runtime.sessions) == ["s", "a", "b"]
        await runtime.close("b")
        await runtime.open(dataclasses.replace(spec("c"), environment=Forking))


async def test_a_call_that_does_not_end_in_time_is_stopped_on_the_way_out():
    began = time.monotonic()
    async with runtime_of(drain_seconds=0.1).running() as runtime:
        session = await runtime.open(spec())
        call = session.start("one", {})
        await settled(runtime, session.spec.task.spec["log"], "one in")
    assert (await call.finished()).reason == "cancelled"
    assert time.monotonic() - began < 2


class NoTools(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return ""


class NoSplits(Environment):
    def get_prompt(self):
        return ""

    @tool
    def look(self) -> str: ...


class NoPrompt(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    @tool
    def look(self) -> str: ...


@pytest.mark.parametrize(
    ("environments", "said"),
    [
        ([NoTools], "NoTools has no tool"),
        ([NoSplits], "NoSplits has no split"),
        ([NoPrompt], "NoPrompt has no prompt"),
        ([World, World], "two environments are called 'world'"),
    ],
)
async def test_what_is_missing_is_said_before_anything_is_served(environments, said):
    with pytest.raises(DefinitionError, match=said):
        runtime_of(*environments)


class Careless(Environment):
    """Changes its task, as authors do."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"found": []}]

    def get_prompt(self):
        return ""

    @tool
    def take(self) -> str:
        self.task_spec["found"].append("it")
        return str(len(self.task_spec["found"]))


async def test_what_a_session_does_to_its_task_stays_in_the_session():
    async with runtime_of(Careless).running() as runtime:
        for name in ("first", "second"):
            task = await runtime.tasks(Careless).at("train", 0)
            session = await runtime.open(SessionSpec(name, Careless, task))
            assert (await session.start("take", {}).finished()) == "1"
        assert await runtime.tasks(Careless).all("train") == [{"found": []}]
