"""uvicorn's HTTP protocol, made cheaper for every request, and with bounds on what it holds for a client.

A request that is like the one before it is not parsed again. A whole answer goes out as one write instead of two
messages. `Connections` checks the times of all connections with one timer. A handshake becomes a WebSocket at the paths
where one is spoken. Other requests for another protocol (`Upgrade`) are answered without it.
"""

from __future__ import annotations

import asyncio
import fcntl
import re
import sys
import termios
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any
from urllib.parse import unquote

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from toolyard.asgi import ANSWER, Headers
from toolyard.connections import Connections, Phase
from toolyard.web_socket import Upgrades, become, head_of, is_handshake

_HEAD_MOST = 64 * 1024
_HEADERS_MOST = 256
_PIPELINE_MOST = 64
"""Requests of one connection that wait for the answer to another."""
_LEAVING_MOST = 256 * 1024
"""Bytes that a client may still send after it was refused."""
_LATER = ((b"retry-after", b"2"),)
_PLAIN = (b"content-type", b"text/plain; charset=utf-8")
_NAME = re.compile(rb"[0-9a-z-]+")
_VALUE = re.compile(rb"[ -~]*")
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,5})\r\n", re.IGNORECASE)
_SPECIAL = {b"expect", b"transfer-encoding", b"upgrade"}
"""Headers that change how a request is read. A request with one is never remembered."""
_KNOWN_HEAD_MOST = 4096
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
"""Other statuses, such as 450, have none."""


@dataclass(frozen=True, slots=True)
class KnownRequest:
    """A parsed request. Another one with the same head, except for the length of its body, has the same scope."""

    before: bytes
    """The part of the head before the length of the body. `after` is the part after it."""
    after: bytes
    scope: Mapping[str, Any]
    length_at: int
    """The index of the header with that length."""

    @classmethod
    def of(cls, data: bytes, scope: Mapping[str, Any]) -> KnownRequest | None:
        """Make one from all bytes of a request, and the scope that the parser made of them. None for an unusual one."""
        end = data.find(b"\r\n\r\n", 0, _KNOWN_HEAD_MOST) + 4
        found = _LENGTH.search(data, 0, end - 2)
        names = [name for name, _ in scope["headers"]]
        if found is None or names.count(b"content-length") != 1 or not _SPECIAL.isdisjoint(names):
            return None
        at = names.index(b"content-length")
        if scope["headers"][at][1] != found[1] or len(data) - end != int(found[1]):
            return None
        kept = {name: value for name, value in scope.items() if name != ANSWER}
        return cls(data[: found.start(1)], data[found.end(1) : end], kept | {"headers": [*scope["headers"]]}, at)

    def body_in(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The length as it is written, and the body, if these bytes are exactly one such request."""
        if not data.startswith(self.before):
            return None
        start = len(self.before)
        stop = data.find(b"\r", start, start + 6)
        length = data[start:stop]
        end = stop + len(self.after)
        if stop < 0 or not length.isdigit() or data[stop:end] != self.after or len(data) - end != int(length):
            return None
        return length, data[end:]


class GatheringProtocol(HttpToolsProtocol):
    """One connection. `everyone` holds all connections of this process, including this one. `upgrades` says which of
    its requests may become a WebSocket."""

    _known: KnownRequest | None = None
    """The last request of this connection, if it was an ordinary one."""
    _current: RequestResponseCycle | None = None
    """The request that is being answered, or was answered last. `cycle` is the last that arrived, which may wait."""
    _begun = 0
    """Requests that have begun to arrive. `turn` counts those that have arrived whole."""
    turn = 0
    received = 0
    """Bytes that went to the parser."""
    _stretch = 0
    """Bytes since a head, or a part of a body, was complete. The parser itself would take any number."""
    _counted = False
    """Whether `everyone` counts the body that arrives now."""
    _upgrading = False
    """The parser is about to stop behind a head that asks for another protocol."""
    _is_deaf = False
    """The server discards all further bytes."""
    _is_refused = False
    """The client got an error, and has a moment to read it before we close the connection."""
    _is_turned_away = False
    """There are too many connections, so the server answers a request with 503."""

    flow: Flow
    transport: Gathering  # type: ignore[assignment]  # a Transport by delegation

    def __init__(self, *args: Any, everyone: Connections, upgrades: Upgrades, **more: Any) -> None:
        super().__init__(*args, **more)
        self._everyone = everyone
        self._upgrades = upgrades

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(Gathering(transport, self.loop))  # type: ignore[arg-type]
        self.flow = Flow(transport)
        self._is_turned_away = not self._everyone.admit(self, self.loop)

    def connection_lost(self, exc: Exception | None) -> None:
        self._everyone.forget(self)
        self.pipeline.clear()
        self._end_current()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if (sent := self._like_the_last(data)) is not None:
            self._take(*sent)
            return
        if self._is_deaf:
            self._throw_away(len(data))
            return
        begun, between = self._begun, self.turn == self._begun
        self.received += len(data)
        self._stretch += len(data)
        self._feed(data)
        if self.turn != self._begun:
            self._check_unfinished(len(data))
            return
        self._stretch = 0
        if between and self._begun == begun + 1:
            self._remember(data)

    def _check_unfinished(self, size: int) -> None:
        """Check the limits of a head or a body of which more is to come."""
        if self._is_deaf or self.transport.is_closing():
            return
        if self._stretch > _HEAD_MOST or len(self.headers) > _HEADERS_MOST:  # trailers are headers, too
            self._refuse(400, f"The head of the request is larger than {_HEAD_MOST} bytes or {_HEADERS_MOST} headers.")
        elif "path" not in self.scope:  # uvicorn knows it when the head is complete
            return
        elif not self.cycle.response_complete:
            self._counted = True
            self._everyone.body_grows(self, size)
        elif self._counted:
            self._uncount()

    def _uncount(self) -> None:
        self._counted = False
        self._everyone.body_over(self)

    # What the parser calls.

    def _feed(self, data: bytes) -> None:
        left = memoryview(data)
        while left and not self._is_deaf:
            try:
                self.parser.feed_data(left)
                return
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
            except httptools.HttpParserUpgrade as stopped:
                left = left[stopped.args[0] :]
                if self._becomes_socket(bytes(left)):
                    return
                self._go_on_without_upgrade()

    def _becomes_socket(self, after: bytes) -> bool:
        """Hand the connection over if its request is the handshake of a WebSocket, here or in another gateway. `after`
        are the bytes behind the handshake."""
        is_free = self.cycle is None or self.cycle.response_complete
        if self._is_turned_away or not is_free or self.parser.get_http_version() != "1.1":
            return False
        if not is_handshake(self.parser.get_method(), self.headers):
            return False
        url = httptools.parse_url(self.url)
        path = unquote(url.path.decode("ascii"))
        if not self._upgrades.wanted(path):
            return False
        self._is_deaf = True  # and what is read from now on is the socket's
        self._unset_keepalive_if_required()
        self.connections.discard(self)
        head = head_of(self.url, self.headers) + after
        if self._upgrades.give(path, url.query or b"", self.transport.get_extra_info("socket").fileno(), head):
            self._everyone.forget(self)
            self.transport.abort()  # the other gateway has a copy of the descriptor
        else:
            more = {"config": self.config, "server_state": self.server_state, "app_state": self.app_state}
            become(self, self._everyone, self.transport, head, **more)
        return True

    def _go_on_without_upgrade(self) -> None:
        """The parser has stopped behind a head that asks for another protocol, and takes all further bytes for that
        protocol. We do not speak it: feed a new parser the same head without `Upgrade`, and then the body."""
        method = self.parser.get_method()
        if method == b"CONNECT":
            self.send_400_response("This server is no proxy.")
            return
        version = self.parser.get_http_version().encode()
        lines = [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        self._upgrading = False
        self._begun -= 1
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn's
        self.parser.feed_data(b"\r\n".join([b"%b %b HTTP/%b" % (method, self.url, version), *lines, b"", b""]))

    def on_message_begin(self) -> None:
        self._begun += 1
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._stretch = 0
        self._upgrading = self.parser.should_upgrade()
        if self._upgrading or self._is_deaf:
            return
        if self._is_turned_away:
            self._refuse(503, "All connections of this server are in use.", _LATER)
        elif len(self.pipeline) >= _PIPELINE_MOST:  # the client sends the others again, on another connection
            self.cycle.keep_alive = False
            self._be_deaf()
        else:
            super().on_headers_complete()
            self.headers = []  # so that trailers do not become headers: a proxy in front of us has not checked them
            self.flow.is_held = bool(self.pipeline)  # uvicorn has paused it

    def on_body(self, body: bytes) -> None:
        self._stretch = 0
        cycle = self.cycle
        if self._is_deaf or cycle.response_complete:
            return
        cycle.body += body
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        cycle.message_event.set()

    def on_message_complete(self) -> None:
        if self._upgrading or self._is_deaf:
            return
        self.turn += 1
        if self._counted:
            self._uncount()
        if not self.cycle.response_complete:
            self.cycle.more_body = False
            self.cycle.message_event.set()

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
            self.flow.is_held = bool(self.pipeline)
        self.flow.resume_reading()

    # A request like the one before it.

    def _like_the_last(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The length of the body as it is written, and the body, if the request is like the last one."""
        if self._known is None or self.turn != self._begun or not self.cycle.response_complete:
            return None
        return self._known.body_in(data)

    def _remember(self, data: bytes) -> None:
        """Remember a request that arrived alone and in one piece."""
        usual = self.cycle.keep_alive and self.limit_concurrency is None and self.scope["http_version"] == "1.1"
        self._known = KnownRequest.of(data, self.scope) if usual else None

    def _take(self, length: bytes, body: bytes) -> None:
        assert self._known is not None
        self.turn = self._begun = self._begun + 1
        scope = self._known.scope
        headers = [*scope["headers"]]
        headers[self._known.length_at] = (b"content-length", length)
        self.scope = {**scope, "headers": headers, "state": self.app_state.copy()}  # type: ignore[typeddict-item]
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,  # type: ignore[arg-type]
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=True,
            on_response=self.on_response_complete,
        )
        self.cycle.body += body
        self.cycle.more_body = False
        self.cycle.message_event.set()
        self._start_asgi_task(self.cycle, self.app)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._current = cycle
        cycle.scope[ANSWER] = partial(answer, cycle)  # type: ignore[literal-required]  # a key of ours
        super()._start_asgi_task(cycle, app)

    # What `Connections` calls.

    def look(self) -> Phase:
        cycle = self.cycle
        if self._is_refused:
            return Phase.LEAVING
        if cycle is None:
            return Phase.HEAD
        if not cycle.response_complete:
            sends = cycle.more_body and not (self.flow.read_paused or self.pipeline or cycle.waiting_for_100_continue)
            if sends:
                return Phase.BODY
            return Phase.READING if self.flow.write_paused else Phase.WAITING
        cycle.body.clear()  # an application may answer without having read it
        if self.turn == self._begun:
            return Phase.READING if self.transport.get_write_buffer_size() else Phase.IDLE
        return Phase.REST if "path" in self.scope else Phase.HEAD

    def unsent(self) -> tuple[int, int]:
        unsent = self.transport.get_write_buffer_size()
        return unsent + (self._unacknowledged() if unsent else 0), self.transport.written

    def _unacknowledged(self) -> int:
        """Bytes that the kernel holds. It takes more of ours only when the client has read much of them, perhaps
        minutes after the client began to read."""
        try:
            found = fcntl.ioctl(self.transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, bytes(4))
        except OSError:  # the socket is closed, or the system has no such call
            return 0
        return int.from_bytes(found, sys.byteorder)

    def expire(self, phase: Phase, *, pressed: bool) -> None:
        if self.transport.is_closing():
            return
        if phase is Phase.LEAVING:
            self.abort()
        elif phase is Phase.HEAD and self._begun > self.turn:
            self._refuse(408, "The head of the request did not come in time.")
        elif phase is Phase.BODY and pressed:
            self._refuse(503, "Others wait for the memory of this request, whose body comes too slowly.", _LATER)
        elif phase is Phase.BODY:
            self._refuse(408, "The body of the request did not come in time.")
        else:
            self.transport.close()

    def give_up(self, phase: Phase) -> None:
        if self.transport.get_write_buffer_size():  # `close` would wait until the client has read all of that
            self.abort()
            return
        if self.transport.is_closing():
            return
        if phase is Phase.BODY or (phase is Phase.HEAD and self._begun > self.turn):
            self._refuse(503, "All connections of this server are in use.", _LATER)
        self.transport.close()

    def hold(self) -> None:
        self.flow.hold()

    def release(self) -> None:
        self.flow.is_held = bool(self.pipeline)
        self.flow.resume_reading()

    def abort(self) -> None:
        self._be_deaf()
        self.transport.abort()

    # Ends.

    def shutdown(self) -> None:
        """End the connection when the server stops. Do not wait for the rest of a body, which may never come."""
        if self.look() is Phase.BODY:
            self._refuse(503, "This server stops.", _LATER)
        else:
            super().shutdown()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, msg)

    def _refuse(self, status: int, why: str, headers: Headers = ()) -> None:
        """Answer the current request with an error, and no other request. The client gets a moment to read the answer:
        if we closed a connection with unread bytes at once, the kernel would discard the answer."""
        self._be_deaf()
        self._is_refused = True
        self._uncount()
        self.pipeline.clear()
        current = self._end_current()
        if current is not None and current.response_started:
            self.transport.close()
            return
        start = head(status, (*self.server_state.default_headers, _PLAIN, *headers))
        length = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(why)
        self.transport.write(start + length + why.encode())
        self.transport.write_eof()
        self.flow.is_held = False
        self.flow.resume_reading()

    def _end_current(self) -> RequestResponseCycle | None:
        """Tell the application that the client of an unanswered request has gone."""
        current = self._current
        if current is None or current.response_complete:
            return None
        current.disconnected = True
        current.message_event.set()
        return current

    def _throw_away(self, size: int) -> None:
        self._stretch += size
        if self._stretch > _LEAVING_MOST:
            self.transport.abort()

    def _be_deaf(self) -> None:
        self._is_deaf = True
        self._stretch = 0
        self._known = None
        self.flow.hold()


class Flow(FlowControl):
    """uvicorn's flow control, but while we hold it, an application that waits for its body does not resume reading."""

    is_held = False

    def hold(self) -> None:
        self.is_held = True
        self.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused and not (self.is_held or self._transport.is_closing()):
            super().resume_reading()


def answer(cycle: RequestResponseCycle, status: int, headers: Headers, body: bytes) -> bool:
    """Send a whole answer in the usual case. Otherwise return False: the messages of ASGI work in all cases."""
    usual = cycle.keep_alive and not (cycle.response_started or cycle.disconnected or cycle.flow.write_paused)
    if not usual or cycle.scope["method"] == "HEAD" or not (start := head(status, tuple(headers))):
        return False
    default = b"".join([b"%b: %b\r\n" % header for header in cycle.default_headers])
    cycle.response_started = cycle.response_complete = True
    cycle.transport.write(b"%b%bcontent-length: %d\r\n\r\n%b" % (start, default, len(body), body))
    cycle.message_event.set()
    cycle.on_response()
    return True


@lru_cache(256)
def head(status: int, headers: tuple[tuple[bytes, bytes], ...]) -> bytes:
    """The bytes of the status line and headers. Empty if a header is not plain, or says how the body is framed."""
    for name, value in headers:
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return b""
        if name in (b"connection", b"content-length", b"transfer-encoding"):
            return b""
    line = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    return line + b"".join([b"%b: %b\r\n" % header for header in headers])


class Gathering:
    """A transport that gathers the writes of one turn of the event loop, and sends them together at its end."""

    __slots__ = ("_held", "_is_over", "_loop", "_transport", "written")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []
        self._is_over = False
        self.written = 0
        """All bytes written so far."""

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def is_closing(self) -> bool:  # asked once for each answer, so not through __getattr__
        return self._transport.is_closing()

    @property
    def gathered(self) -> int:
        """Bytes that the transport does not have yet."""
        return sum(map(len, self._held))

    def write_eof(self) -> None:
        """Send what was written, then the end of the stream. Later writes are dropped."""
        self._flush()
        self._is_over = True
        self._transport.write_eof()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held) if len(self._held) > 1 else self._held[0]
            self._held = []
            if not (self._is_over or self._transport.is_closing()):  # it may have been lost in this turn
                self.written += len(data)
                self._transport.write(data)

    def __getattr__(self, name: str) -> Any:  # delegates the rest to the transport
        return getattr(self._transport, name)
