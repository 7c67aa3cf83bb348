"""What the runtime tells whoever listens: each session and each call once, with why and how long."""

from __future__ import annotations

import time

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.test_ask_again import Oven
from tests.runtime.test_runtime import runtime_of, settled, spec
from tests.worlds import OneTask
from toolyard import tool
from toolyard.core.errors import Overloaded
from toolyard.placement.base import SessionSpec, Task
from toolyard.runtime.runtime import Runtime

pytestmark = pytest.mark.anyio


class Listener:
    """Writes down what it hears: words in `heard`, the times of each answer in `times`."""

    def __init__(self, runtime: Runtime) -> None:
        self.heard: list[tuple[str, ...]] = []
        self.times: dict[str, tuple[float, float | None]] = {}
        self.lags: list[float] = []
        journal = runtime.journal
        journal.opened.append(lambda spec: self.heard.append(("opened", spec.session_id)))
        journal.settled.append(lambda spec, problem, _: self.heard.append(("settled", spec.session_id, problem)))
        journal.started.append(lambda spec, tool: self.heard.append(("started", spec.session_id, tool)))
        journal.closed.append(lambda spec, why, _: self.heard.append(("closed", spec.session_id, why)))
        journal.answered.append(self._answered)
        journal.swept.append(self.lags.append)

    def _answered(self, spec, tool, outcome, waited, ran):
        self.heard.append(("answered", spec.session_id, tool, outcome))
        self.times[tool] = waited, ran

    def of(self, kind: str) -> list[tuple[str, ...]]:
        return [rest for what, *rest in self.heard if what == kind]


async def test_a_session_is_told_from_its_opening_to_its_end():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        assert (await session.start("end", {}).finished()).reward == 1
        assert (await session.start("long", {}).finished()).reason == "episode_finished"
        await runtime.close("s")
    assert listener.heard == [
        ("opened", "s"),
        ("settled", "s", ""),
        ("started", "s", "end"),
        ("answered", "s", "end", "ok"),
        ("started", "s", "long"),
        ("answered", "s", "long", "episode_finished"),
        ("closed", "s", "deleted"),
    ]
    assert listener.times["end"][1] is not None
    assert listener.times["long"][1] is None, "it never ran"


async def test_waiting_for_a_turn_and_running_are_timed_apart():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        first, second = session.start("alone", {}), session.start("one", {})
        await settled(runtime, session.spec.task.spec["log"], "alone in")
        await anyio.sleep(0.1)
        assert (session.running, session.waiting) == (2, 1)
        session.spec.task.spec["gate"].set()
        await first.finished()
        await second.finished()
    waited, ran = listener.times["alone"]
    assert waited < 0.1 <= ran
    waited, ran = listener.times["one"]
    assert ran < 0.1 <= waited


async def test_a_call_that_is_stopped_before_its_turn_never_ran():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        session.start("alone", {}), session.start("one", {})
        await settled(runtime, session.spec.task.spec["log"], "alone in")
        await runtime.close("s")
    assert {tuple(one) for one in listener.of("answered")} == {("s", "alone", "cancelled"), ("s", "one", "cancelled")}
    assert listener.times["alone"][1] is not None
    assert listener.times["one"][1] is None


async def test_a_call_that_is_refused_is_told_as_overloaded():
    runtime = runtime_of(max_concurrent_calls=1, max_queued_calls=0)
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        running = session.start("one", {})
        with pytest.raises(Overloaded):
            session.start("two", {})
        session.spec.task.spec["gate"].set()
        await running.finished()
    assert listener.of("answered") == [["s", "two", "overloaded"], ["s", "one", "ok"]]


async def test_a_call_that_never_waits_and_one_in_a_thread_are_told_once_each():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        await session.ready()
        session.start("long", {})
        await session.start("where", {"checked": "x"}).finished()
        assert session.start("nothing_like_it", {}).result.reason == "no_such_tool"
    assert listener.of("answered") == [
        ["s", "long", "ok"],
        ["s", "where", "ok"],
        ["s", "nothing_like_it", "no_such_tool"],
    ]
    for tool_ in ("long", "where"):
        waited, ran = listener.times[tool_]
        assert 0 <= waited < 1
        assert ran > 0


async def test_a_call_that_is_begun_on_the_spot_and_waits_is_told_when_it_is_over():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec())
        await session.ready()
        call = session.start("one", {})
        await settled(runtime, session.spec.task.spec["log"], "one in")
        await anyio.sleep(0.05)
        assert listener.of("answered") == []
        session.spec.task.spec["gate"].set()
        await call.finished()
    assert listener.of("answered") == [["s", "one", "ok"]]
    waited, ran = listener.times["one"]
    assert 0 <= waited < 1
    assert ran >= 0.05


@pytest.mark.parametrize("name", ["bake", "bake_in_a_thread", "bake_slowly"])
async def test_an_answer_that_says_ask_again_is_not_told_but_the_one_that_comes_of_it(name):
    runtime = runtime_of(Oven)
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(SessionSpec("s", Oven, Task({})))
        await session.start(name, {}).finished()
    assert listener.of("answered") == [["s", name, "ok"]]


async def test_why_a_session_was_closed_is_told():
    runtime = runtime_of(idle_seconds=0.05)
    listener = Listener(runtime)
    async with runtime.running():
        await runtime.open(spec("idle"))
        with anyio.fail_after(5):
            while ["idle", "idle"] not in listener.of("closed"):
                await anyio.sleep(0.01)
        with pytest.raises(ValueError, match="no world"):
            await runtime.open(spec("failed", constructor="raises"))
        other = await runtime.open(spec("replaced"))
        await runtime.replace(other, spec("replaced"))
        await runtime.close("replaced")
        await runtime.open(spec("drained"))
    closed = listener.of("closed")
    assert sorted(map(tuple, closed)) == [
        ("drained", "drained"),
        ("failed", "failed"),
        ("idle", "idle"),
        ("replaced", "deleted"),
        ("replaced", "replaced"),
    ]
    assert sorted(name for (name,) in listener.of("opened")) == sorted(name for name, _ in closed)


async def test_what_was_wrong_with_the_setup_is_told():
    runtime = runtime_of()
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(spec(setup="raises"))
        with anyio.fail_after(5):
            while not listener.of("settled"):
                await anyio.sleep(0.01)
        assert session.condition == "failed"
    assert listener.of("settled") == [["s", "ValueError: setup boom"]]


class Blocking(OneTask):
    """Holds up the event loop, as no tool should."""

    @tool
    async def block(self) -> str:
        """Block."""
        time.sleep(0.3)  # noqa: ASYNC251  # that is what it is for
        return "blocked"


async def test_a_loop_that_is_held_up_is_told_with_how_long():
    runtime = runtime_of(Blocking)
    listener = Listener(runtime)
    async with runtime.running():
        session = await runtime.open(SessionSpec("s", Blocking, Task({})))
        await anyio.lowlevel.checkpoint()  # so that the clock runs
        await session.start("block", {}).finished()
        with anyio.fail_after(5):
            while not any(lag > 0.2 for lag in listener.lags):
                await anyio.sleep(0.01)


async def test_who_listens_to_nothing_is_told_nothing():
    runtime = runtime_of()
    async with runtime.running():
        session = await runtime.open(spec())
        await session.ready()
        call = session.start("long", {})
        await call.finished()
        assert call.began == 0, "the clock was not even looked at"
