"""How the client repeats a request until it has an answer, without any I/O. `blocking.py` and `line.py` run these
flows.

A flow is a generator: it yields a step, receives its outcome, and returns the answer. Every request may be repeated
without harm, except one that runs a tool. For a tool call we choose an id and send it with the first request, so that a
repeated request finds the call that exists and starts no other.
"""

from __future__ import annotations

import math
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from toolyard.client.answers import failure, refusal
from toolyard.client.errors import ClientError, ConnectionLost, RequestRefused, ToolLost
from toolyard.client.steps import WAITING, Answer, Ask, Broken, Flow, Listen, Outcome, Sleep
from toolyard.client.stream import Heard
from toolyard.core.output import JsonObject

PATIENCE = 120.0
"""Seconds to try to reach a server that has answered before."""
STRANGER = 5.0
"""Seconds to try to reach a server that has never answered: most likely there is none."""
STARTING = 1800.0
"""Seconds to wait while a server answers that the session is still being set up."""
LIVELY = 5.0
"""A stream that still brought data after this many seconds was good: patience starts anew."""

_LATER = (429, 502, 503, 504)
"""Statuses after which we try again."""
_NOT_STARTED = (429, 503)
"""The statuses among them after which nothing has run. A proxy may answer the others after the server has begun."""


@dataclass(slots=True)
class Peer:
    """What a client knows about its server so far."""

    patience: float = PATIENCE
    clock: Callable[[], float] = time.monotonic
    answered: bool = False
    takes_ids: bool | None = None
    """Whether it accepts call ids from clients. The SDKs' own servers refuse them, and run nothing."""


class Patience:
    """How long to repeat one thing that fails."""

    def __init__(self, peer: Peer, most: float = math.inf) -> None:
        self._peer = peer
        self._most = most
        self._begun = self._since = peer.clock()
        self._tries = 0

    def renew(self) -> None:
        self._since = self._peer.clock()
        self._tries = 0

    def pause(self, outcome: Outcome) -> Sleep:
        """The pause before the next try. Raises the final error once the patience is used."""
        now = self._peer.clock()
        if _is_starting(outcome) and now < self._begun + STARTING:
            self.renew()
        limit = min(self._peer.patience, self._most, math.inf if self._peer.answered else STRANGER)
        delay = _retry_after(outcome) or min(5.0, 0.1 * 2**self._tries) * random.uniform(0.5, 1)
        self._tries += 1
        if now + delay > self._since + limit:
            raise self._end(outcome, now - self._since)
        return Sleep(delay)

    def _end(self, outcome: Outcome, seconds: float) -> ClientError:
        match outcome:
            case Answer():
                return refusal(outcome)
            case Broken():
                return ConnectionLost(f"no connection to the server for {seconds:.0f} s: {outcome.what}")
            case Heard():
                return ConnectionLost(f"the connection to the server breaks again and again: {_how_it_broke(outcome)}")


def ask(peer: Peer, step: Ask, most: float = math.inf) -> Flow[Answer]:
    """Ask until there is an answer other than "try later"."""
    patience = Patience(peer, most)
    while True:
        outcome: Answer | Broken = yield step
        if isinstance(outcome, Answer):
            peer.answered = True
            if outcome.status not in _LATER:
                return outcome
        yield patience.pause(outcome)


def follow(peer: Peer, step: Listen, call_id: str | None = None) -> Flow[Answer | str]:
    """Start a call and wait for it. After a lost stream, come back for the same call, and never start a new one.

    Return the result as JSON text, or the answer of a server that did not take the call.
    """
    call = CallName.choose(peer, call_id)
    patience = Patience(peer)
    while True:
        signed = replace(step, body=call.signed(step.body), silence=step.silence if call.id else WAITING)
        outcome: Outcome = yield signed
        match outcome:
            case Answer():
                peer.answered = True
                if outcome.status not in _LATER:
                    return outcome
                if outcome.status not in _NOT_STARTED:
                    call.unsure(f"HTTP {outcome.status}")
            case Broken():
                if outcome.sent:
                    call.unsure(outcome.what)
            case Heard():
                peer.answered = True
                if call.refused(outcome):
                    continue
                if (text := call.result(outcome)) is not None:
                    return text
                call.unsure(_how_it_broke(outcome))
                if outcome.lived >= LIVELY:
                    patience.renew()
        yield patience.pause(outcome)


@dataclass(slots=True)
class CallName:
    """The id of one call, by which the client and the server find it again."""

    peer: Peer
    id: str | None
    """The id that a retry sends. None if the server has to choose it and has not yet."""
    chosen: str
    """The id that we sent first; empty if the server has to choose."""
    given: bool
    """Whether our caller chose it, and may have used it before."""
    known: bool = False
    """Whether the server has sent the id of the call."""
    doubtful: bool = False
    """Whether an earlier request may have arrived to which we got no answer."""

    @classmethod
    def choose(cls, peer: Peer, call_id: str | None) -> Self:
        if call_id is not None:
            if peer.takes_ids is False:
                raise RequestRefused("this server does not take call ids from clients; leave call_id out")
            return cls(peer, call_id, call_id, given=True)
        chosen = "" if peer.takes_ids is False else uuid.uuid4().hex
        return cls(peer, chosen or None, chosen, given=False)

    def signed(self, body: JsonObject) -> JsonObject:
        return body if self.id is None else {**body, "task_id": self.id}

    def unsure(self, what: str) -> None:
        """Note that a request was sent and its outcome is unknown. Raises `ToolLost` if we cannot ask for it again."""
        self.doubtful = True
        if self.id is None:
            raise ToolLost("lost", f"the call may or may not have run: the server had not named it yet ({what})")

    def refused(self, heard: Heard) -> bool:
        """Whether the server refused only our id. Then it ran nothing, and the next request lets it choose one."""
        if [(event.name, event.data) for event in heard.events[:1]] != [("error", "unknown task_id")]:
            return False
        if self._was_never_used():
            self.peer.takes_ids = False
            self.id, self.chosen = None, ""
            return True
        raise ToolLost("lost", "the server does not have this call, or not any more: its result is lost")

    def _was_never_used(self) -> bool:
        """Whether no call can have run under the id that the server does not know."""
        if not self.chosen or self.known or self.given:
            return False
        return self.peer.takes_ids is False or (self.peer.takes_ids is None and not self.doubtful)

    def result(self, heard: Heard) -> str | None:
        """The result of the call, as JSON; None if the stream ended before it. Raises the error of the call."""
        pieces: list[str] = []
        for event in heard.events:
            match event.name:
                case "task_id":
                    self._named(event.data.strip())
                case "chunk":
                    pieces.append(event.data)
                case "end":
                    return "".join([*pieces, event.data])
                case "error":
                    raise failure(event.reason or "tool_raised", event.data or "the tool broke and did not say how")
        return None

    def _named(self, name: str) -> None:
        if self.chosen:
            self.peer.takes_ids = name == self.chosen
        self.id = name
        self.known = True


def _how_it_broke(heard: Heard) -> str:
    return heard.broken or "the stream ended without a result"


def _retry_after(outcome: Outcome) -> float:
    text = outcome.headers.get("retry-after", "") if isinstance(outcome, Answer) else ""
    return float(text) if text.isascii() and text.isdigit() else 0.0


def _is_starting(outcome: Outcome) -> bool:
    return isinstance(outcome, Answer) and outcome.headers.get("x-backend-state") == "starting"
