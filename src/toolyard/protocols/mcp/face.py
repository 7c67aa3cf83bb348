"""MCP over HTTP: one request in, JSON or server-sent events out."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping

from toolyard.asgi import Disconnected, Headers, HttpError, HttpOptions, Request
from toolyard.protocols.mcp.content import unavailable
from toolyard.protocols.mcp.core import Core, Following
from toolyard.protocols.mcp.header_checks import check_headers, routing
from toolyard.protocols.mcp.messages import (
    HANDSHAKE_VERSIONS,
    HEADER_MISMATCH,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    PARSE_ERROR,
    UNSUPPORTED_VERSION,
    Answer,
    Asked,
    Notice,
    RpcError,
    Unreadable,
    read,
    unsupported,
)
from toolyard.protocols.mcp.places import Place

_JSON = ((b"content-type", b"application/json"),)
_EVENTS = (
    (b"content-type", b"text/event-stream"),
    (b"cache-control", b"no-cache, no-transform"),
    (b"x-accel-buffering", b"no"),
)
_PING = b": ping\r\n\r\n"
_PROGRESS_SECONDS = 1.0
"""Seconds between two notices of progress."""
_USUAL = "application/json, text/event-stream"
"""The header that every client's library sends."""

_MODERN_STATUS: Mapping[int, int] = {
    METHOD_NOT_FOUND: 404,
    PARSE_ERROR: 400,
    INVALID_REQUEST: 400,
    INVALID_PARAMS: 400,
    HEADER_MISMATCH: 400,
    UNSUPPORTED_VERSION: 400,
}
"""In the era of handshakes every error is 200: clients give up a connection for anything else."""


class Face:
    """Answers requests at any URL; the caller finds the session.

    To serve MCP at another path, make a `Face(Core(runtime, Shows(…)), options)` there. For each request find the
    session, and `await face.handle(request, InSession(session))`. `Shows` decides whether rewards are visible. Raise
    `refused(404, INVALID_REQUEST, "Session not found")` where there is no session. A `Place` of your own can find, or
    open, the session when the method is known.
    """

    def __init__(self, core: Core, options: HttpOptions) -> None:
        self._core = core
        self._ping_seconds = options.ping_seconds

    async def handle(self, request: Request, place: Place) -> None:
        if request.scope["method"] != "POST":
            raise HttpError(405, None, [(b"allow", b"POST")])
        _check_types(request)
        version = request.header(b"mcp-protocol-version")
        modern = version != "" and version not in HANDSHAKE_VERSIONS
        try:
            message = await read(await request.body())
        except Unreadable as error:
            await _answer(request, error.answer(error.request_id), 400)
            return
        if isinstance(message, Asked):
            message.modern = modern
            await self._ask(request, message, place)
        elif not modern:
            await self._hear(request, message, place)
        else:
            await _take_modern(request, message, version)

    async def _ask(self, request: Request, asked: Asked, place: Place) -> None:
        if asked.modern:
            try:
                check_headers(asked, request.scope["headers"])
            except RpcError as error:
                await _answer(request, error.answer(asked.id), 400)
                return
        answer = await self._core.answer(asked, place)
        if isinstance(answer, Following):
            await self._follow(request, answer, place)
        else:
            await _answer(request, answer, _status(answer, asked.modern), _repeated(place))

    async def _hear(self, request: Request, message: object, place: Place) -> None:
        try:
            await place.session("")
        except RpcError as error:
            await _answer(request, error.answer(None), error.status)
            return
        if isinstance(message, Notice):
            await self._core.hear(message, place)
        await request.answer(202, _repeated(place), b"")

    async def _follow(self, request: Request, following: Following, place: Place) -> None:
        """Answer with JSON if the call is over soon, and else with events, which show the client that the server lives.

        If the client hangs up, this returns, and the call goes on.
        """
        call, began, started = following.call, time.monotonic(), False
        tick = self._ping_seconds if following.token is None else min(_PROGRESS_SECONDS, self._ping_seconds)
        ended, gone = call.ended(), asyncio.ensure_future(request.until_gone())
        try:
            while not await _first(ended, gone, seconds=tick):
                if not started:
                    await request.start([*_EVENTS, *_repeated(place)])
                    started = True
                await request.write(
                    _PING if following.token is None else _event(following.progress(time.monotonic() - began))
                )
            if not call.done:
                raise Disconnected
            answer = following.answer()
            if started:
                await request.write(_event(answer.body), last=True)
            else:
                await _answer(request, answer, _status(answer, following.asked.modern), _repeated(place))
        finally:
            gone.cancel()
            ended.add_done_callback(lambda _: following.leave())  # until then its client may cancel it


async def _first(*awaited: asyncio.Future[None], seconds: float) -> bool:
    """Whether one of these futures is done within `seconds`."""
    done, _ = await asyncio.wait(awaited, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)


def refused(status: int, code: int, message: str, headers: Headers = ()) -> HttpError:
    """An answer to a request that is refused unread."""
    error = HttpError(status, None, headers)
    error.body = {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": message}}
    return error


async def answer_lost(request: Request, body: bytes, why: str) -> None:
    """Tell a client that its session is lost, wherever it was. The status is 200: the connection is fine."""
    try:
        message = await read(body)
    except Unreadable as error:
        await _answer(request, error.answer(error.request_id), 400)
        return
    if isinstance(message, Asked):
        await _answer(request, unavailable(why, "lost").answer(message.id), 200)
    else:
        await request.answer(202, (), b"")


async def _take_modern(request: Request, message: object, version: str) -> None:
    """Accept and ignore a notification of the modern era: to cancel, a client hangs up."""
    try:
        if not isinstance(message, Notice):
            raise RpcError(INVALID_REQUEST, "Invalid Request: the server asked for no response")
        routing(request.scope["headers"])
        if version != MODERN_VERSION:
            raise unsupported(version)
    except RpcError as error:
        await _answer(request, error.answer(None), 400)
        return
    await request.answer(202, (), b"")


def _check_types(request: Request) -> None:
    kind = request.header(b"content-type")
    if kind != "application/json" and kind.partition(";")[0].strip().lower() != "application/json":
        raise refused(415, INVALID_REQUEST, f"Content-Type is {kind[:200]!r}; it must be application/json")
    accepted = request.header(b"accept")
    if accepted and accepted != _USUAL and not _accepts(accepted):
        raise refused(406, INVALID_REQUEST, f"Accept is {accepted[:200]!r}; it must cover {_USUAL}")


def _accepts(header: str) -> bool:
    kinds = {kind.partition(";")[0].strip().lower() for kind in header.split(",")}
    json, events = {"application/json", "application/*"}, {"text/event-stream", "text/*"}
    return "*/*" in kinds or not (kinds.isdisjoint(json) or kinds.isdisjoint(events))


def _status(answer: Answer, modern: bool) -> int:
    return answer.status or (_MODERN_STATUS.get(answer.code, 200) if modern else 200)


def _repeated(place: Place) -> Headers:
    return ((b"mcp-session-id", place.repeats.encode()),) if place.repeats else ()


async def _answer(request: Request, answer: Answer, status: int, headers: Headers = ()) -> None:
    await request.answer(status, (*_JSON, *headers), answer.body)


def _event(message: bytes) -> bytes:
    """Clients may split lines at any Unicode line end, so the JSON in an event is ASCII."""
    if not message.isascii():
        message = json.dumps(json.loads(message), separators=(",", ":")).encode()
    return b"event: message\r\ndata: %b\r\n\r\n" % message
