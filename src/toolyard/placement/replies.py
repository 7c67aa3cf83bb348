"""Writes replies of tools as plain values, which an `RpcConnection` can carry, and reads them back."""

from __future__ import annotations

from typing import Any

from toolyard.core.output import AskAgain, Reply, ToolFailure, ToolOutput, ValueOutput


def write_reply(reply: Reply) -> Any:
    match reply:
        case str():
            return reply
        case ToolOutput():
            written: dict[str, Any] = {
                "blocks": [vars(block) for block in reply.blocks],
                "metadata": reply.metadata,
                "reward": reply.reward,
                "finished": reply.finished,
            }
            return {"value": reply.came_as, **written} if isinstance(reply, ValueOutput) else written
        case ToolFailure():
            return {"reason": reply.reason, "message": reply.message, "said": reply.said, "metadata": reply.metadata}
        case AskAgain():
            return {"tool": reply.tool, "arguments": reply.arguments}


def read_reply(written: Any) -> Reply:
    if isinstance(written, str):
        return written
    if "reason" in written:
        return ToolFailure(**written)
    if "tool" in written:
        return AskAgain(**written)
    came_as = written.pop("value", None)
    if came_as is None:
        return ToolOutput.model_validate(written)
    output = ValueOutput.model_validate(written)
    output.came_as = came_as
    return output
