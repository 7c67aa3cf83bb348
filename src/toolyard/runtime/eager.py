"""`eagerly`: start a coroutine as a task whose first step runs at once, so that work that never waits is done already.

Python 3.12 can do this itself. On 3.11 we run the first step by hand, as the same task that runs all later ones: code
that asks for its task, such as `asyncio.timeout`, always sees one task. Most work is over after that step. Making a
real task of it would take longer than the work, so we only do that when the work has to wait or other code uses the
task.
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Coroutine, Generator
from contextvars import Context
from typing import Any, NoReturn, TypeVar

T = TypeVar("T")

BREATH = 0.001
"""A loop that starts many tasks yields to the event loop after this many seconds."""


async def breathe() -> float:
    """Yield to the event loop. Return the time at which to do so again."""
    await asyncio.sleep(0)
    return time.monotonic() + BREATH


if sys.version_info >= (3, 12):

    def eagerly(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as a task and make its first step now. The caller owns the task."""
        return asyncio.Task(work, loop=asyncio.get_running_loop(), eager_start=True)

else:
    from asyncio.tasks import _current_tasks  # type: ignore[attr-defined]  # private, but every event loop keeps to it

    def eagerly(work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work` as a task and make its first step now. The caller owns the task."""
        loop = asyncio.get_running_loop()
        begun = _Begun(work, loop, contextvars.copy_context())
        task = _Task.__new__(_Task)
        task.begun = begun
        caller = _current_tasks.get(loop)
        _current_tasks[loop] = task
        try:
            begun.waits_for = begun.context.run(work.send, None)
        except StopIteration as end:
            begun.result = end.value
            return task
        except BaseException as error:  # the work's own: the task raises it
            begun.error = error
            return task
        finally:
            if caller is not None:
                _current_tasks[loop] = caller
            else:
                del _current_tasks[loop]
        begun.is_over = False
        task.live()
        return task

    class _Task(asyncio.Task[Any]):
        """A task that asyncio and the event loop do not know of until `live` initializes it. Before that it is only an
        identity."""

        __slots__ = ("begun",)
        begun: _Begun[Any] | None
        """The work that it runs; None once `live` was called."""

        def live(self) -> None:
            begun, self.begun = _begun_of(self), None
            if begun is not None:
                asyncio.Task.__init__(self, begun, loop=begun.loop, context=begun.context)

        def __getattribute__(self, name: str) -> Any:
            if name != "live" and _begun_of(self) is not None:
                _Task.live(self)
            return super().__getattribute__(name)

        def __await__(self) -> Generator[Any, None, Any]:
            _Task.live(self)
            return super().__await__()

    _begun_of = vars(_Task)["begun"].__get__  # the slot itself, past __getattribute__

    class _Begun(Coroutine[Any, Any, T]):
        """A coroutine whose first step runs before its task lives. It replays the outcome of that step to the task."""

        waits_for: Any = None
        result: Any = None
        error: BaseException | None = None
        is_over = True
        _was_replayed = False

        def __init__(self, work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop, context: Context) -> None:
            self.work = work
            self.loop = loop
            self.context = context

        def send(self, value: Any) -> Any:
            if self._was_replayed:
                return self.work.send(value)
            self._was_replayed = True
            if self.is_over:
                self._end()
            return self.waits_for

        def throw(self, error: Any, *more: Any) -> Any:
            """The task was cancelled, perhaps before `send` gave it the future that the first step waits for."""
            if self._was_replayed:
                return self.work.throw(error, *more)
            self._was_replayed = True
            if self.is_over:  # nothing to cancel
                self._end()
            if self.waits_for is not None and self.waits_for.cancel():
                return self.waits_for  # as a task does it: the cancelled future raises in the work
            return self.work.throw(error, *more)

        def _end(self) -> NoReturn:
            error, self.error = self.error, None
            try:
                raise error or StopIteration(self.result)
            finally:
                del error  # or its traceback would keep itself alive

        def close(self) -> None:
            self.work.close()

        def __await__(self) -> Generator[Any, Any, T]:
            raise NotImplementedError("only a task runs this")
