"""Environments that extend `ors.Environment` or `openreward.environments.Environment`.

Neither package is imported here: a class that extends one of theirs has loaded it already. What they would not serve
as a tool is not served by us either.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any, TypeAlias, get_type_hints

from toolyard.core.environment import Definition, Environment, Split
from toolyard.core.errors import DefinitionError
from toolyard.core.messages import GroupCandidate, GroupScore, Message
from toolyard.core.output import Block, ImageBlock, JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import ListToolsOutput, Tool, ToolSpec, Turn

_HOMES = ("ors.environment", "openreward.environments.environment")

Foreign: TypeAlias = Any
"""A class or object of a package that need not be installed."""

_OURS = {
    "list_splits": lambda splits: [s if isinstance(s, str) else Split(name=s.name, type=s.type) for s in splits],
    "list_tasks": lambda tasks: tasks,
    "num_tasks": lambda count: count,
    "get_task": lambda task: task,
    "setup": lambda nothing: None,
    "teardown": lambda nothing: None,
    "get_prompt": lambda blocks: [_block(block) for block in blocks],
    "get_messages": lambda messages: [Message.model_validate(message.model_dump()) for message in messages],
    "list_task_tools": lambda listed: ListToolsOutput.model_validate(listed.model_dump()),
    "score_group": lambda scores: [s if isinstance(s, int | float) else GroupScore(**s.model_dump()) for s in scores],
}
"""The hooks of theirs that we call, and how each answer becomes ours."""


def is_environment(value: object) -> bool:
    return isinstance(value, type) and _base(value) is not None and value.__module__ not in _HOMES


def adapt(foreign: type) -> type[Environment]:
    """A class of ours that drives an instance of theirs."""
    base = _base(foreign)
    assert base is not None
    written = {hook for hook in _OURS if hasattr(base, hook) and _function(foreign, hook) is not _function(base, hook)}
    class_hooks = written & {"list_splits", "list_tasks", "num_tasks", "get_task"}
    members = {hook: _class_hook(foreign, hook) for hook in class_hooks}
    adapted: type[_Adapted] = type(foreign.__name__, (_Adapted,), members)
    tools = {tool.name: tool for tool in _tools(foreign, adapted)}
    terminal = next((tool for tool in tools.values() if tool.terminal), None)
    adapted._foreign = foreign
    adapted._instance_hooks = written - class_hooks
    adapted._definition = Definition(tools, terminal, frozenset({"__init__", *written}))
    return adapted


class _Adapted(Environment):
    _foreign: Foreign
    _instance_hooks: set[str]

    def __init__(self, task_spec: JsonObject = {}, secrets: Mapping[str, str] = {}) -> None:
        super().__init__(task_spec, secrets)
        self._inner = self._foreign(task_spec=task_spec, secrets=secrets)
        self._toolsets: dict[type, Foreign] = {}
        for hook in self._instance_hooks:
            method = getattr(self._inner, hook)
            setattr(self, hook, _through(_with_candidates(method) if hook == "score_group" else method, _OURS[hook]))
        for tool in self._definition.tools.values():
            setattr(self, tool.method, self._tool_function(tool))

    @classmethod
    def name(cls) -> str:
        return str(cls._foreign.name())

    def _tool_function(self, tool: Tool) -> Callable[..., Any]:
        owner = next((cls for cls in (self._foreign, *self._foreign.toolsets) if hasattr(cls, tool.method)), None)

        def method(*args: Any) -> Any:
            return getattr(self._inner if owner is self._foreign else self._toolset(owner), tool.method)(*args)

        async def awaited(*args: Any) -> Any:
            return await method(*args)

        return _through(awaited if tool.is_async else method, lambda output: _output(tool.name, output))

    def _toolset(self, toolset: Foreign) -> Foreign:
        """Made when first used, as theirs are: it may want what setup() made."""
        if toolset not in self._toolsets:
            try:
                inspect.signature(toolset).bind(self._inner)
            except TypeError:
                self._toolsets[toolset] = toolset()
            else:
                self._toolsets[toolset] = toolset(self._inner)
        return self._toolsets[toolset]


def _base(cls: type) -> type | None:
    return next((base for base in cls.__mro__ if base.__module__ in _HOMES and base.__name__ == "Environment"), None)


def _tools(foreign: Foreign, adapted: type) -> Iterator[Tool]:
    seen: set[str] = set()
    for owner in (foreign, *foreign.toolsets):
        for name in dir(owner):
            fn = getattr(owner, name)
            if not foreign._is_tool(fn):
                continue
            if name in seen:
                raise DefinitionError(
                    f"Tool name collision: {name!r} is defined in both the environment and toolset "
                    f"{owner.__name__!r}. Please rename one of them to avoid conflicts."
                )
            seen.add(name)
            yield _tool(fn, name, adapted)


def _tool(fn: Foreign, name: str, adapted: type) -> Tool:
    real = inspect.unwrap(fn)
    hints = get_type_hints(real, include_extras=True)
    model = next((hints[p] for p in inspect.signature(real).parameters if p != "self"), None)
    terminal = getattr(fn, "_env_tool_terminal", False)
    turn: Turn = "concurrent" if getattr(fn, "_env_tool_concurrent", False) else "serial"
    return Tool(
        spec=ToolSpec(
            name=name,
            description=inspect.getdoc(fn) or "",
            input_schema=model.model_json_schema() if model else None,
        ),
        owner=adapted,
        method=name,
        arguments=model,
        whole=True,
        is_async=inspect.iscoroutinefunction(fn),
        shared=getattr(fn, "_env_tool_shared", True),
        terminal=terminal,
        turn="exclusive" if terminal or getattr(fn, "_env_tool_exclusive", False) else turn,
    )


def _class_hook(foreign: Foreign, hook: str) -> Any:
    through = _through(getattr(foreign, hook), _OURS[hook])
    return staticmethod(through)


def _through(method: Callable[..., Any], ours: Callable[[Any], Any]) -> Callable[..., Any]:
    """The same function, its answer made ours; async if it is."""

    async def later(answer: Awaitable[Any]) -> Any:
        return ours(await answer)

    async def awaited(*args: Any) -> Any:
        return ours(await method(*args))

    def called(*args: Any) -> Any:
        answer = method(*args)
        return later(answer) if inspect.isawaitable(answer) else ours(answer)

    return awaited if inspect.iscoroutinefunction(method) else called


def _with_candidates(method: Callable[..., Any]) -> Callable[..., Any]:
    """score_group() wants candidates of its own package's class."""
    theirs: Foreign = sys.modules["openreward.environments.types"]

    def translate(candidates: list[GroupCandidate]) -> list[Foreign]:
        return [theirs.GroupCandidate.model_validate(candidate.model_dump()) for candidate in candidates]

    async def awaited(candidates: list[GroupCandidate]) -> Any:
        return await method(translate(candidates))

    def called(candidates: list[GroupCandidate]) -> Any:
        return method(translate(candidates))

    return awaited if inspect.iscoroutinefunction(method) else called


def _function(cls: type, hook: str) -> object:
    value = getattr(cls, hook)
    return getattr(value, "__func__", value)


def _block(block: Foreign) -> Block:
    return TextBlock(**block.model_dump()) if block.type == "text" else ImageBlock(**block.model_dump())


def _output(tool: str, output: Foreign) -> ToolOutput:
    if type(output).__name__ != "ToolOutput":
        raise TypeError(f"{tool!r} returned {type(output).__name__}; expected ToolOutput")
    return ToolOutput.model_validate(output.model_dump())
