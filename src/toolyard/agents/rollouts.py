"""Many episodes at once, for trainers: `rollouts` one by one as they end, `groups` with several of each task."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, aclosing
from functools import partial
from typing import TypeAlias

from toolyard.agents.playing import Agent, play, play_open
from toolyard.agents.rollout import Rollout
from toolyard.client import AsyncSession, ClientError, RequestRefused, SessionGone, Task
from toolyard.core.as_they_end import as_they_end
from toolyard.core.errors import describe

Opening: TypeAlias = Callable[[Task], AsyncSession]
"""Makes a session for a task, not open yet, as `environment.session` does."""


async def rollouts(
    session: Opening, tasks: Iterable[Task], agent: Agent, *, concurrency: int = 32, seconds: float | None = None
) -> AsyncGenerator[Rollout]:
    """Play an episode of each task, `concurrency` at once. Yields them as they end.

    Wrap it in `contextlib.aclosing` if you leave it early: then it closes its sessions at once.

    `tasks` may be endless: each is taken when there is room. `rollout.group` is its number. `seconds` limits the
    working time of each.
    """

    async def one(number: int, task: Task) -> Rollout:
        rollout = await play(session(task), agent, task, name=f"{number}", seconds=seconds)
        rollout.group = number
        return rollout

    async with aclosing(as_they_end((one(*pair) for pair in enumerate(tasks)), concurrency)) as ending:
        async for rollout in ending:
            yield rollout


async def groups(
    session: Opening,
    tasks: Iterable[Task],
    agent: Agent,
    *,
    n: int,
    concurrency: int = 8,
    seconds: float | None = None,
) -> AsyncGenerator[list[Rollout]]:
    """Play `n` episodes of each task, and yield those of one task together. `concurrency` counts groups.

    If the environment can fork, they continue from one session, forked after setup(). Else each has its own.
    """

    async def one(number: int, task: Task) -> list[Rollout]:
        played = await _group(
            partial(session, task), agent, task, [f"{number}-{member}" for member in range(n)], seconds
        )
        for rollout in played:
            rollout.group = number
        return played

    async with aclosing(as_they_end((one(*pair) for pair in enumerate(tasks)), concurrency)) as ending:
        async for group in ending:
            yield group


async def _group(
    opened: Callable[[], AsyncSession], agent: Agent, task: Task, names: Sequence[str], seconds: float | None
) -> list[Rollout]:
    async with AsyncExitStack() as stack:
        try:
            first = await stack.enter_async_context(opened())
            forks = await _forks(first, len(names) - 1)
        except ClientError as error:
            failed = describe(error)
            return [Rollout(name, outcome="infrastructure_failed", error=failed) for name in names]
        for fork in forks:
            stack.push_async_callback(fork.close)
        ready = [first, *forks]
        members = [_played(one, agent, task, name, seconds) for one, name in zip(ready, names, strict=False)]
        others = [play(opened(), agent, task, name=name, seconds=seconds) for name in names[len(ready) :]]
        return list(await asyncio.gather(*members, *others))


async def _forks(session: AsyncSession, wanted: int) -> list[AsyncSession]:
    """Fork the session; empty if the environment or the server cannot."""
    try:
        return await session.fork(wanted) if wanted else []
    except (RequestRefused, SessionGone):  # an older server answers 404
        return []


async def _played(session: AsyncSession, agent: Agent, task: Task, name: str, seconds: float | None) -> Rollout:
    rollout = Rollout(name)
    await play_open(session, agent, task, rollout, seconds)
    return rollout
