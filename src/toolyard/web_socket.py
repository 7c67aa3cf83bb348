"""One WebSocket: uvicorn's protocol, counted among all connections, and what a request needs to become one."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

from uvicorn._types import ASGIReceiveEvent, ASGISendEvent
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from toolyard.asgi import Headers
from toolyard.connections import Connection, Connections, Phase

log = logging.getLogger("toolyard.web_socket")
log.setLevel(logging.WARNING)  # uvicorn writes a line for each socket, with its whole address
log.addFilter(lambda record: not record.exc_info or not isinstance(record.exc_info[1], UnicodeDecodeError))  # clients'

_HEAD_MOST = 8000
"""Bytes of a header's line, and"""
_HEADERS_MOST = 120
"""headers that the library reads."""
_TOO_BIG, _LATER = 1009, 1013
"""Codes of a close: the message is too big; try again later."""
_PIECES_MOST = 4096
"""Frames of one message. Each takes memory, even one that is empty."""
_PONGS_MOST = 2**16
"""Bytes of answers to pings that wait for a client to read them. Further pings have no answer."""


@dataclass(frozen=True, slots=True)
class Upgrades:
    """Which requests become WebSockets in this process."""

    wanted: Callable[[str], bool]
    """Whether a WebSocket is spoken at this path."""
    give: Callable[[str, bytes, int, bytes], bool]
    """Give a connection to the gateway that has its session: path, query, file descriptor, and the bytes read so far.
    False if that is this gateway."""


NO_UPGRADES = Upgrades(lambda path: False, lambda path, query, file, head: False)


def is_handshake(method: bytes, headers: Headers) -> bool:
    """Whether a request asks for a WebSocket and for nothing else: it has no body that could be read as frames."""
    names = [name for name, _ in headers]
    if method != b"GET" or b"content-length" in names or b"transfer-encoding" in names:
        return False
    fits = len(headers) <= _HEADERS_MOST and all(len(name) + len(value) < _HEAD_MOST for name, value in headers)
    return fits and any(name == b"upgrade" and value.strip().lower() == b"websocket" for name, value in headers)


def head_of(url: bytes, headers: Headers) -> bytes:
    """The request as it was, for another parser."""
    lines: Sequence[bytes] = [b"GET %b HTTP/1.1" % url, *(b"%b: %b" % header for header in headers)]
    return b"\r\n".join([*lines, b"", b""])


class SocketProtocol(WebSocketsSansIOProtocol):
    """`everyone` holds all connections of this process. It takes over the place of the request that became this one.

    With too many connections, the server may give up a socket without messages, never one in use. It closes sockets
    whose client no longer answers pings.
    """

    turn = 0
    received = 0
    _pongs = 0
    """Bytes of answers to pings since the client had read everything."""
    _is_partial = False
    """A message has arrived in part."""
    _is_held = False
    """The rest of a message waits for memory."""

    def __init__(self, everyone: Connections, **more: Any) -> None:
        super().__init__(**more)
        self._everyone = everyone
        self.logger = log

    def connection_lost(self, exc: Exception | None) -> None:
        self._everyone.forget(self)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self.received += len(data)
        super().data_received(data)
        was_partial, self._is_partial = self._is_partial, bool(self.frames) or _has_left(self.conn)
        if self._is_partial:
            self._everyone.body_grows(self, len(data))
        elif was_partial:
            self._everyone.body_over(self)

    def send_receive_event_to_app(self) -> None:
        self.turn += 1
        super().send_receive_event_to_app()

    def handle_cont(self, event: Frame) -> None:
        if len(self.frames) >= _PIECES_MOST:
            self.frames = []
            self._end(_TOO_BIG, "the message comes in too many pieces")
            return
        super().handle_cont(event)

    def handle_ping(self) -> None:
        if not (pong := b"".join(self.conn.data_to_send())):
            return  # sent together with that of another ping
        if not self.transport.get_write_buffer_size() + cast(Any, self.transport).gathered:
            self._pongs = 0
        self._pongs += len(pong)
        if self._pongs <= _PONGS_MOST:
            self.transport.write(pong)

    def handle_parser_exception(self) -> None:
        if self.conn.close_sent is not None:
            super().handle_parser_exception()
            return
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\ncontent-length: 0\r\n\r\n")
        self.transport.close()

    def shutdown(self) -> None:
        """End it because the server stops. If its client is leaving already, uvicorn would still send a close, and the
        exception would keep the server from ending its calls and sessions."""
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.close_sent = True
        super().shutdown()

    async def send(self, message: ASGISendEvent) -> None:
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True  # or uvicorn logs an error for each handshake that is refused

    async def receive(self) -> ASGIReceiveEvent:
        event = await super().receive()
        if self._is_held:
            self.transport.pause_reading()
        return event

    # What `Connections` calls.

    def look(self) -> Phase:
        if self._is_partial and not self.read_paused:
            return Phase.BODY
        return Phase.WAITING if self.turn else Phase.QUIET

    def unsent(self) -> tuple[int, int]:
        unsent = self.transport.get_write_buffer_size()
        return unsent, cast(Any, self.transport).written

    def expire(self, phase: Phase, *, pressed: bool) -> None:
        self._leave("the message did not come in time")

    def give_up(self, phase: Phase) -> None:
        self._leave("all connections of this server are in use")

    def hold(self) -> None:
        self._is_held = True
        self.transport.pause_reading()

    def release(self) -> None:
        self._is_held = False
        if not self.read_paused:
            self.transport.resume_reading()

    def abort(self) -> None:
        self.transport.abort()

    def _leave(self, why: str) -> None:
        self._end(_LATER, why)

    def _end(self, code: int, why: str) -> None:
        if self.transport.is_closing():
            return
        if self.handshake_complete and not self.close_sent:
            self.conn.fail(code, why)
            self.transport.write(b"".join(self.conn.data_to_send()))
            self.close_sent = True
        self.transport.close()


def become(before: Connection, everyone: Connections, transport: Any, head: bytes, **more: Any) -> None:
    """Let a WebSocket take over the connection of a request. `transport` is a `Gathering`; `more` are uvicorn's
    arguments."""
    socket = SocketProtocol(everyone, **more)
    everyone.hand_over(before, socket)
    socket.connection_made(transport)
    transport.set_protocol(socket)
    socket.data_received(head)


def _has_left(connection: Any) -> bool:
    """Whether the library holds bytes of a frame that is not complete."""
    return bool(connection.reader.buffer)
