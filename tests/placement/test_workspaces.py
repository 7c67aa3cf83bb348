"""Files of sessions in other processes: however large, they arrive whole, and their transfer delays no one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from tests.worlds import OneTask
from toolyard import tool
from toolyard.core.errors import WorkspaceError
from toolyard.core.workspace import Workspace
from toolyard.placement.base import Placed, SessionSpec, Task
from toolyard.placement.fork_server import ProcessLimits
from toolyard.placement.process import ProcessPlacement
from toolyard.placement.worker_side import Served
from toolyard.rpc import codec
from toolyard.sandboxes.base import Entry

pytestmark = pytest.mark.anyio

LONGEST = 4 * 2**20
"""The longest message here, so that files need not have hundreds of megabytes."""


class Shelf(OneTask):
    """Files in memory."""

    def __init__(self, task_spec: Any = {}, secrets: Any = {}) -> None:
        super().__init__(task_spec, secrets)
        self.files: dict[str, bytes] = {}

    @tool
    async def count(self) -> int:
        return len(self.files)

    @tool
    async def tell(self, size: int) -> str:
        return "x" * size

    def workspace(self) -> Any:
        return self

    async def read(self, path: str) -> bytes:
        if path not in self.files:
            raise WorkspaceError(f"{path}: No such file or directory")
        return self.files[path]

    async def write(self, path: str, data: bytes) -> None:
        self.files[path] = data

    async def list(self, path: str = ".") -> Sequence[Entry]:
        return [Entry(name, "file", len(data)) for name, data in self.files.items()]

    async def stop_programs(self) -> None:
        self.files["stopped"] = b""

    async def pack(self, path: str = ".") -> bytes:
        return f"{path}:".encode() + b"".join(self.files.values())

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        self.files = {path: archive}

    async def save(self) -> bytes:
        return b"".join(self.files.values())

    async def restore(self, saved: bytes) -> None:
        self.files = {"all": saved}


@pytest.fixture
async def placed(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Placed]:
    monkeypatch.setattr(codec, "LONGEST", LONGEST)
    placement = ProcessPlacement(Served({"shelf": Shelf}, {}, 2, lambda: None), ProcessLimits())
    placed = await placement.place(SessionSpec("s", Shelf, Task({})))
    yield placed
    await placed.teardown()
    await placement.stop()


@pytest.fixture
async def workspace(placed: Placed) -> Workspace:
    return await placed.workspace()


@pytest.mark.parametrize("size", [0, 1, 2**20, 2**20 + 1, 3 * LONGEST])
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
async def test_a_file_comes_whole_though_it_is_longer_than_a_message(
    placed: Placed, workspace: Workspace, size: int, byte: bytes
) -> None:
    data = byte * size
    await workspace.write("a", data)
    await workspace.write("b", b"other")
    assert (await workspace.read("a"), await workspace.read("b")) == (data, b"other")
    saved = await workspace.save()
    assert saved == data + b"other"
    await workspace.restore(saved)
    assert await workspace.read("all") == saved
    assert [(entry.name, entry.size) for entry in await workspace.list()] == [("all", len(saved))]
    assert placed.lost == ""


async def test_many_may_read_and_write_at_once(workspace: Workspace) -> None:
    files = {str(n): bytes([n]) * (n * 2**17) for n in range(40)}
    await asyncio.gather(*(workspace.write(name, data) for name, data in files.items()))
    assert await asyncio.gather(*map(workspace.read, files)) == [*files.values()]


async def test_what_is_wrong_with_a_path_is_told_as_it_is_here(workspace: Workspace) -> None:
    with pytest.raises(WorkspaceError, match="nothing: No such file or directory"):
        await workspace.read("nothing")


async def test_who_leaves_half_way_is_in_nobodys_way(placed: Placed, workspace: Workspace) -> None:
    await workspace.write("a", b"x" * LONGEST)
    for _ in range(100):
        await placed.process.ask("workspace", placed._session, "read", "a")  # type: ignore[attr-defined]
    assert await workspace.read("a") == b"x" * LONGEST
    await workspace.stop_programs()
    assert {entry.name for entry in await workspace.list()} == {"a", "stopped"}


async def test_a_result_that_is_longer_than_a_message_is_the_tools_fault_and_not_the_end_of_its_session(
    placed: Placed,
) -> None:
    assert len(await placed.call("tell", {"size": LONGEST - 100}, {})) == LONGEST - 100
    with pytest.raises(Exception, match=f"more than {LONGEST} bytes"):
        await placed.call("tell", {"size": LONGEST}, {})
    assert await placed.call("tell", {"size": 3}, {}) == "xxx"
