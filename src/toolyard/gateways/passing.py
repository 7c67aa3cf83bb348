"""A request on its way to another gateway, as ASGI has it, and its answer on the way back."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from operator import itemgetter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolyard.asgi import ANSWER, PASSED, Headers, HttpError, Request
from toolyard.gateways.frames import Frame, Frames
from toolyard.runtime.owners import GatewayLost

log = logging.getLogger("toolyard.gateways")

_SENT = (
    *("http_version", "server", "client", "scheme", "method"),
    *("root_path", "path", "raw_path", "query_string", "headers"),
)
"""What goes with a request."""
_of_scope = itemgetter(*_SENT)
_KEYS = (*_SENT, "type", "asgi", PASSED, ANSWER)
_ASGI = {"version": "3.0", "spec_version": "2.3"}
_WHOLE, _HEAD, _PART, _LAST, _BROKEN, _LOST, _LEFT = range(7)
"""What can come back: a whole answer, or its head and its parts; or that there will be none."""

_PROMPT = 0.05
"""Seconds within which nobody gives up waiting, so that one need not look whether somebody did."""


class Asking(Frames):
    """The end of a line at which requests go in."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        super().__init__()
        self._on_lost = on_lost
        self._asked: dict[int, Asked] = {}
        self._count = 0
        self._new: list[Asked] = []
        self._recent: list[Asked] = []
        """Those that were new when we looked last for clients that may have gone."""
        self._looking = False

    def ask(self, scope: Scope, body: bytes) -> Asked:
        self._count += 1
        asked = self._asked[self._count] = Asked(self, self._count)
        self.send((self._count, _of_scope(scope), body))
        self._new.append(asked)
        if not self._looking:
            self._looking = True
            asyncio.get_running_loop().call_later(_PROMPT, self._look)
        return asked

    def _look(self) -> None:
        """One timer does for all: from the second look on, a request that is under way is watched."""
        for asked in self._recent:
            asked.watch()
        self._recent, self._new = self._new, []
        self._looking = bool(self._recent)
        if self._looking:
            asyncio.get_running_loop().call_later(_PROMPT, self._look)

    def leave(self, number: int) -> None:
        """Nobody waits for this one any more."""
        if self._asked.pop(number, None) is not None:
            self.send((number,))

    def received(self, frame: Frame) -> None:
        number, *back = frame
        asked = self._asked.get(number)
        if asked is None:  # it was left meanwhile
            return
        if back[0] in (_WHOLE, _LAST, _BROKEN):
            del self._asked[number]
        asked.put(back)

    def lost(self) -> None:
        for asked in self._asked.values():
            asked.put([_LOST])
        self._asked.clear()
        self._on_lost()


class Asked:
    """A request under way, and what has come back and not been looked at."""

    __slots__ = ("_came", "_line", "_number", "_receive", "_waiting", "_watching")

    def __init__(self, line: Asking, number: int) -> None:
        self._line = line
        self._number = number
        self._came: deque[list[Any]] = deque()
        self._waiting: asyncio.Future[None] | None = None
        self._receive: Receive | None = None
        self._watching: asyncio.Task[None] | None = None

    def put(self, back: list[Any]) -> None:
        self._came.append(back)
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> list[Any]:
        while not self._came:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        return self._came.popleft()

    async def whole(self) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        status, parts = 0, []
        try:
            while True:
                kind, *said = await self.next()
                if kind in (_WHOLE, _HEAD):
                    status = said[0]
                if kind in (_WHOLE, _PART, _LAST):
                    parts.append(said[-1])
                if kind in (_WHOLE, _LAST):
                    return status, b"".join(parts)
                if kind not in (_HEAD, _PART):
                    raise GatewayLost("the gateway ended before it answered")
        finally:
            self._line.leave(self._number)

    async def bring_back(self, request: Request, receive: Receive, send: Send) -> None:
        """To the client. If that hangs up, the other gateway is told."""
        self._receive = receive
        try:
            await self._bring_back(request, send)
        finally:
            self._receive = None
            if self._watching is not None:
                self._watching.cancel()
            self._line.leave(self._number)

    async def _bring_back(self, request: Request, send: Send) -> None:
        while True:
            kind, *said = await self.next()
            if kind == _WHOLE:
                await request.answer(*said)
                return
            if kind == _HEAD:
                request.started = True
                await send({"type": "http.response.start", "status": said[0], "headers": said[1]})
            elif kind in (_PART, _LAST):
                await send({"type": "http.response.body", "body": said[0], "more_body": kind == _PART})
            if kind not in (_HEAD, _PART):
                self._check_end(kind, request)
                return

    def _check_end(self, kind: int, request: Request) -> None:
        """An answer that has begun and does not go on ends with its connection."""
        if request.started or kind == _LEFT:
            return
        if kind == _LOST:
            raise GatewayLost("the gateway that had this session has ended, and the session with it")
        raise HttpError(500, "Internal Server Error")

    def watch(self) -> None:
        """Hear from now on if the client goes away."""
        if self._receive is not None and self._watching is None:
            self._watching = asyncio.ensure_future(self._until_gone(self._receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._line.leave(self._number)
        self.put([_LEFT])


class Answering(Frames):
    """The end of a line at which requests come out: the application answers them as it does any other."""

    def __init__(self, app: ASGIApp, on_lost: Callable[[Answering], None]) -> None:
        super().__init__()
        self._app = app
        self._on_lost = on_lost
        self._exchanges: dict[int, tuple[Exchange, asyncio.Task[None]]] = {}

    def received(self, frame: Frame) -> None:
        number, *asked = frame
        if not asked:
            if (found := self._exchanges.get(number)) is not None:
                found[0].leave()
            return
        exchange = Exchange(self, number, asked[0], asked[1])
        task = asyncio.get_running_loop().create_task(exchange.run(self._app))
        self._exchanges[number] = exchange, task

    def ended(self, number: int) -> None:
        del self._exchanges[number]

    def lost(self) -> None:
        """Whoever asked has hung up, in effect; what was asked for goes on."""
        for exchange, _ in self._exchanges.values():
            exchange.leave()
        self._on_lost(self)


class Exchange:
    """One request from another gateway, and its answer."""

    def __init__(self, line: Answering, number: int, said: tuple[Any, ...], body: bytes) -> None:
        self._line = line
        self._number = number
        self._body: bytes | None = body
        self._gone: asyncio.Event | None = None
        """Made when somebody first wants to know."""
        self._left = False
        self._complete = False
        self._scope: Scope = dict(zip(_KEYS, (*said, "http", _ASGI, True, self.answer), strict=True))

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:  # ours: the application makes answers of what it expects
            log.exception("%s %s", self._scope["method"], self._scope["path"])
        finally:
            self._line.ended(self._number)
            if not self._complete:
                self._line.send((self._number, _BROKEN))

    def leave(self) -> None:
        """The client has hung up."""
        self._left = True
        if self._gone is not None:
            self._gone.set()

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        if self._complete:
            return False
        self._complete = True
        self._line.send((self._number, _WHOLE, status, headers, body))
        return True

    async def receive(self) -> Message:
        if (body := self._body) is not None:
            self._body = None
            return {"type": "http.request", "body": body, "more_body": False}
        if not self._left:
            self._gone = self._gone or asyncio.Event()
            await self._gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        await self._line.room()
        if self._left:
            return
        if message["type"] == "http.response.start":
            self._line.send((self._number, _HEAD, message["status"], list(message.get("headers", ()))))
            return
        self._complete = not message.get("more_body", False)
        kind = _LAST if self._complete else _PART
        self._line.send((self._number, kind, message.get("body", b"")))
