"""How many tool calls run at once on this server; the others wait here, first come, first served."""

from __future__ import annotations

import asyncio
from collections import deque


class Slots:
    """A semaphore whose free case costs two instructions."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take_at_once(self) -> bool:
        if not self._free:
            return False
        self._free -= 1
        return True

    async def take(self) -> None:
        if self.take_at_once():
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.give_back()  # it was ours already
            raise

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # the slot goes from hand to hand
                return
        self._free += 1
