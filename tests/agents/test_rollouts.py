"""Rollouts and groups, the random agent, and agents that people bring."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
from collections.abc import Iterator

import httpx2
import pytest

from tests.agents.models import model, said
from tests.agents.worlds import Broken, Essay, Forked, Guess, Slow
from toolyard.agents import ChatAgent, Endpoint, RandomAgent, Seat, groups, play, rollouts
from toolyard.client import AsyncClient, Task, ToolCallFailed
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Guess, Forked, Essay, Broken, Slow], call_seconds=0.3) as found:
        yield found


async def right(session: Seat, task: Task) -> None:
    await session.call_tool("say", {"number": task.task_spec["n"]})


async def one(server: Running, agent, environment: str = "guess"):
    async with AsyncClient(server.url) as client:
        found = client.environment(environment)
        task = (await found.list_tasks("train"))[0]
        return await play(found.session(task), agent, task)


async def test_rollouts_come_as_they_end_so_many_at_once(server):
    under_way, most = 0, 0

    async def agent(session: Seat, task: Task) -> None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        await asyncio.sleep(0.05)
        await right(session, task)
        under_way -= 1

    async with AsyncClient(server.url) as client:
        environment = client.environment("guess")
        tasks = await environment.list_tasks("test")
        found = [rollout async for rollout in rollouts(environment.session, tasks * 2, agent, concurrency=3)]
    assert most == 3
    assert sorted(rollout.group for rollout in found) == list(range(8))
    assert {rollout.total for rollout in found} == {1.0}


async def test_a_group_of_an_environment_that_forks_is_set_up_once(server):
    Forked.setups = 0
    async with AsyncClient(server.url) as client:
        environment = client.environment("forked")
        tasks = await environment.list_tasks("test")
        found = [group async for group in groups(environment.session, tasks, right, n=3)]
    assert [len(group) for group in found] == [3, 3, 3, 3]
    assert Forked.setups == 4
    assert {rollout.total for group in found for rollout in group} == {1.0}
    assert all(len({rollout.session for rollout in group}) == 3 for group in found)
    assert all(len({rollout.group for rollout in group}) == 1 for group in found)


async def test_a_group_of_an_environment_that_cannot_fork_is_of_sessions_of_their_own(server):
    async with AsyncClient(server.url) as client:
        environment = client.environment("guess")
        tasks = (await environment.list_tasks("test"))[:1]
        (group,) = [group async for group in groups(environment.session, tasks, right, n=3)]
    assert [rollout.total for rollout in group] == [1.0, 1.0, 1.0]
    assert [rollout.name for rollout in group] == ["0-0", "0-1", "0-2"]


async def test_a_group_that_cannot_be_set_up_is_a_group_without_returns(server):
    async with AsyncClient(server.url) as client:
        environment = client.environment("broken")
        tasks = (await environment.list_tasks("test"))[1:2]
        (group,) = [group async for group in groups(environment.session, tasks, right, n=2)]
    assert [(rollout.outcome, rollout.total) for rollout in group] == 2 * [("infrastructure_failed", None)]


async def test_leaving_the_rollouts_early_closes_their_sessions(server):
    async with AsyncClient(server.url) as client:
        environment = client.environment("guess")
        tasks = await environment.list_tasks("test")

        async def agent(session: Seat, task: Task) -> None:
            if task.task_spec["n"]:
                await asyncio.sleep(60)
            await right(session, task)

        async with contextlib.aclosing(rollouts(environment.session, tasks, agent)) as found:
            async for rollout in found:
                assert rollout.total == 1.0
                break
    assert not server.server.runtime.sessions


async def test_the_same_seed_plays_the_same_and_another_another(server):
    played = [await one(server, RandomAgent(seed, max_turns=30)) for seed in (1, 1, 2)]
    calls = [[(call.tool, dict(call.arguments)) for call in rollout.calls] for rollout in played]
    assert calls[0] == calls[1] != calls[2]


async def test_the_random_agent_hands_in_something_where_only_a_last_message_is_taken(server):
    rollout = await one(server, RandomAgent(), "essay")
    assert (rollout.outcome, len(rollout.calls)) == ("finished", 1)


async def test_the_random_agent_stops_at_its_limit(server):
    rollout = await one(server, RandomAgent(seed=5, max_turns=1), "slow")
    assert rollout.turns <= 1


@pytest.mark.parametrize(
    ("raised", "outcome", "blamed"),
    [
        (KeyError("x"), "agent_raised", "agent"),
        (ToolCallFailed("tool_failed", "no"), "agent_raised", "agent"),
        (importlib.import_module("openai").OpenAIError("away"), "endpoint_failed", "endpoint"),
    ],
)
async def test_what_an_agent_raises_is_no_return_and_has_somebody_to_blame(server, raised, outcome, blamed):
    async def agent(session: Seat, task: Task) -> None:
        await session.call_tool("hint")
        raise raised

    rollout = await one(server, agent)
    assert (rollout.outcome, rollout.failed_by, rollout.total) == (outcome, blamed, None)


async def test_an_agent_that_raises_after_the_end_has_finished(server):
    async def agent(session: Seat, task: Task) -> None:
        await right(session, task)
        raise KeyError("x")

    rollout = await one(server, agent)
    assert (rollout.outcome, rollout.total) == ("finished", 1.0)


async def test_an_agent_that_goes_on_after_a_lost_call_has_lost_its_episode_all_the_same(server):
    async def agent(session: Seat, task: Task) -> None:
        with contextlib.suppress(Exception):
            await session.call_tool("sleep")

    rollout = await one(server, agent, "slow")
    assert (rollout.outcome, rollout.total) == ("infrastructure_failed", None)


async def test_an_agent_that_ends_before_the_episode_does_has_what_it_earned(server):
    async def agent(session: Seat, task: Task) -> None:
        await session.call_tool("hint")

    rollout = await one(server, agent)
    assert (rollout.outcome, rollout.failed_by, rollout.total) == ("stopped_early", "agent", 0.25)


async def test_an_agent_that_holds_its_own_connection_is_asked_about_in_the_end(server):
    async def agent(session: Seat, task: Task) -> None:
        url = (await session.agent_url()).url.removesuffix("mcp") + "call"
        async with httpx2.AsyncClient() as client:
            for name, input in (("hint", {}), ("say", {"number": 0})):
                await client.post(url, json={"name": name, "input": input})

    rollout = await one(server, agent)
    assert (rollout.outcome, rollout.total, rollout.rewards, rollout.turns) == ("finished", 1.25, [0.25, 1.0], 2)


async def test_a_rollout_has_what_a_trainer_needs(server):
    with model(lambda _: said("I say", ("say", {"number": 0}))) as asked:
        endpoint = Endpoint("m", asked.url)
        rollout = await one(server, ChatAgent(endpoint))
        await endpoint.aclose()
    assert [block.text for block in rollout.prompt] == ["Say 0."]
    assert [message["role"] for message in rollout.messages] == ["user", "assistant", "tool"]
    assert [(call.tool, call.arguments, call.reward) for call in rollout.calls] == [("say", {"number": 0}, 1.0)]
    assert rollout.rewards == [1.0]
