"""Plain functions off the event loop, in threads that stay warm.

anyio's worker threads lack three things. Here a function that is given up keeps its thread, since a thread cannot be
killed, but another thread takes its place, so that hung functions do not starve the others. A burst of quick functions
is left to one thread, and more help only while hardly anything gets done. And the loop is woken once for all functions
that end together.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from toolyard.core.errors import ServiceUnavailable, describe

T = TypeVar("T")

_PATIENCE = 0.001
"""Seconds that functions wait before the pool looks whether more threads are to help."""
_QUICKLY = 4
"""Functions done in that time are quick: one thread does them faster than several that take turns at Python's lock."""


class _Job:
    """One function, who waits for it, and what came of it."""

    __slots__ = ("always", "begun", "context", "error", "function", "future", "given_up", "loop", "over", "result")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop, *, always: bool) -> None:
        self.function = function
        self.loop = loop
        self.always = always
        """The function runs even if nobody waits for it any more, as a teardown does."""
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] | None = loop.create_future()
        self.begun = self.over = self.given_up = False
        self.result: Any = None
        self.error: Exception | None = None

    def perform(self) -> None:
        """In a thread."""
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:  # the author's code, SystemExit included: it belongs to the caller
            usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
            self.error = error if usual else RuntimeError(describe(error))  # type: ignore[assignment]

    def settle(self) -> None:
        """On the loop. The job lets go of everything, or a traceback would keep itself alive."""
        future, self.future = self.future, None
        error, self.error = self.error, None
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(self.result)
        del error


class Threads:
    """At most `most` threads, beside those in which functions hang that were given up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        """Guards all of the following. Idle threads wait for it."""
        self._jobs: deque[_Job] = deque()
        self._done: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        """What each loop has been woken to collect."""
        self._hung: set[_Job] = set()
        self._alive = 0
        self._idle = 0
        self._closed = False
        self._performed = self._seen = 0
        """How many functions have been run, and how many had been when the pool last looked."""
        self._looking: asyncio.AbstractEventLoop | None = None
        """The loop that is about to look whether more threads are needed."""

    @property
    def hung(self) -> int:
        """How many functions were given up and still run."""
        return len(self._hung)

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        """Run a function in a thread. Whoever is cancelled while it runs leaves it there."""
        job = _Job(function, asyncio.get_running_loop(), always=always)
        future = job.future
        assert future is not None
        with self._changed:
            self._jobs.append(job)
            if self._alive - self._idle > len(self._hung):  # somebody works, and may soon be free
                self._look_later(job.loop)
            elif not self._summon(1):
                self._refuse_all()
        try:
            result: T = await future
            return result
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        finally:
            del job, future

    def close(self) -> None:
        """Let every thread end once it has nothing to do."""
        with self._changed:
            self._closed = True
            self._idle = 0
            self._changed.notify_all()

    # How many threads work. With the lock held.

    def _summon(self, wanted: int) -> bool:
        """Wake idle threads, then start new ones. Return whether any comes."""
        woken = min(wanted, self._idle)
        self._idle -= woken
        self._changed.notify(woken)
        for begun in range(min(wanted - woken, self._most + len(self._hung) - self._alive)):
            try:
                threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()
            except RuntimeError:  # the system has no more of them now
                return woken + begun > 0
            self._alive += 1
            woken += 1
        return woken > 0

    def _refuse_all(self) -> None:
        """Nobody can do what waits. What must always run stays for a thread to come."""
        for job in self._jobs:
            job.error = ServiceUnavailable("no thread can be started for a plain function")  # ours: the call is lost
            job.loop.call_soon_threadsafe(job.settle)
        self._jobs = deque(job for job in self._jobs if job.always)

    def _look_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._looking is not loop:
            self._looking = loop
            self._seen = self._performed
            loop.call_later(_PATIENCE, self._look, loop)

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop: while functions wait and hardly any gets done, double the threads that work on them."""
        with self._changed:
            if self._looking is loop:
                self._looking = None
            if not self._jobs:
                return
            quick = self._performed - self._seen >= _QUICKLY
            if quick or self._summon(min(len(self._jobs), max(self._alive - self._idle, 1))):
                self._look_later(loop)

    def _give_up(self, job: _Job) -> None:
        """Nobody waits for this any more. If a thread is in it, another takes that one's place."""
        with self._changed:
            job.given_up = True
            if job.begun and not job.over:
                self._hung.add(job)
                if self._jobs:
                    self._summon(1)

    # In the threads.

    def _work(self) -> None:
        while (job := self._next()) is not None:
            job.perform()
            self._report(job)
            del job  # or an idle thread would keep the environment it last worked for

    def _next(self) -> _Job | None:
        """Wait for a function; None when this thread is to end."""
        with self._changed:
            while True:
                if self._alive > self._most + len(self._hung):
                    break
                while self._jobs:
                    job = self._jobs.popleft()
                    if job.always or not job.given_up:
                        job.begun = True
                        return job
                if self._closed:
                    break
                self._idle += 1
                self._changed.wait()  # who wakes us has taken us off the idle ones
            self._alive -= 1
            return None

    def _report(self, job: _Job) -> None:
        """Wake the loop that waits, unless it has been already and has not looked yet."""
        with self._changed:
            self._performed += 1
            job.over = True
            self._hung.discard(job)
            done = self._done.setdefault(job.loop, [])
            done.append(job)
            if len(done) > 1:
                return
            try:
                job.loop.call_soon_threadsafe(self._collect, job.loop)
            except RuntimeError:  # it is closed, and nobody waits any more
                del self._done[job.loop]

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        """On the loop."""
        with self._changed:
            done = self._done.pop(loop)
        for job in done:
            job.settle()
