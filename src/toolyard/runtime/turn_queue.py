"""Decides which calls run now. In a session, calls of one tool take turns and exclusive calls run alone; on the server,
only so many calls run at once."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence

from toolyard.core.tool import Claim


class TurnQueue:
    """The turns of one session: first come, first served. But a call that may run does not wait behind one that may
    not, unless that one is exclusive."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running: list[Claim] = []
        self._waiting: list[tuple[Claim, asyncio.Future[None]]] = []

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take_idle(self, claim: Claim) -> bool:
        """Take the turn if no other call runs or waits. Return whether it was taken."""
        if self._running or self._waiting:
            return False
        self._running.append(claim)
        return True

    async def take(self, claim: Claim) -> None:
        if self._may_run(claim, [waiting for waiting, _ in self._waiting]):
            self._running.append(claim)
            return
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((claim, admitted))
        try:
            await admitted
        except asyncio.CancelledError:
            if admitted.done() and not admitted.cancelled():
                self.give_back(claim)
            else:
                self._waiting.remove((claim, admitted))
                self._admit()  # an exclusive call that gives up may have held others back
            raise

    def give_back(self, claim: Claim) -> None:
        self._running.remove(claim)
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        ahead: list[Claim] = []
        still: list[tuple[Claim, asyncio.Future[None]]] = []
        for claim, admitted in self._waiting:
            if not admitted.done() and self._may_run(claim, ahead):
                self._running.append(claim)
                admitted.set_result(None)
            else:
                ahead.append(claim)
                still.append((claim, admitted))
        self._waiting = still

    def _may_run(self, claim: Claim, ahead: Sequence[Claim]) -> bool:
        if claim.turn == "exclusive":
            return not self._running and not ahead
        if any(other.turn == "exclusive" for other in self._running):
            return False
        for other in ahead:
            if other.turn == "exclusive" or (other == claim and claim.turn == "serial"):
                return False
        return claim.turn == "concurrent" or claim not in self._running


class Slots:
    """Places for the tool calls that run at once on this server. Other calls wait here, first come, first served."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def waiting(self) -> int:
        return sum(not turn.done() for turn in self._waiting)  # calls that gave up are taken out when a slot is free

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
                self.give_back()  # this call had got it already
            raise

    def give_back(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)  # this call gets the slot, which never counts as free
                return
        self._free += 1
