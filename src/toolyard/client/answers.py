"""Turns the server's answers into our own types, and its refusals into errors."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from toolyard.client.errors import (
    AuthenticationFailed,
    ClientError,
    RequestRefused,
    ServerBusy,
    ServerFailed,
    SessionGone,
    ToolCallFailed,
    ToolLost,
)
from toolyard.client.steps import Answer
from toolyard.client.stream import Listening
from toolyard.core.errors import describe
from toolyard.core.messages import GroupScore
from toolyard.core.output import Block, ImageBlock, JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import ListToolsOutput, TerminalToolSpec, ToolSpec

T = TypeVar("T")

_NONSENSE = (ValueError, LookupError, TypeError, AttributeError)
"""Exceptions of reading an answer that another kind of server, or a proxy, has sent."""


def read(answer: Answer, parse: Callable[[Any], T]) -> T:
    if answer.status != 200:
        raise refusal(answer)
    return parsed(answer.body, parse)


def parsed(text: bytes | str, parse: Callable[[Any], T]) -> T:
    try:
        return parse(json.loads(text))
    except _NONSENSE as error:
        raise ServerFailed(f"the server's answer makes no sense ({describe(error)}): {text[:200]!r}") from error


# Answers.


def names(said: list[Any]) -> list[str]:
    return [str(name) for name in said]


def splits(said: list[Any]) -> list[str]:
    return [split if isinstance(split, str) else str(split["name"]) for split in said]


def tools(said: JsonObject) -> ListToolsOutput:
    terminal = said.get("terminal_tool")
    return ListToolsOutput(
        tools=[_tool(tool) for tool in said["tools"]],
        terminal_tool=_terminal(terminal) if terminal else None,
        supports_score_group=said.get("supports_score_group"),
        message_block_types=said.get("message_block_types"),
    )


def _tool(said: JsonObject) -> ToolSpec:
    return ToolSpec(name=said["name"], description=said.get("description") or "", input_schema=said.get("input_schema"))


def _terminal(said: JsonObject) -> TerminalToolSpec:
    return TerminalToolSpec(name=said["name"], arg=said.get("arg"), description=said.get("description") or "")


def blocks(said: Sequence[JsonObject]) -> list[Block]:
    return [_block(block) for block in said]


def _block(said: JsonObject) -> Block:
    match said["type"]:
        case "text":
            return TextBlock(text=said["text"], detail=said.get("detail"))
        case "image":
            return ImageBlock(data=said["data"], mimeType=said["mimeType"], detail=said.get("detail"))
        case other:
            raise ValueError(f"this client does not know blocks of the type {other!r}")


def scores(said: JsonObject) -> list[GroupScore]:
    return [GroupScore(reward=score["reward"], metadata=score.get("metadata")) for score in said["scores"]]


def session_id(answer: Answer) -> str:
    """Read a session id from JSON, as the documents have it, or from an event, as the SDKs' own servers always send."""
    if not is_stream(answer):
        return read(answer, lambda said: sid(said["sid"]))
    stream = Listening()
    stream.feed(answer.body)
    for event in stream.heard().events:
        if event.name == "task_id":
            return parsed(json.dumps(event.data.strip()), sid)
    raise ServerFailed(f"the server gave no session id: {answer.body[:200]!r}")


def sid(said: Any) -> str:
    """A session id, checked to be fit for a header: every request of the session sends it there."""
    text = str(said)
    if not text or not text.isascii() or not text.isprintable():
        raise ValueError(f"{text!r} is no session id")
    return text


def is_stream(answer: Answer) -> bool:
    return answer.headers.get("content-type", "").startswith("text/event-stream")


def output(text: str) -> ToolOutput:
    """The result of a call. Raises the failure if it is no output."""
    result = parsed(text, _result)
    if isinstance(result, ClientError):
        raise result
    return result


def _result(said: JsonObject) -> ToolOutput | ClientError:
    if not said["ok"]:
        message = str(said["error"])
        reason = said.get("reason") or _reason_in(message)
        return failure(_OUR_REASON.get(reason, reason), message, said.get("metadata"))
    output = said["output"]
    return ToolOutput(
        blocks=blocks(output["blocks"]),
        metadata=output.get("metadata"),
        reward=output.get("reward"),
        finished=output.get("finished", False),
    )


# Refusals.

_OUR_REASON = {"not_found": "no_such_tool", "input_validation": "bad_arguments"}
"""Toolyard's names of reasons that have another name on the wire."""


def _reason_in(message: str) -> str:
    """Find the reason in the words of a message: not every server sends a reason, but all use these words."""
    if message[:1] in ("'", '"') and " is not a valid tool" in message:
        return "no_such_tool"
    return "bad_arguments" if message.startswith("Tool input validation error: ") else "tool_failed"


def failure(reason: str, message: str, metadata: JsonObject | None = None) -> ClientError:
    """The error of a call: a fault of the agent, or one of the infrastructure."""
    if reason in ("timed_out", "lost", "overloaded", "cancelled"):
        return ToolLost(reason, message)
    return ToolCallFailed(reason, message, metadata)


def refusal(answer: Answer) -> ClientError:
    """The error of a request, by its HTTP status."""
    said = detail(answer, hint=True)
    match answer.status:
        case 401 | 403:
            return AuthenticationFailed(f"{said} (give it to the client as api_key=…, or in TOOLYARD_API_KEY)")
        case 410:
            return SessionGone(said)
        case 429 | 503:
            return ServerBusy(said)
        case status if status >= 500:
            return ServerFailed(said)
        case status if status in range(300, 400):
            where = answer.headers.get("location", "somewhere else")
            return RequestRefused(f"the server sends us on to {where}: are the URL and the name right?", status)
        case status:
            return RequestRefused(said, status)


def detail(answer: Answer, *, hint: bool = False) -> str:
    """The server's words for what is wrong; with `hint`, its most helpful ones."""
    try:
        said = json.loads(answer.body)
        text = (hint and said.get("hint")) or said.get("detail") or said["error"]
        if isinstance(text, list):  # an entry for each wrong field
            return "; ".join(f"{'.'.join(map(str, problem['loc'][1:]))}: {problem['msg']}" for problem in text)
        return str(text)
    except _NONSENSE:
        return f"HTTP {answer.status}: {answer.body[:200].decode(errors='replace')}"
