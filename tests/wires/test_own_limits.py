"""Limits that authors set: seconds for one tool, calls for one episode. Over every wire, wherever sessions live."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing
from typing import ClassVar

import anyio
import pytest

from tests.wires.dialects import DIALECTS, Came, Mcp, OpenEnv, Ors, ToolServer, Verl
from tests.worlds import OneTask
from toolyard import AskAgain, AsyncClient, Environment, TextBlock, ToolError, ToolOutput, tool
from toolyard.client import ToolCallFailed, ToolLost
from toolyard.core.errors import DefinitionError, ServiceUnavailable
from toolyard.testing import running

pytestmark = pytest.mark.anyio

LONG = 60.0


class Slow(OneTask):
    """Tools with less time than the server allows."""

    @tool(timeout=0.2)
    async def wait(self, seconds: float) -> str:
        """Wait on the loop."""
        await anyio.sleep(seconds)
        return "done"

    @tool(timeout=0.2)
    def block(self, seconds: float) -> str:
        """Wait in a thread."""
        time.sleep(seconds)
        return "done"

    @tool(timeout=0.2, exclusive=True)
    async def alone(self) -> str:
        """Wait for its turn, which is not its own time."""
        return "alone"

    @tool(timeout=0.5)
    async def brief(self) -> str:
        """Within its limit."""
        await anyio.sleep(0.1)
        return "brief"

    @tool
    async def stall(self) -> str:
        """Let the whole server stand still."""
        time.sleep(2.0)  # noqa: ASYNC251  # it blocks the loop on purpose
        return "stalled"

    @tool
    async def hold(self) -> str:
        """Longer than the limit of the others."""
        await anyio.sleep(0.5)
        return "held"


class Polled(OneTask):
    max_turns = 2

    def setup(self) -> None:
        self.asked = 0

    @tool
    def begin(self) -> AskAgain:
        """Begin work whose result comes later."""
        return AskAgain("poll")

    @tool
    def poll(self) -> AskAgain | str:
        """The result, if it is there."""
        self.asked += 1
        return "there" if self.asked >= 3 else AskAgain("poll")


class Short(OneTask):
    """An episode of three calls."""

    max_turns: ClassVar[int | None] = 3

    @tool
    def look(self) -> str:
        """Look around."""
        return "nothing"

    @tool
    def count(self) -> dict[str, int]:
        """Any value."""
        return {"n": 1}

    @tool
    def pay(self) -> ToolOutput:
        """With a reward."""
        return ToolOutput(blocks=[TextBlock(text="paid")], rewards={"a": 0.5})

    @tool
    def end(self) -> ToolOutput:
        """Ends the episode."""
        return ToolOutput(blocks=[TextBlock(text="over")], reward=1.0, finished=True)

    @tool
    def fail(self) -> str:
        """The agent's mistake."""
        raise ToolError("no")

    @tool
    def lose(self) -> str:
        """The infrastructure's."""
        raise ServiceUnavailable("the judge is down")

    @tool(concurrent=True)
    async def at_once(self) -> str:
        """Several at once."""
        await anyio.sleep(0.05)
        return "one"


LAST = "This was the last call: the episode has 3 calls and is over now."
REFUSED = "the episode has finished (it has 3 calls, and all are used)"


@pytest.fixture(scope="module", params=["local", "process", "pool"])
def placed(request):
    with running([Slow, Short, Polled], placement=request.param, call_seconds=LONG) as server:
        yield server


@pytest.fixture(scope="module")
def here():
    with running([Slow, Short, Polled], call_seconds=LONG) as server:
        yield server


@pytest.fixture(params=DIALECTS, ids=lambda dialect: dialect.name)
def dialect(request):
    return request.param


# Seconds for one tool.


@pytest.mark.parametrize("how", ["wait", "block"])
async def test_a_tool_that_takes_longer_than_its_own_limit_is_stopped_and_nobody_is_blamed(dialect, here, how):
    async with dialect(here.url) as session:
        await session.open("slow", {})
        began = time.monotonic()
        late = await session.call(how, seconds=3.0)
        assert 0.2 <= time.monotonic() - began < 2.5
        assert (late.kind, late.reward, late.reason) == ("lost", None, "timed_out")
        if session.tells_exceptions:
            assert late.text.endswith("no answer within 0.2 s, so it was stopped")
        await session.close()


@pytest.mark.parametrize("how", ["wait", "block"])
async def test_the_limit_holds_wherever_sessions_live_and_a_call_within_it_is_not_touched(placed, how):
    async with (
        AsyncClient(placed.url) as client,
        client.environments.get("slow").session(split="train", index=0) as session,
    ):
        assert (await session.call_tool(how, {"seconds": 0.0})).text == "done"
        with pytest.raises(ToolLost) as late:
            await session.call_tool(how, {"seconds": 3.0})
        assert late.value.reason == "timed_out"


async def test_time_in_which_a_call_waits_for_its_turn_is_not_its_tools(here):
    async with (
        AsyncClient(here.url) as client,
        client.environments.get("slow").session(split="train", index=0) as session,
    ):
        held, alone = await asyncio.gather(session.call_tool("hold"), session.call_tool("alone"))
    assert (held.text, alone.text) == ("held", "alone")


async def test_a_server_that_stood_still_takes_the_result_that_came_meanwhile(here):
    async with (
        AsyncClient(here.url) as client,
        client.environments.get("slow").session(split="train", index=0) as session,
    ):
        brief, _ = await asyncio.gather(session.call_tool("brief"), session.call_tool("stall"))
    assert brief.text == "brief"


async def test_the_servers_limit_holds_for_a_tool_that_allows_itself_more():
    class Patient(OneTask):
        @tool(timeout=LONG)
        async def wait(self) -> str:
            """Wait."""
            await anyio.sleep(LONG)
            return "done"

    with running([Patient], call_seconds=0.2, sweep_seconds=0.05) as server:
        async with Ors(server.url) as session:
            await session.open("patient", {})
            assert (await session.call("wait")).text.endswith("no answer within 0.2 s, so it was stopped")


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), float("inf"), True, "5"])
def test_a_limit_that_is_no_positive_number_of_seconds_is_refused_when_the_class_is_defined(timeout):
    with pytest.raises(DefinitionError, match=r"look: timeout is .*; it must be a positive number of seconds"):

        class Wrong(Environment):
            @tool(timeout=timeout)
            def look(self) -> str:
                """Look."""
                return ""


# Calls for one episode.


async def played(session, *tools):
    await session.open("short", {})
    return [await session.call(name) for name in tools]


async def test_the_last_call_tells_the_agent_and_ends_the_episode_without_a_reward_of_ours(dialect, here):
    async with dialect(here.url) as session:
        first, second, last, beyond = await played(session, "look", "fail", "look", "look")
        assert first == Came("ok", "nothing")
        assert (second.kind, second.finished) == ("failed", False)
        assert (last.kind, last.reward, last.finished) == ("ok", None, True)
        assert last.text.removeprefix("nothing").strip("\n") == LAST
        assert beyond.kind == "failed"
        assert REFUSED in beyond.text
        await session.close()


async def test_a_reward_of_the_last_call_and_its_names_are_the_tools(dialect, here):
    async with dialect(here.url) as session:
        *_, last = await played(session, "look", "look", "pay")
        assert (last.kind, last.reward, last.finished) == ("ok", 0.5, True)
        assert session.named == (None if isinstance(session, Mcp) else {"a": 0.5})
        await session.close()


async def test_a_last_call_that_fails_ends_the_episode_too(dialect, here):
    async with dialect(here.url) as session:
        *_, last, beyond = await played(session, "look", "look", "fail", "look")
        assert last.kind == "failed"
        assert last.text.endswith(f"no\n{LAST}")
        assert last.finished == isinstance(session, Verl | OpenEnv)  # elsewhere failures say so only in text
        assert REFUSED in beyond.text
        await session.close()


async def test_a_call_that_was_lost_is_no_turn_of_the_agents(here):
    async with Ors(here.url) as session:
        *lost, first, second, third, _ = await played(session, *["lose"] * 4, "look", "look", "look", "look")
        assert {one.kind for one in lost} == {"lost"}
        assert [one.finished for one in (first, second, third)] == [False, False, True]
        await session.close()


async def test_an_episode_that_a_tool_ends_with_its_last_call_needs_no_more_words(here):
    async with Ors(here.url) as session:
        *_, last, beyond = await played(session, "look", "look", "end", "look")
        assert last == Came("ok", "over", 1.0, True)
        assert beyond.kind == "failed"
        await session.close()


async def test_a_value_that_the_last_call_returns_is_kept_beside_the_words(here):
    async with ToolServer(here.url) as session:
        await session.open("short", {})
        await session.call("look")
        await session.call("look")
        told = await session.asked("count")
        assert told.json()["data"][0] == {"type": "composite", "data": ['{"n": 1}', LAST]}
        await session.close()


async def test_calls_that_run_at_once_are_counted_when_they_begin_and_the_last_to_end_says_so(placed):
    async with (
        AsyncClient(placed.url) as client,
        client.environments.get("short").session(split="train", index=0) as session,
    ):
        came = await asyncio.gather(*(session.call_tool("at_once") for _ in range(5)), return_exceptions=True)
    results = [one for one in came if isinstance(one, ToolOutput)]
    refused = [one for one in came if isinstance(one, ToolCallFailed)]
    assert (len(results), len(refused)) == (3, 2)
    assert {one.reason for one in refused} == {"episode_finished"}
    assert [one.finished for one in results].count(True) == 1


async def test_calls_that_ask_again_are_one_turn(here):
    async with Ors(here.url) as session:
        await session.open("polled", {})
        assert await session.call("begin") == Came("ok", "there")
        assert (await session.call("poll")).finished
        await session.close()


async def test_a_fork_has_as_many_calls_left_as_its_parent():
    class Forked(Short):
        replayable = True

    with running([Forked]) as server:
        async with (
            AsyncClient(server.url) as client,
            client.environments.get("forked").session(split="train", index=0) as session,
        ):
            await session.call_tool("look")
            (branch,) = await session.fork(1)
            for one in (session, branch):
                assert not (await one.call_tool("look")).finished
                assert (await one.call_tool("look")).finished


async def test_the_outcome_of_the_session_says_finished_and_has_no_reward(here):
    async with Ors(here.url) as session:
        await played(session, "look", "fail", "fail")
        outcome = (await session.get(f"/sessions/{session._sid}/outcome")).json()
        assert (outcome["finished"], outcome["rewards"], outcome["failure"]) == (True, [None] * 3, None)
        await session.close()


async def test_a_record_says_that_the_episode_finished_with_a_last_call_that_failed(tmp_path):
    path = tmp_path / "runs.db"
    with running([Short], record=str(path)) as server:
        async with Ors(server.url) as session:
            await played(session, "look", "look", "fail")
            await session.close()
    with closing(sqlite3.connect(path)) as store:
        assert store.execute("SELECT outcome, finished, total FROM episodes").fetchall() == [("finished", 1, None)]
        assert store.execute("SELECT finished FROM steps ORDER BY number").fetchall() == [(0,), (0,), (1,)]


async def test_it_holds_on_a_server_that_latches_nothing():
    with running([Short], latch_finished=False) as server:
        async with Ors(server.url) as session:
            *_, last, beyond = await played(session, "end", "look", "look", "look")
            assert last.finished
            assert REFUSED in beyond.text


@pytest.mark.parametrize("most", [0, -1, 2.0, True, "3"])
def test_a_number_of_turns_that_is_none_is_refused_when_the_class_is_defined(most):
    with pytest.raises(DefinitionError, match=r"Wrong.max_turns is .*; it must be a positive whole number, or None"):

        class Wrong(Environment):
            max_turns = most
