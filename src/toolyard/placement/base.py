"""Where an environment instance lives. The runtime sees no more of it than these protocols."""

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
    """What one session is about: the author's own JSON, and where it came from if it has a place."""

    spec: JsonObject
    split: str | None = None
    index: int | None = None


@dataclass(slots=True)
class SessionSpec:
    """All that is needed to build the environment of a session, here or on another machine."""

    session_id: str
    environment: type[Environment]
    task: Task
    secrets: Mapping[str, str] = field(default_factory=dict)
    toolset: type | None = None
    """A toolset that the client asked for; its tools come before those of the environment."""


Strategy: TypeAlias = Literal["process", "hook", "replay"]
"""How a session was forked: with its process, by the author's fork(), or by repeating its calls."""


class Placed(Protocol):
    """One environment instance, wherever it runs. Whatever the author's code raises comes out, except from `call`."""

    @property
    def tools(self) -> Mapping[str, Tool]:
        """The tools that have a method, by name."""

    @property
    def holds(self) -> bool:
        """Whether it holds a process or another resource to free, even if the author has no teardown()."""

    @property
    def lost(self) -> str:
        """What became of it, if it is no more through no fault of its own."""

    async def setup(self) -> None: ...
    async def prompt(self) -> Blocks: ...
    async def messages(self) -> Sequence[Message]: ...
    async def list_tools(self) -> ListToolsOutput: ...
    async def has_tool(self, name: str) -> bool: ...
    async def call(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply:
        """`given` is what the trainer says with this call; what it does not say, the task may."""

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]: ...
    async def workspace(self) -> Workspace: ...

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[Placed], Strategy]:
        """As many that continue from here, while nothing runs in it. Raises `NotSupported` or `CannotFork`."""

    async def teardown(self) -> None: ...


class Placement(Protocol):
    """Chooses a place for a session and builds its environment there."""

    @property
    def processes(self) -> int:
        """How many hold sessions, beside the server's own."""

    @property
    def is_here(self) -> bool:
        """Whether environments live in this process."""

    @property
    def problem(self) -> str:
        """Why no session can be placed, as far as is known now, in words for everybody; empty if one can."""

    def prepare(self) -> None:
        """Called once before anybody is served, and before there is an event loop if possible."""

    async def stop(self) -> None:
        """Called when nobody is served any more. It can be prepared again."""

    async def place(self, spec: SessionSpec) -> Placed:
        """Call the author's constructor. `Placed.setup` comes next."""

    async def ask(self, hook: Callable[..., Any], *args: object) -> Any:  # the hook's own type
        """Call a class method of an environment without blocking anybody else."""


async def list_tools(environment: type[Environment], placement: Placement) -> ListToolsOutput:
    """The tools that every task has; an author who lists them may take time for it, ours takes none."""
    if not overrides(environment, "list_tools"):
        return environment.list_tools()
    listed: ListToolsOutput = await placement.ask(environment.list_tools)
    return listed


async def list_session_tools(
    environment: type[Environment], tools: Mapping[str, Tool], placement: Placement, own: Sequence[ToolSpec] = ()
) -> ListToolsOutput:
    """Shared tools, then the task's own; one entry a name, and the terminal tool not among them."""
    terminal = next((tool for tool in reversed([*tools.values()]) if tool.terminal), None)
    ordered = sorted((tool for tool in tools.values() if not tool.terminal), key=lambda tool: not tool.shared)
    specs = {tool.name: tool.spec for tool in ordered}
    specs |= {spec.name: spec for spec in own if not terminal or spec.name != terminal.name}
    listed = await list_tools(environment, placement)
    return listed.model_copy(
        update={"tools": list(specs.values()), "terminal_tool": terminal.terminal_spec() if terminal else None}
    )
