"""Plain functions off the event loop, in threads that stay warm.

A function that is given up keeps its thread until it returns, since a thread cannot be killed; another thread takes
the place, so that hung functions do not starve the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from toolyard.core.errors import describe

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    started: bool = False
    """Set by the thread."""
    always: bool = False
    """To be run even if nobody waits for it any more, as a teardown is."""
    given_up: bool = False
    hung: bool = False
    """Given up while a thread was in it, and still there."""


_PATIENCE = 0.001
"""Seconds that work waits behind other functions before more threads help. Quick ones are done by then, by the one
thread that is at work: handing each to a thread of its own would cost more than running it."""


class Threads:
    """Used from one event loop at a time; the counters are touched there, except for those of `_lock`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alive = 0
        self._hung = 0
        self._relief: asyncio.TimerHandle | None = None
        self._jobs: deque[_Job] = deque()
        self._done: deque[tuple[_Job, Any, BaseException | None]] = deque()
        self._told = False
        """The loop has been told that something is done, and has not looked yet."""
        self._lock = threading.Lock()
        self._awake = 0
        """Threads that are at work, or about to be."""
        self._bell: SimpleQueue[bool] = SimpleQueue()
        """What the others wait for: True is work, False the end."""

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), always=always)
        self._jobs.append(job)
        with self._lock:
            helped = self._awake > self._hung
        if not helped:
            self._call(1)
        elif self._relief is None:
            self._relief = loop.call_later(_PATIENCE, self._relieve)
        try:
            result: T = await job.future
            return result
        except asyncio.CancelledError:
            job.given_up = True
            if job.started:
                job.hung = True
                self._hung += 1
                self._relieve()
            raise

    def _relieve(self) -> None:
        """Call a thread for each function that waits for one, as far as that is allowed."""
        if self._relief is not None:
            self._relief.cancel()
            self._relief = None
        self._call(len(self._jobs))

    def _call(self, wanted: int) -> None:
        """Wake threads that sleep, then start new ones."""
        with self._lock:
            woken = min(wanted, self._alive - self._awake)
            started = min(wanted - woken, self._most + self._hung - self._alive)
            self._awake += woken + started
        for _ in range(woken):
            self._bell.put(True)
        for _ in range(started):
            self._alive += 1
            threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()

    def close(self) -> None:
        """Let every thread end once it has nothing to do."""
        for _ in range(self._alive):
            self._bell.put(False)

    # In the threads.

    def _work(self) -> None:
        while True:
            try:
                job = self._jobs.popleft()
            except IndexError:
                if self._sleep():
                    continue
                return
            self._run(job)
            del job  # or an idle thread would keep the environment it last worked for

    def _sleep(self) -> bool:
        """Until there is work; False when there will be none."""
        with self._lock:
            if self._jobs:
                return True
            self._awake -= 1
        return self._bell.get()

    def _run(self, job: _Job) -> None:
        result = error = None
        if job.always or not job.given_up:
            job.started = True
            try:
                result = job.context.run(job.function)
            except BaseException as raised:  # the author's code, SystemExit included: it belongs to the caller
                error = raised
        self._done.append((job, result, error))
        if not self._told:  # what is done until the loop looks, it finds all at once
            self._told = True
            try:
                job.future.get_loop().call_soon_threadsafe(self._collect)
            except RuntimeError:  # that loop is closed: nobody waits any more
                self._told = False

    # On the loop.

    def _collect(self) -> None:
        self._told = False
        while self._done:
            self._settle(*self._done.popleft())

    def _settle(self, job: _Job, result: Any, error: BaseException | None) -> None:
        if job.hung:
            self._hung -= 1
            if self._alive > self._most + self._hung:
                self._alive -= 1
                self._bell.put(False)
        if job.future.done():
            return  # given up
        if error is None:
            job.future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            job.future.set_exception(error)
        else:
            job.future.set_exception(RuntimeError(describe(error)))  # a future cannot carry those
