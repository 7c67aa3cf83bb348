"""Leaves out the toolsets of an environment that cannot work on this host, and says which tools go and why."""

from __future__ import annotations

from collections.abc import Mapping

from toolyard.core.environment import Environment, Toolset, lists_task_tools
from toolyard.core.errors import DefinitionError
from toolyard.core.reading import tools_of


def workable(environment: type[Environment]) -> type[Environment]:
    """The environment itself, or one like it without the toolsets that cannot work here. Raises `DefinitionError` if
    no tool remains: agents could do nothing."""
    if not (missing := _missing(environment)):
        return environment
    same = {name: getattr(environment, name) for name in ("__module__", "__qualname__", "__doc__")}
    kept = [toolset for toolset in environment.toolsets if toolset not in missing]
    without = {_names(toolset): why for toolset, why in missing.items()}
    members = {**same, "toolsets": kept, "_left_out": without}
    made: type[Environment] = type(environment.__name__, (environment,), members)
    definition = made._definition
    if not (definition.tools or definition.catalogue or lists_task_tools(made) or kept):
        reasons = "; ".join(f"{names}: {why}" for names, why in without.items())
        raise DefinitionError(f"none of the tools of {environment.__qualname__} can work here. {reasons}")
    return made


def left_out(environment: type[Environment]) -> Mapping[str, str]:
    """The names of the tools that are left out, and why: which extra, key or program brings them."""
    found: Mapping[str, str] = getattr(environment, "_left_out", {})
    return found


def _missing(environment: type[Environment]) -> dict[type, str]:
    found: dict[type, str] = {}
    for toolset in environment.toolsets:
        if issubclass(toolset, Toolset) and (why := toolset.missing()):
            found[toolset] = why
    return found


def _names(toolset: type) -> str:
    return ", ".join(tool.name for tool in tools_of(toolset)) or toolset.__name__
