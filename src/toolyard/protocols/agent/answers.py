"""What an agent reads: blocks, or why there are none. It contains nothing for trainers, unless the operator allows it.

An agent reads about its own mistakes in the tool's words, and about the server's failures in fixed words: those of an
exception may contain the answer of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from toolyard.asgi import Headers, HttpError
from toolyard.core.errors import (
    CallConflict,
    CallNotFound,
    GrantNotFound,
    NoRoom,
    Overloaded,
    SessionClosed,
)
from toolyard.core.output import Block, ImageBlock, Reason, Returned, ToolFailure, as_output
from toolyard.core.tool import ToolSpec

NOT_KEPT: Headers = ((b"cache-control", b"no-store"),)
LATER: Headers = ((b"retry-after", b"2"),)


_UNAVAILABLE = -32000
_RPC_CODES = {404: -32600, 405: -32600}


class Trouble(NamedTuple):
    """A failure that the agent did not cause."""

    status: int
    message: str


_TROUBLE: Mapping[Reason, Trouble] = {
    "tool_raised": Trouble(500, "the tool broke; that is no mistake of yours, and the same call will break again"),
    "timed_out": Trouble(504, "the tool took too long and was stopped"),
    "lost": Trouble(502, "the call was lost through no fault of yours"),
    "overloaded": Trouble(503, "too much goes on here at the moment; try again later"),
    "cancelled": Trouble(503, "the call was stopped because the server or the session ends"),
}


class Refusal(HttpError):
    """An `HttpError` whose answer has no blocks."""

    def __init__(
        self, status: int, reason: str, message: str, *, retryable: bool = False, headers: Headers = ()
    ) -> None:
        super().__init__(status, message, (*NOT_KEPT, *headers))
        self.body = failed(reason, message, retryable=retryable)
        self._rpc = {
            "code": _RPC_CODES.get(status, _UNAVAILABLE),
            "message": message,
            "data": {"reason": reason, "retryable": retryable},
        }

    def as_rpc(self) -> Refusal:
        """The refusal for a client that speaks JSON-RPC."""
        self.body = {"jsonrpc": "2.0", "id": None, "error": self._rpc}
        return self


def failed(reason: str, message: str, *, retryable: bool = False) -> dict[str, Any]:
    return {"ok": False, "blocks": [], "error": {"reason": reason, "message": message, "retryable": retryable}}


def told(result: Returned) -> dict[str, Any]:
    """The answer to a call that succeeded, or failed through the agent. Raises `Refusal` for other failures."""
    if not isinstance(result, ToolFailure):
        return {"ok": True, "blocks": shown(as_output(result).blocks), "error": None}
    if (trouble := _TROUBLE.get(result.reason)) is None:
        return failed(result.reason, result.message)
    headers = LATER if trouble.status == 503 else ()
    raise Refusal(trouble.status, result.reason, trouble.message, retryable=result.retryable, headers=headers)


def with_reward(answer: dict[str, Any], result: Returned) -> dict[str, Any]:
    """The answer with the reward and the end of the episode, if the operator lets agents see them."""
    if isinstance(result, ToolFailure):
        return {**answer, "reward": None, "finished": result.finished or result.reason == "episode_finished"}
    output = as_output(result)
    named = {"rewards": output.rewards} if output.rewards else {}
    return {**answer, "reward": output.reward, "finished": output.finished, **named}


def shown(blocks: Iterable[Block]) -> list[dict[str, Any]]:
    """Blocks without their `detail`, which authors write for trainers."""
    return [
        {"type": "image", "data": block.data, "mimeType": block.mimeType}
        if isinstance(block, ImageBlock)
        else {"type": "text", "text": block.text}
        for block in blocks
    ]


def described(tools: Iterable[ToolSpec]) -> dict[str, Any]:
    return {"tools": [tool.model_dump(include={"name", "description", "input_schema"}) for tool in tools]}


def unknown() -> Refusal:
    """The answer to every invalid token and every wrong path."""
    return Refusal(404, "not_found", "there is nothing here: the token is not valid, or the path is wrong")


def busy(most: int) -> Refusal:
    message = f"{most} requests or calls of this session are under way; wait for some of them"
    return Refusal(429, "overloaded", message, retryable=True, headers=LATER)


def lost() -> Refusal:
    """The answer if the gateway with the session has ended."""
    return Refusal(502, "lost", "the session was lost through no fault of yours", retryable=True)


def refusal(error: Exception) -> Refusal:
    """The answer to an error outside of a tool."""
    match error:
        case SessionClosed() | GrantNotFound():
            return unknown()
        case CallConflict():
            return Refusal(409, "call_conflict", "this call_id names another call, or there are too many; nothing ran")
        case CallNotFound():
            return Refusal(410, "call_gone", "this call_id was used, and its result is no longer kept; nothing ran")
        case Overloaded() | NoRoom():
            later = ((b"retry-after", b"%d" % error.retry_after),)
            return Refusal(503, "overloaded", _TROUBLE["overloaded"].message, retryable=True, headers=later)
        case _:
            return Refusal(502, "lost", "the environment broke through no fault of yours", retryable=True)
