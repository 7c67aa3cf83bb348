"""The server's handle on process 1 of a sandbox and its control group: everything inside ends with them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Mapping
from typing import Any

from toolyard.core.errors import SandboxLost
from toolyard.core.stalls import deadline
from toolyard.sandboxes.native.cgroups import Gauge, Group, Strain
from toolyard.sandboxes.native.channel import Channel, without_room

_PROMPTLY_SECONDS = 0.05
"""Time for a killed process to be gone, unless it waits for a processor."""
_DYING_SECONDS = 1.0
"""Time for process 1 to be gone after its last sign of life."""
_SECONDS = 60.0
"""The longest wait for it to be gone."""


class InitProcess:
    """Holds a pidfd, which cannot come to mean another process. `number` is its sandbox's, for the template."""

    def __init__(self, pidfd: int, group: Group, number: int, template: Channel) -> None:
        self._pidfd = pidfd
        self._group = group
        self._number = number
        self._template = template
        self._gauge: Gauge | None = None
        self._gone: asyncio.Future[None] | None = None
        self._ending: asyncio.Task[Mapping[str, Any]] | None = None

    def glance(self) -> Strain:
        """The baseline of its shortages."""
        return (self._gauge or self._measured()).glance()

    def strain(self, *, late: bool = False) -> Strain:
        """Its shortages now."""
        return (self._gauge or self._measured()).read(late=late)

    def strain_once(self, *, late: bool = False) -> Strain:
        """The same, for a caller that asks only once."""
        with contextlib.suppress(OSError):
            return self._group.strain(late=late)
        return Strain()

    async def ran_out(self, before: Strain) -> str:
        """Whose memory ran out since `before`, if a process of it was killed and not by us: as `Strain.out_of_memory`
        returns it."""
        if self.ended or not await self.is_gone(_DYING_SECONDS):
            return self.strain().out_of_memory(before)
        if self._ending is None:  # the template answers only once
            self._ending = asyncio.ensure_future(self.ending())
        ending = await asyncio.shield(self._ending)
        gauge = self._gauge or self._measured()
        return gauge.at_last(ending["oom_kills"], ending["memory_full"]).out_of_memory(before)

    def is_full(self) -> bool:
        """Whether it ever reached its process limit: then a failed fork is its own fault."""
        with contextlib.suppress(OSError):
            return self._group.processes_full()
        return False

    def is_out_of_memory(self) -> bool:
        """Whether it has reached its memory limit."""
        with contextlib.suppress(OSError):
            return self._group.memory_full() > 0
        return False

    def _measured(self) -> Gauge:
        try:
            self._gauge = Gauge(self._group)
        except OSError as error:
            raise without_room(error.strerror) from error
        return self._gauge

    def memory_left(self) -> int | None:
        """Bytes that it may still use. None if unlimited, or if it is gone."""
        try:
            return self._group.memory_left()
        except OSError:
            return None

    def pid(self) -> int:
        """Its pid outside, or -1 if it is gone."""
        with open(f"/proc/self/fdinfo/{self._pidfd}") as file:
            return next(int(line.split()[1]) for line in file if line.startswith("Pid:"))

    @property
    def ended(self) -> bool:
        return self._pidfd < 0

    def signal(self, number: int) -> None:
        if not self.ended:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    async def ending(self) -> Mapping[str, Any]:
        """Wait for its end and return it. For sandboxes without an agent that reports it."""
        try:
            async with deadline(_SECONDS):
                return (await self._template.ask("ending", sandbox=self._number)).header
        except TimeoutError:
            raise SandboxLost("the sandbox is gone: its template does not say how it ended") from None

    async def end(self) -> None:
        """Kill it, which ends everything in its namespace, and wait until it is gone. Call this once."""
        self.signal(signal.SIGKILL)
        try:
            # A process that has used up its share of processor time dies only at its next share: then lift the limit.
            if not await self.is_gone(_PROMPTLY_SECONDS):
                await self._unthrottle()
                if not await self.is_gone(_SECONDS):
                    raise SandboxLost("the sandbox does not end")
        finally:
            self._let_go()
        if self._template.lost:  # which would have removed the group
            with contextlib.suppress(OSError):  # a new broker may have swept it
                self._group.remove()

    async def is_gone(self, seconds: float) -> bool:
        """Whether it has ended, or ends within this time."""
        if self._gone is None:
            self._gone = asyncio.get_running_loop().create_future()
            self._gone.get_loop().add_reader(self._pidfd, self._see_end)
        await asyncio.wait((self._gone,), timeout=seconds)
        return self._gone.done()

    def _see_end(self) -> None:
        assert self._gone is not None
        self._gone.get_loop().remove_reader(self._pidfd)
        self._gone.set_result(None)

    def _let_go(self) -> None:
        asyncio.get_running_loop().remove_reader(self._pidfd)
        os.close(self._pidfd)
        self._pidfd = -1  # the number may soon mean another file
        if self._gauge is not None:
            self._gauge.close()

    async def _unthrottle(self) -> None:
        try:
            await self._template.tell({"op": "unthrottle", "sandbox": self._number})  # the template manages the group
        except SandboxLost:
            with contextlib.suppress(OSError):  # the group may be gone too
                self._group.unthrottle()
