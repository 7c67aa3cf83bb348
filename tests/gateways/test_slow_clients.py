"""Answers that come in parts through another gateway, for clients that read slowly or not at all."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest
from starlette.types import Message, Receive, Scope, Send

from toolyard.asgi import HttpOptions, Request
from toolyard.gateways.answering import SENT, answering
from toolyard.gateways.asking import Asking
from toolyard.rpc import RpcConnection

pytestmark = pytest.mark.anyio

PART, COUNT = bytes(2**16), 1024


class Streaming:
    """An application with a long answer."""

    def __init__(self) -> None:
        self.sent = 0
        self.is_over = asyncio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(COUNT):
            await send({"type": "http.response.body", "body": PART, "more_body": True})
            self.sent += 1
            await asyncio.sleep(0)  # like an application that reads from a disk
        await send({"type": "http.response.body", "body": b"", "more_body": False})
        self.is_over.set()


class Client:
    """Reads when the test says so."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.hung_up = asyncio.Event()
        self.received = 0

    async def send(self, message: Message) -> None:
        await self.reads.wait()
        self.received += len(message.get("body", b""))

    async def receive(self) -> Message:
        await self.hung_up.wait()
        return {"type": "http.disconnect"}


@asynccontextmanager
async def between(app: Streaming) -> AsyncIterator[Asking]:
    """A connection from one gateway to another, which has this application."""
    ours, theirs = socket.socketpair()
    ends = await RpcConnection.on(ours), await RpcConnection.on(theirs, answering(app))
    try:
        yield Asking(ends[0])
    finally:
        for end in ends:
            end.close()
        for end in ends:
            await end.lost


async def begin(asking: Asking, client: Client) -> asyncio.Task[None]:
    scope: Any = {**dict.fromkeys(SENT, ""), "headers": []}
    request = Request(scope, client.receive, client.send, HttpOptions(2**20, 1, 1, "none", ""))
    return asyncio.ensure_future(asking.ask(scope, b"").bring_back(request))


async def stands_still(app: Streaming) -> None:
    """Wait until nothing more is written for a while."""
    with anyio.fail_after(20):
        before = -1
        while before != app.sent or not app.sent:
            before = app.sent
            await asyncio.sleep(0.2)


async def test_what_a_client_does_not_read_waits_where_it_comes_from_and_comes_whole_in_the_end():
    app, client = Streaming(), Client()
    async with between(app) as asking:
        answered = await begin(asking, client)
        await stands_still(app)
        assert app.sent < COUNT // 2
        client.reads.set()
        with anyio.fail_after(20):
            await answered
        assert client.received == len(PART) * COUNT


async def test_one_that_does_not_read_is_in_nobody_elses_way():
    app, slow, quick = Streaming(), Client(), Client()
    async with between(app) as asking:
        waiting = await begin(asking, slow)
        await stands_still(app)
        quick.reads.set()
        with anyio.fail_after(20):
            await (await begin(asking, quick))
        assert quick.received == len(PART) * COUNT
        slow.reads.set()
        await waiting


async def test_one_that_hangs_up_without_reading_keeps_nobody():
    app, client = Streaming(), Client()
    async with between(app) as asking:
        waiting = await begin(asking, client)
        await stands_still(app)
        client.hung_up.set()
        with anyio.fail_after(20):
            await app.is_over.wait()
        client.reads.set()
        await waiting
        assert client.received < len(PART) * COUNT
