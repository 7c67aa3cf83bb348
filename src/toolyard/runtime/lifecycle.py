"""`Lifecycle`: builds, sets up, rebuilds and tears down the environment of one session. It knows nothing of calls."""

from __future__ import annotations

import asyncio
import copy
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from toolyard.core.environment import lists_task_tools, needs_teardown, overrides
from toolyard.core.errors import DefinitionError, SessionClosed, SessionFailed, describe
from toolyard.core.output import JsonObject, Reply, ToolFailure
from toolyard.core.tool import ListToolsOutput
from toolyard.placement.base import Placed, Placement, SessionSpec, list_session_tools
from toolyard.runtime.eager import eagerly
from toolyard.runtime.journal import Why
from toolyard.runtime.shared import Shared

log = logging.getLogger("toolyard.runtime")


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


_STARTING, _READY, _FAILED, _CLOSED = State.STARTING, State.READY, State.FAILED, State.CLOSED
"""Looked up once: every call compares with these, and looking up a member of an Enum is slow."""


class Asked(NamedTuple):
    """A call that a session has made, so that it can be repeated."""

    tool: str
    arguments: JsonObject
    given: JsonObject


class Lifecycle:
    __slots__ = (
        "_error",
        "_placement",
        "_rebuilding",
        "_settled",
        "_shared",
        "_spec",
        "_task",
        "_teardown",
        "history",
        "opened",
        "placed",
        "setup",
        "state",
    )

    def __init__(self, spec: SessionSpec, shared: Shared) -> None:
        self.state = _STARTING
        self.placed: Placed | None = None
        """The environment, from its constructor until its teardown."""
        self.history: list[Asked] | None = [] if spec.environment.replayable else None
        """The calls that led to its state; None if they cannot be repeated."""
        self._task = copy.deepcopy(spec.task) if spec.environment.replayable else spec.task
        """The task as it was before the author's code could change it: repeated calls begin from it."""
        self.opened = time.monotonic()
        self._spec = spec
        self._shared = shared
        self._placement: Placement | None = None
        self._rebuilding: asyncio.Task[None] | None = None
        self.setup: asyncio.Task[None] | None = None
        """The task of setup(), while it runs."""
        self._teardown: asyncio.Task[None] | None = None
        """The task of teardown(), if setup() failed."""
        self._settled: asyncio.Event | None = None
        self._error = ""

    @property
    def condition(self) -> str:
        """The name of its state, or `lost` if its environment is."""
        return "lost" if self.placed is not None and self.placed.lost else self.state.value

    # From the constructor to the end.

    async def build(self, placement: Placement) -> None:
        """Run the author's constructor, then let setup() go on in the background."""
        self._tell_opened()
        try:
            spec = self._spec
            if overrides(spec.environment, "__init__") or spec.toolset is not None:
                placed = await self._construct(placement)
            else:  # no constructor of an author's runs, so nothing can hang
                placed = await placement.place(spec)
        except BaseException as error:  # requests that wait for the session already must not wait for ever
            self._error = str(error) if isinstance(error, SessionFailed | DefinitionError) else describe(error)
            if isinstance(error, DefinitionError):  # its message says which method to change, and how
                log.warning("session %s: %s", self._spec.session_id, error, extra=self.about)
            if self.state is _STARTING:
                self._settle(_FAILED)
                self._tell_closed("failed")
            raise
        if self.state is _CLOSED:
            await self._give_back(placed)
            raise SessionClosed("Session deleted")
        self.placed, self._placement = placed, placement
        if not spec.environment._definition.sets_up:
            self._settle(_READY)
            return
        setup = eagerly(self._set_up(placed))
        if self.state is _STARTING:  # else nothing in it had to wait
            self.setup = setup
            self._shared.background.own(setup)

    async def _construct(self, placement: Placement) -> Placed:
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await placement.place(self._spec)
        except TimeoutError:
            if not limit.expired():
                raise  # the author's own
            raise SessionFailed(f"the constructor took more than {seconds:g} s") from None

    async def _set_up(self, placed: Placed) -> None:
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                await placed.setup()
        except Exception as error:  # the author's setup(): requests that wait for the session get the error
            late = isinstance(error, TimeoutError) and limit.expired()
            self._error = f"setup() took more than {seconds:g} s" if late else describe(error)
            log.warning(
                "session %s: setup() failed: %s", self._spec.session_id, self._error, exc_info=error, extra=self.about
            )
            if self.state is _STARTING:
                self.placed = None
                self._teardown = self._shared.background.start(self._give_back(placed))
                self._settle(_FAILED)
        else:
            if self.state is _STARTING:
                self._settle(_READY)
        finally:
            self.setup = None

    def continue_from(self, other: Lifecycle, placed: Placed) -> None:
        """Continue from where another session is, with a copy of its environment."""
        self.placed, self._placement = placed, other._placement
        self.history = None if other.history is None else [*other.history]
        self._task = other._task
        self._tell_opened()
        self._settle(_READY)

    def close(self, why: Why) -> None:
        """Refuse new calls and stop setup()."""
        self._settle(_CLOSED)
        self._tell_closed(why)
        if self.setup is not None:
            self.setup.cancel()

    @property
    def leaves_something(self) -> bool:
        """Whether `end` has anything to do."""
        ending = self.setup or self._teardown
        return ending is not None or (self.placed is not None and self._is_to_be_torn_down(self.placed))

    async def end(self) -> None:
        """Run the author's teardown(), once and for a bounded time."""
        if self._teardown is not None:
            await asyncio.wait((self._teardown,))  # `_give_back` bounds it
        if (placed := self.placed) is not None:
            self.placed = None
            await self._give_back(placed)

    def _is_to_be_torn_down(self, placed: Placed) -> bool:
        return placed.holds or needs_teardown(self._spec.environment, self._spec.toolset)

    async def _give_back(self, placed: Placed) -> None:
        if not self._is_to_be_torn_down(placed):
            return
        seconds, name = self._shared.limits.teardown_seconds, self._spec.session_id
        try:
            async with asyncio.timeout(seconds):
                await placed.teardown()
        except TimeoutError:
            log.error("session %s: teardown() took over %g s and was given up", name, seconds, extra=self.about)
        except Exception as error:  # the author's teardown(): the session is over all the same
            log.error("session %s: teardown() raised %s", name, describe(error), exc_info=error, extra=self.about)

    # What others wait for.

    async def ready(self) -> Placed:
        """The environment, once setup() is over."""
        if self.state is _STARTING:
            if self._settled is None:
                self._settled = asyncio.Event()
            await self._settled.wait()
        if self.state is _FAILED:
            raise SessionFailed(self._error)
        if self.state is _READY and self.history is not None and self.placed is not None and self.placed.lost:
            await self._rebuilt()
        if self.state is _CLOSED or self.placed is None:
            raise SessionClosed("Session deleted")
        return self.placed

    async def tools_before_setup(self) -> ListToolsOutput | None:
        """The tools of a session whose setup() still runs, read from its classes. None if only an instance has them.

        The instance is not asked before its setup() is over, because it may list tools that setup() makes.
        """
        environment, placed = self._spec.environment, self.placed
        owners = [environment, *environment.toolsets, *filter(None, [self._spec.toolset])]
        if self.state is not _STARTING or placed is None or any(map(lists_task_tools, owners)):
            return None
        assert self._placement is not None
        return await list_session_tools(environment, placed.tools, self._placement)

    # Again, by repeating its calls.

    async def _rebuilt(self) -> None:
        """Rebuild an environment that was lost. Any number of callers may wait for one rebuild."""
        if self._rebuilding is None or self._rebuilding.done():
            self._rebuilding = self._shared.background.start(self._rebuild())
        await asyncio.shield(self._rebuilding)

    async def _rebuild(self) -> None:
        assert self.placed is not None
        what = f"{self.placed.lost}; repeating its {len(self.history or ())} calls"
        log.warning("session %s: %s", self._spec.session_id, what, extra=self.about)
        await self._give_back(self.placed)
        (placed,) = await self.repeated([self._spec])
        if self.state is _CLOSED:
            await self._give_back(placed)
            raise SessionClosed("Session deleted")
        self.placed = placed
        for hear in self._shared.journal.rebuilt:
            hear(self._spec)

    async def repeated(self, specs: Sequence[SessionSpec]) -> Sequence[Placed]:
        """Make new environments, and bring them to the state of this one by repeating its calls."""
        assert self._placement is not None
        made: list[Placed] = []
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                for spec in specs:
                    unchanged = replace(spec, task=copy.deepcopy(self._task))
                    made.append(placed := await self._placement.place(unchanged))
                    if spec.environment._definition.sets_up:
                        await placed.setup()
                    for asked in self.history or ():
                        _check_repeated(asked, await placed.call(*asked))
        except BaseException as error:
            for placed in made:
                await self._give_back(placed)
            if isinstance(error, TimeoutError) and limit.expired():
                raise SessionFailed(f"repeating its calls took more than {seconds:g} s") from None
            raise
        return made

    # For the log and the journal.

    @property
    def about(self) -> dict[str, dict[str, str]]:
        """For log lines."""
        return {"about": {"session": self._spec.session_id, "environment": self._spec.environment.name().lower()}}

    def _settle(self, state: State) -> None:
        self.state = state
        if self._settled is not None:
            self._settled.set()
        if state is not _CLOSED:
            for hear in self._shared.journal.settled:
                hear(self._spec, self._error, time.monotonic() - self.opened)

    def _tell_opened(self) -> None:
        for hear in self._shared.journal.opened:
            hear(self._spec)

    def _tell_closed(self, why: Why) -> None:
        for hear in self._shared.journal.closed:
            hear(self._spec, why, time.monotonic() - self.opened)


def _check_repeated(asked: Asked, reply: Reply) -> None:
    """Raise if a repeated call was lost: the session would be in another state, from which no reward may come."""
    if isinstance(reply, ToolFailure) and reply.retryable:
        raise SessionFailed(f"{asked.tool!r} could not be repeated: {reply.message}")
