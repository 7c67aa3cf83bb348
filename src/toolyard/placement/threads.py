"""Plain functions off the event loop, in threads that stay warm.

A function that is given up keeps its thread until it returns, since a thread cannot be killed; another thread takes
the place, so that hung functions do not starve the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
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


_AT_ONCE = 32
"""So many threads are started as soon as there is work for them. A burst of quick functions needs no more."""

_PATIENCE = 0.02
"""Seconds that work waits behind slow functions before it gets threads of its own."""


class Threads:
    """Used from one event loop at a time; the counters are touched there."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alive = 0
        self._relief: asyncio.TimerHandle | None = None
        self._unfinished = 0
        self._hung = 0
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), always=always)
        self._unfinished += 1
        self._jobs.put(job)
        if self._unfinished > self._alive:
            if self._alive < min(_AT_ONCE, self._most) + self._hung:
                self._add_thread()
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
        """Give a thread to each function that waits for one, as far as that is allowed."""
        if self._relief is not None:
            self._relief.cancel()
            self._relief = None
        waiting = self._unfinished - self._alive
        for _ in range(min(waiting, self._most + self._hung - self._alive)):
            self._add_thread()

    def _add_thread(self) -> None:
        self._alive += 1
        threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()

    def close(self) -> None:
        """Let every thread end once it has nothing to do."""
        for _ in range(self._alive):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            result = error = None
            if job.always or not job.given_up:
                job.started = True
                try:
                    result = job.context.run(job.function)
                except BaseException as raised:  # the author's code, SystemExit included: it belongs to the caller
                    error = raised
            try:
                job.future.get_loop().call_soon_threadsafe(self._done, job, result, error)
            except RuntimeError:  # that loop is closed: nobody waits any more
                self._unfinished -= 1
            del job, result, error  # or an idle thread would keep the environment it last worked for

    def _done(self, job: _Job, result: Any, error: BaseException | None) -> None:
        self._unfinished -= 1
        if job.hung:
            self._hung -= 1
            if self._alive > self._most + self._hung:
                self._alive -= 1
                self._jobs.put(None)
        if job.future.done():
            return  # given up
        if error is None:
            job.future.set_result(result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            job.future.set_exception(error)
        else:
            job.future.set_exception(RuntimeError(describe(error)))  # a future cannot carry those
