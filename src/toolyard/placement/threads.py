"""Plain functions off the event loop, in threads that stay warm.

A function that is given up keeps its thread until it returns, since a thread cannot be killed; another thread takes
the place, so that hung functions do not starve the others.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, TypeVar

from toolyard.core.errors import describe

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """A function that somebody waits for."""

    function: Callable[[], Any]
    future: asyncio.Future[Any]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    always: bool = False
    """To be run even if nobody waits for it any more, as a teardown is."""
    started: bool = False
    """Set by the thread."""
    given_up: bool = False
    result: Any = None
    error: BaseException | None = None

    def perform(self) -> bool:
        """In the thread. Whether there is news for the loop."""
        if self.always or not self.given_up:
            self.started = True
            try:
                self.result = self.context.run(self.function)
            except BaseException as raised:  # the author's code, SystemExit included: it belongs to the caller
                self.error = raised
        return True

    def settle(self) -> None:
        """On the loop."""
        error = self.error
        if self.future.done():
            return  # given up
        if error is None:
            self.future.set_result(self.result)
        elif isinstance(error, Exception) and not isinstance(error, StopIteration):
            self.future.set_exception(error)
        else:
            self.future.set_exception(RuntimeError(describe(error)))  # a future cannot carry those


class _Group:
    """Functions whose results are wanted together, so that the loop hears of them once."""

    def __init__(
        self, functions: Sequence[Callable[[], Any]], results: list[Any], future: asyncio.Future[None]
    ) -> None:
        self.future = future
        self.given_up = False
        self.results = results
        self.parts = [_Part(self, i, function) for i, function in enumerate(functions)]
        self._done = itertools.count(1)

    def is_complete(self) -> bool:
        """Asked once by each part when it is done; exactly one of them is the last."""
        return next(self._done) == len(self.parts)


@dataclass(slots=True, eq=False)
class _Part:
    group: _Group
    index: int
    function: Callable[[], Any]
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    started: bool = False

    def perform(self) -> bool:
        group = self.group
        if group.given_up:
            return False
        self.started = True
        group.results[self.index] = self.context.run(self.function)
        return group.is_complete() or group.given_up

    def settle(self) -> None:
        if not self.group.future.done():
            self.group.future.set_result(None)


_PATIENCE = 0.001
"""Seconds that work waits behind other functions before we look whether more threads are to help."""
_QUICKLY = 4
"""Functions done in that time. Such are best left to the thread that is at work: handing each to another one, and
Python's lock from one to the other, would cost more than running them."""


class Threads:
    """Used from one event loop at a time; the counters are touched there, except for those of `_lock`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alive = 0
        self._hung: set[_Job | _Part] = set()
        """Given up while a thread was in them, and still there."""
        self._relief: asyncio.TimerHandle | None = None
        self._jobs: deque[_Job | _Part] = deque()
        self._done: deque[_Job | _Part] = deque()
        self._performed = self._seen = 0
        """How many functions have been run, about, and how many had been when we last looked."""
        self._told = False
        """The loop has been told that something is done, and has not looked yet."""
        self._lock = threading.Lock()
        self._awake = 0
        """Threads that are at work, or about to be."""
        self._bell: SimpleQueue[bool] = SimpleQueue()
        """What the others wait for: True is work, False the end."""

    @property
    def hung(self) -> int:
        """How many functions were given up and still run."""
        return len(self._hung)

    async def run(self, function: Callable[[], T], *, always: bool = False) -> T:
        loop = asyncio.get_running_loop()
        job = _Job(function, loop.create_future(), always=always)
        self._add([job], loop)
        try:
            result: T = await job.future
            return result
        except asyncio.CancelledError:
            job.given_up = True
            self._leave([job] if job.started else [])
            raise

    async def run_all(self, functions: Sequence[Callable[[], T]], results: list[T | None]) -> None:
        """All of them, side by side as far as they take long. What each returns is put into its place in `results`,
        which holds None until then. There is at least one, and they must not raise anything."""
        loop = asyncio.get_running_loop()
        group = _Group(functions, results, loop.create_future())
        self._add(group.parts, loop)
        try:
            await group.future
        except asyncio.CancelledError:
            group.given_up = True
            self._leave([part for part in group.parts if part.started and results[part.index] is None])
            raise

    def _add(self, jobs: Sequence[_Job | _Part], loop: asyncio.AbstractEventLoop) -> None:
        self._jobs.extend(jobs)
        with self._lock:
            helped = self._awake > len(self._hung)
        if not helped:
            self._call(1)
        if helped or len(jobs) > 1:
            self._relieve_later(loop)

    def _leave(self, hung: Sequence[_Job | _Part]) -> None:
        """Nobody waits for these any more, but threads are in them, and others take their places."""
        self._hung.update(hung)
        if hung and self._jobs:
            self._call(len(hung))

    def _relieve_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._relief is None:
            self._relief = loop.call_later(_PATIENCE, self._relieve, loop)

    def _relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """While functions wait and hardly any gets done, double the threads that work on them, as far as allowed."""
        self._relief = None
        done, self._seen = self._performed - self._seen, self._performed
        if self._jobs and (done >= _QUICKLY or self._call(min(len(self._jobs), max(self._awake, 1)))):
            self._relieve_later(loop)

    def _call(self, wanted: int) -> bool:
        """Wake threads that sleep, then start new ones. Whether there were any to be had."""
        with self._lock:
            woken = min(wanted, self._alive - self._awake)
            started = max(min(wanted - woken, self._most + len(self._hung) - self._alive), 0)
            self._awake += woken + started
        for _ in range(woken):
            self._bell.put(True)
        for _ in range(started):
            self._alive += 1
            threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()
        return woken + started > 0

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

    def _run(self, job: _Job | _Part) -> None:
        news = job.perform()
        self._performed += 1
        if not news:
            return
        self._done.append(job)
        if not self._told:  # what is done until the loop looks, it finds all at once
            self._told = True
            future = job.future if isinstance(job, _Job) else job.group.future
            try:
                future.get_loop().call_soon_threadsafe(self._collect)
            except RuntimeError:  # that loop is closed: nobody waits any more
                self._told = False

    # On the loop.

    def _collect(self) -> None:
        self._told = False
        while self._done:
            job = self._done.popleft()
            if job in self._hung:
                self._hung.discard(job)
                self._end_one_too_many()
            job.settle()

    def _end_one_too_many(self) -> None:
        if self._alive > self._most + len(self._hung):
            self._alive -= 1
            self._bell.put(False)
