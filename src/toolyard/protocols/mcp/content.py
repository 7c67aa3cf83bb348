"""Writes tools, blocks and outcomes for MCP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolyard.asgi import Verbosity
from toolyard.core.mistakes import advice
from toolyard.core.output import Blocks, ImageBlock, JsonObject, Returned, TextBlock, ToolFailure, ToolOutput
from toolyard.core.tool import ToolSpec
from toolyard.protocols.mcp.messages import INTERNAL_ERROR, INVALID_PARAMS, UNAVAILABLE, RpcError

LATER = 2
"""The default of seconds after which a client should try again."""

FAILURE = "toolyard/failure"
"""The key in `_meta` of what a program may read of a mistake in a call."""
_NO_ARGUMENTS: JsonObject = {"type": "object", "properties": {}}


def listed(spec: ToolSpec) -> JsonObject:
    """A tool as `tools/list` shows it. The root of its schema must be an object, and clients want a description."""
    schema = spec.input_schema or _NO_ARGUMENTS
    if "type" not in schema:
        schema = {"type": "object", **schema}
    return {"name": spec.name, "description": spec.description or spec.name, "inputSchema": schema}


def content(blocks: Blocks) -> Sequence[JsonObject]:
    return [shown(block) for block in blocks]


def shown(block: TextBlock | ImageBlock) -> JsonObject:
    if isinstance(block, TextBlock):
        return {"type": "text", "text": block.text}
    return {"type": "image", "data": block.data, "mimeType": block.mimeType}


def words(text: str, *, is_error: bool = False) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": text}], "isError": is_error}


def told(outcome: Returned, tool: str, errors: Verbosity) -> dict[str, Any]:
    """The result of a call for the agent, without reward, metadata or the end of the episode.

    Raises `RpcError` for failures that the agent did not cause: clients hide those from the model.
    """
    match outcome:
        case str():
            return words(outcome)
        case ToolOutput():
            return {"content": content(outcome.blocks), "isError": False}
        case ToolFailure():
            return _failed(outcome, tool, errors)


def _failed(failure: ToolFailure, tool: str, errors: Verbosity) -> dict[str, Any]:
    match failure.reason:
        case "no_such_tool":
            told = advice(failure.metadata) if failure.metadata else ""
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {tool}{told}", failure.metadata)
        case "tool_raised":
            text = failure.message if errors == "stacktrace" else f"the tool {tool!r} raised an exception"
            raise RpcError(INTERNAL_ERROR, f"Internal error: {text}")
        case "lost" | "cancelled" | "overloaded":
            message = "the call was lost through no fault of yours" if errors == "none" else failure.message
            raise unavailable(message, failure.reason)
        case "timed_out" if errors == "none":
            return words(f"the tool {tool!r} took too long and was stopped", is_error=True)
        case _:
            told_too = {"_meta": {FAILURE: failure.metadata}} if failure.metadata else {}
            return {**words(failure.message, is_error=True), **told_too}


def unavailable(message: str, reason: str, retry_after: int = LATER) -> RpcError:
    """The infrastructure's failure. It is never a result: the agent made no mistake."""
    return RpcError(UNAVAILABLE, message, {"reason": reason, "retryAfter": retry_after})
