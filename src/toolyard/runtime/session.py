"""`Session`: one environment instance from open to close, and the calls made in it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, NamedTuple, TypeVar

from toolyard.core.encoding import encode
from toolyard.core.environment import Environment, needs_teardown, overrides
from toolyard.core.errors import (
    CallNotFound,
    CannotFork,
    NotSupported,
    Overloaded,
    SessionClosed,
    SessionFailed,
    ToolyardError,
    describe,
)
from toolyard.core.messages import GroupCandidate, GroupScore
from toolyard.core.output import (
    AskAgain,
    CallResult,
    JsonObject,
    Reason,
    Reply,
    Returned,
    ToolFailure,
    ToolOutput,
    as_output,
    cut,
    cut_text,
    snapshot,
)
from toolyard.placement.base import Placed, Placement, SessionSpec, Strategy
from toolyard.placement.steps import Later
from toolyard.runtime.call import Call, is_ours
from toolyard.runtime.journal import Outcome, Why
from toolyard.runtime.shared import Shared
from toolyard.runtime.turns import Claim, Turns

log = logging.getLogger("toolyard.runtime")

R = TypeVar("R")
A = TypeVar("A")

_FORGOTTEN_MOST = 4096
"""How many ids of calls, once chosen by the client and now evicted, a session remembers so as not to run them again."""


_REBUILT = (
    "The session was made again and is as before this call; whether the call had effects outside of it is not known."
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a tool that had no answer yet is asked again."""


class State(Enum):
    STARTING = "starting"
    READY = "ready"
    FAILED = "failed"
    CLOSED = "closed"


_READY = State.READY
"""What every call asks for: looking up a member of an Enum takes longer than all else that it asks."""


class _Asked(NamedTuple):
    """A call that was made."""

    tool: str
    arguments: JsonObject
    given: JsonObject


@dataclass(slots=True, eq=False)
class PlainCall:
    """A call of a plain function that is about to run in a thread."""

    session: Session
    claim: Claim
    function: Callable[[], Reply]


class Begun(NamedTuple):
    """A call that was begun and turned out to wait. The same task has to await the rest of it, and at once."""

    call: Call[CallResult | AskAgain]
    rest: Awaitable[None]


class Session:
    """All the state of a session is here. It is a lease: unseen for long enough, the runtime closes it."""

    __slots__ = (
        "_calls",
        "_error",
        "_forgotten",
        "_history",
        "_placed",
        "_placement",
        "_rebuilding",
        "_settled",
        "_setup",
        "_shared",
        "_teardown",
        "_turns",
        "finished",
        "last_seen",
        "on_idle",
        "opened",
        "provisional",
        "running",
        "spec",
        "state",
    )

    def __init__(
        self,
        spec: SessionSpec,
        shared: Shared,
        *,
        provisional: bool = False,
        on_idle: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self.spec = spec
        self.state = State.STARTING
        self.opened = self.last_seen = time.monotonic()
        self.finished = False
        """A tool said that the episode is over."""
        self.provisional = provisional
        """Opened without naming the environment; the first request that names one decides."""
        self.on_idle = on_idle
        """What to do in the place of closing it when nobody has used it for long."""
        self.running = 0
        self._shared = shared
        self._placed: Placed | None = None
        self._placement: Placement | None = None
        self._history: list[_Asked] | None = [] if spec.environment.replayable else None
        """The calls that led to its state, if they can be repeated."""
        self._rebuilding: asyncio.Task[None] | None = None
        self._setup: asyncio.Task[None] | None = None
        self._teardown: asyncio.Task[None] | None = None
        """Under way already, because setup() failed."""
        self._settled: asyncio.Event | None = None
        self._error = ""
        self._turns: Turns | None = None
        self._calls: dict[str, Call[Any]] | None = None
        self._forgotten: OrderedDict[str, None] | None = None

    @property
    def id(self) -> str:
        return self.spec.session_id

    @property
    def _about(self) -> dict[str, dict[str, str]]:
        """For log lines."""
        return {"about": {"session": self.id, "environment": self.spec.environment.name().lower()}}

    # From open to close.

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

    async def _rebuilt(self) -> None:
        """Make an environment that was lost again, by repeating its calls. Many may wait for that."""
        if self._rebuilding is None:
            self._rebuilding = asyncio.ensure_future(self._rebuild())
        rebuilding = self._rebuilding
        try:
            await asyncio.shield(rebuilding)
        finally:
            if rebuilding.done():
                self._rebuilding = None

    async def _rebuild(self) -> None:
        assert self._placed is not None
        assert self._placement is not None
        what = f"{self._placed.lost}; repeating its {len(self._history or ())} calls"
        log.warning("session %s: %s", self.id, what, extra=self._about)
        await self._placed.teardown()
        async with asyncio.timeout(self._shared.limits.setup_seconds):
            (placed,) = await self._repeated(self._placement, [self.spec])
        if self.state is State.CLOSED:
            await self._give_back(placed)
            raise SessionClosed("Session deleted")
        self._placed = placed
        for told in self._shared.journal.rebuilt:
            told(self.spec)

    @property
    def condition(self) -> str:
        """Its state, or that its environment is lost."""
        return "lost" if self._placed is not None and self._placed.lost else self.state.value

    @property
    def waiting(self) -> int:
        """Calls that have not had their turn."""
        if self.state is State.STARTING:
            return self.running
        return self._turns.waiting if self._turns is not None else 0

    @property
    def busy(self) -> bool:
        """Whether something goes on in it, so that it is not idle although nobody asks."""
        return self.running > 0 or self.state is State.STARTING

    @property
    def closes_at_once(self) -> bool:
        """Whether nothing has to be waited for when it is closed."""
        holds = self._placed is not None and self._placed.holds
        trivial = not holds and not needs_teardown(self.spec.environment, self.spec.toolset)
        return trivial and not self.running and self._setup is None

    def touch(self) -> None:
        self.last_seen = time.monotonic()

    async def close(self, why: Why = "deleted") -> None:
        """End calls and setup, then let the author's teardown() run; once, and for a bounded time."""
        if self.state is State.CLOSED:
            return
        self._settle(State.CLOSED)
        self._tell_closed(why)
        ending: set[asyncio.Future[None]] = set()
        if self._setup is not None:
            self._setup.cancel()
            ending.add(self._setup)
        for call in (self._calls or {}).values():
            self._shared.kept.drop(call)
            if not call.done:
                ending.add(call.ended())
                call.stop("cancelled")
        calls, self._calls = list((self._calls or {}).values()), None
        if ending:
            await asyncio.wait(ending, timeout=self._shared.limits.teardown_seconds)
        for call in calls:
            if not call.done:
                self._abandon(call)
        if self._teardown is not None:
            await asyncio.wait((self._teardown,))  # bounded by itself
        if (placed := self._placed) is not None:
            self._placed = None
            await self._give_back(placed)

    async def stop_calls(self) -> None:
        """End what runs in it, and wait for that; the session itself goes on."""
        running = [call for call in (self._calls or {}).values() if not call.done]
        for call in running:
            call.stop("cancelled")
        if running:
            await asyncio.wait([call.ended() for call in running], timeout=self._shared.limits.teardown_seconds)

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[Session], Strategy]:
        """As many sessions that continue from here. It waits until no call runs, and none begins meanwhile."""
        placed = await self.ready()
        assert self._placement is not None
        turns = self._turns = self._turns or Turns()
        claim = Claim("fork", "exclusive")
        await turns.take(claim)
        try:
            sessions = [Session(spec, self._shared) for spec in specs]
            try:
                made, strategy = await placed.fork(specs)
            except (NotSupported, CannotFork) as error:
                if self._history is None:
                    raise type(error)(f"{error}; and it does not say replayable = True") from error
                strategy = "replay"
                made = await self._repeated(self._placement, specs)
            for session, one in zip(sessions, made, strict=True):
                session._continue(self, one)
            return sessions, strategy
        finally:
            turns.give_back(claim)

    async def _repeated(self, placement: Placement, specs: Sequence[SessionSpec]) -> Sequence[Placed]:
        """Environments that are made to come to where this one is."""
        made: list[Placed] = []
        try:
            for spec in specs:
                made.append(placed := await placement.place(spec))
                if needs_setup(spec.environment):
                    await placed.setup()
                for asked in self._history or ():
                    await placed.call(*asked)
        except BaseException:
            for placed in made:
                await self._give_back(placed)
            raise
        return made

    def _continue(self, other: Session, placed: Placed) -> None:
        """From where another session is, with a copy of its environment."""
        self._placed, self._placement, self.finished = placed, other._placement, other.finished
        self._history = None if other._history is None else [*other._history]
        self._tell_opened()
        self._settle(State.READY)

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

    # Calls.

    def call(
        self, tool: str, arguments: JsonObject, call_id: str | None = None, *, given: JsonObject = {}
    ) -> Call[CallResult]:
        """Start a call and hand back its ticket at once. An id that already names a call here finds that call.

        `given` is what the trainer says with it, not the model.
        """
        found = self._find(call_id)
        return found or self._start(Call(tool, call_id, self._deadline()), self._follow, (arguments, given))

    def ask(self, tool: str, arguments: JsonObject) -> Reply | Begun | Call[CallResult | AskAgain]:
        """As `begin`, for a client who asks again when told to. A call that cannot begin at once is a ticket."""
        begun = self._try(tool, arguments, {})
        if begun is not None:
            return begun
        return self._start(Call(tool, None, self._deadline(), kept=False), self._call_tool, (arguments, {}))

    def find(self, call_id: str) -> Call[Any]:
        """A call that was made here, and is running or kept."""
        if (call := self._find(call_id)) is None:
            raise CallNotFound(f"there is no call {call_id!r}")
        return call

    def begin(self, tool: str, arguments: JsonObject, given: JsonObject) -> Later[Returned]:
        """As `call`, but in the task of the caller, who alone gets the result: here and now if the tool never waits.

        Otherwise it has begun, and the same task has to await the rest.
        """
        begun = self._try(tool, arguments, given)
        if type(begun) is str:
            return begun
        if begun is None:
            call: Call[CallResult] = Call(tool, None, self._deadline(), kept=False)
            return self._start(call, self._follow, (arguments, given)).finished()
        return self._end_of(begun) if isinstance(begun, Begun) else self._result_of(begun)

    def _try(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply | Begun | None:
        """Begin a call in the task of the caller, and end it if it never waits. None if it cannot begin now."""
        self.last_seen = time.monotonic()
        placed, shared = self._placed, self._shared
        if placed is None or not self._is_free() or not shared.may_run_at_once():
            return None
        begun = placed.begin(tool, arguments, given)
        if type(begun) is str and len(begun) <= shared.limits.output_bytes:
            for told in shared.journal.answered:
                told(self.spec, tool, "ok", 0.0, time.monotonic() - self.last_seen)
            return begun
        if isinstance(begun, Coroutine):
            call: Call[CallResult | AskAgain] = Call(tool, None, self._deadline(), kept=False)
            return Begun(call, self._go_on(call, begun))
        result = self._within_limits(self._checked(tool, begun)[0])
        self._tell(tool, result, self.last_seen, self.last_seen, time.monotonic())
        return result

    def _is_free(self) -> bool:
        """Whether a call of whatever tool may begin at once."""
        turns = self._turns
        idle = turns is None or turns.idle
        return idle and self.state is _READY and not self.finished and self._history is None

    def plain(self, tool: str, arguments: JsonObject, given: JsonObject) -> PlainCall | None:
        """The call as a function for a thread, if the tool is one and may begin at once. Then it has its turn already.

        To be handed to `Runtime.run_plain`.
        """
        placed = self._placed
        if placed is None or not self._is_free():
            return None
        function = placed.plain(tool, arguments, given)
        if function is None:
            return None
        turns = self._turns = self._turns or Turns()
        claim = Claim(tool, placed.tools[tool].turn)
        turns.take_idle(claim)
        self.running += 1
        for told in self._shared.journal.started:
            told(self.spec, tool)
        return PlainCall(self, claim, function)

    def end_plain(
        self, call: PlainCall, returned: Reply | None, reason: Reason | None, began: float
    ) -> Later[Returned]:
        """Give the turn back. What came of it is told as of any call; without anything, why it was stopped."""
        assert self._turns is not None
        self._turns.give_back(call.claim)
        self.running -= 1
        self.touch()
        limits = self._shared.limits
        tool, result = call.claim.tool, returned
        if result is None:
            result = _stopped(tool, reason, limits.call_seconds)
        elif type(result) is not str or len(result) > limits.output_bytes:
            result = self._checked(tool, result)[0]
        if self._shared.journal.answered:
            self._tell(tool, result, began, began, self.last_seen)
        return result if type(result) is str else self._result_of(result)

    async def _go_on(self, call: Call[CallResult | AskAgain], work: Awaitable[Reply]) -> None:
        """With a call that was begun at once and then had to wait: from now on it takes part in everything."""
        call.task = task = asyncio.current_task()
        call.began = self.last_seen
        call.begin()
        known = self._placed.tools.get(call.name) if self._placed is not None else None
        claim = Claim(call.name, known.turn if known is not None else "serial")
        turns = self._turns = self._turns or Turns()
        turns.take_idle(claim)
        self._shared.slots.take_at_once()
        self._enter(call)

        async def checked(call: Call[CallResult | AskAgain], work: Awaitable[Reply]) -> CallResult | AskAgain:
            try:
                result, call.size = self._checked(call.name, await work)
                return result
            finally:
                turns.give_back(claim)
                self._shared.slots.give_back()

        await self._run(call, checked, work)
        if task is not None and task.cancelling():  # it is the caller who was cancelled, not the call alone
            raise asyncio.CancelledError

    async def _end_of(self, begun: Begun) -> Returned:
        await begun.rest
        result = self._result_of(begun.call.result)
        return result if isinstance(result, ToolOutput | ToolFailure | str) else await result

    def _result_of(self, reply: Reply) -> Later[Returned]:
        """The result itself; or else it is asked for from now on, and can be awaited."""
        return reply if not isinstance(reply, AskAgain) else self.call(reply.tool, reply.arguments).finished()

    def score_group(
        self, candidates: Sequence[GroupCandidate], call_id: str | None = None
    ) -> Call[Sequence[GroupScore] | ToolFailure]:
        """Start scoring; a ticket as for a tool call, but it takes no turn and is not stopped by the end."""
        found = self._find(call_id)
        return found or self._start(Call("score_group", call_id, self._deadline()), self._score, candidates)

    def forget(self, call: Call[Any]) -> None:
        """Drop a result that was kept long enough, but remember that its id was used."""
        if self._calls is None or self._calls.pop(call.id, None) is None:
            return
        if not is_ours(call.id):
            if self._forgotten is None:
                self._forgotten = OrderedDict()
            self._forgotten[call.id] = None
            if len(self._forgotten) > _FORGOTTEN_MOST:
                self._forgotten.popitem(last=False)

    def _find(self, call_id: str | None) -> Call[Any] | None:
        self.touch()
        if call_id is None:
            return None
        if self._calls is not None and (call := self._calls.get(call_id)):
            return call
        if not call_id or is_ours(call_id) or (self._forgotten is not None and call_id in self._forgotten):
            raise CallNotFound("unknown task_id")
        return None

    def _deadline(self) -> float:
        return self.last_seen + self._shared.limits.call_seconds

    def _start(self, call: Call[R], work: Callable[[Call[R], A], Awaitable[R]], given: A) -> Call[R]:
        if self.state is State.CLOSED:
            raise SessionClosed("Session deleted")
        self._enter(call)
        # Not among the background tasks: Shared owns the call, and _run lets nothing out.
        call.task = asyncio.get_running_loop().create_task(self._run(call, work, given))
        return call

    def _enter(self, call: Call[Any]) -> None:
        try:
            self._shared.admit(call, self._abandon)
        except Overloaded:
            for refused in self._shared.journal.answered:
                refused(self.spec, call.name, "overloaded", 0.0, None)
            raise
        for told in self._shared.journal.started:
            told(self.spec, call.name)
        if self._calls is None:
            self._calls = {}
        self._calls[call.id] = call
        self.running += 1

    def _abandon(self, call: Call[Any]) -> None:
        log.error(
            "session %s: %s does not let itself be stopped; it goes on, unheard: %s",
            *(self.id, call.name, call.task),
            extra=self._about,
        )
        self._finish(call, _stopped(call.name, call.stopped, self._shared.limits.call_seconds))

    async def _run(self, call: Call[Any], work: Callable[[Call[Any], A], Awaitable[Any]], given: A) -> None:
        try:
            call.begin()
            result = await work(call, given)
        except asyncio.CancelledError:
            result = _stopped(call.name, call.stopped, self._shared.limits.call_seconds)
            task = asyncio.current_task()
            if call.stopped is not None and task is not None:
                task.uncancel()  # that was meant for the call alone
        except ToolyardError as error:  # setup() failed, or the session was closed while the call waited
            result = ToolFailure("lost", str(error))
        except Exception as error:  # of ours, or from score_group(), which has no softer way to fail
            what = f"{call.name} broke: {describe(error)}"
            log.warning("session %s: %s", self.id, what, exc_info=error, extra=self._about)
            result = ToolFailure("tool_raised", str(error) or type(error).__name__)
        if not call.done:  # it was not given up meanwhile
            self._finish(call, result)

    def _finish(self, call: Call[Any], result: Any) -> None:
        if isinstance(result, ToolFailure):
            result = self._within_limits(result)
            call.size = len(result.message)
        call.finish(result)
        self.running -= 1
        self.touch()
        self._shared.calls.pop(call, None)
        if self._shared.journal.answered:
            asked = call.deadline - self._shared.limits.call_seconds
            self._tell(call.name, result, asked, call.began, self.last_seen)
        if self._calls is None:
            return
        if call.kept:
            self._shared.kept.add(call, self.forget, self.last_seen)
        else:
            del self._calls[call.id]

    def _tell(self, tool: str, result: object, asked: float, began: float, now: float) -> None:
        """Whoever listens, of a call that is over. One that has nothing to say yet is not."""
        if isinstance(result, AskAgain):
            return
        outcome: Outcome = result.reason if isinstance(result, ToolFailure) else "ok"
        waited, ran = (began - asked, now - began) if began else (now - asked, None)
        for told in self._shared.journal.answered:
            told(self.spec, tool, outcome, waited, ran)

    async def _follow(self, call: Call[CallResult], asked: tuple[JsonObject, JsonObject]) -> CallResult:
        """Call the tool, and whatever it says is to be called next, until there is a result."""
        pause = _FIRST_PAUSE
        result = await self._call_tool(call, asked)
        while isinstance(result, AskAgain):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            result = await self._in_turn(call, result.tool, result.arguments, asked[1])
        return result

    async def _call_tool(self, call: Call[Any], asked: tuple[JsonObject, JsonObject]) -> CallResult | AskAgain:
        return await self._in_turn(call, call.name, *asked)

    async def _in_turn(
        self, call: Call[Any], name: str, arguments: JsonObject, given: JsonObject
    ) -> CallResult | AskAgain:
        placed = self._placed if self.state is _READY else await self.ready()
        assert placed is not None
        tool = placed.tools.get(name)
        claim = Claim(name, tool.turn if tool is not None else "serial")
        turns = self._turns = self._turns or Turns()
        await turns.take(claim)
        try:
            if self.finished and (tool is not None or await placed.has_tool(name)):
                return self._refused(name)
            await self._shared.slots.take()
            if self._shared.journal.answered and not call.began:
                call.began = time.monotonic()
            try:
                if self._history is None:
                    returned = await placed.call(name, arguments, given)
                else:
                    returned = await self._call_and_remember(_Asked(name, arguments, given), self._history)
            finally:
                self._shared.slots.give_back()
            result, call.size = self._checked(name, returned)
            return result
        finally:
            turns.give_back(claim)

    async def _call_and_remember(self, asked: _Asked, history: list[_Asked]) -> Reply:
        """In a session whose calls can be repeated. One that is lost in the middle of a call is as before that call."""
        placed = await self.ready()
        returned = await placed.call(*asked)
        if not isinstance(returned, ToolFailure) or returned.reason in ("tool_failed", "tool_raised"):
            history.append(asked)
        elif returned.reason == "lost" and placed.lost:
            await self.ready()
            return replace(returned, message=f"{returned.message}. {_REBUILT}")
        return returned

    def _checked(self, tool: str, returned: Reply) -> tuple[CallResult | AskAgain, int]:
        """What is told of a result, and its size; and whether it ends the episode."""
        if isinstance(returned, ToolFailure | AskAgain):
            return returned, 0
        if self.finished:
            return self._refused(tool), 0  # another call ended the episode meanwhile: the first grade counts
        limits = self._shared.limits
        try:
            result, size = snapshot(as_output(returned))
        except (TypeError, ValueError, RecursionError) as error:  # what the author put into metadata or detail
            return ToolFailure("tool_raised", f"the tool's output cannot be written as JSON: {error}"), 0
        if result.finished and limits.latch_finished and self.spec.environment.latch_finished:
            self.finished = True
        if size > limits.output_bytes:
            return cut(result, limits.output_bytes), limits.output_bytes
        return result, size

    def _within_limits(self, result: CallResult | AskAgain) -> CallResult | AskAgain:
        """An output is already; the message of a failure is cut."""
        if not isinstance(result, ToolFailure):
            return result
        most, said = self._shared.limits.output_bytes, result.said
        if isinstance(said, str):
            said = cut_text(said, most)
        elif said is not None and len(encode(said)) > most:
            said = None
        return replace(result, message=cut_text(result.message, most), said=said)

    async def _score(
        self, call: Call[Sequence[GroupScore] | ToolFailure], candidates: Sequence[GroupCandidate]
    ) -> Sequence[GroupScore]:
        placed = await self.ready()
        call.began = time.monotonic()
        scores = await placed.score_group(candidates)
        call.size = len(encode([score.metadata for score in scores]))
        return scores

    def _refused(self, tool: str) -> ToolFailure:
        return ToolFailure(
            "episode_finished",
            f"{tool!r} was not run: the episode has finished (a tool returned finished=True), so no further "
            f"tool calls are accepted.",
        )


def needs_setup(environment: type[Environment]) -> bool:
    return bool(environment.toolsets) or overrides(environment, "setup")


def _stopped(tool: str, why: Reason | None, seconds: float) -> ToolFailure:
    reason: Reason = why or "cancelled"
    if reason == "timed_out":
        return ToolFailure(reason, f"Tool {tool!r} failed: no answer within {seconds:g} s, so it was stopped")
    return ToolFailure(reason, f"Tool {tool!r} was stopped: the session ended before the call did")
