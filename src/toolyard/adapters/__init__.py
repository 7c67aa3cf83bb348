"""Serves classes written for other frameworks, unmodified."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from toolyard.adapters import ors, verl_tool
from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import DefinitionError
from toolyard.tools.environment import toolbox


def is_environment(value: object) -> bool:
    ours = isinstance(value, type) and issubclass(value, Environment) and value is not Environment
    return ours or ors.is_environment(value) or verl_tool.is_tool(value)


def is_toolset(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Toolset) and value is not Toolset


def session_toolsets(environments: Iterable[type]) -> list[type]:
    """Toolsets that clients of these environments may ask for by name, without a line in the command."""
    return ors.session_toolsets(environments)


def adapt(cls: type) -> type[Environment]:
    """Toolyard's environments unchanged; another framework's class wrapped in an environment that drives it."""
    if isinstance(cls, type) and issubclass(cls, Environment):
        return cls
    if ors.is_environment(cls):
        return ors.adapt(cls)
    if verl_tool.is_tool(cls):
        return toolbox([verl_tool.adapt(cls)])
    raise DefinitionError(f"{cls!r} is not an environment: it must extend toolyard.Environment")


def with_tools(environments: Sequence[type], toolsets: Sequence[type[Toolset]]) -> list[type]:
    """The environments, and one more, called toolbox, with these toolsets and the classes that are only tools."""
    tools = [cls for cls in environments if verl_tool.is_tool(cls)]
    toolsets = [*toolsets, *map(verl_tool.adapt, tools)]
    return [cls for cls in environments if cls not in tools] + ([toolbox(toolsets)] if toolsets else [])
