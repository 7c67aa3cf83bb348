"""The host's ends of a program's pipes: output up to a limit, input without ever blocking the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

_AT_ONCE = 64 * 1024
_TURNS = 16
"""How often a pipe is read in one go, at most: a program that writes without end must not keep the loop busy."""


class Capture:
    """Takes what comes out of a pipe, as soon as it comes, and keeps the first `limit` bytes of it.

    What is more is read and dropped, so that the program can be ended in good order instead of hanging in a write.
    `on_full` is told once, when the first byte is dropped.
    """

    def __init__(self, fd: int, limit: int, on_full: Callable[[], None]) -> None:
        self._fd = fd
        self._limit = limit
        self._on_full = on_full
        self._kept = bytearray()
        self.full = False
        self.ended = asyncio.Event()
        """Nobody holds the other end any more."""
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(fd, self._readable)

    def begin(self, limit: int) -> None:
        """For a pipe that serves one command after the other: forget what came before this one."""
        self._readable()
        self._kept.clear()
        self._limit = limit
        self.full = False

    def take(self) -> bytes:
        """Everything kept, with what is in the pipe right now."""
        self._readable()
        return bytes(self._kept)

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def _readable(self) -> None:
        for _ in range(_TURNS):
            if self._fd < 0:
                return
            try:
                data = os.read(self._fd, _AT_ONCE)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            room = self._limit - len(self._kept)
            self._kept += data[:room]
            if len(data) > room and not self.full:
                self.full = True
                self._on_full()


async def feed(fd: int, data: bytes) -> None:
    """Write all of it to a pipe and close that. A program that does not read to the end is no error."""
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    try:
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                writable = asyncio.Event()
                loop.add_writer(fd, writable.set)
                try:
                    await writable.wait()
                finally:
                    loop.remove_writer(fd)
    except BrokenPipeError:
        return
    finally:
        os.close(fd)
