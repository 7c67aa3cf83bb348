"""`Session`: one environment instance from open to close, and the calls made in it. `start` makes a call."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal, overload

from toolyard.core.encoding import encode, encode_sorted
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
from toolyard.core.output import AskAgain, Blocks, JsonObject, Reply, Returned, ToolFailure, ToolOutput
from toolyard.core.tool import Claim, ListToolsOutput
from toolyard.placement.base import Placed, Placement, SessionSpec, Strategy
from toolyard.runtime.call import Call, is_ours
from toolyard.runtime.eager import eagerly
from toolyard.runtime.journal import Outcome, Why
from toolyard.runtime.lifecycle import Asked, Lifecycle, State
from toolyard.runtime.outcomes import fitted, refused, stopped, within
from toolyard.runtime.own_limits import TimeLimit, Turns, counts
from toolyard.runtime.shared import Shared
from toolyard.runtime.tally import Standing, Tally, Trouble
from toolyard.runtime.turn_queue import TurnQueue

log = logging.getLogger("toolyard.runtime")

_FORGOTTEN_MOST = 2**18
"""How many evicted call ids that clients chose a session remembers, so that no call runs twice. It keeps a hash of
each, about 80 bytes. With this many, the session takes no more ids from clients."""

_REBUILT = (
    "The session was made again and is as before this call; whether the call had effects outside of it is not known."
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.02, 1.0
"""Seconds before a tool that had no answer yet is asked again."""

_READY, _FAILED, _CLOSED = State.READY, State.FAILED, State.CLOSED
"""Looked up once: every call compares with these, and looking up a member of an Enum is slow."""


class Session:
    """All the state of a session. It is a lease: if no client uses it for long enough, the runtime closes it."""

    __slots__ = (
        "_calls",
        "_forgotten",
        "_life",
        "_shared",
        "_tally",
        "_turns",
        "_turns_left",
        "finished",
        "last_seen",
        "on_idle",
        "provisional",
        "running",
        "spec",
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
        self.finished = False
        """A tool has ended the episode with finished=True, or its calls are used up."""
        self.provisional = provisional
        """The client opened it without naming an environment. The first request that names one decides."""
        self.on_idle = on_idle
        """The runtime calls this instead of closing the session when it is idle for long."""
        self.running = 0
        """How many calls run or wait to run."""
        self._shared = shared
        self._life = Lifecycle(spec, shared)
        self.last_seen = self._life.opened
        self._turns: TurnQueue | None = None
        self._calls: dict[str, Call[Any]] | None = None
        """The calls that run and those that the replay cache keeps, by id. This and the next are made when needed."""
        self._forgotten: set[int] | None = None
        """Hashes of the ids of evicted calls, if the client chose them."""
        self._tally: Tally | None = None
        most = spec.environment.max_turns
        self._turns_left = None if most is None else Turns(most)

    # From open to close.

    @property
    def id(self) -> str:
        return self.spec.session_id

    @property
    def state(self) -> State:
        return self._life.state

    @property
    def condition(self) -> str:
        """The name of its state, or `lost` if its environment is."""
        return self._life.condition

    @property
    def waiting(self) -> int:
        """How many calls wait for setup() or for their turn."""
        if self.state is State.STARTING:
            return self.running
        return self._turns.waiting if self._turns is not None else 0

    @property
    def opened(self) -> float:
        """When it was opened, by the monotonic clock."""
        return self._life.opened

    @property
    def running_tools(self) -> Sequence[str]:
        """The tools of the calls that run or wait to run."""
        return [call.name for call in (self._calls or {}).values() if not call.done]

    @property
    def busy(self) -> bool:
        """Whether a call or setup() runs in it, so that it is not idle even without requests."""
        return self.running > 0 or self.state is State.STARTING

    @property
    def standing(self) -> Standing:
        """The rewards and failures of its calls so far."""
        if self._tally is None:
            self._tally = Tally()  # calls that still run count in it, even after the end
        return Standing(self.id, self.spec.environment.name(), self.finished, self._tally, self._broken)

    @property
    def _broken(self) -> Trouble | None:
        """What is wrong with the session itself, though no call failed. Checked at the end of every session."""
        life = self._life
        if life.state is _FAILED:
            return "setup_failed"
        return "lost" if life.placed is not None and life.placed.lost else None

    def touch(self) -> None:
        self.last_seen = time.monotonic()

    def build(self, placement: Placement) -> Coroutine[Any, Any, None]:
        """Run the author's constructor, then let setup() go on in the background."""
        return self._life.build(placement)

    async def ready(self) -> Placed:
        """The environment, once setup() is over."""
        self.touch()
        return await self._life.ready()

    async def prompt(self) -> Blocks:
        """The prompt of its task, once setup() is over."""
        blocks = await (await self.ready()).prompt()
        if (listener := self._shared.journal.listener) is not None:
            listener.prompted(self.spec, blocks)
        return blocks

    async def tools_before_setup(self) -> ListToolsOutput | None:
        """As `Lifecycle.tools_before_setup`."""
        self.touch()
        return await self._life.tools_before_setup()

    def close(self, why: Why = "deleted") -> Coroutine[Any, Any, None] | None:
        """Refuse new calls, and stop running calls and setup(). Return the rest of the work, if there is any: to wait
        until they have ended, and to run the author's teardown(), once and for a bounded time."""
        life = self._life
        if life.state is _CLOSED:
            return None
        life.close(why)
        calls, self._calls = self._calls, None
        running = []
        for call in calls.values() if calls else ():
            self._shared.replays.drop(call)
            if not call.done:
                running.append(call)
                call.stop("cancelled")
        return self._end(running) if running or life.leaves_something else None

    async def _end(self, running: Sequence[Call[Any]]) -> None:
        ending = {call.ended() for call in running}
        if (setup := self._life.setup) is not None:
            ending.add(setup)
        if ending:
            await asyncio.wait(ending, timeout=self._shared.limits.teardown_seconds)
        for call in running:
            if not call.done:
                self._abandon(call)
        await self._life.end()

    async def stop_calls(self) -> None:
        """Stop the calls that run in it, and wait until they have ended. The session itself goes on."""
        running = [call for call in (self._calls or {}).values() if not call.done]
        for call in running:
            call.stop("cancelled")
        if running:
            await asyncio.wait([call.ended() for call in running], timeout=self._shared.limits.teardown_seconds)

    @property
    def _unrepeatable(self) -> str:
        """Why its calls cannot be repeated."""
        if self.spec.environment.replayable:
            return "its calls cannot be repeated, since one of them was stopped half-way"
        return "its calls cannot be repeated either, since it does not say replayable = True"

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[Session], Strategy]:
        """Make sessions that continue from here. This waits until no call runs, and no call begins meanwhile."""
        await self.ready()
        turns = self._turns = self._turns or TurnQueue()
        claim = Claim("fork", "exclusive")
        await turns.take(claim)
        try:
            placed = await self.ready()  # again: an earlier call may have lost it
            sessions = [Session(spec, self._shared) for spec in specs]
            try:
                made, strategy = await placed.fork(specs)
            except (NotSupported, CannotFork) as error:
                if self._life.history is None:
                    raise type(error)(f"{error}; {self._unrepeatable}") from error
                strategy = "replay"
                made = await self._life.repeated(specs)
            for session, one in zip(sessions, made, strict=True):
                session.finished = self.finished
                session._tally = self._tally and self._tally.copy()
                session._turns_left = self._turns_left and self._turns_left.copy()
                session._life.continue_from(self._life, one)
            return sessions, strategy
        finally:
            turns.give_back(claim)

    # Calls.

    @overload
    def start(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        call_id: str | None = None,
        given: JsonObject = {},
        said: str = "",
        kept: bool = True,
        follow: Literal[True] = True,
    ) -> Call[Returned]: ...
    @overload
    def start(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        call_id: str | None = None,
        given: JsonObject = {},
        said: str = "",
        kept: bool = True,
        follow: bool,
    ) -> Call[Reply]: ...
    def start(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        call_id: str | None = None,
        given: JsonObject = {},
        said: str = "",
        kept: bool = True,
        follow: bool = True,
    ) -> Call[Any]:
        """Begin a call at once, in a task of its own, and return its ticket. The call is done already if nothing in it
        waits. If `call_id` already names a call of this session, return that call.

        `given` holds values from the trainer, not from the model. `said` is the text in which the model wrote the call,
        for the record. `kept`: the replay cache keeps the result. If the
        tool returns `AskAgain`, the session asks until there is a result; without `follow`, the caller gets it.
        """
        if call_id is not None and (found := self._find(call_id, tool, arguments)) is not None:
            return found
        call = self._admit(tool, call_id, arguments, kept=kept)
        if (listener := self._shared.journal.listener) is not None:
            call.deed = listener.began(self.spec, tool, arguments, given, said)
        if (left := self._turns_left) is None:
            work = self._in_turn(call, tool, arguments, given)
        else:
            work = self._counted(call, left, self._in_turn(call, tool, arguments, given), given if follow else None)
        # Not among the background tasks: Shared owns the call, and `_run` lets no exception out.
        running = eagerly(self._run(call, work, given if follow else None))
        if not call.done:
            call.run_by(running)
        return call

    def score_group(
        self, candidates: Sequence[GroupCandidate], call_id: str | None = None
    ) -> Call[Sequence[GroupScore] | ToolFailure]:
        """Begin to score a group, and return a ticket as for a tool call. It takes no turn, and runs even after the end
        of the episode."""
        if call_id is not None and (found := self._find(call_id, "score_group", candidates)) is not None:
            return found
        call = self._admit("score_group", call_id, candidates, kept=True)
        call.counts = False
        running = eagerly(self._run(call, self._score(call, candidates)))
        if not call.done:
            call.run_by(running)
        return call

    def find(self, call_id: str) -> Call[Any]:
        """Find a call of this session that is running or kept."""
        self.touch()
        if self._calls is None or (call := self._calls.get(call_id)) is None:
            raise CallNotFound(f"there is no call {call_id!r}")
        return call

    def forget(self, call: Call[Any]) -> None:
        """Drop a call that the replay cache evicts. Remember its id, if the client chose it."""
        if self._calls is None or self._calls.pop(call.id, None) is None:
            return
        if not is_ours(call.id):
            if self._forgotten is None:
                self._forgotten = set()
            self._forgotten.add(hash(call.id))

    def _find(self, call_id: str, name: str, about: object) -> Call[Any] | None:
        """Find the call that this id names. It must have the same tool and arguments. None if the id is free."""
        self.touch()
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

    # One call, from its admission to its result.

    def _admit(self, name: str, call_id: str | None, about: object, *, kept: bool) -> Call[Any]:
        """Make a new call, which counts as running from now on. Raises the reason if there can be none."""
        shared = self._shared
        self.last_seen = now = time.monotonic()
        if self._life.state is _CLOSED:
            raise SessionClosed("Session deleted")
        if shared.draining or len(shared.calls) >= shared.calls_most:
            raise self._overloaded(name)
        call: Call[Any] = Call(name, call_id, now + shared.limits.call_seconds, kept=kept)
        if call_id is not None:
            call.asked = _told_apart_by(name, about)
        shared.calls[call] = self._abandon
        for started in shared.journal.started:
            started(self.spec, name)
        if self._calls is None:
            self._calls = {}
        self._calls[call.id] = call
        self.running += 1
        return call

    def _overloaded(self, name: str) -> Overloaded:
        for hear in self._shared.journal.answered:
            hear(self.spec, name, "overloaded", 0.0, None)
        if self._shared.draining:
            return Overloaded("the server is shutting down")
        return Overloaded(f"{len(self._shared.calls)} calls are waiting or running already")

    async def _run(self, call: Call[Any], work: Coroutine[Any, Any, Any], given: JsonObject | None = None) -> None:
        """Take a call to its end, whatever happens. With `given`, ask again for a tool that has no result yet."""
        try:
            result = await work
            if given is not None and isinstance(result, AskAgain):
                result = await self._ask_again(call, result, given)
        except asyncio.CancelledError:
            result = stopped(call.name, call.stopped, call.seconds or self._shared.limits.call_seconds)
        except ToolyardError as error:  # setup() failed, or the session was closed while the call waited
            result = ToolFailure("lost", str(error))
        except Exception as error:  # the runtime's, or the author's score_group(), which cannot fail otherwise
            what = f"{call.name} broke: {describe(error)}"
            log.warning("session %s: %s", self.id, what, exc_info=error, extra=self._life.about)
            result = ToolFailure("tool_raised", str(error) or type(error).__name__)
        if not call.done:  # else it was abandoned meanwhile
            self._finish(call, result)

    async def _counted(
        self, call: Call[Any], left: Turns, work: Coroutine[Any, Any, Reply], given: JsonObject | None
    ) -> Reply:
        """Make a call of an environment with `max_turns`, and end the episode with the last one."""
        if not left.take():
            work.close()
            return left.refuse(call.name)
        try:
            reply = await work
            if given is not None and isinstance(reply, AskAgain):
                reply = await self._ask_again(call, reply, given)
        except BaseException:
            left.give_back()
            raise
        if not counts(reply):
            left.give_back()
        elif left.spend():
            reply = left.last(reply)
            self.finished = True
        return reply

    async def _ask_again(self, call: Call[Any], reply: Reply, given: JsonObject) -> Reply:
        """Make the calls that a tool's `AskAgain` names, until there is a result."""
        pause = _FIRST_PAUSE
        while isinstance(reply, AskAgain):
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)
            reply = await self._in_turn(call, reply.tool, reply.arguments, given)
        return reply

    async def _in_turn(self, call: Call[Any], name: str, arguments: JsonObject, given: JsonObject) -> Reply:
        """Wait for setup(), for the session's turn and for a slot of the server, then call the tool."""
        life = self._life
        placed = life.placed if life.state is _READY else await life.ready()
        assert placed is not None
        tool = placed.tools.get(name)
        claim = tool.claim if tool is not None else Claim(name, "serial")
        turns = self._turns = self._turns or TurnQueue()
        if not turns.take_idle(claim):
            await turns.take(claim)
        try:
            if self.finished and (tool is not None or await placed.has_tool(name)):
                return refused(name)
            slots = self._shared.slots
            if not slots.take_at_once():
                await slots.take()
            if not call.began and (self._shared.journal.answered or call.deed is not None):
                call.began = time.monotonic()
            limit = TimeLimit(call, tool.timeout) if tool is not None and tool.timeout is not None else None
            try:
                if limit is not None:
                    limit.start()
                if life.history is not None:
                    returned = await self._call_and_remember(Asked(name, arguments, given), life.history)
                else:
                    returned = await placed.call(name, arguments, given)
            finally:
                if limit is not None:
                    limit.end()
                slots.give_back()
            return self._checked(call, name, returned)
        finally:
            turns.give_back(claim)

    def cannot_be_repeated(self) -> None:
        """Its client changes something by other means than calls: no repetition of the calls leads to that."""
        self._life.history = None

    async def _call_and_remember(self, asked: Asked, history: list[Asked]) -> Reply:
        """Call a tool in a session whose calls can be repeated. If the environment is lost during the call, rebuild it
        as it was before."""
        life = self._life
        placed = await life.ready()
        try:
            returned = await placed.call(*asked)
        except asyncio.CancelledError:
            if not placed.lost:  # it goes on from where the call was stopped, a state that no repetition leads to
                life.history = None
            raise
        if not isinstance(returned, ToolFailure) or returned.reason in ("tool_failed", "tool_raised"):
            history.append(asked)
        elif returned.reason == "lost" and placed.lost:
            await life.ready()
            return replace(returned, message=f"{returned.message}. {_REBUILT}")
        elif returned.reason in ("lost", "timed_out"):  # a service failed half-way, and may not fail when repeated
            life.history = None
        return returned

    def _checked(self, call: Call[Any], tool: str, returned: Reply) -> Reply:
        """Cut the result to its limits, and note whether it ends the episode."""
        if isinstance(returned, (ToolFailure, AskAgain)):
            return returned
        if self.finished:
            return refused(tool)  # another call ended the episode meanwhile: the first grade counts
        limits = self._shared.limits
        if type(returned) is str and len(returned) <= limits.output_bytes:
            call.size = len(returned)
            return returned
        result, call.size = fitted(returned, limits.output_bytes)
        if isinstance(result, ToolOutput) and result.finished and limits.latch_finished:
            self.finished = self.spec.environment.latch_finished
        return result

    async def _score(self, call: Call[Any], candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]:
        placed = await self.ready()
        call.began = time.monotonic()
        scores = await placed.score_group(candidates)
        call.size = len(encode([score.metadata for score in scores]))
        return scores

    def _finish(self, call: Call[Any], result: Any) -> None:
        if isinstance(result, ToolFailure):
            result = within(result, self._shared.limits.output_bytes)
            call.size = len(result.message)
        call.finish(result)
        self.running -= 1
        self.last_seen = now = time.monotonic()
        self._shared.calls.pop(call, None)
        if call.counts:
            self._count(result)
        if self._shared.journal.answered or call.deed is not None:
            self._tell(call, result, now)
        if self._calls is None:
            return
        if call.kept:
            self._shared.replays.add(call, self.forget, now)
        else:
            del self._calls[call.id]

    def _count(self, result: Reply) -> None:
        """Count the result of a call, unless it is `AskAgain`."""
        if isinstance(result, AskAgain):
            return
        if (tally := self._tally) is None:
            tally = self._tally = Tally()
        tally.add(result, cancelled_by_us=self._life.state is _CLOSED or self._shared.draining)

    def _tell(self, call: Call[Any], result: Reply, now: float) -> None:
        """Tell the journal that a call is over. If it returned `AskAgain`, tell only the recorder."""
        journal = self._shared.journal
        asked = call.deadline - self._shared.limits.call_seconds
        waited, ran = (call.began - asked, now - call.began) if call.began else (now - asked, None)
        if call.deed is not None:
            call.deed.ended(result, waited, ran)
        if isinstance(result, AskAgain):
            return
        outcome: Outcome = result.reason if isinstance(result, ToolFailure) else "ok"
        for hear in journal.answered:
            hear(self.spec, call.name, outcome, waited, ran)

    def _abandon(self, call: Call[Any]) -> None:
        log.error(
            "session %s: %s does not stop; it goes on, and its result is ignored: %s",
            *(self.id, call.name, call),
            extra=self._life.about,
        )
        self._finish(call, stopped(call.name, call.stopped, call.seconds or self._shared.limits.call_seconds))


def _told_apart_by(name: str, about: object) -> int:
    """A hash of tool and arguments, so that a session need not keep the arguments themselves."""
    return hash((name, encode_sorted(about)))
