"""`Runtime`: the kernel that every protocol uses. It opens, finds, forks and closes sessions and keeps their limits."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Self

from toolyard.core.environment import Environment, lists_task_tools, overrides
from toolyard.core.errors import (
    DefinitionError,
    EnvironmentNotFound,
    Overloaded,
    SessionExists,
    SessionNotFound,
    ToolsetUnavailable,
)
from toolyard.placement.base import Placement, SessionSpec, Strategy
from toolyard.runtime.eager import eagerly
from toolyard.runtime.grants import Grants
from toolyard.runtime.journal import Journal, Why
from toolyard.runtime.limits import Limits
from toolyard.runtime.listed import shown
from toolyard.runtime.owners import Owners
from toolyard.runtime.session import Session
from toolyard.runtime.shared import Shared
from toolyard.runtime.spare import SpareFiles
from toolyard.runtime.tally import Ended, Standing
from toolyard.runtime.tasks import Tasks

log = logging.getLogger("toolyard.runtime")

_NOT_PLAYED: Collection[Why] = ("replaced", "failed")
"""Sessions that ended for these reasons do not count as played."""
_STALL_SECONDS = 1.0
"""A sweep that is later than this shows that the whole process stood still."""
_GOOD_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
"""Names that an environment may have. Not `.` and `..`, which clients take out of an address."""


class Runtime:
    """Environments, sessions, leases and limits. Use it inside `async with runtime.running()`."""

    def __init__(
        self,
        environments: Sequence[type[Environment]],
        placement: Placement,
        limits: Limits,
        *,
        toolsets: Sequence[type] = (),
    ) -> None:
        self.shared = Shared(limits)
        self.placement = placement
        self.environments: Mapping[str, type[Environment]] = by_name(environments)
        self.toolsets: Mapping[str, type] = {toolset.__name__: toolset for toolset in toolsets}
        self.sessions: dict[str, Session] = {}
        self.ended = Ended(limits.outcome_seconds, limits.max_sessions)
        self.owners = Owners()
        self.grants = Grants(self.shared.journal)
        self.at_start: list[Callable[[], object]] = []
        """Called when the first session is opened on an event loop on which no lifespan has started this runtime."""
        self.at_end: list[Callable[[], None]] = []
        """Called on the way out, when every session is closed. Protocols add their own."""
        self._forking = 0
        """How many sessions forks are making now. They count as open, so that several forks at once keep the limit."""
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks = {name: Tasks(env, placement) for name, env in self.environments.items()}

    @property
    def calls(self) -> int:
        """How many calls are running or waiting to run."""
        return len(self.shared.calls)

    @property
    def journal(self) -> Journal:
        return self.shared.journal

    @property
    def limits(self) -> Limits:
        return self.shared.limits

    # What is served.

    def environment(self, name: str | None = None) -> type[Environment]:
        """The environment of this name, in any case; without a name, the first one served."""
        if name is None:
            return next(iter(self.environments.values()))
        try:
            return self.environments[name.lower()]
        except KeyError:
            raise EnvironmentNotFound(f"unknown environment {name[:200]!r}") from None

    def toolset(self, name: str) -> type:
        try:
            return self.toolsets[name]
        except KeyError:
            raise ToolsetUnavailable(f"unknown toolset {name!r}; valid options are {sorted(self.toolsets)}") from None

    def tasks(self, environment: type[Environment]) -> Tasks:
        return self._tasks[environment.name().lower()]

    def opens_at_once(self, environment: type[Environment]) -> bool:
        """Whether `open` never waits: no other process takes part, and no code of an author runs."""
        own = environment._definition
        return self.placement.is_here and not own.sets_up and not overrides(environment, "__init__")

    # Sessions.

    async def open(
        self,
        spec: SessionSpec,
        *,
        provisional: bool = False,
        on_idle: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Session:
        """Build the environment of a new session; setup() goes on in the background. On failure the id stays free.

        If the session is idle for long, the runtime calls `on_idle` instead of closing it.
        """
        if spec.session_id in self.sessions:
            raise SessionExists("Session already exists")
        if not self._is_sweeping():
            log.warning("started without a lifespan: when the process ends, sessions are not torn down")
            self._sweeping = self.shared.background.start(self._sweep())
            for function in self.at_start:
                function()
        self._check_room(1)
        session = Session(spec, self.shared, provisional=provisional, on_idle=on_idle)
        await self._build(session)
        return session

    async def replace(self, session: Session, spec: SessionSpec) -> Session:
        """Open a session with another environment under the same id, at once, and tear down the old instance."""
        self._end(session, "replaced")
        made = Session(spec, self.shared)
        await self._build(made)
        return made

    async def decide(self, session: Session, name: str) -> Session:
        """The session, of the named environment from now on if it was opened without naming one."""
        if not session.provisional:
            return session
        environment, spec = self.environment(name), session.spec
        if environment is not spec.environment:
            assert spec.task.split is not None
            assert spec.task.index is not None
            task = await self.tasks(environment).at(spec.task.split, spec.task.index)
            if session.provisional and self.session(session.id) is session:  # still, after that wait
                session.provisional = False
                moved = dataclasses.replace(spec, environment=environment, task=task)
                return await self.replace(session, moved)
        session.provisional = False
        return self.session(session.id)

    async def fork(self, session: Session, ids: Sequence[str]) -> Strategy:
        """Open sessions with these ids that continue from where this one is. Return how they were made.

        If the caller is cancelled, forking goes on to its end, so that no placement is interrupted half-way. Then the
        runtime closes the new sessions."""
        self._check_room(len(ids))
        forking = eagerly(self._fork(session, ids))  # counts them at once, before any other fork asks for room
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:
            self.shared.background.start(self._close_forks(forking, ids))
            raise

    async def _close_forks(self, forking: asyncio.Future[Strategy], ids: Sequence[str]) -> None:
        await asyncio.wait((forking,))
        if not forking.cancelled() and forking.exception() is None:
            await asyncio.gather(*map(self.close, ids))

    async def _fork(self, session: Session, ids: Sequence[str]) -> Strategy:
        spec = session.spec
        self._forking += len(ids)
        try:
            made, strategy = await session.fork(
                [dataclasses.replace(spec, session_id=each, forked_from=spec.session_id) for each in ids]
            )
        finally:
            self._forking -= len(ids)
        self.sessions |= {each.id: each for each in made}
        if self.shared.draining:  # `drain` has closed all other sessions meanwhile
            await asyncio.gather(*map(self.close, ids))
            raise Overloaded("the server is shutting down")
        return strategy

    def _check_room(self, wanted: int) -> None:
        if self.shared.draining:
            raise Overloaded("the server is shutting down")
        if len(self.sessions) + self._forking + wanted > self.limits.max_sessions:
            raise Overloaded(f"all {self.limits.max_sessions} sessions of this server are in use", retry_after=5)

    async def _build(self, session: Session) -> None:
        self.sessions[session.id] = session
        try:
            await session.build(self.placement)
        except BaseException:
            if self.sessions.get(session.id) is session:
                del self.sessions[session.id]
            raise

    def session(self, session_id: str) -> Session:
        try:
            return self.sessions[session_id]
        except KeyError:
            raise SessionNotFound("Active environment not found") from None

    def standing(self, session_id: str) -> Standing:
        """The rewards and failures of a session, while it is open and for a while after its end."""
        if (session := self.sessions.get(session_id)) is not None:
            return session.standing
        if (standing := self.ended.find(session_id)) is None:
            raise SessionNotFound(
                f"there is no session {session_id[:200]!r}, and none that ended in the last {self.ended.seconds:g} s"
            )
        return standing

    async def close(self, session_id: str, why: Why = "deleted") -> None:
        """End a session and wait until its teardown is over. Unknown ids are ignored."""
        if (closing := self.close_soon(session_id, why)) is not None:
            await asyncio.wait((closing,))  # cancelling this does not cancel the teardown

    def close_soon(self, session_id: str, why: Why = "deleted") -> asyncio.Task[None] | None:
        """Begin to end a session. Return the task that does it; None if nothing is left to wait for."""
        session = self.sessions.pop(session_id, None)
        return self._end(session, why) if session is not None else None

    def _end(self, session: Session, why: Why) -> asyncio.Task[None] | None:
        if why not in _NOT_PLAYED:
            self.ended.keep(session.standing)
        if (left := session.close(why)) is None:
            return None
        ending = eagerly(left)
        self.shared.background.own(ending)
        return ending

    # Life.

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Keep deadlines and leases. On the way out, let calls end, close every session and stop background tasks."""
        self.shared.draining = False
        sweeping = self._sweeping = self.shared.background.start(self._sweep())
        try:
            yield self
        finally:
            await self.drain()
            sweeping.cancel()
            await self.shared.background.stop(self.limits.teardown_seconds)
            for function in self.at_end:
                function()

    @property
    def draining(self) -> bool:
        return self.shared.draining

    async def drain(self) -> None:
        """Take no new sessions or calls, give running calls time to end, then close every session. Safe to repeat."""
        self.shared.draining = True
        if running := [call.ended() for call in self.shared.calls]:
            await asyncio.wait(running, timeout=self.limits.drain_seconds)
        await asyncio.gather(*(self.close(session_id, "drained") for session_id in list(self.sessions)))

    def stop_calls(self) -> None:
        for call in list(self.shared.calls):
            call.stop("cancelled")

    def _is_sweeping(self) -> bool:
        """Whether `_sweep` runs on this event loop; without a lifespan, loops may change."""
        sweeping = self._sweeping
        return sweeping is not None and not sweeping.done() and sweeping.get_loop() is asyncio.get_running_loop()

    async def _sweep(self) -> None:
        """The one clock of the server: keeps deadlines and leases, and drops kept results."""
        stood_still = False
        with SpareFiles() as spare:
            while True:
                due = time.monotonic() + self.limits.sweep_seconds
                await asyncio.sleep(self.limits.sweep_seconds)
                now = time.monotonic()
                late = max(now - due, 0.0)
                spare.look()
                for hear in self.journal.swept:
                    hear(late)
                if late > _STALL_SECONDS:
                    self.shared.excuse_calls(late)
                stood_still = late > _STALL_SECONDS and not stood_still  # never twice: a busy server has deadlines too
                if stood_still:  # first read the requests that came meanwhile, or their sessions look idle
                    continue
                self.shared.stop_late_calls(now)
                self.shared.replays.sweep(now)
                self.ended.sweep(now)
                self._sweep_idle(now - self.limits.idle_seconds)

    def _sweep_idle(self, horizon: float) -> None:
        for session in [s for s in self.sessions.values() if s.last_seen < horizon and not s.busy]:
            if session.on_idle is not None:
                session.touch()  # if it stays open, `on_idle` is called again after the same time
                self.shared.background.start(session.on_idle())
                continue
            self.sessions.pop(session.id, None)
            self._end(session, "idle")


def by_name(environments: Sequence[type[Environment]]) -> dict[str, type[Environment]]:
    """The environments by name. Raises `DefinitionError` for mistakes that show only on a finished class."""
    found: dict[str, type[Environment]] = {}
    for env in environments:
        called: object = env.name()
        if not isinstance(called, str):
            raise DefinitionError(f"{env.__qualname__}.name() returned {shown(called)}; return a str, such as 'maze'")
        name = called.lower()
        if not _GOOD_NAME.fullmatch(name):
            raise DefinitionError(
                f"{env.__qualname__} is called {name!r}; a name is part of addresses: use letters, digits, ., _ and -"
            )
        if name in found:
            raise DefinitionError(
                f"two environments are called {name!r}: {_place(found[name])} and {_place(env)}. Rename one "
                f"of them, or give it a classmethod name(cls)"
            )
        if not (env._definition.tools or env._definition.catalogue or env.toolsets or lists_task_tools(env)):
            raise DefinitionError(f"{env.__qualname__} has no tool: decorate a method with @tool")
        if not overrides(env, "list_splits"):
            raise DefinitionError(f"{env.__qualname__} has no split: write a classmethod list_splits(cls)")
        if not overrides(env, "list_tasks") and not (overrides(env, "num_tasks") and overrides(env, "get_task")):
            raise DefinitionError(
                f"{env.__qualname__} has no task: write a classmethod list_tasks(cls, split) that returns a list of "
                f"dicts, empty if clients bring the tasks; or num_tasks(cls, split) and get_task(cls, split, index)"
            )
        if not overrides(env, "get_prompt") and not overrides(env, "get_messages"):
            raise DefinitionError(f"{env.__qualname__} has no prompt: write get_prompt(self) or get_messages(self)")
        found[name] = env
    return found


def _place(environment: type) -> str:
    """The name of a class and the file that it is written in, as far as its methods say so."""
    functions = (getattr(value, "__func__", value) for value in vars(environment).values())
    files = (code.co_filename for function in functions if (code := getattr(function, "__code__", None)) is not None)
    return f"{environment.__qualname__} in {next(files, environment.__module__)}"
