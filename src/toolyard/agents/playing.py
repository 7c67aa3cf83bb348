"""Plays episodes: opens a session, lets an agent act in it, and tells whose doing it was if that went wrong."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from toolyard.agents.rollout import Outcome, Rollout
from toolyard.agents.seat import Seat
from toolyard.client import AsyncSession, ClientError, Task, ToolCallFailed
from toolyard.core.errors import ToolyardError, describe

Agent: TypeAlias = Callable[[Seat, Task], Awaitable[object]]
"""Plays one episode: it gets the session and the task, and returns when it is done. What it returns means nothing."""


class EndpointFailed(ToolyardError):
    """The endpoint of the model did not answer, for as long as we were willing to try, or refused."""


class AgentStopped(ToolyardError):
    """The agent cannot go on. The outcome says why."""

    def __init__(self, outcome: Outcome, message: str = "") -> None:
        super().__init__(outcome, message)
        self.outcome = outcome
        self.message = message

    def __str__(self) -> str:
        return self.message or self.outcome


async def play(
    session: AsyncSession,
    agent: Agent,
    task: Task,
    *,
    name: str = "",
    seconds: float | None = None,
    over: Callable[[Rollout], None] = lambda rollout: None,
) -> Rollout:
    """Open the session, let the agent play in it for so many seconds of its own time, and close it.

    This raises nothing but the cancellation of its caller: the rollout has the outcome. `over` is told as soon as there
    is one, before the session is closed.
    """
    rollout = Rollout(name)
    try:
        async with session:
            try:
                await play_open(session, agent, task, rollout, seconds)
            except asyncio.CancelledError:
                if rollout.finished:  # by a call that was under way
                    rollout.outcome = "finished"
                    over(rollout)
                raise
            over(rollout)
    except ClientError as error:  # it could not be opened: nothing else here raises one
        rollout.outcome, rollout.error = "infrastructure_failed", _said(error)
        over(rollout)
    return rollout


async def play_open(
    session: AsyncSession, agent: Agent, task: Task, rollout: Rollout, seconds: float | None = None
) -> None:
    """As `play`, in a session that is open and stays so."""
    rollout.session = session.sid
    began = time.monotonic()
    working = _Working(seconds)
    seat = Seat(session, rollout, working.excuse)
    try:
        rollout.outcome, rollout.error = await _outcome(seat, agent, task, working)
    finally:
        rollout.turns = rollout.turns or len(rollout.rewards)
        rollout.seconds = time.monotonic() - began


class _Working:
    """A limit of the time that an agent works. A wait that somebody else asked for does not count."""

    def __init__(self, seconds: float | None) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def run(self, work: Awaitable[object]) -> None:
        async with self._timeout:
            await work

    def excuse(self, seconds: float) -> None:
        if (when := self._timeout.when()) is not None:
            self._timeout.reschedule(when + seconds)

    @property
    def over(self) -> bool:
        return self._timeout.expired()


async def _outcome(seat: Seat, agent: Agent, task: Task, working: _Working) -> tuple[Outcome, str]:
    outcome: Outcome
    try:
        await working.run(agent(seat, task))
        outcome, error = "stopped_early", ""
    except AgentStopped as stopped:
        outcome, error = stopped.outcome, stopped.message
    except Exception as raised:  # the agent may be anybody's code
        outcome, error = "time_limit" if working.over else _blamed(raised), _said(raised)
    try:
        await seat.settle()
    except ClientError as lost:
        return "infrastructure_failed", _said(lost)
    if seat.finished:  # whatever came after it
        return "finished", ""
    if seat.lost is not None:
        return "infrastructure_failed", _said(seat.lost)
    return outcome, error


def _said(raised: Exception) -> str:
    return str(raised) if isinstance(raised, ToolyardError) else describe(raised)


def _blamed(raised: Exception) -> Outcome:
    """Whose failure an exception of an agent is."""
    if isinstance(raised, EndpointFailed) or type(raised).__module__.partition(".")[0] == "openai":
        return "endpoint_failed"  # an agent of somebody else's may use the package itself
    if isinstance(raised, ClientError) and not isinstance(raised, ToolCallFailed):  # that is a tool's answer
        return "infrastructure_failed"
    return "agent_raised"
