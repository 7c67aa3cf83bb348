"""`RpcConnection`: one end of a connection to another process of ours, and the questions and answers on it.

A message is its length and MessagePack. Nothing that arrives is executed or unpickled, because untrusted code of an
environment may run on the other side.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias, cast

from toolyard.core import errors
from toolyard.core.errors import NotSupported
from toolyard.core.frames import ELSEWHERE, traceback_of
from toolyard.rpc import codec

_WAITING_MOST = 4 * 2**20
"""Bytes of one answer that may wait here for their reader. Beyond that, the side that answers waits, too."""
_ASKS, _ANSWERS, _REFUSES, _CANCELS, _ADDS_PART, _HAS_ROOM = range(6)
_OURS = {name: value for name, value in vars(errors).items() if isinstance(value, type)}


class PeerLost(Exception):
    """The other side has gone. The message says why, as far as we know."""


class OurQuestion(asyncio.Future[Any]):
    """A question to the other side. Await it for the answer. If the other side raised, it raises the same here.

    `cancel` only ends the waiting on this side. `stop` stops the work on the other side.
    """

    _parts: deque[Any] | None = None
    """Unread parts of the answer. Made when the first comes: most answers are whole."""
    _size = 0
    """Bytes in these parts."""
    _is_held = False
    _waiting: asyncio.Future[None] | None = None

    def __init__(self, connection: RpcConnection, number: int) -> None:
        super().__init__(loop=connection.loop)
        self._connection = connection
        self._number = number

    def stop(self) -> None:
        """Tell the other side to stop its work on this question. It still answers, once it has stopped."""
        if not self.done():
            self._connection.send(_CANCELS, self._number)
            self.add_done_callback(look_at)  # the caller may not wait for the answer any more

    def leave(self) -> None:
        """Stop the work, and do not wait for the answer."""
        if not self.done():
            self.stop()
            self.cancel()
            self.wake()

    async def part(self) -> Any:
        """The next part of the answer, or None when only the answer itself is left."""
        if not self._parts and not self.done():
            self._waiting = self._connection.loop.create_future()
            await self._waiting
        if not self._parts:
            return None
        part = self._parts.popleft()
        self._grow(-len(part))
        return part

    def add_part(self, part: Any) -> None:
        if not self.done():
            self._parts = self._parts or deque()
            self._parts.append(part)
            self._grow(len(part))
            self.wake()
            if self._size > codec.LONGEST:
                self._connection.close("it sent more parts than there is room for")

    def wake(self) -> None:
        """Let `part` look again."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    def _grow(self, by: int) -> None:
        self._size += by
        if self._is_held != (self._size > (_WAITING_MOST // 2 if self._is_held else _WAITING_MOST)):
            self._is_held = not self._is_held
            self._connection.send(_HAS_ROOM, self._number, not self._is_held)


class TheirQuestion:
    """A question from the other side: its name `what`, and its arguments `about`.

    The return value of `Serve` is the answer, unless `Serve` has sent it with `answer`, perhaps after some parts.
    """

    __slots__ = ("_connection", "_is_answered", "_number", "_room", "_task", "about", "on_stop", "what")

    def __init__(self, connection: RpcConnection, number: int, what: str, about: Sequence[Any]) -> None:
        self.what = what
        self.about = about
        self.on_stop: Callable[[], object] | None = None
        """Called when the other side stops the question or has gone. Without it, the work is cancelled."""
        self._connection = connection
        self._number = number
        self._is_answered = False
        self._room: asyncio.Event | None = None
        """Set while the other side has room for more parts. Made when it first has none."""

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        self._task = self._connection.loop.create_task(self._do(work))

    def answer(self, answer: Any) -> None:
        self._connection.send(_ANSWERS, self._number, answer)
        self._is_answered = True

    def add_part(self, part: Any) -> None:
        self._connection.send(_ADDS_PART, self._number, part)

    async def room(self) -> None:
        """Wait until the other side has room for more parts of this answer."""
        await self._connection.room()
        if self._room is not None:
            await self._room.wait()

    def set_room(self, has_room: bool) -> None:
        self._room = self._room or asyncio.Event()
        if has_room:
            self._room.set()
        else:
            self._room.clear()

    def stop(self) -> None:
        if self._room is not None:
            self._room.set()
        (self.on_stop or self._task.cancel)()

    async def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        try:
            answer = await work
            if not self._is_answered:
                self.answer(answer)
        except BaseException as error:  # the author's, or our own cancelling: the other side gets it as the answer
            trace = traceback_of(error)
            self._connection.send(_REFUSES, self._number, type(error).__name__, str(error), trace)
        finally:
            self._connection.forget(self._number)
            self.on_stop = None  # it may refer to this


Serve: TypeAlias = Callable[[TheirQuestion], Coroutine[Any, Any, Any]]
"""Answers a question of the other side."""


async def nothing(question: TheirQuestion) -> Any:
    """`Serve` of a side that only asks."""
    raise NotSupported(f"{question.what} is not asked of this side")


class RpcConnection(asyncio.Protocol):
    """One end of a connection. Messages that are sent in one turn of the event loop leave together."""

    def __init__(self, serve: Serve = nothing) -> None:
        self.loop = asyncio.get_running_loop()
        self.lost: asyncio.Future[None] = self.loop.create_future()
        """Done when the other side has gone."""
        self._serve = serve
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, OurQuestion] = {}
        self._serving: dict[int, TheirQuestion] = {}
        self._held = bytearray()
        """The start of a message that has not arrived as a whole."""
        self._leaving: list[bytes] = []
        self._room = asyncio.Event()
        self._room.set()

    @classmethod
    async def on(cls, sock: socket.socket, serve: Serve = nothing) -> RpcConnection:
        """Make a connection on a socket. The connection owns the socket, even if the caller is cancelled meanwhile."""
        sock.setblocking(False)
        connection = cls(serve)
        opening = asyncio.ensure_future(connection.loop.create_connection(lambda: connection, sock=sock))
        try:
            await asyncio.shield(opening)  # cancelling it would make uvloop before 0.23 close a descriptor twice
        except asyncio.CancelledError:
            await asyncio.wait((opening,))
            connection.close()
            raise
        return connection

    def ask(self, what: str, *about: Any) -> OurQuestion:
        """Send a question now. Raises `TypeError` or `ValueError` if it cannot be written."""
        question = OurQuestion(self, number := next(self._numbers))
        if self.lost.done():
            question.set_exception(PeerLost("it has ended"))
        else:
            self.send(_ASKS, number, what, *about)
            self._asked[number] = question
        return question

    def close(self, why: str = "it was closed") -> None:
        """Send the messages that wait, and hang up. Questions without an answer raise `PeerLost` with this reason."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
        self._fail(why)

    async def room(self) -> None:
        """Wait until the transport's buffer has room."""
        await self._room.wait()

    def send(self, *message: Any) -> None:
        """For questions: send one message. It is dropped if the other side has gone."""
        written = codec.written(message)
        if not self._leaving:
            self.loop.call_soon(self._flush)
        self._leaving.append(written)

    def forget(self, number: int) -> None:
        """For questions: forget one of the other side's, when its work is over."""
        del self._serving[number]

    def _flush(self) -> None:
        leaving, self._leaving = self._leaving, []
        if leaving and self._transport is not None and not self._transport.is_closing():
            self._transport.write(codec.frame(leaving))

    def _fail(self, why: str) -> None:
        asked, self._asked = self._asked, {}
        for question in asked.values():
            if not question.done():
                question.set_exception(PeerLost(why))
                question.wake()
                question.exception()  # mark it as retrieved, in case no caller waits any more

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's extends no class of asyncio's

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        for question in [*self._serving.values()]:
            question.stop()
        if not self.lost.done():
            self.lost.set_result(None)
        self._fail("it has ended")

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def data_received(self, data: bytes) -> None:
        self._held += data
        try:
            for messages in codec.taken(self._held):
                for message in messages:
                    self._receive(*message)
        except codec.TooLong:
            self.close("it sent a message that is too long")

    def _receive(self, kind: int, number: int, *rest: Any) -> None:
        if kind == _ASKS:
            what, *about = rest
            question = self._serving[number] = TheirQuestion(self, number, what, about)
            question.begin(self._serve(question))
        elif kind in (_CANCELS, _HAS_ROOM):
            if (theirs := self._serving.get(number)) is not None:
                theirs.stop() if kind == _CANCELS else theirs.set_room(*rest)
        elif kind == _ADDS_PART:
            if (ours := self._asked.get(number)) is not None:
                ours.add_part(*rest)
        elif (ours := self._asked.pop(number, None)) is not None and not ours.done():
            if kind == _ANSWERS:
                ours.set_result(*rest)
            else:
                ours.set_exception(_error_of(*rest))
            ours.wake()


def look_at(future: asyncio.Future[Any]) -> None:
    """A callback that marks an exception as retrieved, so that asyncio does not complain if no caller waits for it."""
    if not future.cancelled():
        future.exception()


def _error_of(name: str, message: str, trace: str) -> BaseException:
    """The exception that the other side raised: our own errors as their class, any other as a new class of its name."""
    if name == asyncio.CancelledError.__name__:
        return PeerLost("it was cancelled there")
    known = _OURS.get(name, Exception)
    kind: type[BaseException] = known if issubclass(known, errors.ToolyardError) else type(name, (Exception,), {})
    error = kind(message)
    error.add_note(trace)
    setattr(error, ELSEWHERE, trace)
    return error
