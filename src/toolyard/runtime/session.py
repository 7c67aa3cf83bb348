"""`Session`: one environment instance from open to close, and the calls made in it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from toolyard.core.encoding import encode, encode_sorted
from toolyard.core.environment import needs_teardown
from toolyard.core.errors import (
    CallConflict,
    CallNotFound,
    CannotFork,
    NotSupported,
    Overloaded,
    SessionClosed,
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
)
from toolyard.placement.base import Placed, SessionSpec, Strategy
from toolyard.placement.steps import Later, at_once
from toolyard.runtime.call import Call, is_ours
from toolyard.runtime.journal import Outcome, Why
from toolyard.runtime.life import Asked, Life, State
from toolyard.runtime.outcomes import fitted, refused, stopped, within
from toolyard.runtime.shared import Shared
from toolyard.runtime.turns import Claim, Turns, claim_of

log = logging.getLogger("toolyard.runtime")

R = TypeVar("R")
A = TypeVar("A")

_FORGOTTEN_MOST = 2**18
"""How many ids of calls, chosen by the client and now evicted, a session remembers so as not to run them again. It
remembers a hash of each, about 80 bytes, and takes no more ids from clients when it has so many."""


_REBUILT = (
    "The session was made again and is as before this call; whether the call had effects outside of it is not known."
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a tool that had no answer yet is asked again."""


_READY, _CLOSED = State.READY, State.CLOSED
"""What every call asks for: looking up a member of an Enum takes longer than all else that it asks."""


@dataclass(slots=True, eq=False)
class PlainCall:
    """A call of a plain function that is about to run in a thread."""

    session: Session
    claim: Claim
    function: Callable[[], Reply]


class Begun(NamedTuple):
    """A call that was begun and turned out to wait. The same task has to await the rest of it, and at once."""

    call: Call[Any]
    rest: Awaitable[None]


class Session(Life):
    """All the state of a session is here. It is a lease: unseen for long enough, the runtime closes it."""

    __slots__ = (
        "_calls",
        "_forgotten",
        "_turns",
        "finished",
        "on_idle",
        "provisional",
        "running",
    )

    def __init__(
        self,
        spec: SessionSpec,
        shared: Shared,
        *,
        provisional: bool = False,
        on_idle: Callable[[], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        super().__init__(spec, shared)
        self.finished = False
        """A tool said that the episode is over."""
        self.provisional = provisional
        """Opened without naming the environment; the first request that names one decides."""
        self.on_idle = on_idle
        """What to do in the place of closing it when nobody has used it for long."""
        self.running = 0
        self._turns: Turns | None = None
        self._calls: dict[str, Call[Any]] | None = None
        self._forgotten: set[int] | None = None

    # From open to close.

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
        await self.ready()
        turns = self._turns = self._turns or Turns()
        claim = Claim("fork", "exclusive")
        await turns.take(claim)
        try:
            placed = await self.ready()  # as it is now, after the calls before us
            assert self._placement is not None
            sessions = [Session(spec, self._shared) for spec in specs]
            try:
                made, strategy = await placed.fork(specs)
            except (NotSupported, CannotFork) as error:
                if self._history is None:
                    raise type(error)(f"{error}; and its calls cannot be repeated (replayable = True)") from error
                strategy = "replay"
                made = await self._repeated(self._placement, specs)
            for session, one in zip(sessions, made, strict=True):
                session._continue(self, one)
            return sessions, strategy
        finally:
            turns.give_back(claim)

    def _continue(self, other: Session, placed: Placed) -> None:
        """From where another session is, with a copy of its environment."""
        self._placed, self._placement, self.finished = placed, other._placement, other.finished
        self._history = None if other._history is None else [*other._history]
        self._tell_opened()
        self._settle(State.READY)

    # Calls.

    def call(
        self, tool: str, arguments: JsonObject, call_id: str | None = None, *, given: JsonObject = {}
    ) -> Call[CallResult]:
        """Start a call and hand back its ticket at once. An id that already names a call here finds that call.

        `given` is what the trainer says with it, not the model.
        """
        found = self._find(call_id, tool, arguments)
        return found or self._start(self._new(tool, call_id, arguments), self._follow, (arguments, given))

    def call_here(self, tool: str, arguments: JsonObject, call_id: str | None = None) -> Call[CallResult] | Begun:
        """As `call`, but a new one begins in the task of the caller, and is done already if its tool never waits."""
        if (found := self._find(call_id, tool, arguments)) is not None:
            return found
        call: Call[CallResult] = self._new(tool, call_id, arguments)
        self._enter(call)
        call.task = asyncio.current_task()
        rest = at_once(self._run(call, self._follow, (arguments, {})))
        return call if rest is None else Begun(call, self._for_caller(call, rest))

    def ask(self, tool: str, arguments: JsonObject) -> Reply | Begun | Call[CallResult | AskAgain]:
        """As `begin`, for a client who asks again when told to. A call that cannot begin at once is a ticket."""
        begun = self._try(tool, arguments, {})
        if begun is not None:
            return begun
        return self._start(Call(tool, None, self._deadline(), kept=False), self._call_tool, (arguments, {}))

    def find(self, call_id: str) -> Call[Any]:
        """A call that was made here, and is running or kept."""
        self.touch()
        if self._calls is None or (call := self._calls.get(call_id)) is None:
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
        return self._end_of(begun) if isinstance(begun, Begun) else self.result_of(begun)

    def _try(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply | Begun | None:
        """Begin a call in the task of the caller, and end it if it never waits. None if it cannot begin now."""
        self.last_seen = time.monotonic()
        placed = self.at_hand()
        if placed is None or not self._shared.may_run_at_once():
            return None
        begun = at_once(placed.call(tool, arguments, given))
        if type(begun) is not str and isinstance(begun, Coroutine):
            return self._begun(tool, begun)
        return self.told(tool, begun, self.last_seen)

    def _begun(self, tool: str, rest: Awaitable[Reply]) -> Begun:
        call: Call[CallResult | AskAgain] = Call(tool, None, self._deadline(), kept=False)
        return Begun(call, self._go_on(call, rest))

    # For `Together`, which calls the environments of many sessions itself.

    def at_hand(self) -> Placed | None:
        """The environment, if a call of whatever tool may begin in it at once."""
        if self.state is not _READY or self.finished or self._history is not None:
            return None
        turns = self._turns
        return self._placed if turns is None or turns.idle else None

    def told(self, tool: str, reply: Reply, began: float) -> Reply:
        """What is told of a call that began then, at once, and is over now."""
        shared = self._shared
        self.last_seen = now = time.monotonic()
        if type(reply) is str and len(reply) <= shared.limits.output_bytes:
            for told in shared.journal.answered:
                told(self.spec, tool, "ok", 0.0, now - began)
            return reply
        result = within(self._checked(tool, reply)[0], shared.limits.output_bytes)
        self._tell(tool, result, began, began, now)
        return result

    def carry_on(self, tool: str, rest: Awaitable[Reply]) -> Coroutine[Any, Any, Returned]:
        """With a call that began when the session was last seen, and waits. To be awaited in its task, and at once."""
        return self._end_of(self._begun(tool, rest))

    def plain(self, tool: str, arguments: JsonObject, given: JsonObject) -> PlainCall | None:
        """The call as a function for a thread, if the tool is one and may begin at once. Then it has its turn already.

        To be handed to `Runtime.run_plain`.
        """
        placed = self.at_hand()
        if placed is None:
            return None
        function = placed.plain(tool, arguments, given)
        if function is None:
            return None
        turns = self._turns = self._turns or Turns()
        claim = claim_of(tool, placed.tools[tool])
        turns.take_idle(claim)
        self.running += 1
        for told in self._shared.journal.started:
            told(self.spec, tool)
        return PlainCall(self, claim, function)

    def end_plain(self, call: PlainCall) -> None:
        """Give its turn back. What came of it is still to be told."""
        assert self._turns is not None
        self._turns.give_back(call.claim)
        self.running -= 1

    def told_of_plain(self, tool: str, reply: Reply | None, reason: Reason | None, began: float) -> Later[Returned]:
        """What is told of such a call; if nothing came of it, why it was stopped."""
        if reply is None:
            reply = stopped(tool, reason, self._shared.limits.call_seconds)
        return self.result_of(self.told(tool, reply, began))

    async def _go_on(self, call: Call[CallResult | AskAgain], work: Awaitable[Reply]) -> None:
        """With a call that was begun at once and then had to wait: from now on it takes part in everything."""
        call.task = asyncio.current_task()
        call.began = self._asked(call)
        call.begin()
        known = self._placed.tools.get(call.name) if self._placed is not None else None
        claim = claim_of(call.name, known)
        turns = self._turns = self._turns or Turns()
        turns.take_idle(claim)
        has_slot = self._shared.slots.take_at_once()  # calls that were given up may have them all
        self._enter(call)

        async def checked(call: Call[CallResult | AskAgain], work: Awaitable[Reply]) -> CallResult | AskAgain:
            try:
                result, call.size = self._checked(call.name, await work)
                return result
            finally:
                turns.give_back(claim)
                if has_slot:
                    self._shared.slots.give_back()

        await self._for_caller(call, self._run(call, checked, work))

    async def _for_caller(self, call: Call[Any], work: Awaitable[None]) -> None:
        """Run a call in the task of its caller, who is cancelled only if it is he who was meant."""
        await work
        task = asyncio.current_task()
        assert task is not None
        if call.stopped is not None:
            task.uncancel()  # that was meant for the call alone, whatever its tool made of it
        if task.cancelling():
            raise asyncio.CancelledError

    async def _end_of(self, begun: Begun) -> Returned:
        await begun.rest
        result = self.result_of(begun.call.result)
        return result if isinstance(result, ToolOutput | ToolFailure | str) else await result

    def result_of(self, reply: Reply) -> Later[Returned]:
        """The result itself; or else it is asked for from now on, and can be awaited."""
        if not isinstance(reply, AskAgain):
            return reply
        try:
            return self.call(reply.tool, reply.arguments).finished()
        except Overloaded as error:
            return ToolFailure("overloaded", str(error))
        except ToolyardError as error:  # the session was closed meanwhile
            return ToolFailure("lost", str(error))

    def score_group(
        self, candidates: Sequence[GroupCandidate], call_id: str | None = None
    ) -> Call[Sequence[GroupScore] | ToolFailure]:
        """Start scoring; a ticket as for a tool call, but it takes no turn and is not stopped by the end."""
        found = self._find(call_id, "score_group", candidates)
        return found or self._start(self._new("score_group", call_id, candidates), self._score, candidates)

    def forget(self, call: Call[Any]) -> None:
        """Drop a result that was kept long enough, but remember that its id was used."""
        if self._calls is None or self._calls.pop(call.id, None) is None:
            return
        if not is_ours(call.id):
            if self._forgotten is None:
                self._forgotten = set()
            self._forgotten.add(hash(call.id))

    def _find(self, call_id: str | None, name: str, about: object) -> Call[Any] | None:
        """The call that this id names, which must be the same; None if it may name a new one."""
        self.touch()
        if call_id is None:
            return None
        if self._calls is not None and (call := self._calls.get(call_id)):
            if call.asked is not None and call.asked != _told_apart_by(name, about):
                raise CallConflict(f"task_id {call_id!r} names another call, with another tool or input; nothing ran")
            return call
        forgotten = self._forgotten
        if not call_id or is_ours(call_id) or (forgotten is not None and hash(call_id) in forgotten):
            raise CallNotFound("unknown task_id")
        if forgotten is not None and len(forgotten) >= _FORGOTTEN_MOST:
            raise CallConflict(
                f"this session has had {_FORGOTTEN_MOST} ids from its client; send calls without task_id"
            )
        return None

    def _new(self, name: str, call_id: str | None, about: object) -> Call[Any]:
        call: Call[Any] = Call(name, call_id, self._deadline())
        if call_id is not None:
            call.asked = _told_apart_by(name, about)
        return call

    def _deadline(self) -> float:
        return self.last_seen + self._shared.limits.call_seconds

    def _start(self, call: Call[R], work: Callable[[Call[R], A], Awaitable[R]], given: A) -> Call[R]:
        self._enter(call)
        # Not among the background tasks: Shared owns the call, and _run lets nothing out.
        call.task = asyncio.get_running_loop().create_task(self._run(call, work, given))
        return call

    def _enter(self, call: Call[Any]) -> None:
        if self.state is _CLOSED:
            raise SessionClosed("Session deleted")
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
        self._finish(call, stopped(call.name, call.stopped, self._shared.limits.call_seconds))

    async def _run(self, call: Call[Any], work: Callable[[Call[Any], A], Awaitable[Any]], given: A) -> None:
        try:
            call.begin()
            result = await work(call, given)
        except asyncio.CancelledError:
            result = stopped(call.name, call.stopped, self._shared.limits.call_seconds)
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
            result = within(result, self._shared.limits.output_bytes)
            call.size = len(result.message)
        call.finish(result)
        self.running -= 1
        self.touch()
        self._shared.calls.pop(call, None)
        if self._shared.journal.answered:
            self._tell(call.name, result, self._asked(call), call.began, self.last_seen)
        if self._calls is None:
            return
        if call.kept:
            self._shared.kept.add(call, self.forget, self.last_seen)
        else:
            del self._calls[call.id]

    def _asked(self, call: Call[Any]) -> float:
        """When that was."""
        return call.deadline - self._shared.limits.call_seconds

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
        result = await self._in_turn(call, call.name, *asked)
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
        claim = claim_of(name, tool)
        turns = self._turns = self._turns or Turns()
        if turns.idle:
            turns.take_idle(claim)
        else:
            await turns.take(claim)
        try:
            if self.finished and (tool is not None or await placed.has_tool(name)):
                return refused(name)
            slots = self._shared.slots
            if not slots.take_at_once():
                await slots.take()
            if self._shared.journal.answered and not call.began:
                call.began = time.monotonic()
            try:
                if self._history is not None:
                    returned = await self._call_and_remember(Asked(name, arguments, given), self._history)
                else:
                    returned = await placed.call(name, arguments, given)
            finally:
                slots.give_back()
            result, call.size = self._checked(name, returned)
            return result
        finally:
            turns.give_back(claim)

    async def _call_and_remember(self, asked: Asked, history: list[Asked]) -> Reply:
        """In a session whose calls can be repeated. One that is lost in the middle of a call is as before that call."""
        placed = await self.ready()
        try:
            returned = await placed.call(*asked)
        except asyncio.CancelledError:
            if not placed.lost:  # it goes on from wherever the call was stopped, to where no repetition leads
                self._history = None
            raise
        if not isinstance(returned, ToolFailure) or returned.reason in ("tool_failed", "tool_raised"):
            history.append(asked)
        elif returned.reason == "lost" and placed.lost:
            await self.ready()
            return replace(returned, message=f"{returned.message}. {_REBUILT}")
        elif returned.reason in ("lost", "timed_out"):  # a service failed it half-way, and may not fail it again
            self._history = None
        return returned

    def _checked(self, tool: str, returned: Reply) -> tuple[CallResult | AskAgain, int]:
        """What is told of a result, and its size; and whether it ends the episode."""
        if isinstance(returned, (ToolFailure, AskAgain)):
            return returned, 0
        if self.finished:
            return refused(tool), 0  # another call ended the episode meanwhile: the first grade counts
        limits = self._shared.limits
        result, size = fitted(returned, limits.output_bytes)
        if isinstance(result, ToolOutput) and result.finished and limits.latch_finished:
            self.finished = self.spec.environment.latch_finished
        return result, size

    async def _score(
        self, call: Call[Sequence[GroupScore] | ToolFailure], candidates: Sequence[GroupCandidate]
    ) -> Sequence[GroupScore]:
        placed = await self.ready()
        call.began = time.monotonic()
        scores = await placed.score_group(candidates)
        call.size = len(encode([score.metadata for score in scores]))
        return scores


def _told_apart_by(name: str, about: object) -> int:
    """A hash: of the arguments themselves, nothing has to be kept."""
    return hash((name, encode_sorted(about)))
