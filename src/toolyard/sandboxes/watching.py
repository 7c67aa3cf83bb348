"""Watches one program of any backend for the first limit that it exceeds, by clocks that are fair to it.

Only the program's own time counts. While this server stalls, its programs go on. So a result wins over a late timer,
and where a clock runs beside the program, that clock decides whether it took too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from toolyard.core.errors import SandboxLost
from toolyard.core.stalls import Countdown
from toolyard.sandboxes.base import Limit, Limits
from toolyard.sandboxes.endings import HostExhausted, host_kills

MEASURE_SECONDS = 0.1
_CPU_SHORT = 0.5
"""The kernel enforces the limit by counting the ticks in which it saw a program run. Afterwards it reports the real
time: at least this part of the limit, even where many programs share a tick."""
PIPE_BYTES = 64 * 1024
"""The capacity of a pipe. A program that reads and writes less than that never has to wait for this server."""

Measure = Callable[[], Awaitable[tuple[float, int]]]
"""Returns the seconds of processor time and bytes of memory that a program and all its processes use. Raises OSError if
they cannot be measured now."""


class Watch:
    """Waits for one program to end, and notes the first limit that it exceeds."""

    def __init__(
        self, limits: Limits, timeout: float | None, *, memory_enforced: bool, every: float = MEASURE_SECONDS
    ) -> None:
        self._limits = limits
        self._every = every
        self._wall_seconds = limits.wall_seconds if timeout is None else timeout
        self._memory_enforced = memory_enforced
        self._over: asyncio.Future[Limit | None] = asyncio.get_running_loop().create_future()
        self._stalled_seconds = 0.0
        self._cpu_seconds = 0.0
        self._host_kills = 0 if memory_enforced else host_kills.recent()
        self._began = time.monotonic()  # the loop's own clock may stand still for a millisecond

    @property
    def memory_enforced(self) -> bool:
        return self._memory_enforced

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def timed_out(self) -> bool:
        return self._over.done() and self._over.result() == "wall"

    def begin(self) -> None:
        """Call this before starting work that had to wait for its turn: its time counts from here."""
        if self._over.done():
            raise SandboxLost("it was given up before it was begun")
        self._began = time.monotonic()

    def exceed(self, limit: Limit) -> None:
        self._end(limit)

    def fill(self) -> None:
        """The program has written more than is kept."""
        self._end("output")

    async def wait(self, measure: Measure, *ends: asyncio.Future[Any]) -> Limit | None:
        """Wait until one of `ends` is done (None), or the program exceeds a limit."""
        countdown = Countdown(self._wall_seconds, self._end_late)
        for end in ends:
            end.add_done_callback(self._ended)
        try:
            if self._limits.cpu_seconds is None and self._memory_enforced:
                return await self._over
            async with self._measured(measure):
                return await self._over
        finally:
            if self.seconds > self._wall_seconds:
                self._stalled_seconds = countdown.stalled_seconds
            countdown.cancel()

    def overran(self, own_seconds: float, *, moved_bytes: int) -> Limit | None:
        """Whether a program that has ended took too long by its own clock, when this server stalled and noticed too
        late. A program that moved more than a pipe holds (`moved_bytes`, the most through one pipe) may have waited for
        us: then our stall does not count against it."""
        if self.seconds <= self._wall_seconds:
            return None
        excused = self._stalled_seconds if moved_bytes >= PIPE_BYTES else 0.0
        return "wall" if own_seconds > self._wall_seconds + excused else None

    def by_signal(self, code: int, cpu_seconds: float) -> Limit | None:
        """The limit for which the kernel ended a program by a signal, memory apart."""
        if code == -signal.SIGXFSZ:
            return "file_size"
        most = self._limits.cpu_seconds
        if most is None or code >= 0:
            return None
        part = _CPU_SHORT if code == -signal.SIGXCPU else 1.0
        return "cpu" if cpu_seconds >= part * most else None

    def check_killed(self, code: int) -> None:
        """For a program that this server did not kill. Raises HostExhausted if it was killed while the kernel freed
        memory by killing processes, and no control group says which ones."""
        if code == -signal.SIGKILL and not self._memory_enforced and host_kills.now() > self._host_kills:
            raise HostExhausted.of("memory")

    def _ended(self, _: asyncio.Future[Any]) -> None:
        self._end(None)

    def _end_late(self) -> None:
        self._end("wall")

    def _end(self, limit: Limit | None) -> None:
        if not self._over.done():
            self._over.set_result(limit)

    @contextlib.asynccontextmanager
    async def _measured(self, measure: Measure) -> AsyncIterator[None]:
        """Check now and then the processor time of all its processes, and their memory where no cgroup limits it."""
        measuring = asyncio.ensure_future(self._measure(measure))
        try:
            yield
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def _measure(self, measure: Measure) -> None:
        before: float | None = None
        while True:
            try:
                cpu, memory = await measure()
            except OSError:  # it cannot be measured now; try again later
                await asyncio.sleep(self._every)
                continue
            before = cpu if before is None else before
            self._cpu_seconds = max(self._cpu_seconds, cpu - before)
            if self._limits.cpu_seconds is not None and cpu - before > self._limits.cpu_seconds:
                self._end("cpu")
            if not self._memory_enforced and memory > self._limits.memory_bytes:
                self._end("memory")
            await asyncio.sleep(self._every)
