"""Many nodes of the ToolServer at once, each with a notebook, a shell and files: times, sizes, leftovers."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import re
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import progress
from benchmarks.sandbox_meter import descendants, proportional_bytes, wait_until_gone
from benchmarks.servers import Started, running, serving
from toolyard.sandboxes.native.cgroups import own_hierarchies

CREATE, RELEASE = "creation of a node", "release of a node"
_SETTLE_SECONDS = 10.0
"""Time for a released node's leftovers to go, and for the pool of sandboxes to fill again."""


@dataclass(frozen=True)
class Use:
    """A tool call that each node makes."""

    what: str
    tool: str
    arguments: Mapping[str, Any]
    expected: str
    """Text that the result must contain."""


USES = (
    Use("first notebook cell", "PythonNotebook_execute_cell", {"code": "print(6 * 7)"}, "42"),
    Use("first shell command", "shell_command_executor", {"command": "echo a b | tr -d ' '"}, "ab"),
    Use("first line in a shell that stays", "ShellEnv_write_stdin", {"content": "echo $((6 * 7))"}, "42"),
    Use("first file", "FileSystemEnv_write_to_file", {"filepath": "notes.txt", "content": "hello"}, "hello"),
    Use("second notebook cell", "PythonNotebook_execute_cell", {"code": "print(7 * 8)"}, "56"),
    Use("second file", "FileSystemEnv_write_to_file", {"filepath": "more.txt", "content": "hello"}, "hello"),
)


class Node:
    """A client with one node. A minimum of HTTP, so that the server does the work."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._cookie = ""

    @classmethod
    async def connected(cls, port: int) -> Node:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    async def create(self) -> None:
        head, _ = await self._ask("/get_cookie")
        found = re.search(r"set-cookie: (node_id=\w+)", head)
        assert found, head
        self._cookie = found[1]

    async def use(self, use: Use) -> None:
        tool, arguments = use.tool, use.arguments
        while True:
            head, body = await self._ask("/execute_tool", json.dumps({"tool_name": tool, "arguments": arguments}))
            if head.split()[1] != "450":
                break
            again = json.loads(body)["detail"]
            tool, arguments = again["next_calling"], again["arguments"]
        if head.split()[1] != "200" or use.expected not in body:
            raise SystemExit(f"{use.tool} was answered {head.split()[1]}: {body[:1000]}")

    async def release(self) -> None:
        await self._ask("/release_session")
        self._writer.close()

    async def _ask(self, path: str, body: str = "") -> tuple[str, str]:
        self._writer.write(
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\nCookie: {self._cookie}\r\n\r\n{body}".encode()
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        length = re.search(r"content-length: (\d+)", head)
        assert length, head
        return head, (await self._reader.readexactly(int(length[1]))).decode()


@dataclass
class Times:
    """How long one thing took for each node, in seconds."""

    one_by_one: list[float] = field(default_factory=list)
    at_once: list[float] = field(default_factory=list)
    until_all: list[float] = field(default_factory=list)
    """From the first request to the last answer, when all nodes send at once."""


@dataclass(frozen=True)
class Held:
    """What a server holds, beside files in memory."""

    processes: int
    mounts: int
    control_groups: int
    """With processes in them. Others are kept for reuse."""
    files: int
    """Files and folders in its temporary folder."""

    def growth(self, before: Held) -> str:
        grown = {name: now - vars(before)[name] for name, now in vars(self).items() if now > vars(before)[name]}
        return ", ".join(f"{more} {name.replace('_', ' ')}" for name, more in grown.items()) or "nothing"


@dataclass
class Figures:
    count: int
    times: dict[str, Times] = field(default_factory=lambda: {CREATE: Times(), **{use.what: Times() for use in USES}})
    release: Times = field(default_factory=Times)
    memory: list[float] = field(default_factory=list)
    """Bytes per used node."""
    idle: float = 0.0
    """Bytes of the server and its helpers without a node."""
    left: list[str] = field(default_factory=list)
    """What there was more of after the release of all nodes."""


@dataclass(frozen=True)
class Served:
    server: Started
    folder: Path
    """The folder of its temporary files and of no others."""

    def processes(self) -> Sequence[int]:
        return [self.server.pid, *descendants(self.server.pid)]

    def memory(self) -> int:
        return sum(_memory(pid) for pid in self.processes())

    def held(self) -> Held:
        processes = self.processes()
        return Held(
            processes=len(processes),
            mounts=len(Path(f"/proc/{self.server.pid}/mountinfo").read_text().splitlines()),
            control_groups=sum(map(_has_processes, _control_groups(processes))),
            files=sum(1 for _ in self.folder.rglob("*")),
        )


@contextmanager
def served_alone() -> Iterator[Served]:
    """A server that must leave nothing when it stops."""
    contender = serving("toolyard.tools.workspace:Workspace", "--protocol", "toolserver")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command = ["env", f"TMPDIR={name}", *contender.command]
        with running(dataclasses.replace(contender, command=command)) as server:
            served = Served(server, folder)
            yield served
            processes = served.processes()
            ends = {os.pidfd_open(pid) for pid in processes}
        wait_until_gone(ends)
        left = [*_control_groups(processes), *folder.rglob("*")]
        if left:
            raise SystemExit(f"The server left this: {left}")


async def measure(rounds: int, count: int) -> Figures:
    figures = Figures(count)
    with served_alone() as served:
        progress("nodes: warming up")
        for _ in range(2):
            await _together(served, Figures(1))
        before, figures.idle = await _settled(served), served.memory()
        for number in range(rounds):
            progress(f"{count} nodes: round {number + 1} of {rounds}")
            await _one_by_one(served, figures)
            await _settled(served, before)
            await _together(served, figures)
            figures.left.append((await _settled(served, before)).growth(before))
    return figures


async def _one_by_one(served: Served, figures: Figures) -> None:
    nodes = [await Node.connected(served.server.port) for _ in range(figures.count)]
    for node in nodes:
        figures.times[CREATE].one_by_one.append(await _timed(node.create()))
    for use in USES:
        for node in nodes:
            figures.times[use.what].one_by_one.append(await _timed(node.use(use)))
    for node in nodes:
        figures.release.one_by_one.append(await _timed(node.release()))


async def _together(served: Served, figures: Figures) -> None:
    nodes = [await Node.connected(served.server.port) for _ in range(figures.count)]
    without = served.memory()

    async def all_do(what: Callable[[Node], Coroutine[Any, Any, None]], times: Times) -> None:
        began = time.perf_counter()
        times.at_once += await asyncio.gather(*(_timed(what(node)) for node in nodes))
        times.until_all.append(time.perf_counter() - began)

    await all_do(Node.create, figures.times[CREATE])
    for use in USES:
        await all_do(lambda node, use=use: node.use(use), figures.times[use.what])  # type: ignore[misc]  # its default
    figures.memory.append((served.memory() - without) / len(nodes))
    await all_do(Node.release, figures.release)


async def _timed(work: Coroutine[Any, Any, None]) -> float:
    began = time.perf_counter()
    await work
    return time.perf_counter() - began


async def _settled(served: Served, before: Held | None = None) -> Held:
    """What the server has once it has stopped changing, or is no more than before."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    last = served.held()
    while time.monotonic() < deadline:
        await asyncio.sleep(0.3)
        now = served.held()
        if now == last and (before is None or now.growth(before) == "nothing"):
            return now
        last = now
    return last


def _memory(pid: int) -> int:
    with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
        return proportional_bytes(pid)
    return 0


def _control_groups(processes: Sequence[int]) -> Iterator[Path]:
    """Groups that these processes made: folders with a pid of one in the name, and those below."""
    for hierarchy in own_hierarchies():
        for path in Path(hierarchy.own).glob("toolyard-*-*-*"):
            if int(path.name.split("-")[2]) in processes:
                yield from (Path(folder) for folder, _, _ in os.walk(path))


def _has_processes(group: Path) -> bool:
    with suppress(FileNotFoundError):
        return bool((group / "cgroup.procs").read_text())
    return False
