"""A load of WebSockets: frames made once and sent one after the other on each socket, and what they cost."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.servers import tree

_HANDSHAKE = (
    "GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)
_TEXT, _CLOSE, _PING, _PONG = 1, 8, 9, 10
_TICKS = os.sysconf("SC_CLK_TCK")


def frame(said: bytes, kind: int = _TEXT) -> bytes:
    """As clients send it, under a mask of zeros, which changes nothing."""
    if len(said) < 126:
        head = bytes([128 | kind, 128 | len(said)])
    else:
        head = bytes([128 | kind, 128 | 126]) + len(said).to_bytes(2, "big")
    return head + bytes(4) + said


def message(kind: str, **data: object) -> bytes:
    return frame(json.dumps({"type": kind, "data": data}).encode())


class Socket:
    """One WebSocket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def opened(cls, port: int, path: str) -> Socket:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(_HANDSHAKE.format(path=path).encode())
        answer = await reader.readuntil(b"\r\n\r\n")
        if not answer.startswith(b"HTTP/1.1 101 "):
            raise SystemExit(f"{path} was answered {answer.decode()!r}")
        return cls(reader, writer)

    async def ask(self, asked: bytes) -> bytes:
        """The answer to a frame."""
        self._writer.write(asked)
        while True:
            kind, said = await self._frame()
            if kind == _TEXT:
                return said
            if kind == _PING:
                self._writer.write(frame(said, _PONG))

    async def close(self) -> None:
        """Close it as clients do, and wait until the server has."""
        self._writer.write(frame((1000).to_bytes(2, "big"), _CLOSE))
        while await self._reader.read(2**16):
            pass
        self._writer.close()

    async def _frame(self) -> tuple[int, bytes]:
        first, length = await self._reader.readexactly(2)
        if length == 126:
            length = int.from_bytes(await self._reader.readexactly(2), "big")
        elif length == 127:
            length = int.from_bytes(await self._reader.readexactly(8), "big")
        return first & 15, await self._reader.readexactly(length)


@asynccontextmanager
async def sockets(port: int, path: str, count: int) -> AsyncIterator[Sequence[Socket]]:
    opened = [await Socket.opened(port, path) for _ in range(count)]
    try:
        yield opened
    finally:
        await asyncio.gather(*(socket.close() for socket in opened))


@dataclass(frozen=True)
class SocketLoad:
    """What so many steps took, in seconds."""

    steps: int
    seconds: float
    cpu_seconds: float
    """Of the server's processes."""
    own_cpu: float
    """Of the load generator."""

    @property
    def cpu(self) -> float:
        return self.cpu_seconds / self.steps

    @property
    def interval(self) -> float:
        return self.seconds / self.steps


class Measured:
    """Counts steps from its creation until `load`."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._before = cpu_of(pid), time.process_time(), time.perf_counter()
        self.steps = 0

    def load(self) -> SocketLoad:
        cpu, own, now = cpu_of(self._pid), time.process_time(), time.perf_counter()
        cpu_before, own_before, began = self._before
        return SocketLoad(self.steps, now - began, cpu - cpu_before, own - own_before)


def cpu_of(pid: int) -> float:
    """User and system time of a process and its descendants, in seconds."""
    return sum(_ticks(each) for each in tree(pid)) / _TICKS


def _ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def data_of(answer: bytes) -> Mapping[str, Any]:
    """The data of an observation. Anything else ends the benchmark, whose figures would mean nothing."""
    said = json.loads(answer)
    if said["type"] != "observation":
        raise SystemExit(f"a step was answered {answer.decode()[:500]!r}")
    data: Mapping[str, Any] = said["data"]
    return data
