"""Whose turn it is in one session: calls of one tool run one after the other, exclusive tools run alone."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

from toolyard.core.tool import Tool


class Turns:
    """First come, first served; but a call that may run does not wait behind one that may not, unless that one
    needs the session for itself."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running: list[Tool] = []
        self._waiting: deque[tuple[Tool, asyncio.Future[None]]] = deque()

    async def take(self, tool: Tool) -> None:
        if self._may_run(tool, (waiting for waiting, _ in self._waiting)):
            self._running.append(tool)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((tool, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.give_back(tool)
            else:
                self._waiting.remove((tool, admitted))
                self._admit()  # an exclusive call that gives up may have held others back
            raise

    def give_back(self, tool: Tool) -> None:
        self._running.remove(tool)
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        ahead: list[Tool] = []
        still: deque[tuple[Tool, asyncio.Future[None]]] = deque()
        for tool, admitted in self._waiting:
            if not admitted.done() and self._may_run(tool, ahead):
                self._running.append(tool)
                admitted.set_result(None)
            else:
                ahead.append(tool)
                still.append((tool, admitted))
        self._waiting = still

    def _may_run(self, tool: Tool, ahead: Iterable[Tool]) -> bool:
        if tool.turn == "exclusive":
            return not self._running and not any(True for _ in ahead)
        if any(other.turn == "exclusive" for other in self._running):
            return False
        for other in ahead:
            if other.turn == "exclusive" or (other is tool and tool.turn == "serial"):
                return False
        return tool.turn == "concurrent" or tool not in self._running
