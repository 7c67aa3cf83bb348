"""`Call`: one tool call, which outlives the connection that asked for it."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
from typing import Any, Generic, TypeVar

from toolyard.core.output import Reason
from toolyard.runtime.journal import Deed

R = TypeVar("R")

_OURS = "t-"
_numbers = itertools.count()


class _Process:
    """The first half of the call ids that this process makes. They are unique, not secret: the server only looks up an
    id among the calls of its own session."""

    prefix = ""

    @classmethod
    def renew(cls) -> None:
        cls.prefix = _OURS + os.urandom(8).hex()


_Process.renew()
os.register_at_fork(after_in_child=_Process.renew)


def is_ours(call_id: str) -> bool:
    """Whether an id looks like one of this server's. Such an id never starts a call; it must already name one."""
    return call_id.startswith(_OURS) and len(call_id) == len(_OURS) + 32


class Call(Generic[R]):
    """A ticket for one call. Any number of tasks may wait for it, any number of times.

    The call runs in a task of its own. Cancelling a task that waits for the call does not stop it, and stopping the
    call cancels no task that waits.
    """

    __slots__ = (
        "_result",
        "_task",
        "_waiters",
        "asked",
        "began",
        "counts",
        "deadline",
        "deed",
        "done",
        "excused",
        "id",
        "kept",
        "name",
        "seconds",
        "size",
        "stop_by",
        "stopped",
    )

    def __init__(self, name: str, call_id: str | None, deadline: float, *, kept: bool = True) -> None:
        self.name = name
        self.id = call_id or f"{_Process.prefix}{next(_numbers):016x}"
        self.deadline = deadline
        self.excused = 0.0
        """Seconds that do not count, because this process stood still."""
        self.kept = kept
        """The replay cache keeps its result, so that a client can ask for it again."""
        self.asked: int | None = None
        """If the client chose the id: a hash of tool and arguments, which a second call with that id must match."""
        self.counts = True
        """It is a tool call, so the outcome of its session counts it."""
        self.deed: Deed | None = None
        """What the recorder remembers of it."""
        self.size = 0
        """Bytes of its result, about."""
        self.began = 0.0
        """When its tool began to run; 0 before that, or if nothing listens to the journal."""
        self.stopped: Reason | None = None
        """Why the runtime stopped it; None if it did not."""
        self.seconds: float | None = None
        """The time limit of its tool, if that stopped it."""
        self.stop_by = math.inf
        """When that was."""
        self._task: asyncio.Task[Any] | None = None
        self._waiters: list[asyncio.Future[None]] | None = None
        self.done = False
        self._result: R | None = None

    @property
    def due(self) -> float:
        """When the runtime stops it."""
        return min(self.deadline + self.excused, self.stop_by)

    @property
    def result(self) -> R:
        assert self.done, "not done"
        return self._result  # type: ignore[return-value]  # a result by now

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait until the call is done, or for `seconds`. Return whether it is done. Cancelling this stops nothing."""
        if not self.done:
            if seconds is None:
                await self.ended()
            else:
                await asyncio.wait((self.ended(),), timeout=seconds)
        return self.done

    def ended(self) -> asyncio.Future[None]:
        """A new future, done when the call is."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self.done:
            waiter.set_result(None)
        elif self._waiters is None:
            self._waiters = [waiter]
        else:
            self._waiters = [other for other in self._waiters if not other.done()]  # drop those that were cancelled
            self._waiters.append(waiter)
        return waiter

    async def finished(self) -> R:
        await self.wait()
        return self.result

    def run_by(self, task: asyncio.Task[Any]) -> None:
        """Note the task that runs the call, after its first step."""
        self._task = task
        if self.stopped is not None:
            task.cancel()

    def stop(self, reason: Reason) -> None:
        """Stop the call; its result says why."""
        if not self.done and self.stopped is None:
            self.stopped = reason
            if self._task is not None:
                self._task.cancel()

    def finish(self, result: R) -> None:
        self.done = True
        self._result = result
        self._task = None
        for waiter in self._waiters or ():
            if not waiter.done():
                waiter.set_result(None)
        self._waiters = None

    def __repr__(self) -> str:
        return f"<call of {self.name}, {'done' if self.done else self._task}>"
