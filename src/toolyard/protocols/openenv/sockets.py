"""One WebSocket: messages in, one answer to each, in order. It ends with its client, and so does its session."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from starlette.types import Message, Receive, Send

from toolyard.core.encoding import encode
from toolyard.protocols.openenv import observations
from toolyard.protocols.openenv.messages import (
    CloseMessage,
    ListToolsAction,
    McpMessage,
    ResetMessage,
    StateMessage,
    StepMessage,
    Trouble,
    action,
    decoded,
    frame,
    reset,
    said,
)
from toolyard.protocols.openenv.rpc import Rpc, parse_error
from toolyard.protocols.openenv.seats import Seat
from toolyard.runtime.eager import BREATH, breathe, eagerly
from toolyard.runtime.runtime import Runtime

log = logging.getLogger("toolyard.openenv")

Answer: TypeAlias = Callable[[str], Awaitable[bytes | None]]
"""Answers a message. None ends the conversation."""


_AHEAD_MOST, _AHEAD_BYTES = 16, 2**18
"""The most messages, and bytes of them, to read ahead. Beyond that, a client's end may go unnoticed."""


class Hung(Exception):
    """The client has gone."""


class Done:
    """Notes when work is over."""

    is_done = False
    answer: bytes | None = None

    async def by(self, work: Awaitable[bytes | None]) -> None:
        self.answer = await work
        self.is_done = True


class Socket:
    """The messages of ASGI. It answers one message at a time, and notices meanwhile if the client goes."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._coming: asyncio.Future[Message] | None = None
        self._ahead: deque[Message] = deque()
        """Messages that were read during an answer, to notice if the client goes."""
        self._busy = 0.0
        """Seconds of work since the last yield to the event loop."""

    async def accept(self) -> None:
        await self._receive()  # websocket.connect
        await self._send({"type": "websocket.accept"})

    async def refuse(self, trouble: Trouble) -> None:
        """Send the reason in OpenEnv's form, and close."""
        await self.accept()
        await self.say(trouble.frame)
        await self.close()

    async def say(self, words: bytes) -> None:
        await self._send({"type": "websocket.send", "text": words.decode()})

    async def close(self) -> None:
        await self._send({"type": "websocket.close", "code": 1000})

    async def converse(self, answer: Answer) -> bool:
        """Answer messages until the end. True if the client asked to close and waits for that; False if it has gone."""
        try:
            while await self._take_turn(answer):
                if self._busy > BREATH:  # messages that have arrived must not block the loop for others
                    self._busy = 0.0
                    await breathe()
            return True
        except Hung:
            return False
        finally:
            if self._coming is not None:
                self._coming.cancel()

    async def _take_turn(self, answer: Answer) -> bool:
        """Answer one message. Return whether there may be more. Nothing holds a message in between, because it may be
        large."""
        heard = await self._next()
        began = time.monotonic()
        said = await self._while_there(answer(heard))
        if said is None:
            return False
        await self.say(said)
        self._busy += time.monotonic() - began
        return True

    async def _next(self) -> str:
        """The next message. Raises `Hung` when the client has gone."""
        message = self._ahead.popleft() if self._ahead else await self._coming_next()
        if message["type"] == "websocket.disconnect":
            raise Hung
        text = message.get("text")
        return text if text is not None else (message.get("bytes") or b"").decode(errors="replace")

    async def _while_there(self, work: Awaitable[bytes | None]) -> bytes | None:
        """The answer. Raises `Hung`, and gives the work up, if the client goes meanwhile."""
        done = Done()
        working = eagerly(done.by(work))
        if done.is_done:  # most work never waits, so there is no need to listen meanwhile
            return done.answer
        try:
            while not working.done() and self._has_room():
                await asyncio.wait((working, self._upcoming()), return_when=asyncio.FIRST_COMPLETED)
                if not working.done():
                    self._ahead.append(await self._coming_next())
                    if self._ahead[-1]["type"] == "websocket.disconnect":
                        raise Hung
            await working
            return done.answer
        finally:
            working.cancel()

    def _has_room(self) -> bool:
        return len(self._ahead) < _AHEAD_MOST and sum(map(_size, self._ahead)) < _AHEAD_BYTES

    def _upcoming(self) -> asyncio.Future[Message]:
        if self._coming is None:
            self._coming = asyncio.ensure_future(self._receive())
        return self._coming

    async def _coming_next(self) -> Message:
        coming, self._coming = self._coming, None
        return await (self._receive() if coming is None else coming)


def _size(message: Message) -> int:
    return len(message.get("text") or message.get("bytes") or "")


class Play:
    """Answers the messages on a socket with a seat."""

    def __init__(self, seat: Seat, runtime: Runtime, rpc: Rpc) -> None:
        self._seat = seat
        self._runtime = runtime
        self._rpc = rpc
        self._answers: Mapping[type, Callable[[Any], Awaitable[bytes | None]]] = {
            ResetMessage: self._reset,
            StepMessage: self._step,
            StateMessage: self._state,
            McpMessage: self._mcp,
            CloseMessage: self._close,
        }

    async def answer(self, text: str) -> bytes | None:
        try:
            message = said(await decoded(text))
            return await self._answers[type(message)](message)
        except Trouble as trouble:
            return trouble.frame
        except Exception as error:  # ours
            log.exception("a message could not be answered")
            return self._seat.trouble(error).frame

    async def answer_rpc(self, text: str) -> bytes | None:
        """Answer a message on the path of JSON-RPC, where messages have no envelope."""
        try:
            body = await decoded(text)
        except Trouble:
            return encode(parse_error())
        return encode(await self._rpc.answer(body, self._seat.environment, self._seat))

    async def _reset(self, message: ResetMessage) -> bytes:
        prompt = await self._seat.reset(reset(message.data))
        return frame("observation", observations.of_reset(prompt))

    async def _step(self, message: StepMessage) -> bytes:
        seat, wanted = self._seat, action(message.data)
        if isinstance(wanted, ListToolsAction):
            tools = await seat.tools()
            seat.steps += 1
            done = seat.session is not None and seat.session.finished
            return frame("observation", observations.of_tools(tools, done))
        seat.playing()
        seat.steps += 1
        returned = await seat.call(wanted.tool_name, wanted.arguments)
        return frame("observation", observations.of_call(wanted.tool_name, returned, seat, self._runtime))

    async def _state(self, _: StateMessage) -> bytes:
        return frame("state", self._seat.state)

    async def _mcp(self, message: McpMessage) -> bytes:
        return frame("mcp", await self._rpc.answer(message.data, self._seat.environment, self._seat))

    async def _close(self, _: CloseMessage) -> None:
        return None
