"""Moves files of a session in another process over its connection, in pieces, so that no long message holds up others.

`RemoteWorkspace` is the server's side, `HostedWorkspace` the side where the session lives.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from toolyard.core.errors import WorkspaceError
from toolyard.placement.base import Placed

_PIECE = 2**20
"""Bytes of one piece."""
_HELD_MOST = 64
"""Files of one session that may be on their way. A caller that gives up half-way sends nothing more, so beyond this
number the oldest is dropped."""
_NOTHING = -1
"""Instead of a number: nothing is held, because one piece was enough."""


@dataclass(frozen=True, slots=True)
class RemoteEntry:
    """One name in a folder of a workspace in another process."""

    name: str
    kind: Literal["file", "directory", "link", "other"]
    size: int


class RemoteWorkspace:
    def __init__(self, ask: Callable[..., Awaitable[Any]]) -> None:
        self._ask = ask

    async def read(self, path: str) -> bytes:
        return await self._fetched("read", path)

    async def write(self, path: str, data: bytes) -> None:
        await self._ask("workspace", "write", *await self._handed_over(data), path)

    async def list(self, path: str = ".") -> Sequence[RemoteEntry]:
        return [RemoteEntry(**entry) for entry in await self._ask("workspace", "list", path)]

    async def stop_programs(self) -> None:
        await self._ask("workspace", "stop_programs")

    async def pack(self, path: str = ".") -> bytes:
        return await self._fetched("pack", path)

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        await self._ask("workspace", "unpack", *await self._handed_over(archive), path)

    async def save(self) -> bytes:
        return await self._fetched("save")

    async def restore(self, saved: bytes) -> None:
        await self._ask("workspace", "restore", *await self._handed_over(saved))

    async def _fetched(self, what: str, *about: str) -> bytes:
        number, size, first = await self._ask("workspace", what, *about)
        pieces = [first]
        for start in range(_PIECE, size, _PIECE):
            pieces.append(await self._ask("workspace", "piece", number, start))
        return b"".join(pieces)

    async def _handed_over(self, data: bytes) -> tuple[int, bytes]:
        """Send all pieces but the last. Return the number under which they are held, and the last piece."""
        number, start = _NOTHING, 0
        while len(data) - start > _PIECE:
            number = await self._ask("workspace", "add", number, data[start : start + _PIECE])
            start += _PIECE
        return number, data[start:]


class HostedWorkspace:
    def __init__(self, placed: Placed) -> None:
        self._placed = placed
        self._numbers = itertools.count()
        self._held: OrderedDict[int, bytes | bytearray] = OrderedDict()

    async def answer(self, what: str, *about: Any) -> Any:
        match what:
            case "add":
                return self._add(*about)
            case "piece":
                return self._piece(*about)
        workspace = await self._placed.workspace()
        match what:
            case "read":
                return self._laid_out(await workspace.read(about[0]))
            case "pack":
                return self._laid_out(await workspace.pack(about[0]))
            case "unpack":
                await workspace.unpack(self._given(*about[:2]), about[2])
            case "save":
                return self._laid_out(await workspace.save())
            case "write":
                await workspace.write(about[2], self._given(*about[:2]))
            case "restore":
                await workspace.restore(self._given(*about))
            case "list":
                return [dataclasses.asdict(entry) for entry in await workspace.list(about[0])]  # type: ignore[call-overload]
            case "stop_programs":
                await workspace.stop_programs()
        return None

    # What is fetched.

    def _laid_out(self, data: bytes) -> tuple[int, int, bytes]:
        """Return a number, the size and the first piece. If there are more, hold the data under that number."""
        number = self._hold(data) if len(data) > _PIECE else _NOTHING
        return number, len(data), data[:_PIECE]

    def _piece(self, number: int, start: int) -> bytes | bytearray:
        data, end = self._of(number), start + _PIECE
        if end >= len(data):
            del self._held[number]
        return data[start:end]

    # What is handed over.

    def _add(self, number: int, piece: bytes) -> int:
        """Hold one more piece. The first piece gets a number, which the others name."""
        if number == _NOTHING:
            return self._hold(bytearray(piece))
        data = self._of(number)
        assert isinstance(data, bytearray)
        data += piece
        return number

    def _given(self, number: int, last: bytes) -> bytes:
        if number == _NOTHING:
            return last
        data = self._of(number)
        del self._held[number]
        return b"".join((data, last))

    def _hold(self, data: bytes | bytearray) -> int:
        number = next(self._numbers)
        self._held[number] = data
        if len(self._held) > _HELD_MOST:
            self._held.popitem(last=False)
        return number

    def _of(self, number: int) -> bytes | bytearray:
        if number not in self._held:
            raise WorkspaceError("too much was asked of the workspace at once")
        return self._held[number]
