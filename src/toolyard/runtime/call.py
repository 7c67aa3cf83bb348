"""`Call`: one tool call, which outlives the connection that asked for it."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Generic, TypeVar

from toolyard.core.output import Reason

R = TypeVar("R")

_OURS = "t-"
_THIS_PROCESS = os.urandom(8).hex()
_numbers = itertools.count()


def new_call_id() -> str:
    """Unique, not secret: an id is only ever looked up among the calls of its own session."""
    return f"{_OURS}{_THIS_PROCESS}{next(_numbers):016x}"


def is_ours(call_id: str) -> bool:
    """Whether an id looks like one that we made. Such an id never starts a call: it must already name one."""
    return call_id.startswith(_OURS) and len(call_id) == len(_OURS) + 32


class Call(Generic[R]):
    """A ticket for one call. Many may wait for it, any number of times."""

    __slots__ = ("_begun", "_result", "deadline", "id", "name", "size", "stopped", "task")

    def __init__(self, name: str, call_id: str | None, deadline: float) -> None:
        self.name = name
        self.id = call_id or new_call_id()
        self.deadline = deadline
        self.size = 0
        self.task: asyncio.Task[None] | None = None
        self.stopped: Reason | None = None
        """Why we ended it, if we did."""
        self._begun = False
        self._result: R | None = None

    @property
    def done(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> R:
        assert self._result is not None, "not done"
        return self._result

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, but no longer than `seconds`; tell whether it is there. Cancelling this stops nothing."""
        if self.task is not None and not self.done:
            await asyncio.wait((self.task,), timeout=seconds)
        return self.done

    async def finished(self) -> R:
        await self.wait()
        return self.result

    def stop(self, reason: Reason) -> None:
        """End it now; its result says why."""
        if not self.done and self.stopped is None:
            self.stopped = reason
            if self._begun and self.task is not None:  # else `begin` will see it; asyncio would never run the task
                self.task.cancel()

    def begin(self) -> None:
        """The first thing that its task does."""
        self._begun = True
        if self.stopped is not None:
            raise asyncio.CancelledError

    def finish(self, result: R) -> None:
        self._result = result
        self.task = None
