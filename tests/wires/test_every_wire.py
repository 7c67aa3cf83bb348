"""What every wire promises for sessions and calls, in its own terms."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Protocol

import anyio
import anyio.lowlevel
import pytest

from tests.wires.dialects import DIALECTS, Came, Dialect, Refused
from tests.wires.verl_wire import Steps, ended, gate
from tests.wires.wire import until
from toolyard import tool
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


class Deeds(Steps):
    """The same, with an episode that ends and no text of its own around a tool's answer."""

    latch_finished = True

    @tool
    async def note(self, text: str) -> str:
        """Write something down."""
        self.notes.append(text)
        await anyio.lowlevel.checkpoint()
        return " ".join(self.notes)


class Opening(Protocol):
    """Opens one more session, and closes it."""

    def __call__(self, server: Running | None = None, **task: object) -> AbstractAsyncContextManager[Dialect]: ...


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Deeds]) as server:
        yield server


@pytest.fixture
def key() -> str:
    """The name of a task, and of a gate, that no other test uses."""
    return uuid.uuid4().hex


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def opened(request: pytest.FixtureRequest, steps: Running) -> Iterator[Opening]:
    gate.opened.clear()

    @asynccontextmanager
    async def opened(server: Running | None = None, **task: object) -> AsyncIterator[Dialect]:
        async with request.param((server or steps).url) as session:
            await session.open("deeds", task)
            try:
                yield session
            finally:
                await session.close()

    yield opened
    gate.opened.set()


# Outcomes of calls.


async def test_a_session_remembers_its_calls_in_their_order_and_no_other_session_does(opened):
    async with opened() as one, opened() as other:
        assert await one.call("note", text="a") == Came("ok", "a")
        assert await other.call("note", text="x") == Came("ok", "x")
        assert await one.call("note", text="b") == Came("ok", "a b")


@pytest.mark.parametrize("text", ["", "  a\t b  ", "é 漢字 🙂", "one\n\n\ntwo\r\n", "\u2028", "x" * 100_000])
async def test_any_text_arrives_as_it_was(opened, text):
    async with opened() as session:
        assert await session.call("note", text=text) == Came("ok", text)


async def test_a_reward_comes_with_the_result_and_so_does_the_end_of_the_episode(opened):
    async with opened() as session:
        assert await session.call("guess", number=6, last=False) == Came("ok", "6!", 0.0, finished=False)
        assert await session.call("guess", number=7) == Came("ok", "7!", 1.0, finished=True)
        again = await session.call("note", text="more")
        assert again.kind == "failed"
        assert "the episode has finished" in again.text


async def test_a_tool_that_says_no_fails_in_its_own_words_and_the_session_goes_on(opened):
    async with opened() as session:
        said = await session.call("fail")
        assert (said.kind, said.reward, said.finished) == ("failed", None, False)
        assert said.text.endswith("not today")
        assert await session.call("note", text="a") == Came("ok", "a")


async def test_a_tool_that_breaks_is_not_lost_and_the_session_goes_on(opened):
    async with opened() as session:
        broken = await session.call("boom")
        assert (broken.kind, broken.reward, broken.finished) == ("failed", None, False)
        assert broken.text.endswith("it broke") == session.tells_exceptions
        assert await session.call("note", text="a") == Came("ok", "a")


async def test_a_call_that_is_wrong_is_a_failure_that_says_what_is_wrong(opened):
    async with opened() as session:
        missing, unknown = await session.call("note"), await session.call("nope")
        assert (missing.kind, unknown.kind) == ("failed", "failed")
        assert "text" in missing.text
        assert "nope" in unknown.text or not unknown.text  # on some wires such a text calls no tool
        assert await session.call("note", text="a") == Came("ok", "a")


async def test_what_is_lost_through_no_fault_of_the_agent_has_no_reward_and_a_reason(opened):
    async with opened() as session:
        lost = await session.call("lose")
        assert (lost.kind, lost.reward, lost.reason) == ("lost", None, "lost")
        assert lost.text.endswith("the sandbox is gone")


# How a session begins and ends.


async def test_a_task_whose_constructor_raises_opens_no_session_and_says_why(opened, steps):
    with pytest.raises(Refused, match="constructor boom"):
        async with opened(constructor_boom=True):
            pass
    await until(lambda: not steps.server.runtime.sessions)


async def test_a_setup_that_fails_is_told_in_its_words_and_is_nobodys_reward(opened):
    try:
        async with opened(setup_boom=True) as session:
            came = await session.call("note", text="a")
    except Refused as refused:  # on some wires the first answer opens the session
        came = Came("over", str(refused))
    assert (came.kind, came.reward) in [("over", None), ("lost", None)]
    assert "setup boom" in came.text


async def test_the_end_of_a_session_tears_its_task_down_once(opened, key):
    async with opened(name=key) as session:
        await session.call("note", text="a")
        assert key not in ended
        await session.close()
    assert ended.count(key) == 1


async def test_the_end_of_a_session_ends_the_call_that_runs_in_it(opened, steps, key):
    async with opened() as session, anyio.create_task_group() as group:
        came: list[Came] = []

        async def wait() -> None:
            came.append(await session.call("wait", key=key))

        group.start_soon(wait)
        await until(lambda: gate.came[key])
        with anyio.fail_after(10):
            await session.close()
    assert (came[0].kind, came[0].reason) in [("lost", "cancelled"), ("over", "")]
    assert came[0].reward is None
    await until(lambda: not steps.server.runtime.calls)


async def test_sessions_do_not_wait_for_each_other(opened, key):
    async with opened() as one, opened() as other:
        waiting = asyncio.ensure_future(one.call("wait", key=key))
        await until(lambda: gate.came[key])
        assert await other.call("note", text="a") == Came("ok", "a")
        gate.opened.set()
        assert await waiting == Came("ok", f"{key} came 1 times")


async def test_an_idle_session_is_closed_but_never_under_a_running_call(opened, key):
    with running([Deeds], idle_seconds=0.2, sweep_seconds=0.05, ping_seconds=0.05) as server:
        async with opened(server, name=key) as session:
            waiting = asyncio.ensure_future(session.call("wait", key=key))
            await until(lambda: gate.came[key])
            await asyncio.sleep(0.5)
            assert key not in ended
            gate.opened.set()
            assert (await waiting).kind == "ok"
            await session.vanish()
            await until(lambda: key in ended)
            assert not server.server.runtime.sessions


async def test_one_session_too_many_is_refused_until_another_ends(opened):
    with running([Deeds], max_sessions=2) as server:
        async with opened(server):
            async with opened(server):
                with pytest.raises(Refused, match="all 2 sessions of this server are in use"):
                    async with opened(server):
                        pass
            async with opened(server) as session:
                assert await session.call("note", text="a") == Came("ok", "a")
