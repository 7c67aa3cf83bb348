"""Lets the ASGI application answer requests that other gateways pass on."""

from __future__ import annotations

import asyncio
import logging

from starlette.types import ASGIApp, Message, Scope

from toolyard.asgi import ANSWER, PASSED, Headers
from toolyard.rpc import Serve, TheirQuestion
from toolyard.runtime.grants import hide_tokens

log = logging.getLogger("toolyard.gateways")

SENT = (
    *("http_version", "server", "client", "scheme", "method"),
    *("root_path", "path", "raw_path", "query_string", "headers"),
)
"""The keys of the scope that gateways pass on with a request."""
_KEYS = (*SENT, "type", "asgi", PASSED, ANSWER)
_ASGI = {"version": "3.0", "spec_version": "2.3"}


def answering(app: ASGIApp) -> Serve:
    """Let the application answer requests of other gateways like any other request."""
    return lambda question: Exchange(question).run(app)


class Exchange:
    """One request from another gateway, and its answer. If its client goes away, the application goes on."""

    def __init__(self, question: TheirQuestion) -> None:
        passed, self._body = question.about
        self._question = question
        question.on_stop = self._leave
        self._gone: asyncio.Event | None = None
        """Set when the client has gone. Made when the application first waits for that."""
        self._left = False
        self._complete = False
        self._scope: Scope = dict(zip(_KEYS, (*passed, "http", _ASGI, True, self.answer), strict=True))

    async def run(self, app: ASGIApp) -> None:
        try:
            await app(self._scope, self.receive, self.send)
        except Exception:  # ours: the application itself answers the errors that it expects
            log.exception("%s %s", self._scope["method"], hide_tokens(self._scope["path"]))

    def answer(self, status: int, headers: Headers, body: bytes) -> bool:
        if self._complete:
            return False
        self._complete = True
        self._question.answer((status, headers, body))
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
        await self._question.room()
        if self._left:
            return
        if message["type"] == "http.response.start":
            self._question.add_part((message["status"], message.get("headers", ())))
            return
        self._complete = not message.get("more_body", False)
        (self._question.answer if self._complete else self._question.add_part)(message.get("body", b""))

    def _leave(self) -> None:
        """Called when the client has hung up, or its gateway has gone."""
        self._left = True
        if self._gone is not None:
            self._gone.set()
