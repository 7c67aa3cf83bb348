"""Plays episodes: opens a session, lets an agent act in it, and says who failed if it goes wrong."""

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
"""Plays one episode: it gets the session and the task, and returns when it is done. The return value is ignored."""


class EndpointFailed(ToolyardError):
    """The model's endpoint refused, or did not answer within all tries."""


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
    """Open the session, let the agent play in it for up to `seconds` of its own time, and close it.

    This raises nothing but its caller's cancellation: the rollout has the outcome. `over` is called with it before the
    session closes.
    """
    rollout = Rollout(name)
    try:
        async with session:
            try:
                await play_open(session, agent, task, rollout, seconds)
            except asyncio.CancelledError:
                if rollout.finished:  # by a call that was running
                    rollout.outcome = "finished"
                    over(rollout)
                raise
            over(rollout)
    except ClientError as error:  # the session could not open: nothing else here raises one
        rollout.outcome, rollout.error = "infrastructure_failed", _said(error)
        over(rollout)
    return rollout


async def play_open(
    session: AsyncSession, agent: Agent, task: Task, rollout: Rollout, seconds: float | None = None
) -> None:
    """As `play`, in an open session, which stays open."""
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
    """Limits the time that an agent works. Waits that an endpoint asks for do not count."""

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
    except Exception as raised:  # the agent's own code
        outcome, error = "time_limit" if working.over else _blamed(raised), _said(raised)
    try:
        await seat.settle()
    except ClientError as lost:
        return "infrastructure_failed", _said(lost)
    if seat.finished:  # even if the agent failed afterwards
        return "finished", ""
    if seat.lost is not None:
        return "infrastructure_failed", _said(seat.lost)
    return outcome, error


def _said(raised: Exception) -> str:
    return str(raised) if isinstance(raised, ToolyardError) else describe(raised)


def _blamed(raised: Exception) -> Outcome:
    """Whose failure an agent's exception is."""
    if isinstance(raised, EndpointFailed) or type(raised).__module__.partition(".")[0] == "openai":
        return "endpoint_failed"  # the agent may use the package itself
    if isinstance(raised, ClientError) and not isinstance(raised, ToolCallFailed):  # a failed tool is an answer
        return "infrastructure_failed"
    return "agent_raised"
