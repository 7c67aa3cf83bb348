"""`Line`: questions and answers between two processes of ours over one socket, both ways and many at once.

A message is a length and JSON. Nothing that arrives is executed or unpickled: on the other side runs the code of
whoever wrote the environment.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import socket
import struct
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias, cast

import orjson

from toolyard.core import errors
from toolyard.core.encoding import encode, encode_exactly
from toolyard.core.errors import NotSupported

log = logging.getLogger("toolyard.placement")

Serve: TypeAlias = Callable[[str, Sequence[Any]], Awaitable[Any]]
"""Answers a question of the other side: its name, and what it is about."""

_LENGTH = struct.Struct("!I")
_LONGEST = 512 * 2**20
_ASKS, _ANSWERS, _REFUSES, _CANCELS = range(4)
_OURS = {name: value for name, value in vars(errors).items() if isinstance(value, type)}


class LineLost(Exception):
    """The other side has gone; the message says why, as far as that is known."""


async def nothing(what: str, about: Sequence[Any]) -> Any:
    """Of a side that only asks."""
    raise NotSupported(f"{what} is not asked of this side")


class Line(asyncio.Protocol):
    """One end. What is sent in one turn of the loop leaves together."""

    def __init__(self, serve: Serve) -> None:
        self._serve = serve
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._serving: dict[int, asyncio.Task[None]] = {}
        self._buffer = bytearray()
        self._leaving: list[bytes] = []
        self.lost: asyncio.Future[None] = self._loop.create_future()
        """Done when the other side is gone."""

    @classmethod
    async def on(cls, sock: socket.socket, serve: Serve = nothing) -> Line:
        sock.setblocking(False)
        line = cls(serve)
        await asyncio.get_running_loop().create_connection(lambda: line, sock=sock)
        return line

    def ask(self, what: str, *about: Any) -> asyncio.Future[Any]:
        """Ask now; the answer can be awaited. Whoever does not want it any more calls `cancel`."""
        future: asyncio.Future[Any] = self._loop.create_future()
        if self.lost.done():
            future.set_exception(LineLost("it has ended"))
            return future
        number = next(self._numbers)
        self._send(encode_exactly([_ASKS, number, what, *about]))
        self._asked[number] = future
        return future

    def cancel(self, asked: asyncio.Future[Any]) -> None:
        """Let the other side stop what it does for this. It answers all the same, once it has."""
        for number, future in self._asked.items():
            if future is asked:
                self._send(encode([_CANCELS, number]))
                future.add_done_callback(look_at)  # nobody may be waiting for it any more
                return

    def close(self, why: str = "it was closed") -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()
        self.fail(why)

    def fail(self, why: str) -> None:
        """Let everybody know who waits for an answer."""
        asked, self._asked = self._asked, {}
        for future in asked.values():
            if not future.done():
                future.set_exception(LineLost(why))
                future.exception()  # looked at: nobody may be waiting for it any more

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's extends no class of asyncio's

    def connection_lost(self, error: Exception | None) -> None:
        for task in self._serving.values():
            task.cancel()
        if not self.lost.done():
            self.lost.set_result(None)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer
        buffer += data
        start = 0
        while len(buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(buffer, start)
            end = start + _LENGTH.size + length
            if length > _LONGEST:
                self.close("it sent a message that is too long")
                return
            if len(buffer) < end:
                break
            self._receive(_decoded(memoryview(buffer)[start + _LENGTH.size : end]))
            start = end
        del buffer[:start]

    # One message.

    def _receive(self, message: list[Any]) -> None:
        kind, number, *rest = message
        if kind == _ASKS:
            self._serving[number] = self._loop.create_task(self._answer(number, rest[0], rest[1:]))
        elif kind == _CANCELS:
            if (task := self._serving.get(number)) is not None:
                task.cancel()
        elif (future := self._asked.pop(number, None)) is not None and not future.done():
            if kind == _ANSWERS:
                future.set_result(rest[0])
            else:
                future.set_exception(_error_of(*rest))

    async def _answer(self, number: int, what: str, about: Sequence[Any]) -> None:
        try:
            answer = _written([_ANSWERS, number, await self._serve(what, about)])
        except BaseException as error:  # the author's, or our own cancelling: it is the answer
            told = "".join(traceback.format_exception(error))
            answer = encode([_REFUSES, number, type(error).__name__, str(error), told])
        finally:
            self._serving.pop(number, None)
        self._send(answer)

    def _send(self, data: bytes) -> None:
        if not self._leaving:
            self._loop.call_soon(self._flush)
        self._leaving += (_LENGTH.pack(len(data)), data)

    def _flush(self) -> None:
        if self._leaving and self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(self._leaving))
        self._leaving = []


def look_at(future: asyncio.Future[Any]) -> None:
    """Done with something for which nobody may be waiting any more: what it raised is no news."""
    if not future.cancelled():
        future.exception()


def _written(answer: Sequence[Any]) -> bytes:
    try:
        written = encode_exactly(answer)
    except (TypeError, ValueError, RecursionError) as error:  # what the author put into it
        raise TypeError(f"what was returned cannot be written as JSON: {error}") from error
    if len(written) > _LONGEST:  # whom it is for would hang up
        raise ValueError(f"what was returned takes more than {_LONGEST} bytes")
    return written


def _decoded(data: memoryview[int]) -> Any:
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:  # long integers, lone surrogates
        return json.loads(bytes(data))


def _error_of(name: str, message: str, told: str) -> BaseException:
    """What the other side raised: one of our own errors as itself, anything else as an error of that name."""
    if name == asyncio.CancelledError.__name__:
        return LineLost("it was cancelled there")
    known = _OURS.get(name, Exception)
    kind: type[BaseException] = known if issubclass(known, errors.ToolyardError) else type(name, (Exception,), {})
    error = kind(message)
    error.add_note(told)
    return error
