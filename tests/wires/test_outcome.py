"""The outcome that a trainer gets of a session that others played: over any wire, while it is open and for a while
after."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.wires.test_every_wire import Deeds
from tests.wires.verl_wire import Trainer, call, gate
from tests.wires.wire import H, Wire, until
from toolyard import AsyncClient, Client, GroupScore
from toolyard.client import SessionGone, ToolLost
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


class Scored(Deeds):
    def score_group(self, candidates):
        return [GroupScore(reward=1.0) for _ in candidates]

    def fork(self):
        return self


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Scored]) as server:
        yield server


async def asked(url: str, sid: str) -> dict[str, Any]:
    async with Wire(url) as wire:
        response = await wire.get(f"/sessions/{sid}/outcome")
        assert response.status_code == 200, response.text
        outcome: dict[str, Any] = response.json()
        return outcome


async def play(wire: Wire, sid: str, tool: str, **arguments: Any) -> None:
    assert (await wire.post("/scored/call", headers=H(sid), json={"name": tool, "input": arguments})).status_code == 200


async def test_an_outcome_has_a_reward_or_null_for_each_call_the_last_and_the_sum(steps):
    async with Wire(steps.url) as wire:
        sid = await wire.open(env_name="scored")
        fresh = {"sid": sid, "env": "Scored", "rewards": [], "reward": None, "return": None}
        fresh |= {"finished": False, "calls": 0, "failure": None}
        assert await asked(steps.url, sid) == fresh
        await play(wire, sid, "note", text="a")
        await play(wire, sid, "guess", number=7, last=False)
        await play(wire, sid, "guess", number=7, last=False)
        await play(wire, sid, "note")  # a wrong call
        await play(wire, sid, "fail")
        await play(wire, sid, "guess", number=6)
        await play(wire, sid, "guess", number=7)  # too late
        played = fresh | {
            "rewards": [None, 1.0, 1.0, None, None, 0.0, None],
            "reward": 0.0,
            "return": 2.0,
            "finished": True,
            "calls": 7,
        }
        assert await asked(steps.url, sid) == played
        await wire.end(sid)
        assert await asked(steps.url, sid) == played


@pytest.mark.parametrize(
    ("tool", "failure"),
    [("lose", {"reason": "lost", "retryable": True}), ("boom", {"reason": "tool_raised", "retryable": False})],
)
async def test_what_was_not_the_agents_doing_is_told_and_gives_no_reward(steps, tool, failure):
    async with Wire(steps.url) as wire:
        sid = await wire.open(env_name="scored")
        await play(wire, sid, tool)
        await play(wire, sid, "note", text="a")
        outcome = await asked(steps.url, sid)
        assert (outcome["failure"], outcome["rewards"]) == (failure, [None, None])
        assert (outcome["reward"], outcome["return"]) == (None, None)


async def test_a_setup_that_fails_is_a_failure_of_the_session(steps):
    async with Wire(steps.url) as wire:
        sid = await wire.open(env_name="scored", task_spec={"setup_boom": True})
        await until(lambda: steps.server.runtime.sessions[sid].condition == "failed")
        for _ in range(2):
            assert (await asked(steps.url, sid))["failure"] == {"reason": "setup_failed", "retryable": False}
            await wire.end(sid)


async def test_a_call_that_the_end_stops_is_counted_in_it(steps):
    gate.opened.clear()
    key = uuid.uuid4().hex
    async with Wire(steps.url) as wire:
        sid = await wire.open(env_name="scored")
        playing = asyncio.ensure_future(play(wire, sid, "wait", key=key))
        await until(lambda: gate.came[key])
        await wire.end(sid)
        await playing
        outcome = await asked(steps.url, sid)
        assert (outcome["calls"], outcome["failure"]) == (1, {"reason": "cancelled", "retryable": True})


async def test_a_call_that_was_asked_for_twice_counts_once(steps):
    async with Wire(steps.url) as wire:
        sid = await wire.open(env_name="scored")
        for _ in range(2):
            await wire.call(sid, "guess", {"number": 7}, env="scored", task_id="same")
        assert (await asked(steps.url, sid))["rewards"] == [1.0]


async def test_comparing_a_group_is_no_call_and_a_fork_goes_on_from_what_was_played(steps):
    async with AsyncClient(steps.url) as client, client.environment("scored").session({}) as session:
        await session.call_tool("guess", {"number": 7, "last": False})
        await session.score_group([])
        (forked,) = await session.fork()
        await forked.call_tool("guess", {"number": 6, "last": False})
        assert (await session.outcome()).rewards == [1.0]
        assert (await forked.outcome()).rewards == [1.0, 0.0]
        await forked.close()


async def test_sessions_of_other_wires_have_outcomes_too(steps):
    async with Trainer(steps.url) as trainer:
        await trainer.act("t-1", call("guess", number=7))
        assert (await asked(steps.url, "verl:t-1"))["reward"] == 1.0


async def test_an_outcome_is_forgotten_after_a_while_or_when_there_are_too_many():
    with running([Scored], outcome_seconds=0.3, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(env_name="scored")
            await wire.end(sid)
            assert (await asked(server.url, sid))["calls"] == 0
            await until(lambda: not server.server.runtime.ended.count)
            response = await wire.get(f"/sessions/{sid}/outcome")
            assert response.status_code == 404
            assert "none that ended in the last 0.3 s" in response.json()["detail"]
    with running([Scored], max_sessions=2) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open(env_name="scored")]
            for _ in range(2):
                await wire.end(sids[-1])
                sids.append(await wire.open(env_name="scored"))
            await wire.end(sids[-1])
            known = [(await wire.get(f"/sessions/{sid}/outcome")).status_code for sid in sids]
            assert known == [404, 200, 200]


async def test_there_is_no_outcome_of_what_never_was_and_only_get_asks(steps):
    async with Wire(steps.url) as wire:
        assert (await wire.get("/sessions/never/outcome")).status_code == 404
        assert (await wire.post("/sessions/never/outcome")).status_code == 405
        assert (await wire.get("/sessions/never")).status_code == 404


def test_a_client_asks_for_the_outcome_inside_and_after_a_session(steps):
    with Client(steps.url) as client:
        session = client.environment("scored").session({})
        with pytest.raises(RuntimeError, match="not open"):
            session.outcome()
        with session:
            session.call_tool("guess", {"number": 7, "last": False})
            assert (session.outcome().reward, session.outcome().finished) == (1.0, False)
            with pytest.raises(ToolLost):
                session.call_tool("lose")
        outcome = session.outcome()
        assert (outcome.rewards, outcome.reward, outcome.total, outcome.calls) == ([1.0, None], 1.0, 1.0, 2)
        assert (outcome.failure, outcome.retryable, outcome.environment) == ("lost", True, "Scored")


async def test_an_asynchronous_client_does_so_too_and_hears_when_it_is_too_late():
    with running([Scored], outcome_seconds=0) as server:
        async with AsyncClient(server.url) as client:
            async with client.environment("scored").session({}) as session:
                await session.call_tool("guess", {"number": 6})
                outcome = await session.outcome()
                assert (outcome.reward, outcome.finished, outcome.failure) == (0.0, True, None)
            await until(lambda: not server.server.runtime.ended.count)
            with pytest.raises(SessionGone, match="no outcome"):
                await session.outcome()
