"""A client's seat: the session that it plays now, from one reset to the next."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import Sequence

from toolyard.asgi import Verbosity, explain
from toolyard.core.environment import Environment
from toolyard.core.errors import NoRoom, Overloaded, RequestError, SessionClosed, SessionFailed, ToolyardError, describe
from toolyard.core.output import Blocks, JsonObject, Returned
from toolyard.core.tool import ToolSpec
from toolyard.placement.base import NOBODY, Origin, SessionSpec, Task, list_tools
from toolyard.protocols.openenv.messages import Reset, Trouble
from toolyard.protocols.openenv.names import ours
from toolyard.runtime.lifecycle import State
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session

_NOT_RESET = "there is no episode here: send a reset first"
_OVER = "the session of this episode is over: send a reset"


class Seat:
    """A client's seat. Each reset opens a session with an id of its own, by which a trainer finds it over other
    wires."""

    def __init__(
        self, runtime: Runtime, environment: type[Environment], errors: Verbosity, origin: Origin = NOBODY
    ) -> None:
        self.origin = origin
        self.id = runtime.owners.draw(_new_id)
        self.environment = environment
        self.session: Session | None = None
        self.episode_id: str | None = None
        self.steps = 0
        self.attached = False
        """A WebSocket uses it. The client answers pings, so the session is not idle."""
        self.closing = False
        """Its client wants it closed when the WebSocket is gone."""
        self.seen = time.monotonic()
        self._runtime = runtime
        self._errors: Verbosity = errors
        self._resetting = asyncio.Lock()
        self._is_over = False

    @property
    def is_playing(self) -> bool:
        return self.session is not None and self.session.state is not State.CLOSED

    @property
    def state(self) -> JsonObject:
        if self.session is None:
            return {"episode_id": None, "step_count": self.steps}
        task = self.session.spec.task
        return {
            "episode_id": self.episode_id,
            "step_count": self.steps,
            "session_id": self.session.id,
            "env": self.environment.name(),
            "split": task.split,
            "index": task.index,
        }

    async def reset(self, wanted: Reset) -> Blocks:
        """Close the old session, and open one for the wanted task. Return its prompt. Raises `Trouble`."""
        async with self._resetting:  # a socket and requests of JSON-RPC may share the seat
            return await self._reset(wanted)

    async def start(self) -> None:
        """Open a session for the first task, if there is none. Raises `Trouble`."""
        if self.session is None:
            async with self._resetting:
                if self.session is None:
                    await self._reset(Reset())

    async def _reset(self, wanted: Reset) -> Blocks:
        self.seen = time.monotonic()
        if self._is_over:
            raise Trouble("SESSION_ERROR", "this session was closed")
        try:
            task = await self._task(wanted)
            await self.leave()
            session_id = self._runtime.owners.draw(_new_id)
            spec = SessionSpec(session_id, self.environment, task, wanted.secrets or {}, origin=self.origin)
            self.session = await self._runtime.open(spec, on_idle=self._when_idle)
            self.episode_id, self.steps = wanted.episode_id or session_id, 0
            return await self.session.prompt()
        except (ToolyardError, Trouble) as error:
            await self.leave(failed=True)
            raise self.trouble(error) from error
        except Exception as error:  # the author's constructor, or get_prompt()
            await self.leave(failed=True)
            raise self.trouble(SessionFailed(describe(error))) from error

    async def _task(self, wanted: Reset) -> Task:
        if (wanted.split is None) != (wanted.index is None):
            raise Trouble("EXECUTION_ERROR", "split and index name a task together; one of them is missing")
        if wanted.task_spec is not None:
            if wanted.split is not None:
                raise Trouble("EXECUTION_ERROR", "a reset names split and index, or has a task_spec, not both")
            return Task(wanted.task_spec)
        tasks = self._runtime.tasks(self.environment)
        if wanted.split is None or wanted.index is None:
            return await tasks.at((await tasks.splits())[0].name, 0)
        return await tasks.at(wanted.split, wanted.index)

    async def tools(self) -> Sequence[ToolSpec]:
        """The session's tools; before there is one, the tools that every task has. Raises `Trouble`."""
        self.seen = time.monotonic()
        try:
            if self.session is None:
                return (await list_tools(self.environment, self._runtime.placement)).tools
            found = await self.session.tools_before_setup()
            return (found or await (await self.session.ready()).list_tools()).tools
        except Exception as error:  # the server's, or the author's list_tools()
            raise self.trouble(error) from error

    async def call(self, name: str, arguments: JsonObject) -> Returned:
        """Call a tool. Raises `Trouble` if there is no session."""
        session = self.playing()
        try:
            if session.state is State.FAILED:
                await session.ready()  # raises what setup() raised
            call = session.start(ours(name, session.spec.environment), arguments, kept=False)
        except ToolyardError as error:
            raise self.trouble(error) from error
        return call.result if call.done else await call.finished()

    def playing(self) -> Session:
        self.seen = time.monotonic()
        if self.session is None:
            raise Trouble("EXECUTION_ERROR", _NOT_RESET)
        if self.session.state is State.CLOSED:
            raise Trouble("EXECUTION_ERROR", _OVER, reason="lost", retryable=True)
        return self.session

    async def leave(self, *, failed: bool = False) -> None:
        """Close the session, and wait until its teardown is over."""
        session, self.session = self.session, None
        if session is not None and self._runtime.sessions.get(session.id) is session:
            await asyncio.shield(self._runtime.close(session.id, "failed" if failed else "deleted"))

    async def end(self) -> None:
        """Close the session, also one that a reset is about to open, and open no more."""
        self._is_over = True
        await self.leave()
        async with self._resetting:
            await self.leave()

    async def _when_idle(self) -> None:
        if not self.attached:
            await self.leave()

    def trouble(self, error: Exception) -> Trouble:
        """The error for a client, of an exception outside of a tool."""
        match error:
            case Trouble():
                return error
            case Overloaded() | NoRoom():
                return full(self._runtime, str(error))
            case SessionClosed():
                return Trouble("EXECUTION_ERROR", _OVER, reason="lost", retryable=True)
            case RequestError():
                return Trouble("EXECUTION_ERROR", str(error))
            case SessionFailed():
                said = str(error) if self._errors != "none" else explain(error, "none")
                return Trouble("EXECUTION_ERROR", said, reason="setup_failed", retryable=False)
            case _:
                return Trouble("EXECUTION_ERROR", explain(error, self._errors), reason="failed", retryable=False)


class Seats:
    """The seats that clients have opened over HTTP, by id. An unused seat is dropped after a while."""

    def __init__(self, runtime: Runtime, errors: Verbosity) -> None:
        self._runtime = runtime
        self._errors: Verbosity = errors
        self._seats: dict[str, Seat] = {}
        runtime.journal.swept.append(self._sweep)

    def new(self, environment: type[Environment], origin: Origin = NOBODY) -> Seat:
        """A seat that no other client can find."""
        return Seat(self._runtime, environment, self._errors, origin)

    def take(self, environment: type[Environment]) -> Seat:
        """Make a seat with an id. Raises `Trouble` if there are too many."""
        if len(self._seats) >= self._runtime.limits.max_sessions or self._runtime.draining:
            raise full(self._runtime)
        seat = self.new(environment)
        self._seats[seat.id] = seat
        return seat

    def find(self, seat_id: object, environment: type[Environment]) -> Seat | None:
        seat = self._seats.get(seat_id) if isinstance(seat_id, str) else None
        return seat if seat is not None and seat.environment is environment else None

    async def drop(self, seat: Seat) -> None:
        self._seats.pop(seat.id, None)
        await seat.end()

    def _sweep(self, _: float) -> None:
        horizon = time.monotonic() - self._runtime.limits.idle_seconds
        for seat in [seat for seat in self._seats.values() if seat.seen < horizon]:
            if not seat.is_playing and not seat.attached:
                del self._seats[seat.id]


def full(runtime: Runtime, why: str = "") -> Trouble:
    active, most = len(runtime.sessions), runtime.limits.max_sessions
    busy = "the server is shutting down" if runtime.draining else f"all {most} sessions of this server are in use"
    said = f"Server at capacity: {why or busy}"
    return Trouble("CAPACITY_REACHED", said, active_sessions=active, max_sessions=most)


def is_full(runtime: Runtime) -> bool:
    return runtime.draining or len(runtime.sessions) >= runtime.limits.max_sessions


def _new_id() -> str:
    return str(uuid.uuid4())
