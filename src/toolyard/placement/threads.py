"""Runs plain functions off the event loop, in threads that stay warm.

It does three things that anyio's worker threads do not. When a caller gives up on a function, the function keeps its
thread, because a thread cannot be killed; but another thread takes its place, so that hung functions do not starve the
others. One thread runs a burst of quick functions; more threads help only while hardly any function ends. And the pool
wakes the event loop once for all functions that end together.
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
"""Seconds that functions wait before the pool checks whether more threads should help."""
_QUICKLY = 4
"""If this many functions end in that time, they are quick: one thread is faster than several that take the GIL in turn.
"""


class _Job:
    """One function, the future that waits for it, and its outcome."""

    __slots__ = ("always", "begun", "context", "error", "function", "future", "given_up", "loop", "over", "result")

    def __init__(self, function: Callable[[], Any], loop: asyncio.AbstractEventLoop, *, always: bool) -> None:
        self.function = function
        self.loop = loop
        self.always = always
        """The function runs even if its caller gave up before it began, as a teardown must."""
        self.context = contextvars.copy_context()
        self.future: asyncio.Future[Any] | None = loop.create_future()
        self.begun = self.over = self.given_up = False
        self.result: Any = None
        self.error: Exception | None = None

    def perform(self) -> None:
        """Runs in a thread."""
        try:
            self.result = self.context.run(self.function)
        except BaseException as error:  # the author's code, SystemExit included: the caller gets it
            usual = isinstance(error, Exception) and not isinstance(error, StopIteration)
            self.error = error if usual else RuntimeError(describe(error))  # type: ignore[assignment]

    def settle(self) -> None:
        """Runs on the loop. The job drops its references, or a traceback would keep itself alive."""
        future, self.future = self.future, None
        error, self.error = self.error, None
        if future is not None and not future.done():
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(self.result)
        del error


class Threads:
    """At most `most` threads, not counting those that run functions whose callers gave up."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._changed = threading.Condition()
        """Guards all fields below. Idle threads wait for it."""
        self._jobs: deque[_Job] = deque()
        self._done: dict[asyncio.AbstractEventLoop, list[_Job]] = {}
        """Finished jobs that each loop has been woken to collect."""
        self._hung: set[_Job] = set()
        self._alive = 0
        self._idle = 0
        self._closed = False
        self._performed = self._seen = 0
        """How many functions have ended, and how many had at the last check."""
        self._looking: asyncio.AbstractEventLoop | None = None
        """The loop that will check next whether more threads are needed."""

    @property
    def hung(self) -> int:
        """How many functions still run although their callers gave up."""
        return len(self._hung)

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        """Run a function in a thread. If the caller is cancelled, the function goes on there."""
        job = _Job(function, asyncio.get_running_loop(), always=always)
        future = job.future
        assert future is not None
        with self._changed:
            self._jobs.append(job)
            if self._alive - self._idle > len(self._hung):  # a thread works, and may soon be free
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

    # How many threads work. All of this runs with the lock held, except `_look` and `_give_up`, which take it.

    def _summon(self, wanted: int) -> bool:
        """Wake idle threads, then start new ones. Return whether there was any."""
        woken = min(wanted, self._idle)
        self._idle -= woken
        self._changed.notify(woken)
        for begun in range(min(wanted - woken, self._most + len(self._hung) - self._alive)):
            try:
                threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()
            except RuntimeError:  # the system can start no more threads now
                return woken + begun > 0
            self._alive += 1
            woken += 1
        return woken > 0

    def _refuse_all(self) -> None:
        """Fail all waiting callers, because there is no thread. Functions that must run stay for a later thread."""
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
        """Runs on the loop: while functions wait and hardly any ends, double the threads that work."""
        with self._changed:
            if self._looking is loop:
                self._looking = None
            if not self._jobs:
                return
            quick = self._performed - self._seen >= _QUICKLY
            if quick or self._summon(min(len(self._jobs), max(self._alive - self._idle, 1))):
                self._look_later(loop)

    def _give_up(self, job: _Job) -> None:
        """The caller waits no more. If a thread runs the function, another thread takes its place."""
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
            del job  # or an idle thread would keep the environment of its last function alive

    def _next(self) -> _Job | None:
        """Wait for a function. None tells the thread to end."""
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
                self._changed.wait()  # `_summon` or `close` counts us as no longer idle
            self._alive -= 1
            return None

    def _report(self, job: _Job) -> None:
        """Wake the caller's loop, unless it was woken before and has not collected yet."""
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
            except RuntimeError:  # the loop is closed, so nothing waits for the job
                del self._done[job.loop]

    def _collect(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs on the loop."""
        with self._changed:
            done = self._done.pop(loop)
        for job in done:
            job.settle()
