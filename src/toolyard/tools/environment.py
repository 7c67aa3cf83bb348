"""An environment made of toolsets, without tasks of its own, for a trainer that brings the tasks."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import ClassVar

from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import DefinitionError
from toolyard.core.output import JsonObject
from toolyard.tools import TOOLS
from toolyard.tools.sandboxed import SessionSandbox

_LAST = "mcp_interface"
"""It reads any JSON call, so it comes after all others."""


class ToolsEnvironment(Environment):
    """The base of environments made of toolsets. The trainer sets the task."""

    latch_finished = False
    block_lists: ClassVar[bool] = False
    """Refuse code that contains certain words, as verl-tool does. Safety never comes from that."""

    @classmethod
    def name(cls) -> str:
        return "toolbox"

    @classmethod
    def list_splits(cls) -> Sequence[str]:
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[JsonObject]:
        return [{}]

    def get_prompt(self) -> str:
        asked = self.task_spec.get("prompt")
        if isinstance(asked, str):
            return asked
        specs = [tool.spec for tool in type(self)._definition.tools.values()]
        return "\n".join(["You have these tools:", "", *(f"- {spec.name}: {spec.description}" for spec in specs)])

    async def fork(self) -> Environment:
        made = type(self)(self.task_spec, self.secrets)
        await SessionSandbox.of(self).fork_for(made)
        return made


def toolbox(toolsets: Sequence[type[Toolset]], *, block_lists: bool = False) -> type[Environment]:
    """An environment called `toolbox` with these toolsets, tried in this order when a model writes plain text."""
    return type("Toolbox", (ToolsEnvironment,), {"toolsets": toolsets, "block_lists": block_lists})


def named_toolsets(names: str) -> Sequence[type[Toolset]]:
    """The toolsets that a text such as `python_code, sql` names. Raises if one of them cannot be used."""
    return [toolset_named(name) for name in ordered(names.replace(" ", "").split(","))] if names else []


def ordered(names: Sequence[str]) -> Sequence[str]:
    """The names without repeats, in the order in which to try them."""
    return sorted(dict.fromkeys(names), key=lambda name: name == _LAST)


def toolset_named(name: str) -> type[Toolset]:
    """The toolset of this name. Raises if there is none, or if it cannot be used here."""
    if name not in TOOLS:
        raise DefinitionError(f"there is no tool {name!r}; there are {', '.join(TOOLS)}")
    module, _, attribute = TOOLS[name].partition(":")
    toolset: type[Toolset] = getattr(importlib.import_module(module), attribute)
    if missing := toolset.missing():
        raise DefinitionError(f"the tool {name!r} cannot be used here: {missing}")
    return toolset
