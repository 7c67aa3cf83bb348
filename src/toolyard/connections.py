"""The limits that all connections of a process share: on times, on their number, on memory for bodies under way.

One timer checks every connection now and then, so that the limits cost a request nothing.
"""

from __future__ import annotations

import asyncio
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

_PROGRESS = 16 * 1024
"""A body or an answer makes progress if this many bytes move, or if it ends, within its time."""
_LEAVING_SECONDS = 2.0
"""Time for a client that was refused to read why."""
_PRESSED_SECONDS = 2.0
"""Time for the progress of a body while other bodies wait for memory."""
_STUCK_SECONDS = 5.0
"""Time for the progress of an answer while other clients wait for a connection."""
_PIECE = 256 * 1024
"""The most bytes that one read of a connection returns."""
_TURNED_AWAY_MOST = 32
"""Connections beyond the cap that get a 503. Others are closed without an answer."""
_ENDLESS = 2**20
"""Counts as the limit of open files for a process without one."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """`settings.py` explains each."""

    keep_alive_seconds: float
    head_seconds: float
    body_seconds: float
    unread_seconds: float
    max_connections: int
    bodies_bytes: int


class Phase(IntEnum):
    """What the client of a connection does. With too many connections, the server gives up those in the first phases
    first."""

    LEAVING = 0
    """It was refused, and may read why."""
    HEAD = 1
    """It has sent nothing yet, or a part of a head."""
    REST = 2
    """It sends the rest of a body that has been answered."""
    BODY = 3
    """It sends a body."""
    IDLE = 4
    """It has its answer, and has sent no new request."""
    QUIET = 5
    """It is a WebSocket without messages."""
    READING = 6
    """It has to read some of its answer. It is not given up while it reads."""
    WAITING = 7
    """It waits for our answer, and may wait for ever."""


class Connection(Protocol):
    turn: int
    """Requests that have arrived whole."""
    received: int
    """Bytes of requests that did not arrive in one piece."""

    def look(self) -> Phase: ...
    def unsent(self) -> tuple[int, int]:
        """Bytes that the client has not read yet, and all bytes sent so far, including those."""

    def expire(self, phase: Phase, *, pressed: bool) -> None:
        """End the connection: its time in this phase is over. `pressed`: other bodies need the memory of its own."""

    def give_up(self, phase: Phase) -> None:
        """End the connection: a new one needs its place."""

    def hold(self) -> None:
        """Stop reading its body until `release`."""

    def release(self) -> None: ...
    def abort(self) -> None: ...


class ConnectionWatch:
    """Measures how long one connection has been in its phase, without progress."""

    __slots__ = ("_mark", "_sent", "_turn", "connection", "given_up", "phase", "since", "stuck")

    def __init__(self, connection: Connection, now: float) -> None:
        self.connection = connection
        self.given_up = False
        self.phase: Phase | None = None
        self.since = now
        """When this phase began or last made progress, as far as the timer saw it: never earlier than it did."""
        self._turn = 0
        self._mark = 0
        self.stuck = now
        """When the client last read some of its answer, or had nothing to read."""
        self._sent = 0

    def look(self, now: float, everyone: Connections) -> None:
        connection = self.connection
        phase, turn = connection.look(), connection.turn
        progress = phase is Phase.BODY and connection.received - self._mark >= _PROGRESS
        if phase is not self.phase or turn != self._turn or progress:
            self.phase, self._turn, self.since, self._mark = phase, turn, now, connection.received
        elif now - self.since > everyone.seconds(phase):
            connection.expire(phase, pressed=everyone.pressed)
        self._look_at_answer(now, everyone.limits.unread_seconds)

    def _look_at_answer(self, now: float, seconds: float) -> None:
        unsent, total = self.connection.unsent()
        if not unsent or total - unsent - self._sent >= _PROGRESS:
            self._sent = total - unsent
            self.stuck = now
        elif now - self.stuck > seconds:
            self.connection.abort()


class Connections:
    def __init__(self, limits: ConnectionLimits) -> None:
        self.limits = limits
        self._most = most_connections(limits.max_connections)
        self._open: dict[Connection, ConnectionWatch] = {}
        """The oldest first."""
        self._given_up = 0
        self._candidates: Iterator[tuple[Phase, ConnectionWatch]] = iter(())
        self._few_at = -1.0
        """When a search for candidates last found few: another one at the same time would find no more."""
        self._bodies: dict[Connection, int] = {}
        """Bytes received of bodies that are not complete."""
        self._bytes = 0
        self._held: dict[Connection, None] = {}
        """Connections whose bodies wait for memory, the first one first."""
        self._now = 0.0
        """A clock that stops while the event loop does, so that no client's time is over because we were late."""
        self._looked = 0.0
        self._timer: asyncio.TimerHandle | None = None
        shortest = min(limits.keep_alive_seconds, limits.head_seconds, limits.body_seconds, limits.unread_seconds)
        self._period = min(1.0, shortest / 4)
        self._seconds = {
            Phase.LEAVING: min(_LEAVING_SECONDS, shortest),
            Phase.HEAD: limits.head_seconds,
            Phase.REST: limits.body_seconds,
            Phase.BODY: limits.body_seconds,
            Phase.IDLE: limits.keep_alive_seconds,
            Phase.QUIET: float("inf"),  # its client answers pings
            Phase.READING: float("inf"),  # `unread_seconds` bounds it
            Phase.WAITING: float("inf"),
        }

    @property
    def pressed(self) -> bool:
        """Whether bodies wait for memory that other bodies use."""
        return bool(self._held)

    def seconds(self, phase: Phase) -> float:
        """How long this phase may last without progress."""
        seconds = self._seconds[phase]
        return min(seconds, _PRESSED_SECONDS) if phase is Phase.BODY and self._held else seconds

    def forget(self, connection: Connection) -> None:
        """Forget a connection that was closed."""
        watch = self._open.pop(connection, None)
        if watch is not None and watch.given_up:
            self._given_up -= 1
        self.body_over(connection)

    def hand_over(self, before: Connection, after: Connection) -> None:
        """Another protocol goes on with a connection."""
        self._open[after] = ConnectionWatch(after, self._now)
        self.forget(before)

    # How many there are.

    def admit(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> bool:
        """Count a new connection. False if there are too many, and none can be given up: then refuse its requests."""
        self._open[connection] = ConnectionWatch(connection, self._now)
        if self._timer is None:
            self._looked = loop.time()
            self._timer = loop.call_later(self._period, self._look, loop)
        over = len(self._open) - self._given_up - self._most
        if over <= 0:
            return True
        if (watch := self._candidate()) is not None:
            watch.given_up = True
            self._given_up += 1
            watch.connection.give_up(watch.connection.look())
            return True
        if over > _TURNED_AWAY_MOST:
            connection.abort()
        return False

    def _candidate(self) -> ConnectionWatch | None:
        """A connection to give up, if there is one. One search through all connections finds several."""
        for _ in range(2):
            for phase, watch in self._candidates:
                if watch.connection in self._open and not watch.given_up and watch.connection.look() is phase:
                    return watch
            if self._few_at == self._now:
                return None
            self._search()
        return None

    def _search(self) -> None:
        found: list[tuple[Phase, float, int, ConnectionWatch]] = []
        for watch in self._open.values():
            if not watch.given_up and (phase := watch.connection.look()) is not Phase.WAITING:
                since = watch.since if phase is watch.phase else self._now
                if phase is Phase.READING and self._now - watch.stuck < _STUCK_SECONDS:
                    continue
                found.append((phase, since, len(found), watch))
        del found[-1:]  # the connection that is being admitted
        some = len(self._open) // 16
        if len(found) <= some:
            self._few_at = self._now
        found.sort()
        first = sum(one[0] is found[0][0] for one in found)  # no later phases: new connections may be in earlier ones
        self._candidates = iter([(phase, watch) for phase, *_, watch in found[: max(first, some)]])

    # Bodies under way.

    def body_grows(self, connection: Connection, size: int) -> None:
        """Count bytes of a body that is not complete. Hold it if all bodies together take too much memory."""
        self._bodies[connection] = self._bodies.get(connection, 0) + size
        self._bytes += size
        if self._bytes > self.limits.bodies_bytes and any(one is not connection for one in self._going()):
            self._held[connection] = None
            connection.hold()

    def body_over(self, connection: Connection) -> None:
        """Uncount a body that is complete, or that is not read any more."""
        self._bytes -= self._bodies.pop(connection, 0)
        self._held.pop(connection, None)
        if self._held:
            self._let_go()

    def _let_go(self) -> None:
        """Release as many bodies as there is memory for, and at least one, or none would ever end."""
        room = self.limits.bodies_bytes - self._bytes
        for connection in list(self._held):
            if room <= 0 and any(True for _ in self._going()):
                return
            room -= _PIECE
            del self._held[connection]
            connection.release()

    def _going(self) -> Iterator[Connection]:
        return (one for one in self._bodies if one not in self._held and one.look() is Phase.BODY)

    # Time.

    def _look(self, loop: asyncio.AbstractEventLoop) -> None:
        looked = loop.time()
        self._now += min(looked - self._looked, 2 * self._period)
        self._looked = looked
        self._timer = loop.call_later(self._period, self._look, loop) if self._open else None
        for watch in list(self._open.values()):
            watch.look(self._now, self)
        if self._held:
            self._let_go()


def most_connections(wanted: int) -> int:
    """How many connections a process may have: the wanted number, or half of the files that it may open."""
    return wanted or open_files() // 2


def open_files() -> int:
    """How many files a process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENDLESS if soft == resource.RLIM_INFINITY else soft
