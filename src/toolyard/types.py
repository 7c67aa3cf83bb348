"""The data types of ORS under their ORS names, for environments that import them from a `types` module."""

from __future__ import annotations

from typing import Any, TypeAlias

from toolyard.core.environment import Split
from toolyard.core.messages import (
    GroupCandidate,
    GroupScore,
    Message,
    ReasoningBlock,
    ToolCallBlock,
    ToolResultBlock,
)
from toolyard.core.output import Blocks, ImageBlock, TextBlock, ToolOutput
from toolyard.core.output import JsonObject as JSONObject
from toolyard.core.tool import ListToolsOutput, TerminalToolSpec, ToolSpec

JSONValue: TypeAlias = Any

__all__ = [
    "Blocks",
    "GroupCandidate",
    "GroupScore",
    "ImageBlock",
    "JSONObject",
    "JSONValue",
    "ListToolsOutput",
    "Message",
    "ReasoningBlock",
    "Split",
    "TerminalToolSpec",
    "TextBlock",
    "ToolCallBlock",
    "ToolOutput",
    "ToolResultBlock",
    "ToolSpec",
]
