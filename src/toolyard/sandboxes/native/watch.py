"""Limits in the native backend: the program's control group shows whose memory or processes ran out."""

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
"""If a program waited for the host's memory for this share of its time, it might otherwise have met its limit."""
_STALLED_SECONDS = 0.25
"""The least wait that counts: every program that uses much memory waits a little for it."""


class Strained(Protocol):
    """The sandbox's control group, as far as it reports shortages."""

    def glance(self) -> Strain:
        """The baseline, before a program begins."""

    def strain(self, *, late: bool = False) -> Strain:
        """The strain after a program has ended; `late` if it timed out."""

    async def ran_out(self, before: Strain) -> str:
        """Whose memory ran out since `before`, if the agent is gone."""

    def is_full(self) -> bool:
        """Whether the sandbox reached its process limit."""

    def is_out_of_memory(self) -> bool:
        """Whether the sandbox uses all of its memory."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox and its branches have in common."""

    report: Callable[[], Report]
    owner: int
    """The outside user of its programs; -1 for our own."""
    memory_enforced: bool
    """Whether a cgroup enforces it."""
    group: Strained
    check_room: Callable[[int], None]
    """Raises `SandboxError` if there is no room for so many more branches."""
    counted: bool = True
    """Whether a cgroup counts the kills for want of memory."""
    memory_left: Callable[[], int | None] = lambda: None
    """Bytes that a sandbox with its branches may still use. None if unlimited."""
    is_branch: bool = False
    copying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """A sandbox and its branches make one branch at a time: they share the remaining memory."""

    def of_branch(self) -> Ground:
        return dataclasses.replace(self, is_branch=True)

    def unenforced(self) -> Ground:
        """For a program whose memory limit is below the sandbox's: no cgroup enforces that."""
        return dataclasses.replace(self, memory_enforced=False)


class NativeWatch(watching.Watch):
    def __init__(
        self, limits: Limits, timeout: float | None, ground: Ground, *, every: float = watching.MEASURE_SECONDS
    ) -> None:
        self._ground = ground
        self.before = ground.group.glance()
        super().__init__(limits, timeout, memory_enforced=ground.memory_enforced, every=every)

    def look_back(self, before: Strain) -> None:
        """Call this for a program that ended between two requests: compare with the strain when the last one ended."""
        self.before = self.before._replace(oom_kills=before.oom_kills, memory_full=before.memory_full)

    async def until(self, keeper: Keeper, program: RemoteProgram, *ends: asyncio.Future[Any]) -> Limit | None:
        """Wait until one of `ends` is done (None), or the program exceeds a limit."""

        async def measure() -> tuple[float, int]:
            used = await keeper.measure(program)
            return used["cpu"], used["memory"]

        program.on_full = self.fill
        return await self.wait(measure, *ends)

    def enforced(self, ending: Mapping[str, Any], *, ended_here: bool = False) -> Limit | None:
        """The limit by which the kernel ended a program, if it did. Raises HostExhausted if the host had no memory
        left. `ended_here` if this server killed it."""
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
        """The result of a program that could not start. Raises HostExhausted if the host has no room for it."""
        return endings.unstarted(error, self._ground.report().level, own=self._is_own(error))

    def _is_own(self, error: OSError) -> bool:
        """Whether the sandbox's own limits explain the error."""
        if error.errno == errno.EAGAIN:
            return self._ground.group.is_full()
        if error.errno == errno.ENOSPC:  # also the kernel's answer to namespaces nested too deeply
            return self._ground.is_branch
        return error.errno == errno.ENOMEM and self._ground.group.is_out_of_memory()

    def check_host(self) -> None:
        """After any end: raise HostExhausted if the host, and not the sandbox, was short of memory or processes for it.
        Then the result proves nothing."""
        self._check_host()

    def _check_host(self) -> Strain:
        now = self._ground.group.strain(late=self.timed_out)
        if now is self.before:  # the usual case
            return now
        stalled = now.memory_stalled - self.before.memory_stalled
        if self.timed_out and stalled > max(self._wall_seconds * _STALLED_SHARE, _STALLED_SECONDS):
            raise HostExhausted.of("memory")
        if now.out_of_memory(self.before) == "host":
            raise HostExhausted.of("memory")
        if now.out_of_processes(self.before) == "host":
            raise HostExhausted.of("processes")
        return now
