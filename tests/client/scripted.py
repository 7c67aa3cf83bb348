"""A real TCP server that answers each request with whatever bytes a test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(frozen=True)
class Asked:
    line: str
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes
    connection: int
    """Number of the connection that it came over."""


def answer(body: bytes, *headers: str, status: str = "200 OK", kind: str = "application/json") -> bytes:
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {len(body)}", *headers]
    return "\r\n".join([*head, "", ""]).encode() + body


class Scripted:
    """`script` makes an answer of a request; None closes the connection without one."""

    def __init__(self, script: Callable[[Asked], bytes | None], *, hangs_up: bool = False) -> None:
        self.script = script
        self.hangs_up = hangs_up
        """After each answer."""
        self.asked: list[Asked] = []
        self.made = 0
        self.open: set[socket.socket] = set()
        self.reads_bodies = True
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for connection in list(self.open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            self.made += 1
            self.open.add(connection)
            threading.Thread(target=self._serve, args=(connection, self.made), daemon=True).start()

    def _serve(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError), connection, connection.makefile("rb") as said:
            while line := said.readline().decode("latin-1").strip():
                asked = self._read(line, said, number)
                self.asked.append(asked)
                if (told := self.script(asked)) is None:
                    break
                connection.sendall(told)
                if self.hangs_up or b"Connection: close" in told:
                    break
        self.open.discard(connection)

    def _read(self, line: str, said, number: int) -> Asked:
        headers = {}
        while header := said.readline().decode("latin-1").strip():
            name, _, value = header.partition(": ")
            headers[name.lower()] = value
        body = said.read(int(headers.get("content-length", 0))) if self.reads_bodies else b""
        return Asked(line, headers, body, number)


@contextmanager
def scripted(script: Callable[[Asked], bytes | None], *, hangs_up: bool = False) -> Iterator[Scripted]:
    server = Scripted(script, hangs_up=hangs_up)
    try:
        yield server
    finally:
        server.close()
