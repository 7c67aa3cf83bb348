"""The live feed: what happens in sessions that a person watches, kept for a while and within bounds.

It listens to the journal only while it has something to follow.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice

from toolyard.asgi import HttpError
from toolyard.core.encoding import encode
from toolyard.core.output import (
    AskAgain,
    Blocks,
    ImageBlock,
    JsonObject,
    Reply,
    TextBlock,
    ToolFailure,
    ToolOutput,
    as_output,
)
from toolyard.core.pictures import PICTURES
from toolyard.episodes.recorder import size_of
from toolyard.placement.base import SessionSpec
from toolyard.runtime.journal import Journal, Why
from toolyard.runtime.session import Session

_STEPS_MOST, _WATCHED_MOST = 500, 100
"""Steps of one session: of one that was opened in Studio, and of one that a client runs. A client may make thousands of
calls a second, and what is kept of them takes the processor's caches from the calls that follow."""
_BYTES_MOST = 64 * 2**20
"""Arguments and results of all sessions that are followed."""
_LOGS_MOST = 64
_KEPT_SECONDS = 120.0
"""How long a log stays after the last page that showed it was closed."""
_SHOWN_MOST = 8_000
"""Characters of one text that a page gets at once. It asks for the rest."""
_BRIEF = 200
"""Characters of one text, once a message has grown to `_MESSAGE_MOST`."""
_MESSAGE_MOST = 256 * 1024
_PARTS_MOST, _PARTS_FEW = 100, 5
"""Parts of one result in a message, and once it has grown to `_MESSAGE_MOST`."""
_NAMED_MOST = 50
"""Named rewards of one result."""
_AT_ONCE = 100
"""Steps in one message. A session that is faster than its watchers has gaps."""


class Step:
    """One call. It is made and ended on the way of that call, and so does as little as it can until a page asks."""

    result: Reply | None = None
    """None while the call runs."""
    waited = 0.0
    ran: float | None = None
    gone = False
    """The log has dropped it."""
    inherited = False
    """It was made in the session that this one continues from."""

    def __init__(self, log: Log, tool: str, arguments: bytes, said: str) -> None:
        self._log = log
        self.number = log.number = log.number + 1
        self.tool = tool
        self.arguments = arguments
        """As JSON, before the tool could change them."""
        self.said = said
        self.at = time.time()
        self.size = len(arguments) + len(said)
        self.revision = log.revision = log.revision + 1

    def ended(self, result: Reply, waited: float, ran: float | None) -> None:
        self.result, self.waited, self.ran = result, waited, ran
        self._log.end(self, size_of(result))

    def copied_to(self, log: Log) -> Step:
        made = copy.copy(self)
        made._log, made.revision, made.inherited = log, 1, True
        return made

    @property
    def outcome(self) -> str:
        """Empty while the call runs."""
        match self.result:
            case None:
                return ""
            case ToolFailure() as failure:
                return failure.reason
            case _:
                return "ok"

    @property
    def output(self) -> ToolOutput:
        """What came back, in blocks."""
        match self.result:
            case None:
                return ToolOutput()
            case ToolFailure() as failure:
                return ToolOutput(blocks=[TextBlock(text=failure.message)], finished=failure.finished)
            case AskAgain() as later:
                return ToolOutput(blocks=[TextBlock(text=f"[no result yet: ask again with {later.tool}]")])
            case returned:
                return as_output(returned)

    @property
    def blocks(self) -> Blocks:
        return self.output.blocks

    def as_json(self, base: str, budget: Budget) -> JsonObject:
        here, output = f"{base}/steps/{self.number}", self.output
        return {
            "number": self.number,
            "tool": self.tool[:_BRIEF],
            "arguments": budget.text(self.arguments.decode(), f"{here}/arguments"),
            "said": budget.text(self.said, f"{here}/said") if self.said else None,
            "at": self.at,
            "outcome": self.outcome,
            "blocks": blocks_json(output.blocks, here, budget),
            "reward": output.reward,
            "rewards": output.rewards and dict(islice(output.rewards.items(), _NAMED_MOST)),
            "finished": output.finished,
            "waited": self.waited,
            "ran": self.ran,
            "inherited": self.inherited,
        }


class Budget:
    """Cuts long texts in a message, and keeps the message itself within bounds."""

    def __init__(self) -> None:
        self._left = _MESSAGE_MOST

    @property
    def parts(self) -> int:
        """How many parts of one result there is room for."""
        return _PARTS_MOST if self._left > 0 else _PARTS_FEW

    def text(self, text: str, address: str) -> JsonObject:
        most = _SHOWN_MOST if self._left > 0 else _BRIEF
        shown = text[:most]
        self._left -= len(shown) + _BRIEF
        return {"type": "text", "text": shown, "length": len(text), "href": address if len(text) > most else None}


def blocks_json(blocks: Blocks, base: str, budget: Budget) -> list[JsonObject]:
    shown = blocks[: budget.parts]
    found: list[JsonObject] = [
        budget.text(block.text, f"{base}/blocks/{number}")
        if isinstance(block, TextBlock)
        else {
            "type": "image",
            "kind": block.mimeType[:_BRIEF],
            "shown": block.mimeType in PICTURES,
            "bytes": len(block.data) * 3 // 4,
            "href": f"{base}/blocks/{number}",
        }
        for number, block in enumerate(shown)
    ]
    if left := len(blocks) - len(shown):
        found.append({"type": "left", "count": left})
    return found


@dataclass(slots=True)
class Log:
    """What happened in one session since it is followed. One that is `pinned` was opened in Studio."""

    spec: SessionSpec
    earlier: int
    """Calls that were made before."""
    pinned: bool
    steps: deque[Step] = field(default_factory=deque)
    prompt: Blocks | None = None
    revision: int = 1
    dropped: int = 0
    number: int = 0
    """Of the last call."""
    fresh: int = 0
    """How many calls have begun since a page was told."""
    size: int = 0
    most: int = _BYTES_MOST
    """How large it may get."""
    viewers: int = 0
    left: float = field(default_factory=time.monotonic)
    closed: Why | None = None
    waiting: set[asyncio.Future[None]] = field(default_factory=set)

    def step(self, number: int) -> Step:
        for step in self.steps:
            if step.number == number:
                return step
        raise HttpError(404, f"call {number} of this session is not kept any more")

    def begin(self, step: Step) -> None:
        self.fresh += 1
        self.steps.append(step)
        self.size += step.size
        if len(self.steps) > (_STEPS_MOST if self.pinned else _WATCHED_MOST):
            self._drop()
        if self.waiting:
            self.wake()

    def end(self, step: Step, size: int) -> None:
        """A call is over: drop the oldest if that is too much."""
        if step.gone:  # it was dropped while it ran
            return
        step.size += size
        self.size += size
        step.revision = self.revision = self.revision + 1
        while self.size > self.most and len(self.steps) > 1:
            self._drop()
        if self.waiting:
            self.wake()

    def _drop(self) -> None:
        oldest = self.steps.popleft()
        oldest.gone = True
        self.size -= oldest.size
        self.dropped += 1

    def changed(self) -> None:
        self.revision += 1
        if self.waiting:
            self.wake()

    def wake(self) -> None:
        for one in self.waiting:
            if not one.done():
                one.set_result(None)

    async def after(self, revision: int, seconds: float) -> None:
        """Wait for something newer, but no longer than this."""
        if self.revision > revision:
            return
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.waiting.add(waiter)
        try:
            await asyncio.wait((waiter,), timeout=seconds)
        finally:
            self.waiting.discard(waiter)

    def newer(self, revision: int) -> Sequence[Step]:
        """Steps that have changed since, the newest of them if they are many."""
        return [step for step in self.steps if step.revision > revision][-_AT_ONCE:]


class Feed:
    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._logs: dict[str, Log] = {}
        self._revision = 0
        """The highest of a log that is forgotten. A page that comes back to a new log of its session knows that one."""

    def follow(self, session: Session, *, pinned: bool = False) -> Log:
        """The log of a session, which begins now unless there is one already."""
        log = self._logs.get(session.id)
        if log is not None and log.closed is None:
            log.pinned = log.pinned or pinned
            return log
        if log is not None:  # of a session that had the same id
            self._revision = max(self._revision, log.revision)
        if len(self._logs) >= _LOGS_MOST:
            self._make_room()
        if not self._logs:
            self._journal.hear(self)
            self._journal.closed.append(self._closed)
            self._journal.swept.append(self._sweep)
        earlier = session.standing.tally.calls + session.running
        log = self._logs[session.id] = Log(session.spec, earlier, pinned, number=earlier)
        log.revision = self._revision + 1
        self._share()
        return log

    def find(self, session_id: str) -> Log | None:
        return self._logs.get(session_id)

    def continue_in(self, parent: Log, fork: Session) -> Log:
        """The log of a fork, which begins with what happened before."""
        log = self.follow(fork, pinned=True)
        log.earlier, log.dropped, log.prompt = parent.earlier, parent.dropped, parent.prompt
        log.number = parent.number
        for step in parent.steps:
            if step.outcome:
                log.steps.append(step.copied_to(log))
                log.size += step.size
        log.changed()
        return log

    # What the journal tells.

    def began(self, spec: SessionSpec, tool: str, arguments: JsonObject, given: JsonObject, said: str) -> Step | None:
        log = self._logs.get(spec.session_id)
        if log is None:
            return None
        if log.fresh >= _AT_ONCE and not log.pinned:  # faster than a page is told: leave out what nobody can follow
            log.number += 1
            log.dropped += 1
            return None
        written = encode(arguments) if arguments else b"{}"
        step = Step(log, tool, written, said)
        log.begin(step)
        return step

    def prompted(self, spec: SessionSpec, prompt: Blocks) -> None:
        if (log := self._logs.get(spec.session_id)) is not None:
            log.prompt = prompt
            log.changed()

    def _closed(self, spec: SessionSpec, why: Why, _: float) -> None:
        log = self._logs.get(spec.session_id)
        if log is not None and log.spec is spec:
            log.closed, log.left = why, time.monotonic()
            log.changed()

    def _sweep(self, _: float) -> None:
        horizon = time.monotonic() - _KEPT_SECONDS
        for name, log in [*self._logs.items()]:
            if not log.viewers and log.left < horizon and not (log.pinned and log.closed is None):
                self._forget(name)

    # Bounds.

    def _share(self) -> None:
        """Divide the room among all logs."""
        for log in self._logs.values():
            log.most = _BYTES_MOST // max(len(self._logs), 4 if log.pinned else 16)

    def _make_room(self) -> None:
        free = [(log.left, name) for name, log in self._logs.items() if not log.viewers]
        if not free:
            raise HttpError(503, f"{_LOGS_MOST} sessions are watched already: close a page that shows one")
        self._forget(min(free)[1])

    def _forget(self, name: str) -> None:
        self._revision = max(self._revision, self._logs.pop(name).revision)
        self._share()
        if not self._logs:
            self._journal.unhear(self)
            self._journal.closed.remove(self._closed)
            self._journal.swept.remove(self._sweep)


def picture_in(block: ImageBlock) -> bytes:
    try:
        return base64.b64decode(block.data)
    except (binascii.Error, ValueError):
        raise HttpError(404, "this image cannot be decoded: its data is no base64") from None
