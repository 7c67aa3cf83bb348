"""The host's ends of a program's pipes: output up to a limit, input without ever blocking the loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

AT_ONCE = 64 * 1024
_TURNS = 16
"""The most reads of a pipe in one go: a program that writes without end must not keep the loop busy."""
_ANSWER_MOST = 1024 * 1024


class Capture:
    """Reads a pipe as soon as data comes, and keeps the first `limit` bytes.

    Data beyond that is read and dropped, so that the program can end in good order instead of blocking in a write. Each
    time it begins to drop data, it calls `on_full`.
    """

    def __init__(self, fd: int, limit: int, on_full: Callable[[], None]) -> None:
        self._fd = fd
        self._limit = limit
        self._on_full = on_full
        self._kept = bytearray()
        self.full = False
        self.idle = False
        """True between two commands: no command can fail for too much output then, so a full pipe blocks its writer."""
        self._paused = False
        self.ended = asyncio.Event()
        """Set when no process holds the other end any more."""
        self._mark = b""
        self._unread = bytearray()
        """Data that may be part of a mark or of an answer."""
        self._said = bytearray()
        os.set_blocking(fd, False)
        self._loop = asyncio.get_running_loop()
        self.answer: asyncio.Future[bytes] = self._loop.create_future()
        """The program's message at the end of a command that was begun with a mark."""
        self._loop.add_reader(fd, self._readable)

    def begin(self, limit: int, mark: bytes = b"", *, forget: bool = True) -> None:
        """For a pipe that serves one command after the other: forget the output of earlier commands.

        A program that knows the mark ends its answer with lines of `mark + more` and `mark = last`. They follow the
        output directly and have at most 4096 bytes each, so no other write splits them.
        """
        self.idle = False
        if self._paused and self._fd >= 0:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)
        if forget:
            self._readable()
            for buffer in (self._kept, self._unread, self._said):
                buffer.clear()
        self._limit = limit
        self.full = False
        self._mark = mark
        self.answer = self._loop.create_future()

    def take(self) -> bytes:
        """Everything kept, and what is in the pipe right now."""
        self._readable()
        self._keep(self._unread)
        self._unread.clear()
        return bytes(self._kept)

    def hand_over(self) -> int:
        """Give the pipe to a caller who will close it."""
        fd, self._fd = self._fd, -1
        self._loop.remove_reader(fd)
        return fd

    def close(self) -> None:
        if self._fd >= 0:
            self._loop.remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1
            self.ended.set()

    def leave(self) -> None:
        """Close it and drop the callback, which refers back to this object and would keep both alive."""
        self.close()
        self._on_full = nobody

    def _readable(self) -> None:
        for _ in range(_TURNS):
            if self._fd < 0 or not (size := self._wanted()):
                return
            try:
                data = os.read(self._fd, size)
            except BlockingIOError:
                return
            if not data:
                self.close()
                return
            if self._mark:
                self._search(data)
            else:
                self._keep(data)
            if len(data) < size:  # the pipe is empty
                return

    def _wanted(self) -> int:
        """How many bytes to read now."""
        return AT_ONCE

    def _keep(self, data: bytes | bytearray) -> None:
        room = self._limit - len(self._kept)
        self._kept += data[:room]
        if len(data) <= room:
            return
        if self.idle and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)
        if not self.full:
            self.full = True
            self._on_full()

    def _search(self, data: bytes) -> None:
        """Separate marked data from other output."""
        self._unread += data
        while self._mark:
            at = self._unread.find(self._mark)
            if at < 0:
                at = len(self._unread) - self._begun()
                end = -1
            else:
                end = self._unread.find(b"\n", at)
            self._keep(self._unread[:at])
            del self._unread[:at]
            if end < 0 and len(self._unread) <= _ANSWER_MOST:
                return
            line = self._unread[len(self._mark) : end - at]
            del self._unread[: end - at + 1]
            self._said += line[1:]
            if line[:1] == b"=" or len(self._said) > _ANSWER_MOST or end < 0:
                self._mark = b""
                self._unread.clear()  # written after the command
                if not self.answer.done():  # the command may have been cancelled
                    self.answer.set_result(bytes(self._said))

    def _begun(self) -> int:
        """How many of the last bytes may be the beginning of a mark."""
        return min(len(self._unread), len(self._mark) - 1)


def nobody() -> None:
    """Ignores that a pipe is full."""


async def feed(fd: int, data: bytes) -> None:
    """Write all data to a pipe and close it. A program that does not read all of it is no error."""
    try:
        await send(fd, data)
    finally:
        os.close(fd)


async def send(fd: int, data: bytes) -> bool:
    """Write data to a pipe until the program ends. Returns whether the program took all of it."""
    os.set_blocking(fd, False)
    loop = asyncio.get_running_loop()
    left = memoryview(data)
    while left:
        try:
            left = left[os.write(fd, left) :]
        except BrokenPipeError:
            return False
        except BlockingIOError:
            writable = asyncio.Event()
            loop.add_writer(fd, writable.set)
            try:
                await writable.wait()
            finally:
                loop.remove_writer(fd)
    return True
