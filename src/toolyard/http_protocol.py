"""uvicorn's HTTP protocol, made cheaper where every request pays: one that is like the request before it is not parsed
again, an answer that is whole goes out as one write instead of two messages, and a connection has one idle timer
instead of one for each request. The head of a request has a limit.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from toolyard.asgi import ANSWER, Headers

_HEAD_MOST = 64 * 1024
_NAME = re.compile(rb"[0-9a-z-]+")
_VALUE = re.compile(rb"[ -~]*")
_LENGTH = re.compile(rb"\r\ncontent-length: ?([0-9]{1,5})\r\n", re.IGNORECASE)
_SPECIAL = {b"expect", b"transfer-encoding", b"upgrade"}
"""Headers of requests that are not like others."""
_KNOWN_HEAD_MOST = 4096
_PHRASES = {status.value: status.phrase for status in HTTPStatus}
"""Others, such as 450, have none."""


@dataclass(frozen=True, slots=True)
class Known:
    """A request as it was parsed. One with the same head, but for the length of its body, means the same."""

    before: bytes
    """Of the head: what comes before the length, and after it."""
    after: bytes
    scope: Mapping[str, Any]
    length_at: int
    """Which of its headers that is."""

    @classmethod
    def of(cls, data: bytes, scope: Mapping[str, Any]) -> Known | None:
        """From all bytes of a request, and what the parser made of them; None if it is out of the ordinary."""
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
        """The length as it is written, and the body, if these bytes are just such a request."""
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
    _known: Known | None = None
    """The request before this one, on this connection."""
    _begun = 0
    """Requests that the parser has seen the beginning of, and the end."""
    _ended = 0

    _head = 0
    """Bytes received of a request whose head is not complete. The parser itself would take any number."""

    _active = 0.0
    """When something last came in or an answer was complete, by the loop's clock."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(Gathering(transport, self.loop))  # type: ignore[arg-type]  # a Transport by delegation

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()

    def data_received(self, data: bytes) -> None:
        self._active = self.loop.time()
        if (sent := self._like_the_last(data)) is not None:
            self._take(*sent)
            return
        before, begun = self.scope, self._begun
        between = self._ended == begun
        super().data_received(data)
        if between and self._ended == self._begun == begun + 1:
            self._remember(data)
        complete = self.scope is None or "path" in self.scope  # uvicorn knows the path when the head is complete
        if complete or self.scope is not before:  # a head that began in these bytes began after another request's body
            self._head = 0
            return
        self._head += len(data)
        if self._head > _HEAD_MOST and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {_HEAD_MOST} bytes.")

    # A request like the one before it.

    def on_message_begin(self) -> None:
        self._begun += 1
        super().on_message_begin()

    def on_message_complete(self) -> None:
        self._ended += 1
        super().on_message_complete()

    def _like_the_last(self, data: bytes) -> tuple[bytes, bytes] | None:
        """The length of the body, as it is written, and the body."""
        if self._known is None or self._ended != self._begun or not self.cycle.response_complete:
            return None
        return self._known.body_in(data)

    def _remember(self, data: bytes) -> None:
        """A request that came in one piece, and nothing else with it."""
        usual = self.cycle.keep_alive and self.limit_concurrency is None and self.scope["http_version"] == "1.1"
        self._known = Known.of(data, self.scope) if usual else None

    def _take(self, length: bytes, body: bytes) -> None:
        assert self._known is not None
        scope = self._known.scope
        headers = [*scope["headers"]]
        headers[self._known.length_at] = (b"content-length", length)
        self.scope = {**scope, "headers": headers, "state": self.app_state.copy()}  # type: ignore[typeddict-item]
        self.cycle = RequestResponseCycle(
            scope=self.scope,
            transport=self.transport,
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
        cycle.scope[ANSWER] = partial(answer, cycle)  # type: ignore[literal-required]  # a key of ours
        super()._start_asgi_task(cycle, app)

    # The idle timer. It is set once and, when it fires, looks how long nothing has happened.

    def on_response_complete(self) -> None:
        self._active = self.loop.time()
        if self.pipeline or self.timeout_keep_alive_task is None:
            super().on_response_complete()
        elif not self.transport.is_closing():
            self.server_state.total_requests += 1
            self.flow.resume_reading()

    def _unset_keepalive_if_required(self) -> None:
        """uvicorn asks this whenever something comes in; the timer sees that by itself."""

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        if not self.cycle.response_complete:
            return  # its completion sets the timer again
        left = self._active + self.timeout_keep_alive - self.loop.time()
        if left > 0:
            self.timeout_keep_alive_task = self.loop.call_later(left, self.timeout_keep_alive_handler)
        else:
            super().timeout_keep_alive_handler()


def answer(cycle: RequestResponseCycle, status: int, headers: Headers, body: bytes) -> bool:
    """Send a whole answer in the usual case. Otherwise False: ASGI's messages take care of all cases."""
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
    """Status line and headers as they go out; empty if one is not plain, or would say how the body is framed."""
    for name, value in headers:
        if not (_NAME.fullmatch(name) and _VALUE.fullmatch(value)):
            return b""
        if name in (b"connection", b"content-length", b"transfer-encoding"):
            return b""
    line = f"HTTP/1.1 {status} {_PHRASES.get(status, '')}\r\n".encode()
    return line + b"".join([b"%b: %b\r\n" % header for header in headers])


class Gathering:
    """A transport whose writes of one turn of the event loop go out together at its end."""

    __slots__ = ("_held", "_loop", "_transport")

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def is_closing(self) -> bool:  # asked once for each answer, so not through __getattr__
        return self._transport.is_closing()

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        if self._held:
            data = b"".join(self._held) if len(self._held) > 1 else self._held[0]
            self._held = []
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:  # everything else is the transport's own
        return getattr(self._transport, name)
