"""Sends one request on a socket and reads its answer. llhttp parses the answer, as it parses requests in the server."""

from __future__ import annotations

import socket

import httptools

from toolyard.client.request import PIECE, Request, pieces

_HEAD_MOST = 256 * 1024
"""Bytes of the head of an answer."""

FAILURES = (OSError, EOFError, httptools.HttpParserError, httptools.HttpParserUpgrade)
"""The exceptions of `send` and `Hearing` if there is no answer, or none that can be read."""


def send(sock: socket.socket, host: str, target: str, request: Request) -> None:
    lines = [f"{request.method} {target} HTTP/1.1", f"Host: {host}"]
    lines += [f"{name}: {value}" for name, value in request.headers.items()]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header with a line end in it cannot be sent")
    head, body = "\r\n".join([*lines, "", ""]).encode("latin-1"), request.body or b""
    try:
        if len(body) <= PIECE:
            sock.sendall(head + body)
            return
        sock.sendall(head)
        for piece in pieces(body):
            sock.sendall(piece)
    except (BrokenPipeError, ConnectionResetError):
        return  # a server that refuses the rest of the body may have answered why


class Hearing:
    """Reads one answer."""

    def __init__(self, sock: socket.socket) -> None:
        self.headers: dict[str, str] = {}
        """Names in lower case."""
        self.cookies: list[str] = []
        """The values of its `Set-Cookie` headers."""
        self.has_head = False
        self.is_whole = False
        self.is_last = True
        """Whether the connection cannot be used again. True until the answer is whole."""
        self._sock = sock
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._size = 0

    @property
    def status(self) -> int:
        return self._parser.get_status_code()

    def read(self) -> None:
        """Wait for more bytes of the answer."""
        data = self._sock.recv(PIECE)
        if data:
            self._size += len(data)
            self._parser.feed_data(data)
            if not self.has_head and self._size > _HEAD_MOST:
                raise EOFError("the head of the answer has no end")
        elif self.has_head and self._ends_with_connection():
            self.is_whole = True
        else:
            raise EOFError("the server closed the connection before the end of its answer")

    def take(self) -> bytes:
        """The part of the body that was read since the last `take`."""
        taken, self._body = b"".join(self._body), []
        return taken

    def _ends_with_connection(self) -> bool:
        return "content-length" not in self.headers and "transfer-encoding" not in self.headers

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.is_whole:  # an answer without a request: do not trust this connection
            self.is_last = True

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_whole:
            key, text = name.decode("latin-1").lower(), value.decode("latin-1")
            self.headers[key] = text
            if key == "set-cookie":
                self.cookies.append(text)

    def on_headers_complete(self) -> None:
        self.has_head = self.has_head or self.status >= 200  # statuses below only announce the answer

    def on_body(self, body: bytes) -> None:
        if not self.is_whole:
            self._body.append(body)

    def on_message_complete(self) -> None:
        if self.has_head and not self.is_whole:
            self.is_whole = True
            self.is_last = not self._parser.should_keep_alive()
