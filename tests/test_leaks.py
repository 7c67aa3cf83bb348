"""Ten thousand sessions later, the server holds what it held before. It runs in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import uvloop

from tests.leaks_server import THREADS

pytestmark = pytest.mark.thorough

SESSIONS = 10_000
CONNECTIONS = 32
MARGIN = 2 * 2**20
"""Bytes by which memory may have grown after a second round like the first: some 200 for each session."""
FIRST_MARGIN = 6 * 2**20
"""The same for the first round, in which threads start and caches fill: some 600 for each session. Seen: 1.2 MiB."""


@dataclass(frozen=True)
class Served:
    port: int
    pid: int

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def memory(self) -> int:
        found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{self.pid}/status").read_text())
        assert found
        return int(found[1]) * 1024

    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))


@contextmanager
def served(idle_seconds: float) -> Iterator[Served]:
    command = [sys.executable, "-m", "tests.leaks_server", str(idle_seconds)]
    root = Path(__file__).parent.parent
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=root) as process:
        try:
            assert process.stdout
            yield Served(int(process.stdout.readline()), process.pid)
        finally:
            process.terminate()
            process.wait(20)


class Connection:
    """One connection that is kept alive: as little of HTTP as will do, so that the server is the one that works."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def to(cls, port: int) -> Connection:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def send(self, method: str, path: str, sid: str, body: bytes = b"") -> None:
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: {sid}\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)

    async def ask(self, method: str, path: str, sid: str, body: bytes = b"") -> bytes:
        self.send(method, path, sid, body)
        head = await self._reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        length = re.search(rb"content-length: (\d+)", head)
        if length:
            return await self._reader.readexactly(int(length[1]))
        return await self._reader.readuntil(b"\r\n0\r\n\r\n")

    async def close(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


def call(name: str, **arguments: object) -> bytes:
    return json.dumps({"name": name, "input": arguments}).encode()


async def episode(connection: Connection, sid: str) -> None:
    await connection.ask("POST", "/create", sid, b'{"split":"train","index":7}')
    for name in ("modern", "plain"):
        answer = await connection.ask("POST", "/small/call", sid, call(name, text=f"{name} in {sid}"))
        assert f"{name} in {sid}".encode() in answer
    await connection.ask("POST", "/delete", sid)


async def many_episodes(port: int, name: str) -> None:
    numbers = iter(range(SESSIONS))

    async def work() -> None:
        connection = await Connection.to(port)
        for number in numbers:
            await episode(connection, f"{name}-{number}")
        await connection.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONNECTIONS):
            group.create_task(work())


async def hold_a_thread(port: int, number: int) -> None:
    """As many at once, and the server has all the threads that it will ever have."""
    connection = await Connection.to(port)
    await connection.ask("POST", "/create", f"holding-{number}", b'{"task_spec":{}}')
    await connection.ask("POST", "/small/call", f"holding-{number}", call("hold"))
    await connection.ask("POST", "/delete", f"holding-{number}")
    await connection.close()


async def held(port: int) -> dict[str, int]:
    """Ask the server, in a session that is made for that; itself is not counted."""
    connection = await Connection.to(port)
    await connection.ask("POST", "/create", "judge", b'{"task_spec":{}}')
    answer = await connection.ask("POST", "/small/call", "judge", call("held"))
    await connection.ask("POST", "/delete", "judge")
    await connection.close()
    (end,) = re.findall(rb"event: end\ndata: (.*)\n\n", answer)
    counts: dict[str, int] = json.loads(end)["output"]["metadata"]
    for name in ("sessions", "calls", "instances"):
        counts[name] -= 1
    return counts


async def settled(server: Served, *, files: int) -> dict[str, int]:
    """What it holds once the clients have left and the server has noticed."""
    async with asyncio.timeout(20):
        while True:
            counts = await held(server.port)
            few = counts["outcomes"] < 20  # of the sessions that are made to ask
            if few and server.files() <= files and not any(counts[name] for name in ("sessions", "calls", "kept")):
                return counts
            await asyncio.sleep(0.1)


def test_ten_thousand_sessions_leave_nothing_behind():
    async def watch() -> None:
        with served(idle_seconds=900) as server:
            before = await held(server.port)
            await asyncio.sleep(0.2)  # until it has noticed that we hung up
            files, start = server.files(), server.memory()
            await asyncio.gather(*(hold_a_thread(server.port, number) for number in range(THREADS)))
            await many_episodes(server.port, "first")
            first = await settled(server, files=files)
            memory, threads = server.memory(), server.threads()
            await many_episodes(server.port, "second")
            second = await settled(server, files=files)
            for counts in (first, second):
                for name in ("sessions", "calls", "kept", "instances", "background", "coroutines"):
                    assert counts[name] == before[name], name
            assert server.files() == files
            assert (second["threads"], server.threads()) == (first["threads"], threads)
            assert memory < start + FIRST_MARGIN
            assert server.memory() < memory + MARGIN

    uvloop.run(watch())


def test_clients_that_vanish_leave_nothing_behind():
    async def watch() -> None:
        with served(idle_seconds=1) as server:
            before = await held(server.port)
            await asyncio.sleep(0.2)
            files = server.files()
            for number in range(300):
                connection = await Connection.to(server.port)
                sid = f"vanishing-{number}"
                await connection.ask("POST", "/create", sid, b'{"task_spec":{}}')
                connection.send("POST", "/small/call", sid, call("slow", seconds=0.5)[: None if number % 2 else 9])
                if number % 3:
                    connection._writer.transport.abort()
                else:
                    await connection.close()
            after = await settled(server, files=files)
            assert server.files() == files
            for name in ("sessions", "calls", "kept", "instances", "background", "coroutines"):
                assert after[name] == before[name], name

    uvloop.run(watch())
