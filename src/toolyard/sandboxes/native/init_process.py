"""Process 1 of a sandbox and its control group, as the server holds them: whatever is in there ends with them."""

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
"""In which what was killed is gone, unless it has to wait for a processor."""
_DYING_SECONDS = 1.0
"""In which process 1 is gone after the last that was heard of it."""
_SECONDS = 60.0
"""For it to go all the same."""


class InitProcess:
    """Held by a descriptor that can mean no other process. `number` is that of its sandbox, for the template."""

    def __init__(self, pidfd: int, group: Group, number: int, template: Channel) -> None:
        self._pidfd = pidfd
        self._group = group
        self._number = number
        self._template = template
        self._gauge: Gauge | None = None
        self._gone: asyncio.Future[None] | None = None
        self._ending: asyncio.Task[Mapping[str, Any]] | None = None

    def glance(self) -> Strain:
        """What it is short of, to begin with."""
        return (self._gauge or self._measured()).glance()

    def strain(self, *, late: bool = False) -> Strain:
        """What it is short of now."""
        return (self._gauge or self._measured()).read(late=late)

    def strain_once(self, *, late: bool = False) -> Strain:
        """The same, for who asks only once."""
        with contextlib.suppress(OSError):
            return self._group.strain(late=late)
        return Strain()

    async def ran_out(self, before: Strain) -> str:
        """Whose memory ran out since then, if something in it that nobody here has ended is gone: as
        `Strain.out_of_memory` says it."""
        if self.ended or not await self.is_gone(_DYING_SECONDS):
            return self.strain().out_of_memory(before)
        if self._ending is None:  # which is told once
            self._ending = asyncio.ensure_future(self.ending())
        ending = await asyncio.shield(self._ending)
        gauge = self._gauge or self._measured()
        return gauge.at_last(ending["oom_kills"], ending["memory_full"]).out_of_memory(before)

    def is_full(self) -> bool:
        """Whether it had as many processes as it may: a fork that fails is its own fault then."""
        with contextlib.suppress(OSError):
            return self._group.processes_full()
        return False

    def is_out_of_memory(self) -> bool:
        """Whether it has reached its limit of memory."""
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
        """Bytes that it may take beside what it has. None where nothing limits it, or it is gone."""
        try:
            return self._group.memory_left()
        except OSError:
            return None

    def pid(self) -> int:
        """Its number outside, or -1 if it is gone."""
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
        """How it ended, when it has. For those without an agent that tells it."""
        try:
            async with deadline(_SECONDS):
                return (await self._template.ask("ending", sandbox=self._number)).header
        except TimeoutError:
            raise SandboxLost("the sandbox is gone: nobody can tell how it ended") from None

    async def end(self) -> None:
        """Kill it, and with it everything in its namespace; and wait until it is gone. Once only."""
        self.signal(signal.SIGKILL)
        try:
            # One that has used up its share of processor time dies only when it gets the next: it is helped, then.
            if not await self.is_gone(_PROMPTLY_SECONDS):
                await self._unthrottle()
                if not await self.is_gone(_SECONDS):
                    raise SandboxLost("the sandbox does not end")
        finally:
            self._let_go()
        if self._template.lost:  # who would have removed it
            with contextlib.suppress(OSError):  # a new broker has swept
                self._group.remove()

    async def is_gone(self, seconds: float) -> bool:
        """Whether it has ended, or does so in this time."""
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
        self._pidfd = -1  # and not the number of another, by now
        if self._gauge is not None:
            self._gauge.close()

    async def _unthrottle(self) -> None:
        try:
            await self._template.tell({"op": "unthrottle", "sandbox": self._number})  # whose group it is
        except SandboxLost:
            with contextlib.suppress(OSError):  # gone, too
                self._group.unthrottle()
