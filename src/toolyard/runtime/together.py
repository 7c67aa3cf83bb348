"""Calls in many sessions at once, in the task of the caller: one after the other as long as none of them waits."""

from __future__ import annotations

import time
from collections.abc import Coroutine, Iterator, Sequence
from operator import length_hint, sub
from typing import Any, TypeAlias

from toolyard.core.output import AskAgain, JsonObject, Reply, Returned
from toolyard.placement.local import failure
from toolyard.placement.steps import BREATH, in_lanes, rest_of
from toolyard.runtime.session import Session
from toolyard.runtime.shared import Shared

Wanted: TypeAlias = tuple[Session, str, JsonObject, JsonObject]
"""A call to be made: in which session, of which tool, its arguments, and what the trainer says with it. A bare tuple,
since there are many, and each is taken apart at once."""


class Together:
    """One coroutine makes the calls until one of them waits. It is the rest of that call then, and others make what
    calls are left. To begin each call by hand, to see whether it waits, would cost as much as many a tool."""

    def __init__(self, shared: Shared, wanted: Sequence[Wanted]) -> None:
        self._shared = shared
        self._wanted = wanted
        self._results: list[Any] = [None] * len(wanted)

    async def run(self) -> list[Returned | Exception]:
        """What came of each; an exception where there was none to be made."""
        await in_lanes(len(self._wanted), self._begin)
        return self._results

    def _begin(self, left: Iterator[int]) -> Coroutine[Any, Any, None] | None:
        waited: list[int] = []
        ended: list[float] = []
        making = self._make(left, waited, ended)
        try:
            waits_for = making.send(None)
        except StopIteration as stopped:
            later: int | None = stopped.value
            self._tell(self._last_of(left) + 1 if later is None else later, ended)
            return None if later is None else self._make_later(later)
        except Exception as error:  # ours: the other calls go on
            self._tell(self._last_of(left), ended)
            self._results[self._last_of(left)] = error
            return None
        at = self._last_of(left)
        self._tell(at, ended)
        self._wanted[at][0].last_seen = ended[-1]
        waited.append(at)
        return self._go_on(at, rest_of(making, waits_for))

    def _last_of(self, left: Iterator[int]) -> int:
        """The number that was taken last."""
        return len(self._wanted) - length_hint(left) - 1

    def _tell(self, before: int, ended: Sequence[float]) -> None:
        """Of calls that went well at once, the last before that number: when the first began, and when each ended."""
        seconds = list(map(sub, ended[1:], ended))
        if not seconds:
            return
        calls = self._wanted[before - len(seconds) : before]
        for told in self._shared.journal.answered_at_once:
            told(((session.spec, tool) for session, tool, _, _ in calls), seconds)

    async def _make(self, left: Iterator[int], waited: Sequence[int], ended: list[float]) -> Any:
        """Make calls as long as none of them waits. The number of one that has to be made otherwise, if there is.

        But when one has waited, what came of that.
        """
        wanted, results, shared = self._wanted, self._results, self._shared
        most = shared.limits.output_bytes
        if not shared.may_run_at_once():
            return next(left)
        began = time.monotonic()
        until = began + BREATH
        ended.append(began)
        for i in left:
            session, tool, arguments, given = wanted[i]
            if (placed := session.at_hand()) is None:
                return i
            try:
                work = placed.bare(tool, arguments, given)
                returned = None if work is None else await work
            except BaseException as error:  # the author's tool: whatever it raises is its answer
                reply: Reply = failure(tool, error)
            else:
                if work is None:
                    reply = await placed.call(tool, arguments, given)
                else:
                    reply = returned if type(returned) is str else await placed.settle(tool, returned)
            if waited:
                return reply
            if type(reply) is str and len(reply) <= most:  # as `told` has it, but without a detour for each
                session.last_seen = began = time.monotonic()
                ended.append(began)
                results[i] = reply
            else:
                self._tell(i, ended)
                results[i] = session.told(tool, reply, began)
                began = session.last_seen
                ended[:] = [began]
                if isinstance(results[i], AskAgain):
                    return i
            if began > until:
                return None
        return None

    async def _make_later(self, at: int) -> None:
        session, tool, arguments, given = self._wanted[at]
        reply: Reply | None = self._results[at]
        try:
            begun = session.begin(tool, arguments, given) if reply is None else session.result_of(reply)
            self._results[at] = await begun if isinstance(begun, Coroutine) else begun
        except Exception as error:  # the session is closed, or there are too many calls
            self._results[at] = error

    async def _go_on(self, at: int, rest: Coroutine[Any, Any, Reply]) -> None:
        session, tool, _, _ = self._wanted[at]
        try:
            self._results[at] = await session.carry_on(tool, rest)
        except Exception as error:  # ours
            self._results[at] = error
