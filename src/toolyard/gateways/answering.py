"""Requests that other gateways pass on, and their answers, as ASGI has them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp, Message, Scope

from toolyard.asgi import ANSWER, PASSED, Headers
from toolyard.gateways.frames import Frame, Frames

log = logging.getLogger("toolyard.gateways")

SENT = (
    *("http_version", "server", "client", "scheme", "method"),
    *("root_path", "path", "raw_path", "query_string", "headers"),
)
"""What goes with a request."""
WHOLE, HEAD, PART, LAST, BROKEN = range(5)
"""What goes back: a whole answer, or its head and its parts; or that there will be none."""

_REQUEST = 3
"""Parts of a frame that is a request. A shorter one is about a request that came before."""
_KEYS = (*SENT, "type", "asgi", PASSED, ANSWER)
_ASGI = {"version": "3.0", "spec_version": "2.3"}


class Answering(Frames):
    """The end of a line at which requests come out: the application answers them as it does any other."""

    def __init__(self, app: ASGIApp, on_lost: Callable[[Answering], None]) -> None:
        super().__init__()
        self._app = app
        self._on_lost = on_lost
        self._exchanges: dict[int, tuple[Exchange, asyncio.Task[None]]] = {}

    def received(self, frame: Frame) -> None:
        number = frame[0]
        if len(frame) < _REQUEST:
            if (found := self._exchanges.get(number)) is not None:
                found[0].hear(*frame[1:])
            return
        exchange = Exchange(self, *frame)
        self._exchanges[number] = exchange, self._loop.create_task(exchange.run(self._app))

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
        self._may_go_on: asyncio.Event | None = None
        """Made when the client first reads more slowly than we write."""
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
                self._line.send((self._number, BROKEN))

    def hear(self, go_on: bool | None = None) -> None:
        """Whether there is room for more of the answer where the client is; nothing if it has hung up."""
        if go_on is None:
            self.leave()
            return
        self._may_go_on = self._may_go_on or asyncio.Event()
        if go_on:
            self._may_go_on.set()
        else:
            self._may_go_on.clear()

    def leave(self) -> None:
        """The client has hung up."""
        self._left = True
        for event in (self._gone, self._may_go_on):
            if event is not None:
                event.set()

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        if self._complete:
            return False
        self._complete = True
        self._line.send((self._number, WHOLE, status, headers, body))
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
        if self._may_go_on is not None:
            await self._may_go_on.wait()
        if self._left:
            return
        if message["type"] == "http.response.start":
            self._line.send((self._number, HEAD, message["status"], list(message.get("headers", ()))))
            return
        self._complete = not message.get("more_body", False)
        kind = LAST if self._complete else PART
        self._line.send((self._number, kind, message.get("body", b"")))
