"""`Idle`: connections that wait for their next request."""

from __future__ import annotations

import os
import select
import socket
import threading
import time

from toolyard.client.request import IDLE


class Idle:
    """The idle connections of one client. A thread takes one, uses it alone, and gives it back."""

    def __init__(self) -> None:
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._waiting: list[tuple[socket.socket, float]] = []

    def take(self) -> socket.socket | None:
        """The connection that was used last. None if a new one is needed."""
        if self._closed:
            raise RuntimeError("this client is closed")
        if self._process != os.getpid():
            self._leave_to_parent()
        with self._lock:
            while self._waiting:
                sock, since = self._waiting.pop()
                if time.monotonic() - since < IDLE and _is_quiet(sock):
                    return sock
                sock.close()
        return None

    def give_back(self, sock: socket.socket) -> None:
        now = time.monotonic()
        with self._lock:
            self._waiting.append((sock, now))
            while self._waiting and (self._closed or now - self._waiting[0][1] > IDLE):
                self._waiting.pop(0)[0].close()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for sock, _ in self._waiting:
                sock.close()
            self._waiting.clear()

    def _leave_to_parent(self) -> None:
        """Drop our copies of the parent's sockets, in a forked process: our requests would mix with the parent's."""
        for sock, _ in self._waiting:
            sock.close()
        self._start()


def _is_quiet(sock: socket.socket) -> bool:
    """Whether the server has neither closed the connection nor sent anything since."""
    if not hasattr(select, "poll"):
        return not select.select([sock], [], [], 0)[0]
    polled = select.poll()
    polled.register(sock, select.POLLIN)
    return not polled.poll(0)
