"""A right server with one fault: a proxy in front of ours that changes answers by a mutation."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

_OWN = ("connection", "transfer-encoding", "content-length", "keep-alive")


@dataclass
class Exchange:
    """A request, and its answer once there is one."""

    method: str
    path: str
    sent: CIMultiDict[str]
    request: bytes
    status: int = 0
    headers: CIMultiDict[str] = field(default_factory=CIMultiDict)
    body: bytes = b""

    @property
    def asked(self) -> Any:
        """The JSON of the request; `{}` if it is not JSON."""
        try:
            return json.loads(self.request)
        except ValueError:
            return {}

    @property
    def told(self) -> Any:
        return json.loads(self.body)

    @told.setter
    def told(self, value: Any) -> None:
        self.body = json.dumps(value).encode()
        self.headers["Content-Type"] = "application/json"


Mutation = Callable[[Exchange], None]
"""Changes the answer."""


@dataclass
class Mutant:
    url: str = ""
    upstream: str = ""
    mutation: Mutation | None = None
    added: dict[str, str] = field(default_factory=dict)
    """Headers to send to the server beside the client's."""
    exchanges: int = 0
    """How many requests have passed."""
    client: aiohttp.ClientSession | None = None

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Upgrade", "").lower() == "websocket":
            return await self._relay(request)
        sent = CIMultiDict((name, value) for name, value in request.headers.items() if name.lower() not in _OWN)
        exchange = Exchange(request.method, request.raw_path, sent, await request.read())
        self.exchanges += 1
        assert self.client is not None
        async with self.client.request(
            exchange.method,
            URL(self.upstream + exchange.path, encoded=True),
            headers=CIMultiDict([*sent.items(), *self.added.items()]),
            data=exchange.request,
            skip_auto_headers=("Accept", "Content-Type", "User-Agent", "Accept-Encoding"),
            allow_redirects=False,
        ) as answer:
            exchange.status, exchange.body = answer.status, await answer.read()
            exchange.headers = CIMultiDict((n, v) for n, v in answer.headers.items() if n.lower() not in _OWN)
        if self.mutation is not None:
            self.mutation(exchange)
        return web.Response(status=exchange.status, body=exchange.body, headers=exchange.headers)

    async def _relay(self, request: web.Request) -> web.WebSocketResponse:
        """A WebSocket. Each frame of the server answers the client's last one."""
        assert self.client is not None
        near = web.WebSocketResponse(autoclose=False)  # tell the server first that the client leaves
        await near.prepare(request)
        said = b""

        async def send() -> None:
            nonlocal said
            async for message in near:
                said = message.data.encode()
                await far.send_str(message.data)
            await far.close()

        async with self.client.ws_connect(self.upstream + request.raw_path, max_msg_size=2**26) as far:
            sending = asyncio.create_task(send())
            async for message in far:
                exchange = Exchange("WS", request.raw_path, CIMultiDict(), said, body=message.data.encode())
                if self.mutation is not None:
                    self.mutation(exchange)
                if exchange.status:  # a mutation closes the connection with this code
                    await near.close(code=exchange.status)
                    break
                await near.send_str(exchange.body.decode())
            await near.close(code=self.closing(far.close_code or 1000, said))
            sending.cancel()
        return near

    def closing(self, code: int, said: bytes) -> int:
        """The code with which the server closes, after a mutation."""
        exchange = Exchange("CLOSE", "", CIMultiDict(), said, status=code)
        if self.mutation is not None:
            self.mutation(exchange)
        return exchange.status


@contextmanager
def mutating() -> Iterator[Mutant]:
    """The proxy. Set its `upstream` and `mutation` for each test."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mutant", daemon=True)
    thread.start()
    mutant = Mutant()

    async def start() -> web.AppRunner:
        mutant.client = aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False)
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", "/{path:.*}", mutant.handle)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        mutant.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        return runner

    async def stop(runner: web.AppRunner) -> None:
        assert mutant.client is not None
        await mutant.client.close()
        await runner.cleanup()

    runner = asyncio.run_coroutine_threadsafe(start(), loop).result()
    try:
        yield mutant
    finally:
        asyncio.run_coroutine_threadsafe(stop(runner), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


# Mutations.


def at(ending: str, *changes: Mutation, when: Callable[[Exchange], object] = lambda exchange: True) -> Mutation:
    """Make the changes in answers of paths with this ending, where `when` holds."""

    def change(exchange: Exchange) -> None:
        if exchange.path.endswith(ending) and when(exchange):
            for one in changes:
                one(exchange)

    return change


def status(code: int, *, was: int | None = None) -> Mutation:
    def change(exchange: Exchange) -> None:
        if was is None or exchange.status == was:
            exchange.status = code

    return change


def text(old: str, new: str) -> Mutation:
    def change(exchange: Exchange) -> None:
        exchange.body = exchange.body.replace(old.encode(), new.encode())

    return change


def header(name: str, value: str | None) -> Mutation:
    def change(exchange: Exchange) -> None:
        exchange.headers.popall(name, None)
        if value is not None:
            exchange.headers[name] = value

    return change


def told(edit: Callable[[Any], Any]) -> Mutation:
    """Change the JSON of an answer: `edit` changes it in place, or returns a new one."""

    def change(exchange: Exchange) -> None:
        value = exchange.told
        changed = edit(value)
        exchange.told = value if changed is None else changed

    return change


def put(**values: Any) -> Mutation:
    return told(lambda answer: {**answer, **values})


def drop(*names: str) -> Mutation:
    """Leave these keys out of a JSON object."""
    return told(lambda answer: {name: value for name, value in answer.items() if name not in names})


def body(text: str, kind: str = "application/json") -> Mutation:
    def change(exchange: Exchange) -> None:
        exchange.body = text.encode()
        exchange.headers["Content-Type"] = kind

    return change


def second_time(*changes: Mutation) -> Mutation:
    """Change only the second answer that passes here."""
    came = 0

    def change(exchange: Exchange) -> None:
        nonlocal came
        came += 1
        if came == 2:
            for one in changes:
                one(exchange)

    return change


def all_of(*mutations: Mutation) -> Mutation:
    """All of them."""

    def change(exchange: Exchange) -> None:
        for one in mutations:
            one(exchange)

    return change
