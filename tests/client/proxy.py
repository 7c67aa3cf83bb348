"""A real TCP proxy that can cut an answer after so many bytes, fall silent, or change what is behind it."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit


class Proxy:
    """`plans` are used up one per tool call: how many bytes of its answer go through; None for all of them."""

    marker = b"/call HTTP/1.1"
    """How the requests that are cut are told from others."""

    def __init__(self, target: str) -> None:
        self.target = target
        self.plans: list[int | None] = []
        self.silent = False
        """Fall silent at the cut, instead of closing."""
        self.before_the_request = False
        """Cut before the request has been passed on, instead of in the answer."""
        self.calls = 0
        self.connections = 0
        self.ended = 0
        """How many connections the server has ended."""
        self.flowing = threading.Event()
        """While this is not set, no request goes through."""
        self.flowing.set()
        self.released = threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def close(self) -> None:
        self.released.set()
        self.flowing.set()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for thread in self._threads:
            thread.join(10)

    def _start(self, work, *args) -> None:
        thread = threading.Thread(target=work, args=args, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            url = urlsplit(self.target)
            try:
                server = socket.create_connection((url.hostname, url.port))
            except OSError:
                client.close()
                continue
            self.connections += 1
            pipe = Pipe(self, client, server)
            self._start(pipe.carry_requests)
            self._start(pipe.carry_answers)


class Pipe:
    """One connection through the proxy."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self.proxy = proxy
        self.client = client
        self.server = server
        self.left: int | None = None

    def carry_requests(self) -> None:
        while data := self._receive(self.client):
            self.proxy.flowing.wait(20)
            if self.proxy.marker in data:
                self.proxy.calls += 1
                self.left = self.proxy.plans.pop(0) if self.proxy.plans else None
                if self.left is not None and self.proxy.before_the_request:
                    return self.cut()
            with contextlib.suppress(OSError):
                self.server.sendall(data)
        return self._end(self.server)

    def carry_answers(self) -> None:
        while data := self._receive(self.server):
            if self.left is not None and len(data) >= self.left:
                with contextlib.suppress(OSError):
                    self.client.sendall(data[: self.left])
                if self.proxy.silent:
                    self.proxy.released.wait(20)
                return self.cut()
            if self.left is not None:
                self.left -= len(data)
            with contextlib.suppress(OSError):
                self.client.sendall(data)
        self._end(self.client)
        self.proxy.ended += 1
        return None

    def cut(self) -> None:
        """As hard as it comes: no farewell to the client; to the server, the client has vanished."""
        with contextlib.suppress(OSError):
            self.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._end(self.client)
        self._end(self.server)

    def _receive(self, end: socket.socket) -> bytes:
        try:
            return end.recv(65536)
        except OSError:
            return b""

    def _end(self, end: socket.socket) -> None:
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)
        end.close()


@contextmanager
def proxied(target: str) -> Iterator[Proxy]:
    proxy = Proxy(target)
    try:
        yield proxy
    finally:
        proxy.close()
