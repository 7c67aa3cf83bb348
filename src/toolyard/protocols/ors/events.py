"""Writes results as server-sent events, cut so that no client can lose a character.

Clients strip white space from both ends of each piece and may split lines at any Unicode line end. So the JSON is
ASCII, pieces have at most 4096 characters, and a space at the edge of a piece is written as an escape.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence

import orjson

from toolyard.core.encoding import encode
from toolyard.core.messages import GroupScore
from toolyard.core.output import CallResult, JsonObject, TextBlock, ToolFailure, ToolOutput, named_images

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_WHOLE = 4096
_PIECE = _WHOLE - 10  # room for two escapes in place of two spaces

_WIRE_REASON = {"no_such_tool": "not_found", "bad_arguments": "input_validation"}
"""Reasons that OpenReward's clients know by other names."""

_LINE_END = re.compile("\r\n|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
"""Every line end that some client knows: text must not be able to end its event and begin another."""


def named(call_id: str) -> bytes:
    """The event with the id by which the client can come back for this call."""
    return b"event: task_id\ndata: %b\n\n" % call_id.encode()


def error(text: str, reason: str = "") -> bytes:
    """The event of an error. With a `reason`, the tool is not at fault: our client reads it in a comment, others skip
    it."""
    head = f": reason {reason}\n\n" if reason else ""
    lines = "".join(f"data: {line}\n" for line in _LINE_END.split(text))
    return f"{head}event: error\n{lines}\n".encode(errors="replace")


def text(returned: str) -> bytes:
    """The last events of a call that returned bare text."""
    return _events(_success([{"text": returned, "detail": None, "type": "text"}]))


def result(outcome: CallResult | Sequence[GroupScore]) -> bytes:
    """The last events of a call."""
    match outcome:
        case ToolOutput():
            return _events(_output(outcome))
        case ToolFailure(reason="tool_raised"):
            return error(outcome.message)
        case ToolFailure(reason="lost" | "cancelled"):
            return error(outcome.message, outcome.reason)
        case ToolFailure(reason="tool_failed"):  # as the ORS documents show it
            return _events({"ok": False, "error": outcome.message})
        case ToolFailure():
            reason = _WIRE_REASON.get(outcome.reason, outcome.reason)
            failure = {"ok": False, "error": outcome.message, "reason": reason}
            return _events(failure if outcome.metadata is None else {**failure, "metadata": outcome.metadata})
        case _:
            return _events({"scores": [vars(score) for score in outcome]})


def for_openreward(outcome: CallResult | Sequence[GroupScore]) -> bytes:
    """As `result`, for OpenReward's clients, which know fewer reasons and take any other for `not_found`.

    On `ok: false` they end the episode, or show the model that word. So the words of a ToolError go out as an ordinary
    output without a reward, and a failure of the infrastructure as an error. Agents on top of them read only text.
    """
    match outcome:
        case ToolFailure(reason="tool_failed"):
            words = TextBlock(text=outcome.message)
            return _events(_output(ToolOutput(blocks=[words], metadata={"reason": outcome.reason})))
        case ToolFailure() if outcome.retryable:
            return error(outcome.message, outcome.reason)
        case ToolOutput() if only_images(outcome):
            beside = [*outcome.blocks, TextBlock(text=named_images(outcome.blocks))]
            return _events(_output(outcome.model_copy(update={"blocks": beside})))
        case _:
            return result(outcome)


def only_images(output: ToolOutput) -> bool:
    """Whether the output has images and no text, so that a client that reads only text sees nothing."""
    blocks = output.blocks
    return bool(blocks) and blocks[0].type == "image" and all(block.type == "image" for block in blocks)


def scores(outcome: CallResult | Sequence[GroupScore]) -> bytes:
    """The last events of a group's scoring. Any failure of it is an error event."""
    if isinstance(outcome, ToolFailure):
        return error(outcome.message, outcome.reason if outcome.retryable else "")
    return result(outcome)


def _output(output: ToolOutput) -> object:
    blocks = [vars(block) for block in output.blocks]
    return _success(blocks, metadata=output.metadata, reward=output.reward, finished=output.finished)


def _success(
    blocks: Sequence[JsonObject],
    *,
    metadata: JsonObject | None = None,
    reward: float | None = None,
    finished: bool = False,
) -> object:
    return {"ok": True, "output": {"blocks": blocks, "metadata": metadata, "reward": reward, "finished": finished}}


def _events(value: object) -> bytes:
    text = encode(value)
    if not text.isascii():
        text = json.dumps(orjson.loads(text), separators=(",", ":")).encode()
    if len(text) <= _WHOLE:
        return b"event: end\ndata: %b\n\n" % text
    *chunks, end = _pieces(text)
    return b"event: chunk\ndata: %b\n\nevent: end\ndata: %b\n\n" % (b"\n\nevent: chunk\ndata: ".join(chunks), end)


def _pieces(text: bytes) -> Iterator[bytes]:
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if piece.startswith(b" "):
            piece = rb"\u0020" + piece[1:]
        if piece.endswith(b" "):
            piece = piece[:-1] + rb"\u0020"
        yield piece
