"""MCP over lines, for hosts that start a program and talk to it: each message goes to a server over HTTP, and back.

The server may run in this process. So there is one implementation of MCP, and lines only lead to it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any

import aiohttp

from toolyard.protocols.mcp.content import unavailable
from toolyard.protocols.mcp.header_checks import BEGIN, END, NAMED_BY
from toolyard.protocols.mcp.messages import (
    CANCELLED,
    HANDSHAKE_VERSIONS,
    INVALID_REQUEST,
    MODERN_VERSION,
    PROTOCOL_VERSION,
    Asked,
    Message,
    Notice,
    Posted,
    RpcError,
    Unreadable,
    read,
    unsupported,
)

log = logging.getLogger("toolyard.mcp")

_BEFORE = ("initialize", "ping", "server/discover")
"""Methods that need no session. Hosts also send them to programs that they never use."""
_LAST_SECONDS = 1.0
"""Hosts wait for about two before they end the program by force."""
_TYPES = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}

Open = Callable[[], Coroutine[Any, Any, str]]
"""Opens the session, and returns the path of MCP for it. Raises `RpcError`."""
Write = Callable[[bytes], None]
"""Writes one message to the host."""


class Bridge:
    """One host and one session. The first request decides the era, for good."""

    def __init__(self, http: aiohttp.ClientSession, opens: Open, write: Write, *, before: str) -> None:
        self._http = http
        self._open = opens
        self._write = write
        self._path = before
        """The path for requests without a session; then, once there is a session, for all requests."""
        self._opening: asyncio.Task[str] | None = None
        self._waiting: dict[str | int, asyncio.Task[None] | None] = {}
        """Requests that wait for the session, by id."""
        self._modern: bool | None = None
        """The era, once it is known."""

    async def run(self, lines: AsyncIterator[bytes]) -> None:
        """Handle all lines. At their end, running requests have a moment to finish, then they are given up."""
        async with asyncio.TaskGroup() as group:
            running = set()
            async for line in lines:
                work = group.create_task(self._take(line))
                running.add(work)
                work.add_done_callback(running.discard)
            if running:  # requests that came through a pipe, whose writer is already gone
                _, late = await asyncio.wait(running, timeout=_LAST_SECONDS)
                if late:
                    log.warning("the input ended; requests that were not yet answered are given up: %d", len(late))
            for work in running:
                work.cancel()
            if self._opening is not None:
                self._opening.cancel()

    async def _take(self, line: bytes) -> None:
        try:
            message = await read(line)
        except Unreadable as error:
            if error.request_id is None:
                log.warning("the host wrote something that is no message: %s", error.message)
            else:
                self._write(error.answer(error.request_id).body)
            return
        if isinstance(message, Posted) or (isinstance(message, Notice) and self._gives_up(message)):
            return
        request_id = message.id if isinstance(message, Asked) else None
        try:
            modern = self._era(message)
            await self._pass_on(message, line, modern)
        except RpcError as error:
            if request_id is not None:
                self._write(error.answer(request_id).body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if request_id is not None:
                self._write(unavailable(f"the server does not answer: {error}", "lost").answer(request_id).body)

    def _era(self, message: Message) -> bool:
        """Whether a message is of the modern era. Raises `RpcError` for a request of the other one."""
        assert not isinstance(message, Posted)
        enveloped = PROTOCOL_VERSION in _meta(message.params)
        if not isinstance(message, Asked):
            return self._modern if self._modern is not None else enveloped
        begins = message.method == "initialize"
        if self._modern is None:
            self._modern = enveloped and not begins
        if self._modern and begins:
            raise unsupported(message.params.get("protocolVersion"))
        if enveloped and not self._modern:
            raise RpcError(INVALID_REQUEST, "Invalid Request: this connection began with a handshake")
        return self._modern

    async def _pass_on(self, message: Message, line: bytes, modern: bool) -> None:
        assert not isinstance(message, Posted)
        if isinstance(message, Asked) and message.method not in _BEFORE:
            await self._ensure_open(message.id)
        # Lines have no stream to close, so a notice goes without modern headers, to the era that can cancel.
        headers = {**_TYPES, **_headers(message, modern and isinstance(message, Asked))}
        async with self._http.post(self._path, data=line, headers=headers) as answer:
            if answer.content_type == "text/event-stream":
                async for event in _events(answer.content):
                    self._write(event)
                return
            body = await answer.read()
        if isinstance(message, Asked):
            self._write(_as_message(body, answer.status, message))

    async def _ensure_open(self, request_id: str | int) -> None:
        """Open the session, once for all requests that wait for it. Cancelling one does not stop the others."""
        if self._opening is None or (self._opening.done() and self._opening.exception() is not None):
            self._opening = asyncio.create_task(self._open())
        if not self._opening.done():
            self._waiting[request_id] = asyncio.current_task()
            try:
                await asyncio.shield(self._opening)
            finally:
                self._waiting.pop(request_id, None)
        self._path = self._opening.result()

    def _gives_up(self, notice: Notice) -> bool:
        """Whether a notice cancels a request that the server has not heard of yet."""
        request_id = notice.params.get("requestId") if notice.method == "notifications/cancelled" else None
        waiting = self._waiting.pop(request_id, None) if isinstance(request_id, str | int) else None
        if waiting is None or request_id is None:
            return False
        waiting.cancel()
        self._write(RpcError(CANCELLED, "Request cancelled").answer(request_id).body)
        return True


def _meta(params: Mapping[str, Any]) -> Mapping[str, Any]:
    meta = params.get("_meta")
    return meta if isinstance(meta, dict) else {}


def _headers(message: Message, modern: bool) -> Mapping[str, str]:
    """The headers that a client over HTTP would send with the message."""
    assert not isinstance(message, Posted)
    if not modern:
        return {"MCP-Protocol-Version": HANDSHAKE_VERSIONS[-1]}
    version = _meta(message.params).get(PROTOCOL_VERSION, MODERN_VERSION)
    headers = {"MCP-Protocol-Version": _written(version), "Mcp-Method": _written(message.method)}
    if (parameter := NAMED_BY.get(message.method)) is not None and parameter in message.params:
        headers["Mcp-Name"] = _written(message.params[parameter])
    return headers


def _written(value: object) -> str:
    """Text as it stands in a header."""
    text = value if isinstance(value, str) else json.dumps(value)
    if text.isascii() and text.isprintable() and text == text.strip() and not text.startswith(BEGIN):
        return text
    return f"{BEGIN}{base64.b64encode(text.encode(errors='replace')).decode()}{END}"


async def _events(stream: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """The data of each event. The server writes one line, but a proxy may have split it."""
    data: list[bytearray] = []
    left = bytearray()
    async for chunk in stream.iter_any():
        left += chunk
        if b"\n" not in chunk:  # a result may be one line of many megabytes
            continue
        *lines, left = left.split(b"\n")
        for line in (line.rstrip(b"\r") for line in lines):
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield b"".join(data)
                data = []


def _as_message(body: bytes, status: int, asked: Asked) -> bytes:
    """The answer as one line. Any other answer comes from the server's door or from a proxy."""
    try:
        said = json.loads(body)
    except ValueError:
        said = None
    if isinstance(said, dict) and said.get("jsonrpc") == "2.0":
        if said.get("id") is None:  # it was refused before its id was read
            error = said["error"]
            return RpcError(error["code"], error["message"], error.get("data")).answer(asked.id).body
        return json.dumps(said, separators=(",", ":")).encode() if b"\n" in body else body
    words = said.get("detail") if isinstance(said, dict) else None
    return unavailable(f"the server answered {status}: {words or body[:200]!r}", "lost").answer(asked.id).body
