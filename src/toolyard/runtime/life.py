"""`Life`: the environment instance of a session, from its constructor to its teardown, and again if it was lost."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from enum import Enum
from typing import NamedTuple

from toolyard.core.environment import Environment, lists_task_tools, needs_teardown, overrides
from toolyard.core.errors import SessionClosed, SessionFailed, describe
from toolyard.core.output import JsonObject, Reply, ToolFailure
from toolyard.core.tool import ListToolsOutput
from toolyard.placement.base import Placed, Placement, SessionSpec, list_session_tools
from toolyard.runtime.journal import Why
from toolyard.runtime.shared import Shared

log = logging.getLogger("toolyard.runtime")


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


class Asked(NamedTuple):
    """A call that was made."""

    tool: str
    arguments: JsonObject
    given: JsonObject


class Life:
    """What of a session is not about its calls."""

    __slots__ = (
        "_error",
        "_history",
        "_placed",
        "_placement",
        "_rebuilding",
        "_settled",
        "_setup",
        "_shared",
        "_teardown",
        "last_seen",
        "opened",
        "spec",
        "state",
    )

    def __init__(self, spec: SessionSpec, shared: Shared) -> None:
        self.spec = spec
        self.state = State.STARTING
        self.opened = self.last_seen = time.monotonic()
        self._shared = shared
        self._placed: Placed | None = None
        self._placement: Placement | None = None
        self._history: list[Asked] | None = [] if spec.environment.replayable else None
        """The calls that led to its state, if they can be repeated."""
        self._rebuilding: asyncio.Task[None] | None = None
        self._setup: asyncio.Task[None] | None = None
        self._teardown: asyncio.Task[None] | None = None
        """Under way already, because setup() failed."""
        self._settled: asyncio.Event | None = None
        self._error = ""

    @property
    def id(self) -> str:
        return self.spec.session_id

    @property
    def _about(self) -> dict[str, dict[str, str]]:
        """For log lines."""
        return {"about": {"session": self.id, "environment": self.spec.environment.name().lower()}}

    @property
    def condition(self) -> str:
        """Its state, or that its environment is lost."""
        return "lost" if self._placed is not None and self._placed.lost else self.state.value

    def touch(self) -> None:
        self.last_seen = time.monotonic()

    async def build(self, placement: Placement) -> None:
        """Run the author's constructor, then let setup() go on in the background."""
        self._tell_opened()
        try:
            placed = await self._construct(placement)
        except BaseException as error:  # whoever waits on the session already must not wait for ever
            self._error = str(error) if isinstance(error, SessionFailed) else describe(error)
            if self.state is State.STARTING:
                self._settle(State.FAILED)
                self._tell_closed("failed")
            raise
        if self.state is State.CLOSED:
            await self._give_back(placed)
            raise SessionClosed("Session deleted")
        self._placed, self._placement = placed, placement
        if not needs_setup(self.spec.environment):
            self._settle(State.READY)
        else:
            self._setup = self._shared.background.start(self._set_up(placed))

    async def _construct(self, placement: Placement) -> Placed:
        if not overrides(self.spec.environment, "__init__") and self.spec.toolset is None:
            return await placement.place(self.spec)  # there is nothing of the author's in it that could hang
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                return await placement.place(self.spec)
        except TimeoutError:
            if not limit.expired():
                raise  # the author's own
            raise SessionFailed(f"the constructor took more than {seconds:g} s") from None

    async def ready(self) -> Placed:
        """The environment, once setup() is over."""
        self.touch()
        if self.state is State.STARTING:
            if self._settled is None:
                self._settled = asyncio.Event()
            await self._settled.wait()
        if self.state is State.FAILED:
            raise SessionFailed(self._error)
        if self.state is State.CLOSED or self._placed is None:
            raise SessionClosed("Session deleted")
        if self._placed.lost and self._history is not None:
            await self._rebuilt()
        return self._placed

    async def tools_before_setup(self) -> ListToolsOutput | None:
        """The tools of a session whose setup() still runs, read off its classes. None if only an instance knows them.

        Nothing is asked of an instance before its setup() is over: it may list tools that setup() makes.
        """
        environment, placed = self.spec.environment, self._placed
        owners = [environment, *environment.toolsets, *filter(None, [self.spec.toolset])]
        if self.state is not State.STARTING or placed is None or any(map(lists_task_tools, owners)):
            return None
        assert self._placement is not None
        self.touch()
        return await list_session_tools(environment, placed.tools, self._placement)

    async def _rebuilt(self) -> None:
        """Make an environment that was lost again, by repeating its calls. Many may wait for that."""
        if self._rebuilding is None or self._rebuilding.done():
            self._rebuilding = self._shared.background.start(self._rebuild())
        await asyncio.shield(self._rebuilding)

    async def _rebuild(self) -> None:
        assert self._placed is not None
        assert self._placement is not None
        what = f"{self._placed.lost}; repeating its {len(self._history or ())} calls"
        log.warning("session %s: %s", self.id, what, extra=self._about)
        await self._give_back(self._placed)
        (placed,) = await self._repeated(self._placement, [self.spec])
        if self.state is State.CLOSED:
            await self._give_back(placed)
            raise SessionClosed("Session deleted")
        self._placed = placed
        for told in self._shared.journal.rebuilt:
            told(self.spec)

    async def _repeated(self, placement: Placement, specs: Sequence[SessionSpec]) -> Sequence[Placed]:
        """Environments that are made to come to where this one is."""
        made: list[Placed] = []
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                for spec in specs:
                    made.append(placed := await placement.place(spec))
                    if needs_setup(spec.environment):
                        await placed.setup()
                    for asked in self._history or ():
                        _check_repeated(asked, await placed.call(*asked))
        except BaseException as error:
            for placed in made:
                await self._give_back(placed)
            if isinstance(error, TimeoutError) and limit.expired():
                raise SessionFailed(f"repeating its calls took more than {seconds:g} s") from None
            raise
        return made

    async def _set_up(self, placed: Placed) -> None:
        seconds = self._shared.limits.setup_seconds
        try:
            async with asyncio.timeout(seconds) as limit:
                await placed.setup()
        except Exception as error:  # the author's setup(): reported to whoever waits on the session
            late = isinstance(error, TimeoutError) and limit.expired()
            self._error = f"setup() took more than {seconds:g} s" if late else describe(error)
            log.warning("session %s: setup() failed: %s", self.id, self._error, exc_info=error, extra=self._about)
            if self.state is State.STARTING:
                self._placed = None
                self._teardown = self._shared.background.start(self._give_back(placed))
                self._settle(State.FAILED)
        else:
            if self.state is State.STARTING:
                self._settle(State.READY)
        finally:
            self._setup = None

    async def _give_back(self, placed: Placed) -> None:
        if not placed.holds and not needs_teardown(self.spec.environment, self.spec.toolset):
            return
        seconds = self._shared.limits.teardown_seconds
        try:
            async with asyncio.timeout(seconds):
                await placed.teardown()
        except TimeoutError:
            log.error("session %s: teardown() took over %g s and was given up", self.id, seconds, extra=self._about)
        except Exception as error:  # the author's teardown(): the session is over all the same
            log.error("session %s: teardown() raised %s", self.id, describe(error), exc_info=error, extra=self._about)

    def _settle(self, state: State) -> None:
        self.state = state
        if self._settled is not None:
            self._settled.set()
        if state is not State.CLOSED:
            for told in self._shared.journal.settled:
                told(self.spec, self._error, time.monotonic() - self.opened)

    def _tell_opened(self) -> None:
        for told in self._shared.journal.opened:
            told(self.spec)

    def _tell_closed(self, why: Why) -> None:
        for told in self._shared.journal.closed:
            told(self.spec, why, time.monotonic() - self.opened)


def _check_repeated(asked: Asked, reply: Reply) -> None:
    """A call that was lost when it was repeated leaves the session somewhere else, and no reward may come of that."""
    if isinstance(reply, ToolFailure) and reply.retryable:
        raise SessionFailed(f"{asked.tool!r} could not be repeated: {reply.message}")


def needs_setup(environment: type[Environment]) -> bool:
    return bool(environment.toolsets) or overrides(environment, "setup")
