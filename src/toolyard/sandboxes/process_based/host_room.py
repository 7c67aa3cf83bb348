"""`HostRoom`: what rooms share whose workspace is a folder of the host. The server itself reads and writes it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.programs import HelperProcess, usage_below
from toolyard.sandboxes.process_based.workspace import WorkspaceFolder


class HostRoom:
    watched = True

    def __init__(self, directory: Path, owner: int) -> None:
        """`owner` is the user that programs run as; negative: the server's."""
        self._directory = directory
        self._owner = owner
        self._work = self._make("work")
        self._workspace = WorkspaceFolder(str(self._work), owner)

    def _make(self, name: str) -> Path:
        """Make a folder for the programs of this room."""
        folder = self._directory / name
        folder.mkdir(0o700)
        if self._owner >= 0:
            os.chown(folder, self._owner, self._owner)
        return folder

    async def measure(self, program: HelperProcess) -> tuple[float, int]:
        return usage_below(program.pid) if not program.ended.done() else (0.0, 0)

    async def lost(self) -> str:
        return ""  # the room runs no process of its own

    async def read(self, path: str, most: int) -> bytes:
        return await asyncio.to_thread(self._workspace.read, path, most)

    async def write(self, path: str, data: bytes, most: int, mode: int | None = None) -> None:
        await asyncio.to_thread(self._workspace.write, path, data, most, mode)

    async def list(self, path: str) -> Sequence[tuple[str, str, int]]:
        return await asyncio.to_thread(self._workspace.list, path)

    async def copy_from(self, other: Self) -> None:
        await asyncio.to_thread(self._workspace.copy_from, other._workspace)

    async def close(self) -> None:
        await asyncio.to_thread(origin.remove, self._directory)
