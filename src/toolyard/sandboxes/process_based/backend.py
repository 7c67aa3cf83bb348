"""The common part of backends whose sandboxes are rooms."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from functools import partial

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes import capacity
from toolyard.sandboxes.base import Limits, Profile, Report
from toolyard.sandboxes.process_based.room import Room
from toolyard.sandboxes.process_based.sandbox import RoomSandbox
from toolyard.sandboxes.view import View


class RoomBackend(ABC):
    """Holds its sandboxes and the report. A backend adds how to start, and how to open a sandbox."""

    def __init__(self, view: View | None = None) -> None:
        self._view = view or View.usual()
        self._report: Report | None = None
        self._sandboxes: set[RoomSandbox] = set()

    @abstractmethod
    async def open(self, limits: Limits | None = None, *, profile: Profile = "plain") -> RoomSandbox:
        """Open a sandbox in its own room."""

    def report(self) -> Report:
        if self._report is None:
            raise SandboxUnavailable("the sandbox has not been started")
        return self._report

    def count(self) -> tuple[int, int]:
        return len(self._sandboxes), 0

    async def close(self) -> None:
        await asyncio.gather(*(sandbox.close() for sandbox in list(self._sandboxes)))

    def _sandbox_in(self, room: Room, limits: Limits, profile: Profile) -> RoomSandbox:
        sandbox = RoomSandbox(
            room,
            limits,
            profile,
            report=self.report,
            again=lambda: self.open(limits, profile=profile),
            another=partial(self.open, profile=profile),
            check_room=lambda more: capacity.check(len(self._sandboxes) + more - 1, more - 1),
            on_close=self._sandboxes.discard,
        )
        self._sandboxes.add(sandbox)
        return sandbox
