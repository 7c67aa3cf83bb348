"""Whose turn it is in one session: calls of one tool run one after the other, exclusive tools run alone."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

from toolyard.core.tool import Tool, Turn


class Claim(NamedTuple):
    """What a call wants to run, and what it tolerates beside it."""

    tool: str
    turn: Turn


def claim_of(name: str, tool: Tool | None) -> Claim:
    """Of a call of this tool, or of one that only its session knows."""
    return _known(name, tool.turn) if tool is not None else Claim(name, "serial")


_known = lru_cache(1024)(Claim)
"""A named tuple takes longer to make than many a function to run."""


class Turns:
    """First come, first served; but a call that may run does not wait behind one that may not, unless that one
    needs the session for itself."""

    __slots__ = ("_running", "_waiting")

    def __init__(self) -> None:
        self._running: list[Claim] = []
        self._waiting: list[tuple[Claim, asyncio.Future[None]]] = []

    @property
    def idle(self) -> bool:
        return not self._running and not self._waiting

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def take_idle(self, claim: Claim) -> None:
        """For whoever has just seen that nobody else is here."""
        self._running.append(claim)

    async def take(self, claim: Claim) -> None:
        if self.idle or self._may_run(claim, [waiting for waiting, _ in self._waiting]):
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
