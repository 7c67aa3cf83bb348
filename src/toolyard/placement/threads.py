"""Plain functions off the event loop, in threads that stay warm.

A function that is given up keeps its thread until it returns, since a thread cannot be killed; another thread takes
the place, so that hung functions do not starve the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from operator import length_hint
from queue import SimpleQueue
from typing import Any, Self, TypeAlias, TypeVar

from toolyard.core.errors import ServiceUnavailable, describe

T = TypeVar("T")


class _Job:
    """Functions whose results are wanted together, so that the loop hears of them once. They raise nothing."""

    __slots__ = ("_begun", "_context", "_done", "_functions", "_results", "always", "future", "given_up")

    def __init__(
        self,
        functions: Sequence[Callable[[], Any]],
        results: list[Any],
        future: asyncio.Future[None],
        *,
        always: bool,
    ) -> None:
        self.future = future
        self.always = always
        """To be run even if nobody waits for them any more, as a teardown is."""
        self.given_up = False
        self._functions = functions
        self._results = results
        self._context = contextvars.copy_context()
        self._begun = iter(range(len(functions)))
        self._done = itertools.count(1)

    def __len__(self) -> int:
        return len(self._functions)

    def perform(self) -> int | None:
        """In a thread, once for each function: run the next one. Its number, if there is news for the loop."""
        if self.given_up and not self.always:
            return None
        index = next(self._begun)
        self._results[index] = self._context.copy().run(self._functions[index])
        complete = next(self._done) == len(self._functions)
        return index if complete or self.given_up else None

    def under_way(self) -> Sequence[_Place]:
        """Those that threads are in."""
        begun = len(self) - length_hint(self._begun)
        return [(self, i) for i in range(begun) if self._results[i] is None]

    def settle(self) -> None:
        """On the loop."""
        if self._is_awaited():
            self.future.set_result(None)

    def refuse(self, why: str) -> None:
        """On the loop."""
        self.given_up = True
        if self._is_awaited():
            self.future.set_exception(ServiceUnavailable(why))  # ours: the call is lost, and no failure of its tool

    def _is_awaited(self) -> bool:
        return not self.future.done() and not self.future.get_loop().is_closed()


_Place: TypeAlias = tuple[_Job, int]
"""One function of a job."""


@dataclass(slots=True, eq=False)
class _Outcome:
    """What became of a function that may raise."""

    result: Any = None
    error: BaseException | None = None

    @classmethod
    def of(cls, function: Callable[[], object]) -> Self:
        try:
            return cls(function())
        except BaseException as error:  # the author's code, SystemExit included: it belongs to the caller
            return cls(error=error)

    def get(self) -> Any:
        error, self.error = self.error, None  # or the traceback, which leads here, would keep itself alive
        if error is None:
            return self.result
        try:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise error
            raise RuntimeError(describe(error))  # coroutines cannot raise those
        finally:
            del error


_GATHERING = 0.0003
"""Seconds, at most, for which work that goes on coming is gathered before a thread is woken for it, which takes longer
than many a function."""
_PATIENCE = 0.001
"""Seconds that work waits behind other functions before we look whether more threads are to help."""
_QUICKLY = 4
"""Functions done in that time. Such are best left to the thread that is at work: handing each to another one, and
Python's lock from one to the other, would cost more than running them."""
_STUCK = 4
"""So much has to speak for it before another thread is to help: two looks, or four if each may have been deceived."""


class Threads:
    """Used from one event loop at a time; the counters are touched there, except for those of `_lock`."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._alive = 0
        self._hung: set[_Place] = set()
        """Given up while a thread was in them, and still there."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._relief: asyncio.TimerHandle | None = None
        self._looked = 0.0
        """When we last looked whether help is needed, and no sooner than that will again."""
        self._stuck = 0
        """How surely nothing goes on in the threads: looks in a row that saw hardly anything done."""
        self._jobs: deque[_Job] = deque()
        """Each as often as it has functions that have not begun."""
        self._gathered = 0
        """How many of them there were when we last looked whether to wake a thread; none if one is awake."""
        self._done: deque[_Place] = deque()
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
        outcomes: list[_Outcome | None] = [None]
        await self.run_all([partial(_Outcome.of, function)], outcomes, always=always)
        outcome = outcomes.pop()
        assert outcome is not None
        result: T = outcome.get()
        return result

    async def run_all(
        self, functions: Sequence[Callable[[], T]], results: list[T | None], *, always: bool = False
    ) -> None:
        """All of them, side by side as far as they take long. What each returns is put into its place in `results`,
        which holds None until then. There is at least one, and they must neither raise anything nor return None."""
        loop = asyncio.get_running_loop()
        job = _Job(functions, results, loop.create_future(), always=always)
        self._add(job, loop)
        try:
            await job.future
        except asyncio.CancelledError:
            job.given_up = True
            self._leave(job.under_way())
            raise

    def _add(self, job: _Job, loop: asyncio.AbstractEventLoop) -> None:
        if loop is not self._loop:  # what was to be done in the last one never will be
            self._loop, self._relief, self._gathered, self._told = loop, None, 0, False
        self._jobs.extend(itertools.repeat(job, len(job)))
        if self._gathered:
            return
        if self._are_at_work():
            self._relieve_later(loop)
        else:
            self._gathered = len(self._jobs)
            loop.call_soon(self._gather, loop, time.monotonic() + _GATHERING)

    def _gather(self, loop: asyncio.AbstractEventLoop, until: float) -> None:
        """Wake a thread as soon as the loop has had a turn that brought nothing more for it."""
        if not self._gathered:  # one has been woken already
            return
        before, self._gathered = self._gathered, len(self._jobs)
        if self._gathered > before and time.monotonic() < until:
            loop.call_soon(self._gather, loop, until)
            return
        if self._gathered > 1:
            self._relieve_later(loop)
        self._wake()

    def _wake(self) -> None:
        """One thread, for all that has been gathered."""
        self._gathered = 0
        if self._jobs and not self._call(1) and not self._are_at_work():
            self._refuse_all()

    def _refuse_all(self) -> None:
        """There is nobody to do what waits. What must always be run is kept for a thread to come."""
        with contextlib.suppress(IndexError):  # a thread that hung is back, and takes the rest
            for _ in range(len(self._jobs)):
                job = self._jobs.popleft()
                job.refuse("no thread can be started for a plain function")
                if job.always:
                    self._jobs.append(job)

    def _are_at_work(self) -> bool:
        """Whether some threads are, or about to be, besides those that hang."""
        with self._lock:
            return self._awake > len(self._hung)

    def _leave(self, hung: Sequence[_Place]) -> None:
        """Nobody waits for these any more, but threads are in them, and others take their places."""
        self._hung.update(hung)
        if hung and self._jobs:
            self._call(len(hung))

    def _relieve_later(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._relief is None:
            self._looked = time.monotonic()
            self._relief = loop.call_later(_PATIENCE, self._relieve, loop)

    def _relieve(self, loop: asyncio.AbstractEventLoop) -> None:
        """While functions wait and hardly any gets done, double the threads that work on them, as far as allowed."""
        self._relief = None
        if self._jobs and (self._get_on() or self._call(min(len(self._jobs), max(self._awake, 1)))):
            self._relieve_later(loop)

    def _get_on(self) -> bool:
        """Whether the threads that there are will do, as far as one can see."""
        waited = time.monotonic() - self._looked
        if waited < _PATIENCE / 2:  # the loop's clock stands still while it is at work
            return True
        done, self._seen = self._performed - self._seen, self._performed
        if done >= _QUICKLY:
            self._stuck = 0
        else:  # if we are late, the loop itself was at work, and it had Python's lock
            self._stuck += 1 if waited > 2 * _PATIENCE else 2
        return self._stuck < _STUCK

    def _call(self, wanted: int) -> bool:
        """Wake threads that sleep, then start new ones. Whether there were any to be had."""
        with self._lock:
            woken = max(min(wanted, self._alive - self._awake), 0)  # some that are awake may be about to end
            started = max(min(wanted - woken, self._most + len(self._hung) - self._alive), 0)
            self._awake += woken + started
        for _ in range(woken):
            self._bell.put(True)
        for begun in range(started):
            try:
                threading.Thread(target=self._work, name="toolyard-plain", daemon=True).start()
            except RuntimeError:  # the system has no more of them now
                with self._lock:
                    self._awake -= started - begun
                return woken + begun > 0
            self._alive += 1
        return woken + started > 0

    def close(self) -> None:
        """Let every thread end once it has nothing to do."""
        if self._gathered:  # or all would have ended when one is to be woken
            self._wake()
        for _ in range(self._alive):
            self._bell.put(False)

    # In the threads.

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """What comes of a coroutine on the loop that uses us."""
        assert self._loop is not None
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

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
        index = job.perform()
        self._performed += 1
        if index is None:
            return
        self._done.append((job, index))
        self._tell()

    def _tell(self) -> None:
        """The loop that uses us now, whosever the function was. What is done until it looks, it finds all at once."""
        while not self._told:
            self._told = True
            loop = self._loop  # not before: whoever becomes it has not been told, and says so
            assert loop is not None
            try:
                loop.call_soon_threadsafe(self._collect)
            except RuntimeError:  # it is closed: nobody waits any more, or there is another one by now
                self._told = False
                if loop is self._loop:
                    return
            else:
                return

    # On the loop.

    def _collect(self) -> None:
        self._told = False
        while self._done:
            place = self._done.popleft()
            if place in self._hung:
                self._hung.discard(place)
                self._end_one_too_many()
            job, _ = place
            job.settle()

    def _end_one_too_many(self) -> None:
        if self._alive > self._most + len(self._hung):
            self._alive -= 1
            self._bell.put(False)
