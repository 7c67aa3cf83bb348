"""`Call`: one tool call, which outlives the connection that asked for it."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any, Generic, TypeVar

from toolyard.core.output import Reason

R = TypeVar("R")

_OURS = "t-"
_process = {"id": os.urandom(8).hex()}
os.register_at_fork(after_in_child=lambda: _process.update(id=os.urandom(8).hex()))
_numbers = itertools.count()


def new_call_id() -> str:
    """Unique, not secret: an id is only ever looked up among the calls of its own session."""
    return f"{_OURS}{_process['id']}{next(_numbers):016x}"


def is_ours(call_id: str) -> bool:
    """Whether an id looks like one that we made. Such an id never starts a call: it must already name one."""
    return call_id.startswith(_OURS) and len(call_id) == len(_OURS) + 32


class Call(Generic[R]):
    """A ticket for one call. Many may wait for it, any number of times."""

    __slots__ = (
        "_begun",
        "_ended",
        "_result",
        "asked",
        "began",
        "deadline",
        "excused",
        "id",
        "kept",
        "name",
        "size",
        "stopped",
        "task",
    )

    def __init__(self, name: str, call_id: str | None, deadline: float, *, kept: bool = True) -> None:
        self.name = name
        self.id = call_id or new_call_id()
        self.deadline = deadline
        self.excused = 0.0
        """Seconds that do not count, since this process stood still."""
        self.kept = kept
        """Its result may be asked for again."""
        self.asked: int | None = None
        """Of a call whose id the client chose: what tells it from a call of another tool, or with other arguments."""
        self.size = 0
        self.began = 0.0
        """When its tool began to run; 0 if that has not, or if nobody listens."""
        self.task: asyncio.Task[Any] | None = None
        self.stopped: Reason | None = None
        """Why we ended it, if we did."""
        self._begun = False
        self._ended: asyncio.Future[None] | None = None
        self._result: R | None = None

    @property
    def due(self) -> float:
        """When it is stopped."""
        return self.deadline + self.excused

    @property
    def done(self) -> bool:
        return self._result is not None

    @property
    def result(self) -> R:
        assert self._result is not None, "not done"
        return self._result

    async def wait(self, seconds: float | None = None) -> bool:
        """Wait for the end, but no longer than `seconds`; tell whether it is there. Cancelling this stops nothing."""
        if not self.done:
            await asyncio.wait((self.ended(),), timeout=seconds)
        return self.done

    def ended(self) -> asyncio.Future[None]:
        """Done when the call is."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_future()
            if self.done:
                self._ended.set_result(None)
        return self._ended

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
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)
