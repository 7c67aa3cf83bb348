"""The limits that the server enforces itself: how long something may take, and what no limit of the kernel's covers."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolyard.core.errors import SandboxLost
from toolyard.sandboxes.base import Limit, Limits, Report
from toolyard.sandboxes.native.guest import Keeper, Program

_MEASURE_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox and its branches stand on."""

    report: Callable[[], Report]
    owner: int
    """The user, outside, that programs run as; -1 if that is our own."""
    memory_enforced: bool
    """By a cgroup."""
    oom_kills: Callable[[], int]
    """How often the kernel has ended something in the sandbox because of its memory."""
    check_room: Callable[[int], None]
    """Raises `SandboxError` if there is no room for so many branches more."""
    memory_left: Callable[[], int | None] = lambda: None
    """Bytes that a sandbox with its branches may take beside what it has. None where nothing limits that."""
    copying: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Of a sandbox and its branches one makes a branch at a time: what is left of their memory is for all of them."""

    def unenforced(self) -> Ground:
        """For a program that may have less memory than the sandbox, which no cgroup knows of."""
        return dataclasses.replace(self, memory_enforced=False)


class Watch:
    """Waits for one thing to end, and notes the first limit that it exceeds."""

    def __init__(
        self, limits: Limits, timeout: float | None, ground: Ground, *, every: float = _MEASURE_SECONDS
    ) -> None:
        self._limits = limits
        self._every = every
        self._wall_seconds = limits.wall_seconds if timeout is None else timeout
        self._ground = ground
        self._loop = asyncio.get_running_loop()
        self._over: asyncio.Future[Limit | None] = self._loop.create_future()
        self._oom_kills = ground.oom_kills()
        self._began = time.monotonic()  # the loop's own clock may stand still for a millisecond

    @property
    def memory_enforced(self) -> bool:
        return self._ground.memory_enforced

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def exceed(self, limit: Limit) -> None:
        if not self._over.done():
            self._over.set_result(limit)

    def begin(self) -> None:
        """To be called before something is begun that had to wait for its turn: its time counts from here."""
        if self._over.done():
            raise SandboxLost("it was given up before it was begun")
        self._began = time.monotonic()

    async def until(self, keeper: Keeper, program: Program, *ends: asyncio.Future[Any]) -> Limit | None:
        """Wait until one of the ends is done (None), or the program exceeds a limit."""
        timer = self._loop.call_later(self._wall_seconds, self.exceed, "wall")
        program.on_full = lambda: self.exceed("output")
        for end in ends:
            end.add_done_callback(self._ended)
        try:
            if self._limits.cpu_seconds is None and self._ground.memory_enforced:
                return await self._over
            async with self._measured(keeper, program):
                return await self._over
        finally:
            timer.cancel()

    def _ended(self, _: asyncio.Future[Any]) -> None:
        if not self._over.done():
            self._over.set_result(None)

    def enforced(self, ending: Mapping[str, Any]) -> Limit | None:
        """The limit by which the kernel ended a program, if it did."""
        code = ending["code"]
        if code == -signal.SIGXFSZ:
            return "file_size"
        if self._limits.cpu_seconds is not None and ending["cpu"] >= self._limits.cpu_seconds and code < 0:
            return "cpu"
        return "memory" if code == -signal.SIGKILL and self._ground.oom_kills() > self._oom_kills else None

    @contextlib.asynccontextmanager
    async def _measured(self, keeper: Keeper, program: Program) -> AsyncIterator[None]:
        """Look now and then at the processor time of all of its processes together, and at their memory where no
        cgroup does."""
        measuring = asyncio.ensure_future(self._measure(keeper, program))
        try:
            yield
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def _measure(self, keeper: Keeper, program: Program) -> None:
        before: float | None = None
        while True:
            try:
                used = await keeper.measure(program)
            except OSError:  # nobody could look just now; next time, perhaps
                await asyncio.sleep(self._every)
                continue
            before = used["cpu"] if before is None else before
            if self._limits.cpu_seconds is not None and used["cpu"] - before > self._limits.cpu_seconds:
                self.exceed("cpu")
            if not self._ground.memory_enforced and used["memory"] > self._limits.memory_bytes:
                self.exceed("memory")
            await asyncio.sleep(self._every)
