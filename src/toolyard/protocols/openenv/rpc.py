"""OpenEnv's own JSON-RPC, which is not MCP: tools of a seat, without rewards, and seats by name."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from toolyard.asgi import HttpError, decode
from toolyard.core.environment import Environment
from toolyard.core.output import JsonObject, ToolFailure, as_output
from toolyard.protocols.openenv.messages import Trouble
from toolyard.protocols.openenv.observations import as_text, described, failed, plain
from toolyard.protocols.openenv.seats import Seat, Seats
from toolyard.runtime.runtime import Runtime

PARSE_ERROR = -32700
INVALID_REQUEST = -32600
METHOD_NOT_FOUND = -32601
INVALID_PARAMS = -32602
UNAVAILABLE = -32000

RpcId: TypeAlias = str | int | float | None


class RpcError(Exception):
    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.error: JsonObject = {"code": code, "message": message, "data": data}


class Asked(NamedTuple):
    environment: type[Environment]
    params: Mapping[str, Any]
    own: Seat | None
    """The seat of the socket that the request came over."""


class Rpc:
    def __init__(self, runtime: Runtime, seats: Seats) -> None:
        self._runtime = runtime
        self._seats = seats
        self._methods: Mapping[str, Callable[[Asked], Awaitable[JsonObject]]] = {
            "tools/list": self._list,
            "tools/call": self._call,
            "openenv/session/create": self._create,
            "openenv/session/close": self._close,
        }

    async def answer(self, body: object, environment: type[Environment], own: Seat | None = None) -> JsonObject:
        """The response to any JSON value."""
        request_id = id_of(body)
        try:
            method, params = _read(body)
            if (found := self._methods.get(method)) is None:
                raise RpcError(METHOD_NOT_FOUND, f"Method not found: {method[:200]}")
            result = await found(Asked(environment, params, own))
        except RpcError as error:
            return {"jsonrpc": "2.0", "id": request_id, "error": error.error}
        except Trouble as trouble:
            return unavailable(request_id, trouble)
        return {"jsonrpc": "2.0", "id": request_id, "result": result}

    async def _list(self, asked: Asked) -> JsonObject:
        seat = self._seat(asked) or self._seats.new(asked.environment)
        return {"tools": described(await seat.tools(), "inputSchema")}

    async def _call(self, asked: Asked) -> JsonObject:
        seat = self._seat(asked)
        if seat is None:
            raise RpcError(INVALID_PARAMS, "a call needs a session_id: ask for one with openenv/session/create")
        name, arguments = asked.params.get("name"), asked.params.get("arguments") or {}
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "a call has a name and an object of arguments")
        await seat.start()  # there is no reset in this dialect
        seat.steps += 1
        returned = await seat.call(name, arguments)
        if isinstance(returned, ToolFailure):
            message = str(failed(returned, self._runtime)["message"])
            return _content([{"type": "text", "text": message}], message, is_error=True)
        blocks = as_output(returned).blocks
        return _content([plain(block) for block in blocks], as_text(blocks))

    async def _create(self, asked: Asked) -> JsonObject:
        if asked.own is not None:
            return {"session_id": asked.own.id}
        return {"session_id": self._seats.take(asked.environment).id}

    async def _close(self, asked: Asked) -> JsonObject:
        seat = self._seats.find(asked.params.get("session_id"), asked.environment)
        if seat is None:
            raise _unknown(asked.params.get("session_id"))
        if seat is asked.own:
            raise RpcError(INVALID_REQUEST, "this WebSocket uses the session: close the WebSocket, or ask over HTTP")
        if seat.attached:  # a client may ask before the close of its socket has arrived
            seat.closing = True
            return {"session_id": seat.id, "closed": False, "closing": True}
        await self._seats.drop(seat)
        return {"session_id": seat.id, "closed": True}

    def _seat(self, asked: Asked) -> Seat | None:
        """The seat that a request is for: the named one, or that of its socket."""
        wanted = asked.params.get("session_id")
        if wanted is None or (asked.own is not None and wanted == asked.own.id):
            return asked.own
        if (seat := self._seats.find(wanted, asked.environment)) is None:
            raise _unknown(wanted)
        return seat


def unavailable(request_id: RpcId, trouble: Trouble) -> JsonObject:
    error = {"code": UNAVAILABLE, "message": trouble.data["message"], "data": trouble.data}
    return {"jsonrpc": "2.0", "id": request_id, "error": error}


def parse_error() -> JsonObject:
    return {"jsonrpc": "2.0", "id": None, "error": RpcError(PARSE_ERROR, "Parse error: this is not JSON").error}


def parsed(body: bytes) -> Any:  # any JSON value
    """Raises `ValueError` for what is not JSON."""
    try:
        return decode(body)
    except HttpError as error:
        raise ValueError("not JSON") from error


def id_of(body: object) -> RpcId:
    given = body.get("id") if isinstance(body, dict) else None
    return given if isinstance(given, str | int | float) else None


def seat_named_in(body: object) -> str:
    """The session that a request names; empty if it names none."""
    params = body.get("params") if isinstance(body, dict) else None
    named = params.get("session_id") if isinstance(params, dict) else None
    return named if isinstance(named, str) else ""


def _read(body: object) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(body, dict) or body.get("jsonrpc") != "2.0":
        raise RpcError(INVALID_REQUEST, 'Invalid Request: an object with "jsonrpc": "2.0" is expected')
    method, params = body.get("method"), body.get("params") or {}
    if not isinstance(method, str) or not isinstance(params, dict):
        raise RpcError(INVALID_REQUEST, "Invalid Request: a method is text, and its params are an object")
    return method, params


def _content(content: list[JsonObject], data: str, *, is_error: bool = False) -> JsonObject:
    """The answer as OpenEnv's environments with MCP tools give it, without anything for the trainer."""
    return {"content": content, "structured_content": None, "meta": None, "data": data, "is_error": is_error}


def _unknown(wanted: object) -> RpcError:
    return RpcError(INVALID_PARAMS, f"there is no session {str(wanted)[:200]!r}")
