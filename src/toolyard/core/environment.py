"""`Environment`: the class that an author writes. The class is a world; an instance is one session in it."""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, Literal, TypeAlias, TypeVar, cast

from toolyard.core.errors import CannotFork, DefinitionError, NotSupported
from toolyard.core.hooks import CLASS_HOOKS, INSTANCE_HOOKS, check_hooks, check_toolset_hooks, function_of
from toolyard.core.messages import BLOCK_TYPES, GroupCandidate, GroupScore, Message
from toolyard.core.output import Blocks, JsonObject, Model
from toolyard.core.reading import tools_of
from toolyard.core.tool import ListToolsOutput, Tool, ToolSpec
from toolyard.core.workspace import Files, Workspace

T = TypeVar("T")
MaybeAwaitable: TypeAlias = T | Awaitable[T]
Hidden: TypeAlias = str | os.PathLike[str] | ModuleType
"""A path, relative to the file of the class that names it, or a module."""


class Split(Model):
    name: str
    type: Literal["train", "validation", "test"] = "validation"


class Toolset:
    """Tools that several environments share. A toolset reaches its environment as `self.env`."""

    uses_sandbox: ClassVar[bool] = False
    """As `Environment.uses_sandbox`."""
    prefixed: ClassVar[bool] = False
    """On a wire that groups tools into worlds, the toolset is a world, and its tools' names begin with its own."""
    catalogue: ClassVar[Mapping[str, ToolSpec]] = {}
    """Tools, by name, that are too many to list. Clients search for them, and `call_task_tool` runs them."""
    hidden: ClassVar[Sequence[Hidden]]
    """As `Environment.hidden`."""
    has_workspace: ClassVar[bool] = False
    """Its tools work in the sandbox of the session, where `Environment.workspace_files` are laid."""
    written_as: ClassVar[type | None] = None
    """The class of another framework that this class runs, if there is one."""

    def __init__(self, env: Any) -> None:
        self.env = env

    @classmethod
    def missing(cls) -> str:
        """Why it cannot work on this host, such as a key that is not set; empty if it can."""
        return ""

    @classmethod
    def workspace_of(cls, env: Any) -> MaybeAwaitable[Workspace]:
        """The workspace in which its tools work, if it `has_workspace`."""
        raise NotSupported(f"{cls.__name__} has no workspace")

    def teardown(self) -> MaybeAwaitable[None]:
        """Called once when the session ends, after the environment's own; a plain function or a coroutine."""

    def fork(self, env: Any) -> MaybeAwaitable[Toolset]:
        """Make a toolset for `env`, a fork of this one's environment. It holds copies of all that this one holds."""
        made = copy.copy(self)
        made.env = env
        for name, value in vars(self).items():
            if name != "env":
                try:
                    setattr(made, name, copy.deepcopy(value))
                except Exception as error:  # the author's attribute: a socket, a lock, a thread
                    raise CannotFork(f"{type(self).__name__}.{name} cannot be copied: {error}") from error
        return made

    def list_task_tools(self) -> MaybeAwaitable[ListToolsOutput]:
        """As `Environment.list_task_tools`: tools that only this session has."""
        return ListToolsOutput(tools=[])

    def call_task_tool(self, name: str, arguments: JsonObject) -> MaybeAwaitable[object]:
        """Run one of those tools, or one of the catalogue. The arguments have been checked against its schema."""
        raise NotImplementedError

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_hidden(cls)
        check_toolset_hooks(cls, Toolset)
        for _ in tools_of(cls):  # reading them is the check
            pass


@dataclass(frozen=True, slots=True)
class Definition:
    """What Toolyard read from an environment class when it was defined."""

    tools: Mapping[str, Tool]
    terminal: Tool | None
    hooks: frozenset[str]
    """The names of the methods of Environment that the author overrides."""
    catalogue: Mapping[str, tuple[type, ToolSpec]] = field(default_factory=dict)
    """The tools that are not listed, each with the class that runs it."""
    tears_down: bool = False
    """The environment, or one of its toolsets, has a teardown()."""
    sets_up: bool = False
    """The environment has a setup(), or a toolset whose constructor an author wrote, which may block."""


class Environment:
    """Tools, tasks and rewards, written once and served over every protocol.

    Every method below may be overridden with a plain function or with a coroutine. Plain functions run in threads.
    """

    toolsets: ClassVar[Sequence[type]] = ()
    """Classes whose tools every session of this environment has beside its own."""
    uses_sandbox: ClassVar[bool] = False
    """It runs untrusted code. A server makes a sandbox ready before it answers any request, or does not start."""
    hidden: ClassVar[Sequence[Hidden]]
    """Modules and paths that no sandbox of the server shows: tests and answers that lie outside the environment's own
    package or file, which is always hidden. Paths start from the folder of the class's file. A subclass adds to what
    its parents hide.

    It has no value here, because a tool may be called `hidden`."""
    workspace_files: Files | None = None
    """Files that every session finds in its workspace, as `{"data.csv": Path(__file__).parent / "data.csv"}`, or a
    folder. Toolsets that work in the sandbox of the session find them there. If the task decides, set
    `self.workspace_files` in the constructor or in setup(). An environment that opens its own sandbox says
    `open_sandbox(files=self.workspace_files)`."""
    written_as: ClassVar[type | None] = None
    """As `Toolset.written_as`."""
    latch_finished: ClassVar[bool] = True
    """After a tool has returned finished=True, the session takes no more calls."""
    max_turns: ClassVar[int | None] = None
    """How many calls an agent has in one episode. The last one tells the agent so and ends the episode. Calls that the
    infrastructure lost do not count."""
    replayable: ClassVar[bool] = False
    """The same calls always lead to the same state, and change nothing outside. Then the runtime rebuilds or forks a
    session by repeating its calls."""
    agents_see_task: ClassVar[bool] = False
    """Agents may read the whole task, where a wire can show it to them. Most tasks hold their answers."""
    catalogue: ClassVar[Mapping[str, ToolSpec]] = {}
    """As `Toolset.catalogue`."""
    resources: ClassVar[Mapping[str, float]] = {}
    """What Ray reserves for an actor with sessions of this environment, as `{"CPU": 0.5, "GPU": 1, "browser": 1}`. An
    actor holds many sessions, and environments with equal resources share actors. Other placements ignore this."""
    _definition: ClassVar[Definition] = Definition({}, None, frozenset())

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        _check_hidden(cls)
        _check_max_turns(cls)
        _check_toolsets(cls)
        _check_files(cls)
        check_hooks(cls, Environment)
        cls._definition = define(cls)

    def __init__(self, task_spec: JsonObject = {}, secrets: Mapping[str, str] = {}) -> None:
        self.task_spec = task_spec
        self.secrets = secrets

    # The world: class methods, asked before any session exists.

    @classmethod
    def name(cls) -> str:
        """Its name on every wire, where it is in lower case."""
        return cls.__name__

    @classmethod
    def list_splits(cls) -> MaybeAwaitable[Sequence[Split | str]]:
        """The splits of its tasks. A bare name is of the type it names, and of type validation if it names none."""
        return ()

    @classmethod
    def list_tasks(cls, split: str) -> MaybeAwaitable[Sequence[JsonObject]]:
        """The tasks of a split. Called once; the server keeps the list. It only uses `len()` and indexing, so the list
        may be lazy.

        An environment with too many tasks to list overrides `num_tasks` and `get_task` instead.
        """
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str) -> int:
        """How many tasks a split has."""
        return len(await resolved(cls.list_tasks(split)))

    @classmethod
    async def get_task(cls, split: str, index: int) -> JsonObject:
        """One task of a split."""
        return (await resolved(cls.list_tasks(split)))[index]

    @classmethod
    def list_tools(cls) -> ListToolsOutput:
        """The tools that every task has."""
        definition = cls._definition
        return ListToolsOutput(
            tools=[tool.spec for tool in definition.tools.values() if tool.shared and not tool.terminal],
            terminal_tool=definition.terminal.terminal_spec() if definition.terminal else None,
            supports_score_group=overrides(cls, "score_group"),
            message_block_types=list(BLOCK_TYPES),
        )

    # One session: methods of the instance.

    def setup(self) -> MaybeAwaitable[None]:
        """Called once, after the constructor and before any other method of the instance."""

    def teardown(self) -> MaybeAwaitable[None]:
        """Called once when the session ends, even if setup() failed."""

    def get_prompt(self) -> MaybeAwaitable[Blocks | str]:
        """What the agent reads first."""
        raise NotImplementedError

    def get_messages(self) -> MaybeAwaitable[Sequence[Message]]:
        """The prompt as a conversation. Without it, clients get the prompt as one user message."""
        raise NotImplementedError

    def list_task_tools(self) -> MaybeAwaitable[ListToolsOutput]:
        """Tools that only this task has. A spec with the name of a decorated tool replaces the spec of that tool."""
        return ListToolsOutput(tools=[])

    def call_task_tool(self, name: str, arguments: JsonObject) -> MaybeAwaitable[object]:
        """Run a tool that `list_task_tools()` describes and no method implements. Returns what a tool returns.

        The arguments have been checked against the tool's `input_schema`.
        """
        raise NotImplementedError

    def fork(self) -> MaybeAwaitable[Environment]:
        """Make another instance that continues from exactly here and shares nothing with this one. No call runs now.

        Without this hook, the runtime forks a session with its process, if it has one of its own, or repeats its calls.
        """
        raise NotSupported(f"{type(self).name()} has no fork()")

    def workspace(self) -> MaybeAwaitable[Workspace]:
        """The files of this session, for clients that download and upload files. Without it: those of its toolsets, if
        one of them has a workspace. An environment with a sandbox of its own returns that."""
        for toolset in type(self).toolsets:
            if getattr(toolset, "has_workspace", False):
                return cast("type[Toolset]", toolset).workspace_of(self)
        raise NotSupported(f"{type(self).name()} has no workspace")

    def score_group(self, candidates: Sequence[GroupCandidate]) -> MaybeAwaitable[Sequence[GroupScore | float]]:
        """Compare several answers to this task: one score for each, in order."""
        raise NotImplementedError


async def resolved(value: MaybeAwaitable[T]) -> T:
    return await value if inspect.isawaitable(value) else value


def build_toolset(toolset: type, env: object) -> Any:  # an instance of `toolset`
    """Make a toolset. ORS has toolsets whose constructor takes the environment, and toolsets whose takes nothing."""
    return toolset(env) if _wants_environment(toolset) else toolset()


@cache
def _wants_environment(toolset: type) -> bool:
    try:
        inspect.signature(toolset).bind(None)
    except TypeError:
        return False
    return True


@cache
def is_built_by_us(toolset: type) -> bool:
    """Whether Toolyard wrote the constructor, so that nothing in it can block."""
    constructor = inspect.getattr_static(toolset, "__init__")
    ours = str(getattr(constructor, "__module__", "")).partition(".")[0] == __name__.partition(".")[0]
    return ours and type(toolset) is type and inspect.getattr_static(toolset, "__new__") is object.__new__


def needs_sandbox(environment: type) -> bool:
    """Whether it, or one of its toolsets, runs untrusted code. Classes of other frameworks may declare it too."""
    toolsets: Sequence[type] = getattr(environment, "toolsets", ())
    return any(getattr(cls, "uses_sandbox", False) for cls in (environment, *toolsets))


def classes_of(environment: type) -> Iterator[type]:
    """All classes of an environment: those that it and its toolsets extend, and classes of other frameworks it runs."""
    yield from environment.__mro__
    for toolset in getattr(environment, "toolsets", None) or ():
        if isinstance(toolset, type):
            yield from classes_of(toolset)
    if (foreign := getattr(environment, "written_as", None)) is not None:
        yield from classes_of(foreign)


def needs_teardown(environment: type[Environment], toolset: type | None = None) -> bool:
    """Whether the author wrote code that has to run when a session ends."""
    return environment._definition.tears_down or (toolset is not None and toolset_tears_down(toolset))


def toolset_tears_down(toolset: type) -> bool:
    return issubclass(toolset, Toolset) and toolset.teardown is not Toolset.teardown


def full_name(owner: type, tool: str) -> str:
    """The tool's name with the toolset's name before it, if the toolset is `prefixed`."""
    return f"{owner.__name__}_{tool}" if getattr(owner, "prefixed", False) else tool


def lists_task_tools(owner: type) -> bool:
    """Whether an environment or toolset lists tools that exist only in a session."""
    base: type = Environment if issubclass(owner, Environment) else Toolset
    return issubclass(owner, base) and function_of(owner, "list_task_tools") is not function_of(base, "list_task_tools")


def overrides(cls: type[Environment], hook: str) -> bool:
    """Whether the author overrides this hook."""
    return hook in cls._definition.hooks


def as_split(split: Split | str) -> Split:
    if isinstance(split, Split):
        return split
    match split:
        case "train" | "validation" | "test":
            return Split(name=split, type=split)
        case _:
            return Split(name=split)


_ATTRIBUTES = ("task_spec", "secrets")
"""What the constructor sets on every instance: it would hide a tool of that name."""

_HOOKS = (*CLASS_HOOKS, *INSTANCE_HOOKS, "__init__")


def define(cls: type[Environment]) -> Definition:
    """Read every tool of the class and of its toolsets. Raise `DefinitionError` for what cannot be served."""
    tools: dict[str, Tool] = {}
    for owner in (cls, *cls.toolsets):
        for tool in tools_of(owner):
            if tool.name in tools:
                raise DefinitionError(_collision(cls, tools[tool.name], tool))
            if hasattr(Environment, tool.name):
                raise DefinitionError(
                    f"{owner.__qualname__}.{tool.method}: a tool cannot be called {tool.name!r}, which is a method "
                    f"of every environment"
                )
            if tool.method in _ATTRIBUTES and owner is cls:
                raise DefinitionError(
                    f"{owner.__qualname__}.{tool.method}: a tool cannot be called {tool.method!r}, which is an "
                    f"attribute of every session; write @tool(name={tool.method!r}) above a method of another name"
                )
            tools[tool.name] = tool
    catalogue: dict[str, tuple[type, ToolSpec]] = {}
    for owner in (cls, *cls.toolsets):
        for name, spec in getattr(owner, "catalogue", {}).items():
            if name in tools or name in catalogue:
                raise DefinitionError(f"{owner.__qualname__}.catalogue: {cls.__qualname__} has a tool {name!r} already")
            catalogue[name] = owner, spec
    terminals = [tool for tool in tools.values() if tool.terminal]
    if len(terminals) > 1:
        names = " and ".join(f"{tool.owner.__qualname__}.{tool.method}" for tool in terminals)
        raise DefinitionError(f"{cls.__qualname__}: at most one tool can be terminal, and {names} are")
    written = frozenset(hook for hook in _HOOKS if function_of(cls, hook) is not function_of(Environment, hook))
    tears_down = "teardown" in written or any(map(toolset_tears_down, cls.toolsets))
    sets_up = "setup" in written or not all(map(is_built_by_us, cls.toolsets))
    return Definition(tools, terminals[0] if terminals else None, written, catalogue, tears_down, sets_up)


def _collision(cls: type[Environment], first: Tool, second: Tool) -> str:
    if first.owner is cls and second.owner is not cls:
        return (
            f"Tool name collision: {second.name!r} is defined in both the environment and toolset "
            f"{second.owner.__name__!r}. Please rename one of them to avoid conflicts."
        )
    return (
        f"{cls.__qualname__}: {first.owner.__qualname__}.{first.method} and {second.owner.__qualname__}."
        f"{second.method} are both called {second.name!r}; rename one with @tool(name=…)"
    )


def _check_toolsets(cls: type[Environment]) -> None:
    listed: object = cls.toolsets
    if isinstance(listed, str) or not isinstance(listed, Sequence):
        shown = f"the class {listed.__name__}" if isinstance(listed, type) else repr(listed)
        raise DefinitionError(f"{cls.__qualname__}.toolsets is {shown}; it must be a list of classes")
    for owner in listed:
        if not isinstance(owner, type):
            raise DefinitionError(f"{cls.__qualname__}.toolsets lists {owner!r}, which is not a class")


def _check_max_turns(cls: type[Environment]) -> None:
    most: object = cls.max_turns
    if most is not None and (not isinstance(most, int) or isinstance(most, bool) or most < 1):
        raise DefinitionError(f"{cls.__qualname__}.max_turns is {most!r}; it must be a positive whole number, or None")


def _check_files(cls: type[Environment]) -> None:
    files: object = cls.workspace_files
    if files is None or isinstance(files, property):  # said for each task
        return
    for path, content in (files if isinstance(files, Mapping) else {"": files}).items():
        where = f"{cls.__qualname__}.workspace_files" + (f"[{path!r}]" if isinstance(files, Mapping) else "")
        if not isinstance(path, str) or not isinstance(content, Path | (str | bytes if path else Path)):
            raise DefinitionError(f"{where} is {content!r}; it must be text, bytes or a pathlib.Path")
        if isinstance(content, Path) and not content.is_absolute():
            raise DefinitionError(f"{where} is relative to nothing; write Path(__file__).parent / {str(content)!r}")
    if not cls.uses_sandbox and not any(getattr(toolset, "has_workspace", False) for toolset in cls.toolsets):
        raise DefinitionError(f"{cls.__qualname__} has workspace_files and no workspace: none of its toolsets has one")


def _check_hidden(cls: type) -> None:
    hidden: object = getattr(cls, "hidden", ())
    if inspect.isfunction(hidden):  # a tool of that name
        return
    if not isinstance(hidden, list | tuple):
        raise DefinitionError(f"{cls.__qualname__}.hidden is {hidden!r}; it must be a list of modules and paths")
    for named in hidden:
        if not isinstance(named, str | os.PathLike | ModuleType) or named == "":
            raise DefinitionError(f"{cls.__qualname__}.hidden lists {named!r}, which is neither a module nor a path")
