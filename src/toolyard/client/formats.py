"""Declares tools in the formats of model APIs, with schemas as exact as each API allows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, get_args, overload

from toolyard.client.schemas import json_schema, open_api
from toolyard.core.tool import ToolSpec

Format: TypeAlias = Literal["openai", "anthropic", "google", "openrouter"]


@overload
def formatted(tools: Sequence[ToolSpec], format: None) -> list[ToolSpec]: ...
@overload
def formatted(tools: Sequence[ToolSpec], format: Format) -> list[dict[str, Any]]: ...
@overload
def formatted(tools: Sequence[ToolSpec], format: Format | None) -> list[ToolSpec] | list[dict[str, Any]]: ...
def formatted(tools: Sequence[ToolSpec], format: Format | None) -> list[ToolSpec] | list[dict[str, Any]]:
    if format is None:
        return list(tools)
    if format not in _FORMATS:
        raise ValueError(f"there is no format {format!r}; there are {', '.join(map(repr, get_args(Format)))}")
    return [_FORMATS[format](tool) for tool in tools]


def openai(tool: ToolSpec) -> dict[str, Any]:
    """In the form of the Responses API."""
    return {"type": "function", **_named(tool), "parameters": json_schema(tool.input_schema)}


def openrouter(tool: ToolSpec) -> dict[str, Any]:
    """In the form of the Chat Completions API, OpenAI's and compatible ones."""
    return {"type": "function", "function": {**_named(tool), "parameters": json_schema(tool.input_schema)}}


def anthropic(tool: ToolSpec) -> dict[str, Any]:
    return {"type": "custom", **_named(tool), "input_schema": json_schema(tool.input_schema)}


def google(tool: ToolSpec) -> dict[str, Any]:
    """As a function declaration."""
    return {**_named(tool), "parameters": open_api(tool.input_schema)}


_FORMATS: Mapping[str, Callable[[ToolSpec], dict[str, Any]]] = {
    "openai": openai,
    "openrouter": openrouter,
    "anthropic": anthropic,
    "google": google,
}


def _named(tool: ToolSpec) -> dict[str, str]:
    return {"name": tool.name, "description": tool.description}
