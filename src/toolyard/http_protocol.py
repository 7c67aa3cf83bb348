"""uvicorn's HTTP protocol with two changes: head and body of an answer go out with one system call instead of two,
and the head of a request has a limit."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_HEAD_MOST = 64 * 1024


class GatheringProtocol(HttpToolsProtocol):
    _head = 0
    """Bytes received of a request whose head is not complete. The parser itself would take any number."""

    def data_received(self, data: bytes) -> None:
        before = self.scope
        super().data_received(data)
        complete = self.scope is None or "path" in self.scope  # uvicorn knows the path when the head is complete
        if complete or self.scope is not before:  # a head that began in these bytes began after another request's body
            self._head = 0
            return
        self._head += len(data)
        if self._head > _HEAD_MOST and not self.transport.is_closing():
            self.send_400_response(f"The head of the request is larger than {_HEAD_MOST} bytes.")

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(Gathering(transport, self.loop))  # type: ignore[arg-type]  # a Transport by delegation


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
