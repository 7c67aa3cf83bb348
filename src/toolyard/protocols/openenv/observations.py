"""Writes prompts, tools and results of calls as observations. No observation contains the task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolyard.core.output import (
    Block,
    Blocks,
    ImageBlock,
    JsonObject,
    Reason,
    Returned,
    ToolFailure,
    ToolOutput,
    as_output,
    named_images,
)
from toolyard.core.tool import ToolSpec
from toolyard.protocols.openenv.messages import Trouble
from toolyard.protocols.openenv.names import theirs
from toolyard.protocols.openenv.seats import Seat, full
from toolyard.runtime.runtime import Runtime

_ERROR_TYPES: dict[Reason, str] = {
    "no_such_tool": "tool_not_found",
    "bad_arguments": "invalid_args",
    "timed_out": "timeout",
}
_OURS: frozenset[Reason] = frozenset({"lost", "cancelled"})


def observation(
    seen: JsonObject, *, reward: float | None = None, done: bool = False, metadata: JsonObject | None = None
) -> dict[str, Any]:
    made = {"observation": seen, "reward": reward, "done": done}
    return {**made, "metadata": metadata} if metadata else made


def of_reset(prompt: Blocks) -> dict[str, Any]:
    shown = {"prompt": [plain(block) for block in prompt]}
    return observation({"metadata": shown, "prompt": as_text(prompt)}, metadata=shown)


def of_tools(tools: Sequence[ToolSpec], done: bool) -> dict[str, Any]:
    return observation({"metadata": {}, "tools": described(tools)}, done=done)


def of_call(name: str, returned: Returned, seat: Seat, runtime: Runtime) -> dict[str, Any]:
    """The observation of a call. Raises `Trouble` for a failure of the infrastructure, which must never become a
    reward."""
    done = seat.session is not None and seat.session.finished
    if isinstance(returned, ToolFailure):
        error = failed(returned, runtime)
        told = dict(returned.metadata or {})
        seen = {"metadata": told, "tool_name": name, "result": None, "error": error}
        return observation(seen, done=done, metadata=told)
    output = as_output(returned)
    return observation(
        {"metadata": {}, "tool_name": name, "result": result(output), "error": None},
        reward=output.reward,
        done=done or output.finished,
        metadata=output.metadata,
    )


def failed(failure: ToolFailure, runtime: Runtime) -> JsonObject:
    """The error of an observation. Raises `Trouble` for a failure of the infrastructure."""
    if failure.reason == "overloaded":
        raise full(runtime, failure.message)
    if failure.reason in _OURS:
        raise Trouble("EXECUTION_ERROR", failure.message, reason=failure.reason, retryable=True)
    return {"error_type": _ERROR_TYPES.get(failure.reason, "execution_error"), "message": failure.message}


def result(output: ToolOutput) -> JsonObject:
    return {"data": as_text(output.blocks), "blocks": [plain(block) for block in output.blocks]}


def described(tools: Sequence[ToolSpec], schema: str = "input_schema") -> Sequence[JsonObject]:
    return [
        {"name": theirs(spec.name), "description": spec.description, schema: spec.input_schema or {"type": "object"}}
        for spec in tools
    ]


def as_text(blocks: Blocks) -> str:
    """The text of the blocks; a line about them if there are only pictures."""
    text = "\n".join([block.text for block in blocks if not isinstance(block, ImageBlock)])
    return text or named_images(blocks)


def plain(block: Block) -> JsonObject:
    """Without its `detail`, which authors write for trainers: harnesses show observations to the model."""
    if isinstance(block, ImageBlock):
        return {"type": "image", "data": block.data, "mimeType": block.mimeType}
    return {"type": "text", "text": block.text}
