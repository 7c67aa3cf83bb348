"""What the native backend knows of a program's limits: its control group tells whose memory or processes ran out."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolyard.sandboxes import endings, watching
from toolyard.sandboxes.base import Finished, Limit, Limits, Report
from toolyard.sandboxes.endings import HostExhausted
from toolyard.sandboxes.native.agent_client import Keeper, RemoteProgram
from toolyard.sandboxes.native.cgroups import Strain

_STALLED_SHARE = 0.1
"""Of its time, in which a program had to wait for memory of the host's: it might have been in time otherwise."""
_STALLED_SECONDS = 0.25
"""The least of that which counts: every program that takes much memory waits a little for it."""


class Strained(Protocol):
    """The sandbox's control group, as far as it tells what there was too little of."""

    def glance(self) -> Strain:
        """Before a program begins."""

    def strain(self, *, late: bool = False) -> Strain:
        """After it has ended, `late` if its time was over."""

    async def ran_out(self, before: Strain) -> str:
        """Whose memory ran out since then, if its agent is gone."""

    def is_full(self) -> bool:
        """Whether the sandbox had as many processes as it may."""

    def is_out_of_memory(self) -> bool:
        """Whether it uses all the memory that it may."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox and its branches stand on."""

    report: Callable[[], Report]
    owner: int
    """The user, outside, that programs run as; -1 if that is our own."""
    memory_enforced: bool
    """By a cgroup."""
    group: Strained
    check_room: Callable[[int], None]
    """Raises `SandboxError` if there is no room for so many branches more."""
    counted: bool = True
    """A cgroup tells which kills were for want of memory."""
    memory_left: Callable[[], int | None] = lambda: None
    """Bytes that a sandbox with its branches may take beside what it has. None where nothing limits that."""
    is_branch: bool = False
    copying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of a sandbox and its branches one makes a branch at a time: what is left of their memory is for all of them."""

    def of_branch(self) -> Ground:
        return dataclasses.replace(self, is_branch=True)

    def unenforced(self) -> Ground:
        """For a program that may have less memory than the sandbox, which no cgroup knows of."""
        return dataclasses.replace(self, memory_enforced=False)


class NativeWatch(watching.Watch):
    def __init__(
        self, limits: Limits, timeout: float | None, ground: Ground, *, every: float = watching.MEASURE_SECONDS
    ) -> None:
        self._ground = ground
        self.before = ground.group.glance()
        super().__init__(limits, timeout, memory_enforced=ground.memory_enforced, every=every)

    def look_back(self, before: Strain) -> None:
        """To be called for a program that ended before it was asked for anything: whose fault that is began then."""
        self.before = self.before._replace(oom_kills=before.oom_kills, memory_full=before.memory_full)

    async def until(self, keeper: Keeper, program: RemoteProgram, *ends: asyncio.Future[Any]) -> Limit | None:
        """Wait until one of the ends is done (None), or the program exceeds a limit."""

        async def measure() -> tuple[float, int]:
            used = await keeper.measure(program)
            return used["cpu"], used["memory"]

        program.on_full = self.fill
        return await self.wait(measure, *ends)

    def enforced(self, ending: Mapping[str, Any], *, ended_here: bool = False) -> Limit | None:
        """The limit by which the kernel ended a program, if it did. Raises HostExhausted if it did so because the host
        has no memory left. `ended_here` if it was this server that killed it."""
        code = ending["code"]
        if "unstarted" in ending:
            self.unstarted(OSError(ending["unstarted"], os.strerror(ending["unstarted"])))
        if limit := self.by_signal(code, ending["cpu"]):
            return limit
        if code == -signal.SIGKILL and self._check_host().out_of_memory(self.before) == "own":
            return "memory"
        if not self._ground.counted and not ended_here:
            self.check_killed(code)
        return None

    def unstarted(self, error: OSError) -> Finished:
        """How a program ended that could not begin. Raises HostExhausted if the host has no room for it."""
        return endings.unstarted(error, self._ground.report().level, own=self._is_own(error))

    def _is_own(self, error: OSError) -> bool:
        """Whether the sandbox's own limits explain it."""
        if error.errno == errno.EAGAIN:
            return self._ground.group.is_full()
        if error.errno == errno.ENOSPC:  # also what the kernel answers when namespaces are nested too deeply
            return self._ground.is_branch
        return error.errno == errno.ENOMEM and self._ground.group.is_out_of_memory()

    def check_host(self) -> None:
        """Of whatever has ended well or badly: raises HostExhausted if the host, and not the sandbox, had too little
        memory or too few processes for it. What it did is then no proof of anything."""
        self._check_host()

    def _check_host(self) -> Strain:
        now = self._ground.group.strain(late=self.timed_out)
        if now is self.before:  # as it mostly is
            return now
        stalled = now.memory_stalled - self.before.memory_stalled
        if self.timed_out and stalled > max(self._wall_seconds * _STALLED_SHARE, _STALLED_SECONDS):
            raise HostExhausted.of("memory")
        if now.out_of_memory(self.before) == "host":
            raise HostExhausted.of("memory")
        if now.out_of_processes(self.before) == "host":
            raise HostExhausted.of("processes")
        return now
