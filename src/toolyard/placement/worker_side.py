"""The worker's side of remote sessions: environments in some placement there, controlled over an `RpcConnection`.

All code of authors runs on this side.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from toolyard.core.environment import Environment
from toolyard.core.messages import GroupCandidate
from toolyard.placement.base import Placed, Placement, SessionSpec, Strategy, Task
from toolyard.placement.replies import write_reply
from toolyard.placement.workspaces import HostedWorkspace
from toolyard.rpc import TheirQuestion


@dataclass(frozen=True, slots=True)
class Served:
    """Everything that a worker needs, loaded before the worker is forked."""

    environments: Mapping[str, type[Environment]]
    toolsets: Mapping[str, type]
    threads: int
    enter: Callable[[], object]
    """Called on the event loop of a worker, before any code of an environment."""


class InnerPlacement(Placement, Protocol):
    """A placement that counts the functions that do not stop."""

    @property
    def hung(self) -> int:
        """How many plain functions still run although their callers gave up."""


class Hosting:
    """Answers the server's questions about the sessions of this process, any number of them at once."""

    def __init__(self, served: Served, placement: InnerPlacement) -> None:
        self._served = served
        self._placement = placement
        self._placed: dict[str, Placed] = {}
        self._placing: dict[str, bool] = {}
        """Sessions whose constructor runs now, and whether the server still waits for it."""
        self._workspaces: dict[str, HostedWorkspace] = {}
        """Workspaces of sessions whose files the server has asked for."""
        self._calls = 0
        self._doing: Mapping[str, Callable[..., Any]] = {
            "place": self._place,
            "setup": self._setup,
            "prompt": self._prompt,
            "messages": self._messages,
            "list_tools": self._list_tools,
            "has_tool": self._has_tool,
            "call": self._call,
            "score_group": self._score_group,
            "workspace": self._workspace,
            "lost": self._lost,
            "teardown": self._teardown,
            "fork_here": self._fork_here,
        }

    async def _answer(self, question: TheirQuestion) -> Any:
        return await self._doing[question.what](*question.about)

    # What the server asks.

    async def _place(
        self,
        session: str,
        environment: str,
        task: Mapping[str, Any],
        secrets: Mapping[str, str],
        toolset: str | None,
    ) -> None:
        spec = self._spec(session, environment, Task(**task), secrets, toolset)
        self._placing[session] = True
        try:
            placed = await self._placement.place(spec)
        finally:
            wanted = self._placing.pop(session)
        if wanted:
            self._placed[session] = placed
        else:
            await placed.teardown()

    async def _setup(self, session: str) -> None:
        await self._placed[session].setup()

    async def _prompt(self, session: str) -> Any:
        return [block.model_dump() for block in await self._placed[session].prompt()]

    async def _messages(self, session: str) -> Any:
        return [message.model_dump() for message in await self._placed[session].messages()]

    async def _list_tools(self, session: str) -> Any:
        return (await self._placed[session].list_tools()).model_dump()

    async def _has_tool(self, session: str, name: str) -> bool:
        return await self._placed[session].has_tool(name)

    async def _call(self, session: str, tool: str, arguments: Any, given: Any) -> Any:
        """Call a tool. If the server stops the call, the answer comes once the tool has stopped, and says how many
        functions in this process still hang."""
        self._calls += 1
        try:
            return write_reply(await self._placed[session].call(tool, arguments, given))
        except asyncio.CancelledError:
            return {"hung": self._placement.hung}
        finally:
            self._calls -= 1

    async def _score_group(self, session: str, candidates: Any) -> Any:
        group = [GroupCandidate.model_validate(candidate) for candidate in candidates]
        return [score.model_dump() for score in await self._placed[session].score_group(group)]

    async def _workspace(self, session: str, what: str, *about: Any) -> Any:
        if session not in self._workspaces:
            self._workspaces[session] = HostedWorkspace(self._placed[session])
        return await self._workspaces[session].answer(what, *about)

    async def _teardown(self, session: str) -> None:
        placed = self._placed.pop(session, None)
        self._workspaces.pop(session, None)
        if placed is not None:
            await placed.teardown()
        elif session in self._placing:
            self._placing[session] = False

    async def _lost(self, session: str) -> str:
        return self._placed[session].lost

    async def _fork_here(self, session: str, environment: str, toolset: str | None, new: Sequence[str]) -> Strategy:
        """Fork a session within this process. Return how the copies were made."""
        specs = [self._spec(each, environment, Task({}), {}, toolset) for each in new]
        made, strategy = await self._placed[session].fork(specs)
        self._placed |= dict(zip(new, made, strict=True))
        return strategy

    def _spec(
        self, session: str, environment: str, task: Task, secrets: Mapping[str, str], toolset: str | None
    ) -> SessionSpec:
        found = None if toolset is None else self._served.toolsets[toolset]
        return SessionSpec(session, self._served.environments[environment], task, secrets, found)
