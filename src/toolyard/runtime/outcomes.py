"""The result of a call: its output cut to the limits, or why there is none."""

from __future__ import annotations

import logging
import math
from dataclasses import replace

from toolyard.core.encoding import encode
from toolyard.core.output import (
    Reason,
    Returned,
    ToolFailure,
    ToolOutput,
    as_output,
    cut,
    cut_text,
    snapshot,
)

log = logging.getLogger("toolyard.environment")


def fitted(returned: ToolOutput | str, most: int) -> tuple[Returned, int]:
    """A copy of the output, cut if it is larger than `most`, and its size."""
    output = as_output(returned)
    for name, value in (output.rewards or {}).items():
        if not math.isfinite(value):
            return _unusable(f"its reward {name!r} is {value}, and a reward is a finite number"), 0
    if output.reward is not None and not math.isfinite(output.reward):  # in JSON it would become null
        return _unusable(f"its reward is {output.reward}, and a reward is a finite number or None"), 0
    try:
        result, size = snapshot(output)
    except Exception as error:  # what the author put into metadata or detail
        return _unusable(f"it cannot be written as JSON: {error}"), 0
    return (cut(result, most), most) if size > most else (result, size)


def _unusable(why: str) -> ToolFailure:
    log.warning("the tool's output cannot be used: %s", why)
    return ToolFailure("tool_raised", f"the tool's output cannot be used: {why}")


def within(result: ToolFailure, most: int) -> ToolFailure:
    """The same failure, with its words cut to `most` characters."""
    said = result.said
    if isinstance(said, str):
        said = cut_text(said, most)
    elif said is not None and len(encode(said)) > most:
        said = None
    metadata = result.metadata
    if metadata is not None and len(encode(metadata)) > most:
        metadata = None
    return replace(result, message=cut_text(result.message, most), said=said, metadata=metadata)


def refused(tool: str, why: str = "a tool returned finished=True") -> ToolFailure:
    return ToolFailure(
        "episode_finished",
        f"{tool!r} was not run: the episode has finished ({why}), so no further tool calls are accepted.",
    )


def stopped(tool: str, why: Reason | None, seconds: float) -> ToolFailure:
    reason: Reason = why or "cancelled"
    if reason == "timed_out":
        return ToolFailure(reason, f"Tool {tool!r} failed: no answer within {seconds:g} s, so it was stopped")
    return ToolFailure(reason, f"Tool {tool!r} was stopped: the session ended before the call did")
