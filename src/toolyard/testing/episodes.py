"""Episodes played in a runtime without any client: by a script, or at random."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from toolyard.agents.arguments import make_arguments
from toolyard.core.environment import Environment
from toolyard.core.output import CallResult, JsonObject, ToolFailure, ToolOutput, as_result
from toolyard.core.tool import ListToolsOutput, ToolSpec
from toolyard.placement.base import SessionSpec, Task
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.testing.witness import LoggedMeanwhile

ToolCall: TypeAlias = tuple[str, JsonObject]
Script: TypeAlias = Callable[[ListToolsOutput], Iterator[ToolCall]]
"""Makes the calls for a task with these tools."""

RANDOM_CALLS = 50
"""A random episode ends after this many calls."""


@dataclass(frozen=True, slots=True)
class MadeCall:
    tool: str
    arguments: JsonObject
    result: CallResult
    error: BaseException | None
    """The exception that the tool raised, if any."""


@dataclass(slots=True)
class Played:
    task: Task
    calls: list[MadeCall] = field(default_factory=list)
    after_the_end: CallResult | None = None
    """The result of one more call, after the episode finished."""

    @property
    def finished(self) -> bool:
        return self.after_the_end is not None

    def outcome(self) -> Sequence[object]:
        """What to compare with another episode; without the messages of failures, which may contain addresses."""
        return [
            (made.result.text, made.result.reward, made.result.finished)
            if isinstance(made.result, ToolOutput)
            else made.result.reason
            for made in self.calls
        ]


@dataclass(frozen=True, slots=True)
class Stage:
    """The runtime and the environment that play the episodes."""

    runtime: Runtime
    environment: type[Environment]
    secrets: Mapping[str, str]
    heard: LoggedMeanwhile

    @asynccontextmanager
    async def session(self, task: Task) -> AsyncGenerator[Session]:
        spec = SessionSpec(f"check-{uuid.uuid4()}", self.environment, task, self.secrets)
        session = await self.runtime.open(spec)
        try:
            yield session
        finally:
            await self.runtime.close(session.id)

    async def play(self, task: Task, script: Script) -> Played:
        """Play one episode, to its end or to the end of the script."""
        played = Played(task)
        async with self.session(task) as session:
            listed = await (await session.ready()).list_tools()
            for tool, arguments in script(listed):
                await asyncio.sleep(0)  # a call may never pause, and a limit of time ends an episode only at a pause
                result = as_result(await session.start(tool, arguments).finished())
                raised = isinstance(result, ToolFailure) and result.reason == "tool_raised"
                played.calls.append(MadeCall(tool, arguments, result, self.heard.last_error() if raised else None))
                if isinstance(result, ToolFailure) and result.retryable:
                    break  # timed out or lost: each later call would take as long
                if isinstance(result, ToolOutput) and result.finished:
                    played.after_the_end = as_result(await session.start(tool, arguments).finished())
                    break
        return played


def scripted(calls: Sequence[ToolCall]) -> Script:
    return lambda listed: iter(calls)


def tools_of(listed: ListToolsOutput) -> Sequence[ToolSpec]:
    """All tools, including the terminal tool, which takes the agent's last message."""
    tools = [*listed.tools]
    if (terminal := listed.terminal_tool) is not None:
        message = {"type": "object", "properties": {terminal.arg: {"type": "string"}}, "required": [terminal.arg]}
        schema = message if terminal.arg else None
        tools.append(ToolSpec(name=terminal.name, description=terminal.description, input_schema=schema))
    return tools


def at_random(seed: str) -> Script:
    """Call tools at random; the same seed and tools give the same calls."""

    def script(listed: ListToolsOutput) -> Iterator[ToolCall]:
        dice = random.Random(seed)
        tools = tools_of(listed)
        for _ in range(RANDOM_CALLS if tools else 0):
            tool = dice.choice(tools)
            yield tool.name, make_arguments(tool.input_schema, dice)

    return script
