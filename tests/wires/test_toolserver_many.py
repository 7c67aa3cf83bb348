"""Fifty agents at once, each with a notebook, a shell and files: none sees another's, and nothing is left."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from urllib.parse import urlsplit

import pytest

from tests.wires.toolserver_wire import Node
from tests.wires.wire import until
from toolyard.testing import running
from toolyard.tools.workspace import Workspace

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

NODES = 50
SECRET = "the server's own"

TAKE_EVERYTHING = """
import os, socket, subprocess
mine = {number}
kept = socket.socket(socket.AF_UNIX)
kept.bind("\\0yard")
child = subprocess.Popen(["sleep", "{seconds}"])
os.environ["MINE"] = "{number}"
try:
    socket.create_connection(("127.0.0.1", {port}), 1)
except OSError:
    print("alone")
"""
COUNT_SLEEPERS = "grep -al '^sleep' /proc/[0-9]*/cmdline | wc -l"
LOOK_AROUND = f"cat mine.txt; ls; {COUNT_SLEEPERS}; env | grep -c 'SECRET\\|MINE'"


def sleepers(seconds: range) -> list[bytes]:
    wanted = {b"sleep\0%d\0" % number for number in seconds}
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/cmdline", "rb") as file:
                found.append(file.read())
        except OSError:  # it has ended
            continue
    return [line for line in found if line in wanted]


class Agent:
    def __init__(self, node: Node, number: int, seconds: int, port: int) -> None:
        self.node, self.number = node, number
        self.code = TAKE_EVERYTHING.format(number=number, seconds=seconds, port=port)

    async def settle(self) -> None:
        await self.node.cookie()
        await self.node.execute("FileSystemEnv_write_to_file", filepath="mine.txt", content=str(self.number))
        said = await self.node.execute("PythonNotebook_execute_cell", code=self.code)
        assert said["data"][1] == "alone\n"
        assert await self.typed(f"mine={self.number}; echo set") == "set\n"

    async def look(self) -> None:
        seen = await self.node.execute("shell_command_executor", command=LOOK_AROUND, kill=True)
        lines = seen["data"]["display"].removeprefix("\nstdout:\n").splitlines()
        assert lines == [str(self.number), "mine.txt", "python_notebook.ipynb", "0", "0"]  # a command sees no others
        code = f"print(mine, *os.popen({COUNT_SLEEPERS!r}))"  # a cell sees what cells have started
        said = await self.node.execute("PythonNotebook_execute_cell", code=code)
        assert said["data"][1] == f"{self.number} 1\n\n"
        assert await self.typed("echo $mine") == f"{self.number}\n"

    async def typed(self, line: str) -> str:
        response = await self.node.asked("ShellEnv_write_stdin", content=line)
        while response.status_code == 450:
            again = response.json()["detail"]
            response = await self.node.asked(again["next_calling"], **again["arguments"])
        return response.json().removeprefix("Instant shell output: ")

    async def leave(self) -> None:
        await self.node.answer("/release_session")


async def test_fifty_nodes_at_once_share_nothing_and_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLYARD_TEST_SECRET", SECRET)
    seconds = range(7_000_000, 7_000_000 + NODES)
    with running([Workspace], toolserver_wait_seconds=60) as server:
        port = urlsplit(server.url).port or 0
        async with AsyncExitStack() as stack:
            nodes = [await stack.enter_async_context(Node(server.url)) for _ in seconds]
            agents = [Agent(node, n, seconds[n], port) for n, node in enumerate(nodes)]
            await asyncio.gather(*(agent.settle() for agent in agents))
            assert len(sleepers(seconds)) == NODES
            await asyncio.gather(*(agent.look() for agent in agents))
            await asyncio.gather(*(agent.leave() for agent in agents))
        assert not server.server.runtime.sessions
        await until(lambda: not sleepers(seconds))
