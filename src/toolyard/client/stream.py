"""Parses server-sent events from bytes, which may arrive in pieces of any size."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

_REASON = b": reason "


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: str
    reason: str = ""
    """The reason of an `error` that was not the tool's fault, from servers that send one."""


@dataclass(frozen=True, slots=True)
class Heard:
    """All that arrived on one stream."""

    events: list[Event]
    lived: float = 0.0
    """Seconds from the head of the answer to its last byte."""
    broken: str = ""
    """The error that ended it; empty if the server ended it."""


@dataclass(slots=True)
class Listening:
    """Reads one stream. An event counts once the blank line after it has arrived."""

    clock: Callable[[], float] = time.monotonic
    _events: list[Event] = field(default_factory=list)
    _rest: bytes = b""
    _fields: dict[str, str] = field(default_factory=dict)
    _reason: str = ""
    _started: float = field(init=False)
    _last: float = field(init=False)

    def __post_init__(self) -> None:
        self._started = self._last = self.clock()

    def feed(self, data: bytes) -> None:
        self._last = self.clock()
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._take(line.removesuffix(b"\r"))

    def heard(self, broken: str = "") -> Heard:
        return Heard(self._events, self._last - self._started, broken)

    def _take(self, line: bytes) -> None:
        if not line:
            if "event" in self._fields:
                self._events.append(Event(self._fields["event"], self._fields.get("data", ""), self._reason))
            self._fields = {}
        elif line.startswith(b":"):  # a comment: a ping, or the reason of the error that follows
            if line.startswith(_REASON):
                self._reason = line.removeprefix(_REASON).decode(errors="replace")
        else:
            name, _, value = line.decode(errors="replace").partition(":")
            value = value.removeprefix(" ")  # one space belongs to the format, any other to the text
            more = name == "data" and "data" in self._fields
            self._fields[name] = f"{self._fields['data']}\n{value}" if more else value
