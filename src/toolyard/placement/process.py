"""Sessions in other processes, so that one that crashes or hangs does no harm to the server.

`ProcessPlacement` forks a process for each session. `PoolPlacement` keeps a few, with many sessions in each.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from toolyard.core.errors import Overloaded, SessionFailed
from toolyard.placement.base import Placed, SessionSpec
from toolyard.placement.fork_server import ForkServer, ForkServerLost, ProcessLimits
from toolyard.placement.local import LocalPlacement
from toolyard.placement.remote import RemoteEnvironment, WorkerProcess
from toolyard.placement.worker_side import Served
from toolyard.rpc import PeerLost

log = logging.getLogger("toolyard.placement")

T = TypeVar("T")

_RECENTLY = 60
"""For this many seconds after a process could not be started, the server is not ready. Not for ever: without sessions
the server could not show that it works again."""
_FORK_SERVERS_MOST = 3
"""How many fork servers to try for one process. If two end at once, something is wrong with all of them."""


class ProcessPlacement:
    """One process for each session."""

    is_here = False
    hung = 0
    """As in `LocalPlacement`. Here a function that does not stop ends with its process."""

    def __init__(self, served: Served, limits: ProcessLimits) -> None:
        self._served = served
        self._limits = limits
        self._here = LocalPlacement(served.threads)
        """Runs class methods, which need no session."""
        self._fork_server: ForkServer | None = None
        self._processes: set[WorkerProcess] = set()
        self._failed = -math.inf

    @property
    def processes(self) -> int:
        return self._fork_server.workers if self._fork_server is not None else 0

    @property
    def problem(self) -> str:
        recently = time.monotonic() - self._failed < _RECENTLY
        return "no process for a session could be started" if recently else ""

    def prepare(self) -> None:
        """Fork the fork server. Best done before there is an event loop, or a thread."""
        if self._fork_server is None:
            self._fork_server = ForkServer(self._served, self._limits)

    async def place(self, spec: SessionSpec) -> Placed:
        process = await self._start()
        return await self._placed(spec, process, alone=True)

    async def ask(self, hook: Callable[..., Any], *args: object) -> Any:
        return await self._here.ask(hook, *args)

    async def stop(self) -> None:
        """End every process that is left."""
        fork_server = self._fork_server
        self._fork_server = None  # before any wait: a fork server that starts meanwhile is kept
        self._here.close()
        await asyncio.gather(*(process.end("the server is stopping") for process in list(self._processes)))
        if fork_server is not None:
            fork_server.close()

    async def _placed(self, spec: SessionSpec, process: WorkerProcess, *, alone: bool) -> RemoteEnvironment:
        environment = RemoteEnvironment(spec, process, alone=alone)
        process.sessions += 1
        try:
            await environment.place(spec.task, spec.secrets)
        except BaseException as error:
            await environment.give_up()
            if isinstance(error, PeerLost):
                raise SessionFailed(f"the session could not be started: {process.ended}") from None
            raise
        return environment

    async def _start(self) -> WorkerProcess:
        """Start a process; from a new fork server, if the old one has ended."""
        try:
            for _ in range(_FORK_SERVERS_MOST):
                if (process := await self._try()) is not None:
                    self._failed = -math.inf
                    return process
            raise OSError("its fork server ends as soon as it is started")
        except OSError as error:  # such as a fork that the kernel refuses
            self._failed = time.monotonic()
            raise Overloaded(f"no process for a session could be started: {error}", retry_after=5) from error

    async def _try(self) -> WorkerProcess | None:
        """Start a process. None if the fork server has ended."""
        self.prepare()
        assert self._fork_server is not None
        fork_server = self._fork_server
        try:
            return await WorkerProcess.start(fork_server, self._processes)
        except ForkServerLost as lost:
            if self._fork_server is fork_server:  # no other caller has replaced it yet
                log.error("%s, and all sessions in its processes; starting another one", lost)
                await self.stop()
            return None


class PoolPlacement(ProcessPlacement):
    """A few processes, with many sessions in each. The first session starts them all."""

    def __init__(self, served: Served, limits: ProcessLimits, *, size: int = 0) -> None:
        super().__init__(served, limits)
        self._size = size or os.cpu_count() or 1
        self._pool: list[WorkerProcess] = []
        self._filling = asyncio.Lock()

    async def place(self, spec: SessionSpec) -> Placed:
        return await self._placed(spec, await self._least_loaded(), alone=False)

    async def stop(self) -> None:
        self._pool = []
        await super().stop()

    async def _least_loaded(self) -> WorkerProcess:
        self._pool = [process for process in self._pool if not (process.ended or process.retired)]
        if len(self._pool) < self._size:
            async with self._filling:
                await self._fill()
        return min(self._pool, key=lambda process: process.sessions)

    async def _fill(self) -> None:
        """Start the processes that are missing. If the system refuses some, fewer will do."""
        while len(self._pool) < self._size:
            try:
                process = await self._start()
                self._pool.append(process)  # to the current list, which others may have replaced meanwhile
            except Overloaded as error:
                if not self._pool:
                    raise
                log.warning("the pool has %d processes of %d: %s", len(self._pool), self._size, error)
                return
