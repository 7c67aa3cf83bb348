"""`Runtime`: the kernel every protocol talks to."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import re
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
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
from toolyard.core.output import Reply, Returned
from toolyard.placement.base import Placement, SessionSpec, Strategy
from toolyard.placement.steps import Later
from toolyard.runtime.call import Call
from toolyard.runtime.journal import Journal, Why
from toolyard.runtime.limits import Limits
from toolyard.runtime.owners import Owners
from toolyard.runtime.session import PlainCall, Session
from toolyard.runtime.shared import Shared
from toolyard.runtime.spare import SpareFiles
from toolyard.runtime.tasks import Tasks
from toolyard.runtime.together import Together, Wanted

log = logging.getLogger("toolyard.runtime")

_STALL_SECONDS = 1.0
"""A sweep that is later than this shows that the whole process stood still."""
_GOOD_NAME = re.compile(r"(?!\.{1,2}$)[A-Za-z0-9._-]+")
"""What an environment may be called; clients take . and .. out of an address."""


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
        self.owners = Owners()
        self.at_end: list[Callable[[], None]] = []
        """What protocols want to be done when every session is closed for good."""
        tools = [tool for env in self.environments.values() for tool in env._definition.tools.values()]
        self.has_plain = not all(tool.is_async for tool in tools)
        """Whether some environment has a tool that is a plain function."""
        self._sweeping: asyncio.Task[None] | None = None
        self._tasks = {name: Tasks(env, placement) for name, env in self.environments.items()}

    @property
    def calls(self) -> int:
        """How many are running or waiting to run."""
        return len(self.shared.calls)

    @property
    def journal(self) -> Journal:
        return self.shared.journal

    @property
    def limits(self) -> Limits:
        return self.shared.limits

    # What is served.

    def environment(self, name: str | None = None) -> type[Environment]:
        """By name, whatever its case; the first one served when no name is given."""
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

    # Sessions.

    async def open(
        self,
        spec: SessionSpec,
        *,
        provisional: bool = False,
        on_idle: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> Session:
        """Build the environment of a new session; setup() goes on in the background. On failure the id stays free.

        `on_idle` is called in the place of closing it when nobody has used it for long.
        """
        if spec.session_id in self.sessions:
            raise SessionExists("Session already exists")
        if not self._is_looked_after():
            log.warning("started without a lifespan: when the process ends, sessions are not torn down")
            self._sweeping = self.shared.background.start(self._sweep())
        self._check_room(1)
        return await self._build(Session(spec, self.shared, provisional=provisional, on_idle=on_idle))

    async def replace(self, session: Session, spec: SessionSpec) -> Session:
        """Another environment under the same id, which never is without one; the old instance is torn down."""
        self.shared.background.start(session.close("replaced"))
        return await self._build(Session(spec, self.shared))

    async def fork(self, session: Session, ids: Sequence[str]) -> Strategy:
        """Sessions with these ids that continue from where this one is; how they were made.

        Who stops waiting for them leaves none behind, however far they have come: no place is cut off in the middle."""
        self._check_room(len(ids))
        forking = asyncio.ensure_future(self._fork(session, ids))
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
        made, strategy = await session.fork([dataclasses.replace(spec, session_id=each) for each in ids])
        self.sessions |= {each.id: each for each in made}
        if self.shared.draining:  # which has closed all others meanwhile
            await asyncio.gather(*map(self.close, ids))
            raise Overloaded("the server is shutting down")
        return strategy

    def _check_room(self, wanted: int) -> None:
        if self.shared.draining:
            raise Overloaded("the server is shutting down")
        if len(self.sessions) + wanted > self.limits.max_sessions:
            raise Overloaded(f"all {self.limits.max_sessions} sessions of this server are in use", retry_after=5)

    async def _build(self, session: Session) -> Session:
        self.sessions[session.id] = session
        try:
            await session.build(self.placement)
        except BaseException:
            if self.sessions.get(session.id) is session:
                del self.sessions[session.id]
            raise
        return session

    def session(self, session_id: str) -> Session:
        try:
            return self.sessions[session_id]
        except KeyError:
            raise SessionNotFound("Active environment not found") from None

    async def close(self, session_id: str, why: Why = "deleted") -> None:
        """End a session and wait until its teardown is over. Unknown ids are none of our business."""
        session = self.sessions.pop(session_id, None)
        if session is None:
            return
        if session.closes_at_once:
            await session.close(why)
        else:  # not in the caller's task: who gives up waiting does not give up the teardown
            await asyncio.wait((self.shared.background.start(session.close(why)),))

    async def call_all(self, wanted: Sequence[Wanted]) -> Sequence[Returned | Exception]:
        """Make calls in different sessions, all at once. What came of each; an exception if it could not be made."""
        plain: dict[int, PlainCall] = {}
        if self.has_plain:
            for i, (session, tool, arguments, given) in enumerate(wanted):
                if (call := session.plain(tool, arguments, given)) is not None:
                    plain[i] = call
        if not plain:
            return await Together(self.shared, wanted).run()
        if len(plain) == len(wanted):
            return await self._run_all_plain(list(plain.values()))
        others = [i for i in range(len(wanted)) if i not in plain]
        async with asyncio.TaskGroup() as group:
            made = group.create_task(Together(self.shared, [wanted[i] for i in others]).run())
            ran = await self._run_all_plain(list(plain.values()))  # here and now: they have their turns already
        results = {**dict(zip(plain, ran, strict=True)), **dict(zip(others, made.result(), strict=True))}
        return [results[i] for i in range(len(wanted))]

    async def _run_all_plain(self, calls: Sequence[PlainCall]) -> Sequence[Returned | Exception]:
        try:
            return await self.run_plain(calls)
        except Exception as error:
            return [error] * len(calls)

    async def run_plain(self, calls: Sequence[PlainCall]) -> list[Returned]:
        """Run calls of plain functions: they go to the threads together, and come back together."""
        whole: Call[None] = Call(f"{len(calls)} plain functions", None, time.monotonic() + self.limits.call_seconds)
        whole.task = task = asyncio.current_task()
        whole.began = time.monotonic()
        whole.begin()
        results: list[Reply | None] = [None] * len(calls)
        try:
            self.shared.admit(whole, lambda _: None)  # it lets itself be stopped
            await self.placement.run_all([call.function for call in calls], results)
        except asyncio.CancelledError:
            if whole.stopped is None or task is None:
                raise
            task.uncancel()  # that was meant for the calls alone
        finally:
            whole.finish(None)
            self.shared.calls.pop(whole, None)
            told = self._end_plain(calls, results, whole)
        return [one if type(one) is str or not isinstance(one, Coroutine) else await one for one in told]

    def _end_plain(
        self, calls: Sequence[PlainCall], replies: Sequence[Reply | None], whole: Call[None]
    ) -> Sequence[Later[Returned]]:
        """What came of each. Those that went well are told to whoever listens together, as they ran together."""
        now, most = time.monotonic(), self.limits.output_bytes
        went_well: list[tuple[SessionSpec, str]] = []
        told: list[Later[Returned]] = []
        for call, reply in zip(calls, replies, strict=True):
            session, tool = call.session, call.claim.tool
            session.end_plain(call)
            if type(reply) is str and len(reply) <= most:
                session.last_seen = now
                went_well.append((session.spec, tool))
                told.append(reply)
            else:
                told.append(session.told_of_plain(tool, reply, whole.stopped, whole.began))
        if went_well:
            for hear in self.journal.answered_at_once:
                hear(went_well, [now - whole.began] * len(went_well))
        return told

    # Life.

    @asynccontextmanager
    async def running(self) -> AsyncGenerator[Self]:
        """Own every background task; on the way out let calls end, then close every session."""
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
        """Take nothing new, give running calls time to end, then close every session. Doing it twice is fine."""
        self.shared.draining = True
        if running := [call.ended() for call in self.shared.calls]:
            await asyncio.wait(running, timeout=self.limits.drain_seconds)
        await asyncio.gather(*(self.close(session_id, "drained") for session_id in list(self.sessions)))

    def stop_calls(self) -> None:
        for call in list(self.shared.calls):
            call.stop("cancelled")

    def _is_looked_after(self) -> bool:
        """Whether deadlines and leases are kept on this event loop; without a lifespan, loops may change."""
        sweeping = self._sweeping
        return sweeping is not None and not sweeping.done() and sweeping.get_loop() is asyncio.get_running_loop()

    async def _sweep(self) -> None:
        """The one clock of the server: deadlines, leases and kept results."""
        stood_still = False
        with SpareFiles() as spare:
            while True:
                due = time.monotonic() + self.limits.sweep_seconds
                await asyncio.sleep(self.limits.sweep_seconds)
                now = time.monotonic()
                late = max(now - due, 0.0)
                spare.look()
                for told in self.journal.swept:
                    told(late)
                if late > _STALL_SECONDS:
                    self.shared.excuse_calls(late)
                stood_still = late > _STALL_SECONDS and not stood_still  # never twice: a busy server has deadlines too
                if stood_still:  # read what came meanwhile first, or those who sent it look idle
                    continue
                self.shared.stop_late_calls(now)
                self.shared.kept.sweep(now)
                self._sweep_idle(now - self.limits.idle_seconds)

    def _sweep_idle(self, horizon: float) -> None:
        for session in [s for s in self.sessions.values() if s.last_seen < horizon and not s.busy]:
            if session.on_idle is not None:
                session.touch()  # it is asked again if it is still there then
                self.shared.background.start(session.on_idle())
                continue
            self.sessions.pop(session.id, None)
            self.shared.background.start(session.close("idle"))


def by_name(environments: Sequence[type[Environment]]) -> dict[str, type[Environment]]:
    """The environments under their names, after checking what can only be checked on a finished class."""
    found: dict[str, type[Environment]] = {}
    for env in environments:
        name = env.name().lower()
        if not _GOOD_NAME.fullmatch(name):
            raise DefinitionError(
                f"{env.__qualname__} is called {name!r}; a name is part of addresses: use letters, digits, ., _ and -"
            )
        if name in found:
            raise DefinitionError(f"two environments are called {name!r}: {found[name].__qualname__} and {env}")
        if not (env._definition.tools or env._definition.catalogue or env.toolsets or lists_task_tools(env)):
            raise DefinitionError(f"{env.__qualname__} has no tool: decorate a method with @tool")
        if not overrides(env, "list_splits"):
            raise DefinitionError(f"{env.__qualname__} has no split: write a classmethod list_splits()")
        if not overrides(env, "get_prompt") and not overrides(env, "get_messages"):
            raise DefinitionError(f"{env.__qualname__} has no prompt: write get_prompt() or get_messages()")
        found[name] = env
    return found
