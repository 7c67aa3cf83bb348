"""The protocols of a place where environment instances live. The runtime sees nothing else of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from toolyard.core.environment import Environment, overrides
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Blocks, JsonObject, Reply
from toolyard.core.tool import ListToolsOutput, Tool, ToolSpec
from toolyard.core.workspace import Workspace


@dataclass(slots=True)  # not frozen: one is made for each session, and that would take twice the time
class Task:
    """The task of one session: the author's own JSON and, if it came from a list, its split and index."""

    spec: JsonObject
    split: str | None = None
    index: int | None = None


@dataclass(frozen=True, slots=True)
class Origin:
    """Who opened a session, for the record of its episode: over which wire, and in which run of which client."""

    wire: str = ""
    run: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)


NOBODY = Origin()


@dataclass(slots=True)
class SessionSpec:
    """Everything needed to build the environment of a session, here or on another machine."""

    session_id: str
    environment: type[Environment]
    task: Task
    secrets: Mapping[str, str] = field(default_factory=dict)
    toolset: type | None = None
    """A toolset that the client asked for. Its tools win over tools of the environment with the same names."""
    origin: Origin = NOBODY
    forked_from: str = ""
    """The session that this one continues from."""


Strategy: TypeAlias = Literal["process", "hook", "replay"]
"""How a session was forked: with its process, by the author's fork(), or by repeating its calls."""


class Placed(Protocol):
    """One environment instance, wherever it runs. Exceptions of the author's code come out, except from `call`."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that have a method, by name."""

    @property
    def holds(self) -> bool:
        """Whether it holds a process or another resource to free, even if the author has no teardown()."""

    @property
    def lost(self) -> str:
        """Why it no longer exists, if its process or actor ended; empty while it lives."""

    async def setup(self) -> None: ...
    async def prompt(self) -> Blocks: ...
    async def messages(self) -> Sequence[Message]: ...
    async def list_tools(self) -> ListToolsOutput: ...
    async def has_tool(self, name: str) -> bool: ...
    async def call(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply:
        """Call a tool. `given` holds values that the trainer sent with this call; the task may hold others."""

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]: ...
    async def workspace(self) -> Workspace: ...

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[Placed], Strategy]:
        """Make instances that continue from here, while nothing runs in it. Raises `NotSupported` or `CannotFork`."""

    async def teardown(self) -> None: ...


class Placement(Protocol):
    """Chooses a place for a session and builds its environment there."""

    @property
    def processes(self) -> int:
        """How many processes hold sessions, beside the server's own."""

    @property
    def is_here(self) -> bool:
        """Whether environments live in this process."""

    @property
    def problem(self) -> str:
        """Why no session can be placed, as far as is known now, in words for any client; empty if one can."""

    def prepare(self) -> None:
        """Called before the server answers requests and, if possible, before there is an event loop. Safe to repeat."""

    async def stop(self) -> None:
        """Called when the server answers no more requests. `prepare` may follow."""

    async def place(self, spec: SessionSpec) -> Placed:
        """Call the author's constructor. `Placed.setup` comes next."""

    async def ask(self, hook: Callable[..., Any], *args: object) -> Any:  # the hook's own type
        """Call a class method of an environment without blocking the event loop."""


async def list_tools(environment: type[Environment], placement: Placement) -> ListToolsOutput:
    """The tools that every task has. Our own `list_tools` runs here; an author's may block."""
    if not overrides(environment, "list_tools"):
        return environment.list_tools()
    listed: ListToolsOutput = await placement.ask(environment.list_tools)
    return listed


async def list_session_tools(
    environment: type[Environment], tools: Mapping[str, Tool], placement: Placement, own: Sequence[ToolSpec] = ()
) -> ListToolsOutput:
    """The shared tools, then the task's own: one entry for each name, without the terminal tool."""
    terminal = next((tool for tool in reversed([*tools.values()]) if tool.terminal), None)
    ordered = sorted((tool for tool in tools.values() if not tool.terminal), key=lambda tool: not tool.shared)
    specs = {tool.name: tool.spec for tool in ordered}
    specs |= {spec.name: spec for spec in own if not terminal or spec.name != terminal.name}
    listed = await list_tools(environment, placement)
    return listed.model_copy(
        update={"tools": list(specs.values()), "terminal_tool": terminal.terminal_spec() if terminal else None}
    )
