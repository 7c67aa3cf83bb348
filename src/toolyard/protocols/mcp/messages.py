"""Reads and writes JSON-RPC messages of MCP. Knows neither HTTP nor sessions."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolyard.asgi import HttpError, decode
from toolyard.core.encoding import encode
from toolyard.core.output import JsonObject

RequestId: TypeAlias = str | int | None
"""None only in an answer to a message whose id could not be read."""

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
INTERNAL_ERROR = -32603
UNAVAILABLE = -32000
"""The infrastructure failed or has no room; `data` says why."""
HEADER_MISMATCH = -32020
UNSUPPORTED_VERSION = -32022
CANCELLED = -32800

HANDSHAKE_VERSIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
MODERN_VERSION = "2026-07-28"

_PREFIX = "io.modelcontextprotocol/"
PROTOCOL_VERSION, CLIENT_CAPABILITIES, SERVER_INFO = (
    _PREFIX + "protocolVersion",
    _PREFIX + "clientCapabilities",
    _PREFIX + "serverInfo",
)

_HEAVY = 2**18
"""A longer message is decoded in a thread, so that the event loop does not stand still."""


class RpcError(Exception):
    """A request gets an error. `status` is the HTTP status where the code alone does not decide it."""

    def __init__(self, code: int, message: str, data: object = None, *, status: int = 0) -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message
        self.data = data
        self.status = status

    def answer(self, request_id: RequestId) -> Answer:
        error: dict[str, object] = {"code": self.code, "message": self.message}
        if self.data is not None:
            error["data"] = self.data
        return Answer(encode({"jsonrpc": "2.0", "id": request_id, "error": error}), self.code, self.status)


class Unreadable(RpcError):
    """A message that is no request. It may still have an id to answer under."""

    def __init__(self, code: int, message: str, request_id: RequestId = None) -> None:
        super().__init__(code, message)
        self.request_id = request_id


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON-RPC response, written. `code` is 0, or that of the error in it."""

    body: bytes
    code: int = 0
    status: int = 0


@dataclass(slots=True)  # not frozen: one is made for each call, and that would take twice the time
class Asked:
    """A request. It gets an answer."""

    id: str | int
    method: str
    params: dict[str, Any]
    modern: bool = False
    """Its client speaks the era without handshakes."""

    @property
    def meta(self) -> JsonObject:
        meta = self.params.get("_meta")
        return meta if isinstance(meta, dict) else {}


@dataclass(slots=True)
class Notice:
    """A notification. It gets none."""

    method: str
    params: dict[str, Any]


@dataclass(slots=True)
class Posted:
    """A client's response to a request of the server. The server sends none, so it ignores responses."""


Message: TypeAlias = Asked | Notice | Posted


async def read(body: bytes) -> Message:
    """The message in a body. Raises `Unreadable`."""
    try:
        value = decode(body) if len(body) <= _HEAVY else await asyncio.to_thread(decode, body)
    except HttpError:
        raise Unreadable(PARSE_ERROR, "Parse error: the message is not JSON") from None
    if type(value) is not dict:
        what = "a batch" if isinstance(value, list) else f"a {type(value).__name__}"
        raise Unreadable(INVALID_REQUEST, f"Invalid Request: a message is one object, not {what}")
    request_id = value.get("id")
    if type(request_id) not in (str, int):
        request_id = None
    if value.get("jsonrpc") != "2.0":
        raise Unreadable(INVALID_REQUEST, 'Invalid Request: "jsonrpc" must be "2.0"', request_id)
    method, params = value.get("method"), value.get("params", {})
    if method is None and ("result" in value or "error" in value):
        return Posted()
    if type(method) is not str:
        raise Unreadable(INVALID_REQUEST, 'Invalid Request: "method" must be text', request_id)
    if type(params) is not dict:
        raise Unreadable(INVALID_REQUEST, 'Invalid Request: "params" must be an object', request_id)
    if request_id is not None:
        return Asked(request_id, method, params)
    if "id" in value:
        raise Unreadable(INVALID_REQUEST, 'Invalid Request: "id" must be text or an integer')
    return Notice(method, params)


def result(asked: Asked, value: JsonObject) -> Answer:
    return Answer(encode({"jsonrpc": "2.0", "id": asked.id, "result": value}))


def progress(token: str | int, done: float, message: str) -> bytes:
    params = {"progressToken": token, "progress": done, "message": message}
    return encode({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})


def unsupported(requested: object) -> RpcError:
    """The error for a version that is not served without a handshake."""
    data = {"supported": [MODERN_VERSION], "requested": requested}
    return RpcError(UNSUPPORTED_VERSION, f"Unsupported protocol version {str(requested)[:100]!r}", data)
