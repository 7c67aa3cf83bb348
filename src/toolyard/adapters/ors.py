"""Serves environments that extend `ors.Environment` or `openreward.environments.Environment`, unmodified.

This module imports neither package: a class that extends one of theirs has loaded it already. Toolyard serves as tools
only what these packages would serve.
"""

from __future__ import annotations

import inspect
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast, get_type_hints

from pydantic import BaseModel

from toolyard.adapters import translate
from toolyard.adapters.translate import Foreign
from toolyard.core.environment import Environment, Toolset, build_toolset
from toolyard.core.errors import DefinitionError, ToolError, describe
from toolyard.core.output import JsonObject, ToolOutput
from toolyard.core.tool import Tool, ToolSpec, Turn, terminal, tool

log = logging.getLogger("toolyard.adapters")

_HOMES = ("ors.environment", "openreward.environments.environment")
"""Where the two base classes are defined; their data types are in `types` beside them."""

_POSITIONAL = inspect.Parameter.POSITIONAL_OR_KEYWORD


def is_environment(value: object) -> bool:
    return isinstance(value, type) and _base(value) is not None and value.__module__ not in _HOMES


def adapt(foreign: Foreign) -> type[Environment]:
    """An environment that drives an instance of the foreign class."""
    base = _base(foreign)
    assert base is not None
    _check(foreign, base)
    written = {hook for hook in (*translate.ABOUT_CLASS, *translate.ABOUT_INSTANCE) if _wrote(foreign, base, hook)}
    members: dict[str, Any] = {
        "_theirs": foreign,
        "written_as": foreign,
        "types": _types(base),
        "_dispatches": _wrote(foreign, base, "_call_tool"),
    }
    for hook in written & translate.ABOUT_CLASS.keys():
        members[hook] = staticmethod(translate.through(getattr(foreign, hook), translate.ABOUT_CLASS[hook]))
    for hook in written & translate.ABOUT_INSTANCE.keys():
        members[hook] = _instance_hook(foreign, hook)
    if members["_dispatches"]:
        members["call_task_tool"] = _Adapted.dispatch
    adapted: type[_Adapted] = type(foreign.__name__, (_Adapted,), members)
    tools = {tool.name: tool for tool in _tools(foreign, adapted)}
    last = next((tool for tool in tools.values() if tool.terminal), None)
    adapted._definition = replace(adapted._definition, tools=tools, terminal=last)
    return adapted


def session_toolsets(environments: Iterable[type]) -> list[type]:
    """The toolsets of openreward that its client may ask for by name, if one of these environments is openreward's."""
    base = next((base for base in map(_base, environments) if base and base.__module__.startswith("openreward.")), None)
    if base is None:
        return []
    registry: Foreign = sys.modules["openreward.toolsets"]
    return [_adapt_toolset(name, theirs, base) for name, theirs in registry.BUILTIN_TOOLSETS.items()]


class _Adapted(Environment):
    _theirs: Foreign
    types: Foreign
    """The package's module of data types."""
    _dispatches: bool
    """Whether the class overrides `_call_tool()`, the only way to answer for a tool without a method."""

    def __init__(self, task_spec: JsonObject = {}, secrets: Mapping[str, str] = {}) -> None:
        super().__init__(task_spec, secrets)
        self.inner = self._theirs(task_spec=task_spec, secrets=dict(secrets))
        self._toolsets: dict[type, Foreign] = {}
        self._making_toolsets = threading.Lock()

    @classmethod
    def name(cls) -> str:
        return str(cls._theirs.name())

    def run(self, tool: _ForeignTool, written: JsonObject, *arguments: BaseModel) -> Any:
        """Run the tool. Return its answer, or an awaitable of it."""
        if self._dispatches:
            return self.dispatch(tool.name, written)
        owner = self.inner if tool.home is self._theirs else self._toolset(tool.home)
        return translate.translated(
            getattr(owner, tool.method)(*arguments), partial(translate.output, self.types, tool.name)
        )

    async def dispatch(self, name: str, arguments: JsonObject) -> ToolOutput:
        """Let the class's own `_call_tool()` find the tool."""
        answer = (await self.inner._call_tool(name, arguments)).root
        if not answer.ok:
            raise ToolError(answer.error)
        return translate.output(self.types, name, answer.output)

    def _toolset(self, toolset: Foreign) -> Foreign:
        """Make a toolset when it is first used, as its package does: it may need what setup() made."""
        with self._making_toolsets:
            if toolset not in self._toolsets:
                self._toolsets[toolset] = build_toolset(toolset, self.inner)
            return self._toolsets[toolset]


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class _ForeignTool(Tool):
    home: Foreign
    """The foreign class that has the method: the environment, or one of its toolsets."""

    def method_of(self, owner: object) -> Callable[..., Any]:
        return partial(cast(_Adapted, owner).run, self)

    def fit(self, written: JsonObject, said: JsonObject, task: JsonObject) -> tuple[Sequence[Any], JsonObject]:
        arguments = () if self.arguments is None else (self.arguments.model_validate(written),)
        return (written, *arguments), {}


def _adapt_toolset(name: str, theirs: Foreign, base: Foreign) -> type:
    """A toolset that drives the foreign one, under the name that clients know."""

    def __init__(self: Foreign, env: Environment) -> None:
        # A ValueError says that the environment lacks what the toolset needs, such as a sandbox.
        self.inner = theirs(env.inner if isinstance(env, _Adapted) else env)

    __init__.__module__ = theirs.__module__  # the foreign constructor may block
    members: dict[str, Any] = {"__init__": __init__}
    for method in dir(theirs):
        fn = getattr(theirs, method)
        if base._is_tool(fn):
            members[method] = _toolset_method(fn, method, _types(base))
    return type(name, (Toolset,), members)


def _toolset_method(fn: Foreign, name: str, types: Foreign) -> Callable[..., Any]:
    def call(self: Foreign, *args: BaseModel) -> Any:
        return translate.translated(getattr(self.inner, name)(*args), partial(translate.output, types, name))

    async def awaited(self: Foreign, *args: BaseModel) -> Any:
        return await call(self, *args)

    method: Foreign = awaited if inspect.iscoroutinefunction(fn) else call
    model = _model(fn)
    named = ("self",) if model is None else ("self", "params")
    method.__signature__ = inspect.Signature([inspect.Parameter(p, _POSITIONAL) for p in named])
    method.__annotations__ = {} if model is None else {"params": model}
    method.__doc__ = fn.__doc__
    if getattr(fn, "_env_tool_terminal", False):
        method = terminal(method)
    marked: Callable[..., Any] = tool(
        shared=getattr(fn, "_env_tool_shared", True),
        concurrent=getattr(fn, "_env_tool_concurrent", False),
        exclusive=getattr(fn, "_env_tool_exclusive", False),
    )(method)
    return marked


# Read from the class, once.


def _types(base: type) -> Foreign:
    return sys.modules[base.__module__.rpartition(".")[0] + ".types"]


def _base(cls: type) -> type | None:
    return next((base for base in cls.__mro__ if base.__module__ in _HOMES and base.__name__ == "Environment"), None)


def _wrote(foreign: Foreign, base: Foreign, method: str) -> bool:
    return hasattr(base, method) and _function(foreign, method) is not _function(base, method)


def _function(cls: type, method: str) -> object:
    value = getattr(cls, method)
    return getattr(value, "__func__", value)


def _check(foreign: Foreign, base: Foreign) -> None:
    """Refuse what the package's own server would refuse, and log what Toolyard leaves out."""
    if missing := sorted(foreign.__abstractmethods__):
        raise DefinitionError(f"{foreign.__qualname__} is abstract: it has no {', '.join(missing)}")
    try:
        foreign.list_tools()
    except Exception as error:  # the package's checks of the author's tools: collisions, terminal tools, type hints
        raise DefinitionError(f"{foreign.__qualname__}: {describe(error)}") from error
    if _wrote(foreign, base, "list_tools"):
        log.warning("%s.list_tools() is not called: Toolyard reads tools from the class", foreign.__qualname__)


def _tools(foreign: Foreign, adapted: type) -> Iterator[Tool]:
    seen: dict[str, type] = {}
    for home in (foreign, *foreign.toolsets):
        for name in dir(home):
            fn = getattr(home, name)
            if not getattr(fn, "_env_tool", False):
                continue
            where = f"{home.__qualname__}.{name}"
            if not foreign._is_tool(fn):
                log.warning("%s is not served: a tool takes one pydantic model and is hinted -> ToolOutput", where)
            elif seen.get(name) is foreign:
                raise DefinitionError(
                    f"Tool name collision: {name!r} is defined in both the environment and toolset "
                    f"{home.__name__!r}. Please rename one of them to avoid conflicts."
                )
            elif name in seen:
                log.warning("%s is not served: %s has a tool of that name", where, seen[name].__qualname__)
            else:
                seen[name] = home
                yield _tool(fn, name, home, foreign, adapted)


def _tool(fn: Foreign, name: str, home: Foreign, foreign: Foreign, adapted: type[_Adapted]) -> Tool:
    model = _model(fn)
    is_terminal = getattr(fn, "_env_tool_terminal", False)
    turn: Turn = "concurrent" if getattr(fn, "_env_tool_concurrent", False) else "serial"
    return _ForeignTool(
        spec=ToolSpec(
            name=name,
            description=(fn.__doc__ or "").strip(),
            input_schema=model.model_json_schema() if model else None,
        ),
        owner=adapted,
        method=name,
        arguments=model,
        whole=True,
        # The first call makes a toolset, which may take long: toolset calls always run in a thread.
        is_async=adapted._dispatches or (home is foreign and inspect.iscoroutinefunction(fn)),
        shared=getattr(fn, "_env_tool_shared", True),
        terminal=is_terminal,
        turn="exclusive" if is_terminal or getattr(fn, "_env_tool_exclusive", False) else turn,
        home=home,
    )


def _model(fn: Foreign) -> type[BaseModel] | None:
    """The model that a foreign tool takes, or None."""
    real = inspect.unwrap(fn)
    hints = get_type_hints(real, include_extras=True)
    return next((hints[name] for name in inspect.signature(real).parameters if name != "self"), None)


def _instance_hook(foreign: Foreign, hook: str) -> Callable[..., Any]:
    """A method that calls the foreign hook; a coroutine if the hook is one, so that it stays on the loop."""
    ours = translate.ABOUT_INSTANCE[hook]

    def call(self: _Adapted, *args: Any) -> Any:
        if hook == "score_group":
            args = (translate.candidates(self.types, args[0]),)
        return translate.translated(getattr(self.inner, hook)(*args), ours)

    async def awaited(self: _Adapted, *args: Any) -> Any:
        return await call(self, *args)

    return awaited if inspect.iscoroutinefunction(getattr(foreign, hook)) else call
