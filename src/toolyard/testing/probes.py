"""Let dishonest agents play a few tasks: each reward that one of them gets is a finding."""

from __future__ import annotations

import json
import math
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field

from toolyard.core.counting import counted
from toolyard.core.output import TextBlock, ToolFailure, ToolOutput
from toolyard.placement.base import Task
from toolyard.testing.episodes import MadeCall, Played, Stage, ToolCall, scripted, tools_of
from toolyard.testing.judging import Problems, shortened
from toolyard.testing.ploys import TOOLS, Agent, Ploy, hostile, idle
from toolyard.testing.report import Level

TASKS = 3
"""How many tasks they play: what earns in all of them was not right by chance."""


@dataclass(slots=True)
class Earnings:
    """What one agent earned through one tool."""

    call: str
    """The first call with a reward."""
    reward: float
    tasks: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Probing:
    """Plays the dishonest agents on one task after the other, and notes what they earn."""

    stage: Stage
    until: float
    """When to stop, by the monotonic clock."""
    episodes: int = 0
    tasks: int = 0
    cut_short: bool = False
    earned: dict[tuple[Agent, str], Earnings] = field(default_factory=dict)
    lost: dict[tuple[Agent, str], str] = field(default_factory=dict)

    async def play(self, task: Task) -> None:
        """Play all agents on one task. Raises what the author's constructor, setup() or list_task_tools() raises."""
        async with self.stage.session(task) as session:
            placed = await session.ready()
            tools = tools_of(await placed.list_tools())[:TOOLS]
            prompt = "\n".join(block.text for block in await placed.prompt() if isinstance(block, TextBlock))
        paid_for_nothing: dict[str, float] = {}
        endings: dict[str, ToolCall] = {}
        async for ploy, played in self._played(task, idle(tools)):
            for made in played.calls:
                if (reward := _reward(made)) is not None:
                    paid_for_nothing[made.tool] = max(reward, paid_for_nothing.get(made.tool, 0))
                    self._note(ploy, made, reward)
                if isinstance(made.result, ToolOutput) and (made.result.finished or made.result.reward is not None):
                    endings[made.tool] = (made.tool, made.arguments)
        async for ploy, played in self._played(task, hostile(tools, prompt, [*endings.values()])):
            for made in played.calls:
                reward = _reward(made)
                if reward is not None and reward > paid_for_nothing.get(made.tool, 0):
                    self._note(ploy, played.calls[0], reward)
            self._note_lost(ploy, played)
        self.tasks += 1

    async def _played(self, task: Task, ploys: Iterable[Ploy]) -> AsyncIterator[tuple[Ploy, Played]]:
        for ploy in ploys:
            if time.monotonic() > self.until:
                self.cut_short = True
                return
            self.episodes += 1
            yield ploy, await self.stage.play(task, scripted(ploy.calls))

    def _note(self, ploy: Ploy, made: MadeCall, reward: float) -> None:
        earned = self.earned.setdefault((ploy.agent, made.tool), Earnings(_call(made), reward))
        earned.reward = max(earned.reward, reward)
        earned.tasks.add(self.tasks)

    def _note_lost(self, ploy: Ploy, played: Played) -> None:
        """Note an agent whose call counts as lost: it can discard an episode that goes badly."""
        first = played.calls[0]
        if isinstance(first.result, ToolFailure) and first.result.reason == "lost":
            self.lost.setdefault((ploy.agent, first.tool), first.result.message)

    def problems(self, *, idle_reward: bool) -> Problems:
        found = [*self._payments(idle_reward=idle_reward), *self._escapes()]
        if self.cut_short and not self.episodes:
            return [("note", "no dishonest agent has played: there is time for them with a larger --seconds")]
        what = f"{counted(self.episodes, 'episode')} of dishonest agents, of {counted(self.tasks, 'task')}"
        if self.cut_short:
            found.append(("note", f"only {what} were played: there is time for more with a larger --seconds"))
        if not found:
            found.append(("ok", f"{what}: to do nothing, to crash and to exit early earn nothing"))
        return found

    def _payments(self, *, idle_reward: bool) -> Iterator[tuple[Level, str]]:
        for (agent, _), earned in self.earned.items():
            where = f"in {len(earned.tasks)} of {counted(self.tasks, 'task')}"
            told = f"an agent that {agent} gets a reward of {earned.reward:g} for {earned.call}, {where}"
            if agent != "does nothing":
                yield "error", f"{told}; grade where its program cannot reach"
            elif idle_reward or len(earned.tasks) < self.tasks:
                yield "note", told + ("" if idle_reward else ", by chance or because it is right there")
            else:
                level: Level = "error" if self.tasks >= TASKS else "warning"
                yield level, f"{told}; if that is meant, say so: --allow-idle-reward, or idle_reward=True"

    def _escapes(self) -> Iterator[tuple[Level, str]]:
        for (agent, tool), message in self.lost.items():
            yield "warning", f"an agent that {agent} makes {tool} count as lost, and so its episode: {message}"


def _reward(made: MadeCall) -> float | None:
    """The call's reward, if it is positive."""
    if not isinstance(made.result, ToolOutput) or made.result.reward is None:
        return None
    return made.result.reward if math.isfinite(made.result.reward) and made.result.reward > 0 else None


def _call(made: MadeCall) -> str:
    return f"{made.tool} {shortened(json.dumps(dict(made.arguments), ensure_ascii=False))}"
