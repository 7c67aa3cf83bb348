"""Agent tools and RL environments: written once as a small class, served over every wire that trainers speak."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from toolyard.core.environment import Environment, Split, Toolset
from toolyard.core.errors import ServiceUnavailable, ToolError
from toolyard.core.forms import Tagged
from toolyard.core.output import AskAgain, ImageBlock, TextBlock, ToolOutput
from toolyard.core.tool import Given, ListToolsOutput, ToolSpec, terminal, tool
from toolyard.types import (
    Blocks,
    GroupCandidate,
    GroupScore,
    JSONObject,
    JSONValue,
    Message,
    ReasoningBlock,
    TerminalToolSpec,
    ToolCallBlock,
    ToolResultBlock,
)
from toolyard.version import __version__ as __version__

if TYPE_CHECKING:
    from toolyard.client import AsyncClient, Client
    from toolyard.server import Server

__all__ = [  # noqa: RUF022  # two groups
    # What an author needs.
    "AskAgain",
    "AsyncClient",
    "Client",
    "Environment",
    "Given",
    "ImageBlock",
    "ListToolsOutput",
    "Server",
    "ServiceUnavailable",
    "Split",
    "Tagged",
    "TextBlock",
    "ToolError",
    "ToolOutput",
    "ToolSpec",
    "Toolset",
    "terminal",
    "tool",
    # What environments written for ors or openreward import besides, so that only their import line changes.
    "Blocks",
    "GroupCandidate",
    "GroupScore",
    "JSONObject",
    "JSONValue",
    "Message",
    "ReasoningBlock",
    "TerminalToolSpec",
    "ToolCallBlock",
    "ToolResultBlock",
]

_LATER = {"Client": "toolyard.client", "AsyncClient": "toolyard.client", "Server": "toolyard.server"}


def __getattr__(name: str) -> Any:  # the type depends on the name
    """Load server and clients when they are first used: an environment's module needs neither."""
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
