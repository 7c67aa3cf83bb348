"""Serves tools written for verl-tool, `@register_tool class X(BaseTool)`, unmodified.

This module does not import verl-tool, which need not be installed: a file that needs only its base class gets a
stand-in.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import Field

from toolyard.adapters.translate import Foreign, translated
from toolyard.core.environment import Environment, MaybeAwaitable, Toolset
from toolyard.core.errors import DefinitionError, describe
from toolyard.core.forms import EVERYTHING
from toolyard.core.output import ImageBlock, JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool

PACKAGE = "verl_tool.servers.tools"
"""Where verl-tool has its tools, one module each."""
WORKERS = 32
"""The workers of a tool, unless the operator sets another number."""

_BASE = f"{PACKAGE}.base"
_STAND_IN = Path(__file__).with_name("verl_base.py")
_RELATIVE = re.compile(r"^\s*from \.base import [\s\w,(]*\bBaseTool\b", re.MULTILINE)
_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,")


def is_tool(value: object) -> bool:
    """Whether it is a class that verl-tool would find, because it is registered."""
    base = _base(value) if isinstance(value, type) else None
    return base is not None and value in sys.modules[base.__module__].registered_tools.values()


def adapt(theirs: Foreign, workers: int = WORKERS) -> type[Toolset]:
    """A toolset of one tool. As in verl-tool, one instance of the class serves all sessions."""
    try:
        inner = theirs(num_workers=workers)
        usage = str(inner.get_usage_inst() or "")
    except Exception as error:  # the author's constructor
        raise DefinitionError(f"{theirs.__qualname__} cannot be used here: {describe(error)}") from error
    act = tool(name=name_of(theirs), form=_Form(inner))(_method(*_way(inner)))
    act.__doc__ = usage or theirs.__doc__
    return type(theirs.__name__, (_Adapted,), {"act": act, "_inner": inner, "written_as": theirs})


def name_of(theirs: Foreign) -> str:
    """The tool's name. A class without its own `tool_type` inherits a meaningless one."""
    named = getattr(theirs, "tool_type", None)
    return str(named) if named and named != getattr(_base(theirs), "tool_type", None) else str(theirs.__name__)


class _Adapted(Toolset):
    _inner: ClassVar[Foreign]

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self.trajectory = f"session-{uuid.uuid4().hex}"
        """The key of the tool's state. The trainer's name of the trajectory replaces it."""

    def teardown(self) -> MaybeAwaitable[None]:
        if not self._inner.has_env(self.trajectory):
            return None
        answer: MaybeAwaitable[None] = self._inner.delete_env(self.trajectory)
        return answer


@dataclass(frozen=True, slots=True)
class _Form:
    """A form that lets the tool itself recognise its actions and write its observations."""

    inner: Foreign
    shown: Sequence[str] = EVERYTHING

    def read(self, text: str) -> JsonObject | None:
        _, valid = self.inner.parse_action(text)
        return {"action": text} if valid else None

    def answer(self, text: str, result: str) -> str:
        return result


# Carrying out an action.

_Action: TypeAlias = Annotated[str, Field(description="The whole text, as a model writes it.")]
_Trajectory: TypeAlias = Annotated[str, Given()]
_Extra: TypeAlias = Annotated[dict[str, Any], Given(everything=True)]


def _way(inner: Foreign) -> tuple[Callable[..., Any], bool]:
    """The tool's method to call, and whether it takes lists, which then have one element."""
    if inspect.iscoroutinefunction(getattr(inner, "aget_observations", None)):
        return inner.aget_observations, True
    base: Foreign = _base(type(inner))
    if type(inner).get_observations is not base.get_observations:
        return inner.get_observations, True
    return inner.conduct_action, False


def _method(ask: Callable[..., Any], in_lists: bool) -> Callable[..., Any]:
    def answer(self: _Adapted, action: str, trajectory_id: str, extra_field: Mapping[str, Any]) -> Any:
        self.trajectory = trajectory_id or self.trajectory
        theirs = {name: value for name, value in extra_field.items() if name != "trajectory_id"}
        asked = (self.trajectory, action, theirs)
        return translated(ask(*([one] for one in asked)) if in_lists else ask(*asked), _first if in_lists else _output)

    def act(self: _Adapted, action: _Action, trajectory_id: _Trajectory = "", extra_field: _Extra = {}) -> Any:
        return answer(self, action, trajectory_id, extra_field)

    async def awaited(
        self: _Adapted, action: _Action, trajectory_id: _Trajectory = "", extra_field: _Extra = {}
    ) -> Any:
        return await answer(self, action, trajectory_id, extra_field)

    return awaited if inspect.iscoroutinefunction(ask) else act


def _first(answers: Sequence[Sequence[Any]]) -> ToolOutput:
    observations, dones, valids = answers
    return _output((observations[0], dones[0], valids[0]))


def _output(answer: tuple[Any, Any, Any]) -> ToolOutput:
    observation, done, valid = answer
    fields = dict(observation) if isinstance(observation, Mapping) else {"obs": observation}
    text, reward = fields.pop("obs", None), fields.pop("reward", None)
    images = _images(fields)
    if not valid:
        fields["valid"] = False
    return ToolOutput(
        blocks=[TextBlock(text="" if text is None else str(text)), *images],
        metadata=fields or None,
        reward=None if reward is None else float(reward),
        finished=bool(done),
    )


def _images(fields: dict[str, Any]) -> list[ImageBlock]:
    """Take pictures out of an observation; an address or a path stays in it."""
    listed = fields.get("image")
    urls = listed if isinstance(listed, list | tuple) else [listed]
    found = [(url, _DATA_URL.match(url)) for url in urls if isinstance(url, str)]
    images = [ImageBlock(data=url[match.end() :], mimeType=match[1]) for url, match in found if match]
    if not images or len(images) < len(urls):
        return []
    del fields["image"]
    return images


def _base(cls: type) -> type | None:
    return next((one for one in cls.__mro__ if one.__module__ == _BASE and one.__name__ == "BaseTool"), None)


# Loading its file.


def home_of(source: str) -> str:
    """The package to load a file in, if it is written as a module of verl-tool; else empty."""
    return PACKAGE if _RELATIVE.search(source) else ""


def offer_base() -> None:
    """Let `verl_tool.servers.tools.base` be imported where verl-tool is not installed."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.append(_Finder())  # last, so that an installed verl-tool wins


class _Finder:
    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name == _BASE:
            return importlib.util.spec_from_file_location(name, _STAND_IN)
        if f"{_BASE}.".startswith(f"{name}."):
            return ModuleSpec(name, None, is_package=True)
        return None
