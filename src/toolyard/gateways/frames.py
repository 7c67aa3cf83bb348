"""Messages over a socket between two processes of ours: tuples of plain values. Those of one turn of the event loop go
out together, as a list with its length before it.

Nobody else can be at the other end: the socket has no name, and was handed over by one of us.
"""

from __future__ import annotations

import asyncio
import marshal
from typing import Any, TypeAlias, cast

Frame: TypeAlias = tuple[Any, ...]  # numbers, text and bytes, and tuples, lists and dictionaries of them

_PREFIX = 8
_FORMAT = 2
"""Of marshal: later ones look for objects that occur twice, which takes longer than to write them twice."""


class Frames(asyncio.Protocol):
    def __init__(self) -> None:
        self._held = bytearray()
        """The start of a list that has not come as a whole."""
        self._wanted = _PREFIX
        """As many bytes are needed before there is anything to be read in it."""
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._leaving: list[Frame] = []
        self._room = asyncio.Event()
        self._room.set()

    def received(self, frame: Frame) -> None:
        raise NotImplementedError

    def lost(self) -> None:
        """Nothing can be sent any more, and nothing will come."""
        raise NotImplementedError

    @property
    def is_open(self) -> bool:
        return self._transport is not None

    def send(self, frame: Frame) -> None:
        """To nobody, if the other side has gone."""
        if not self._leaving:
            self._loop.call_soon(self._flush)
        self._leaving.append(frame)

    async def room(self) -> None:
        """Wait until the other side reads again, if there is much that it has not read."""
        await self._room.wait()

    def _flush(self) -> None:
        leaving, self._leaving = self._leaving, []
        if self._transport is not None:
            data = marshal.dumps(leaving, _FORMAT)
            self._transport.writelines((len(data).to_bytes(_PREFIX, "big"), data))

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's has all of it, and is none by class

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data
            if len(self._held) < self._wanted:
                return
            view, self._held = memoryview(self._held), bytearray()
        else:
            view = memoryview(data)
        at, self._wanted = 0, _PREFIX
        while len(view) >= (start := at + _PREFIX):
            end = start + int.from_bytes(view[at:start], "big")
            if len(view) < end:
                self._wanted = end - at
                break
            for frame in marshal.loads(view[start:end]):
                self.received(frame)
            at = end
        if at < len(view):
            self._held += view[at:]

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._room.set()
        self.lost()
