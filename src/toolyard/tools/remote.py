"""For toolsets that ask a server nearby, thousands of times: connections stay open for the next call, of any session.

A plain HTTP server is taken to be near: it is asked directly, never through a proxy. One with TLS may be far away.
"""

from __future__ import annotations

import asyncio
import functools
import json
import select
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlsplit
from weakref import WeakKeyDictionary

import httpx2
from httptools import HttpParserError, HttpResponseParser

from toolyard.core.encoding import encode
from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import JsonObject
from toolyard.tools import http
from toolyard.tools.http import BYTES_MOST, Answer

_AT_ONCE = 64
"""Connections to one server. Who comes later waits for one of them."""
REFUSED = frozenset({400, 413, 422})
"""Statuses by which a server says that what it was sent is wrong. All other failures are its own."""


class RemoteToolset(Toolset):
    """A toolset whose tools say `await self.post(url, …)`."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._connections: _Connections | None = None

    async def post(self, url: str, body: object, *, seconds: float, headers: Mapping[str, str] = {}) -> Answer:
        """What a server answers within so many seconds. Raises `ServiceUnavailable` if it does not.

        They begin when it is asked: who waits for a connection here does not wait for the server.
        """
        if self._connections is None:
            self._connections = _connections.setdefault(asyncio.get_running_loop(), _Connections())
            self._connections.sessions += 1
        try:
            return await self._connections.ask(url, encode(body), headers, seconds)
        except TimeoutError:
            raise ServiceUnavailable(f"there was no answer within {seconds:g} seconds") from None
        except (OSError, httpx2.HTTPError) as error:
            raise ServiceUnavailable(f"it cannot be reached: {error or type(error).__name__}") from None

    async def teardown(self) -> None:
        if self._connections is not None:
            await self._connections.leave()


def json_of(answer: Answer) -> Any:  # any JSON value
    """What a good answer says. Raises `ServiceUnavailable` for one that is not."""
    if answer.status != 200:
        raise ServiceUnavailable(f"it answered {answer.status}: {answer.text[:200]}")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ServiceUnavailable(f"its answer is not JSON: {answer.text[:200]!r}") from None


def object_of(answer: Answer) -> JsonObject:
    """The same of an answer that must be a JSON object."""
    said = json_of(answer)
    if not isinstance(said, dict):
        raise ServiceUnavailable(f"its answer is not an object: {answer.text[:200]}")
    return said


@contextmanager
def blaming(service: str) -> Iterator[None]:
    """Whoever cannot be asked in here has a name: a failed server is not an answer that the agent would pay for."""
    try:
        yield
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"{service} failed: {error}") from None


@dataclass(frozen=True, slots=True)
class Target:
    host: str
    port: int
    tls: bool
    head: str
    """How a request begins."""

    def request(self, body: bytes, headers: Mapping[str, str]) -> bytes:
        more = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        return f"{self.head}{more}content-length: {len(body)}\r\n\r\n".encode() + body


@functools.lru_cache(64)
def target_of(url: str) -> Target:
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
        if parts.scheme not in ("http", "https") or not host:
            raise ValueError
    except ValueError:
        raise ServiceUnavailable(f"{url!r} is not the address of an HTTP server") from None
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~") + (
        f"?{quote(parts.query, safe='=&%+')}" * bool(parts.query)
    )
    head = f"POST {path} HTTP/1.1\r\nhost: {parts.netloc}\r\ncontent-type: application/json\r\n"
    return Target(host, port or 80, parts.scheme == "https", head)


class _Server:
    """Connections to one server."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._idle: list[_Connection] = []
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, request: bytes, seconds: float) -> Answer:
        async with self._slots, asyncio.timeout(seconds):
            while self._idle:
                connection = self._idle.pop()
                if connection.is_fresh():  # a server closes one that was not used for a while
                    # What was sent is never sent again: the server may have done it, and died of it.
                    return await self._asked(connection, request)
                connection.close()
            target = self._target
            loop = asyncio.get_running_loop()
            _, connection = await loop.create_connection(_Connection, target.host, target.port)
            return await self._asked(connection, request)

    async def _asked(self, connection: _Connection, request: bytes) -> Answer:
        answer = await connection.ask(request)
        if connection.is_open:
            self._idle.append(connection)
        return answer

    def close(self) -> None:
        for connection in self._idle:
            connection.close()


@dataclass(slots=True)
class _Connections:
    """Those of one event loop. They are closed when no session is left that used one."""

    near: dict[Target, _Server] = field(default_factory=dict)
    far: httpx2.AsyncClient | None = None
    far_slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_AT_ONCE))
    sessions: int = 0

    async def ask(self, url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> Answer:
        target = target_of(url)
        if not all(value.isprintable() for value in headers.values()):
            raise ServiceUnavailable("a key has characters that cannot be sent")
        if target.tls:
            self.far = self.far or http.client(url, timeout=None, limits=_FAR)
            async with self.far_slots, asyncio.timeout(seconds):
                return await _asked_far(self.far, url, body, headers)
        if (server := self.near.get(target)) is None:
            server = self.near[target] = _Server(target)
        return await server.ask(target.request(body, headers), seconds)

    async def leave(self) -> None:
        self.sessions -= 1
        if self.sessions:
            return
        (near, self.near), (far, self.far) = (self.near, {}), (self.far, None)
        for server in near.values():
            server.close()
        if far is not None:
            await far.aclose()


_FAR = httpx2.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE)


async def _asked_far(client: httpx2.AsyncClient, url: str, body: bytes, headers: Mapping[str, str]) -> Answer:
    """With httpx2, which knows proxies."""
    kind = {"content-type": "application/json"}
    async with client.stream("POST", url, content=body, headers={**kind, **headers}) as response:
        received = bytearray()
        async for piece in response.aiter_bytes():
            received += piece
            if len(received) > BYTES_MOST:
                raise _too_long()
        return Answer(response.status_code, response.headers, bytes(received))


def _too_long() -> ServiceUnavailable:
    return ServiceUnavailable(f"its answer is longer than {BYTES_MOST:,} bytes")


_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()


class _Connection(asyncio.Protocol):
    """One question at a time. httptools reads the answers, and calls the methods that begin with on_."""

    _transport: asyncio.Transport
    _parser: HttpResponseParser
    _answer: asyncio.Future[Answer] | None = None
    _to_the_end = False
    """The answer under way is over when the connection is, as in HTTP/1.0."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]  # one for both directions, also uvloop's

    @property
    def is_open(self) -> bool:
        return not self._transport.is_closing()

    def is_fresh(self) -> bool:
        """Whether the server has said nothing since it answered, neither that it closes the connection.

        The event loop may not have looked yet, so the system is asked.
        """
        if not self.is_open:
            return False
        told = select.poll()
        told.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not told.poll(0)

    def close(self) -> None:
        self._transport.close()

    async def ask(self, request: bytes) -> Answer:
        self._answer = asyncio.get_running_loop().create_future()
        self._parser = HttpResponseParser(self)
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._to_the_end = False
        self._transport.write(request)
        try:
            return await self._answer
        except BaseException:  # also when nobody waits any longer: the answer would be taken for that of the next
            self._transport.abort()
            raise
        finally:
            self._answer = None

    def data_received(self, data: bytes) -> None:
        if self._answer is None:  # nothing was asked
            self._transport.abort()
            return
        try:
            self._parser.feed_data(data)
        except HttpParserError as error:
            self._fail(ServiceUnavailable(f"its answer is not HTTP: {error}"))

    def connection_lost(self, error: Exception | None) -> None:
        if self._to_the_end and error is None:
            self.on_message_complete()
        self._fail(error if isinstance(error, OSError) else ConnectionResetError("the connection was closed"))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._to_the_end = not self._headers.keys() & {"content-length", "transfer-encoding"}

    def on_body(self, body: bytes) -> None:
        self._body += body
        if len(self._body) > BYTES_MOST:
            self._fail(_too_long())
            self._transport.abort()

    def on_message_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200 or self._answer is None or self._answer.done():  # 100 and the like come before an answer
            return
        if not self._parser.should_keep_alive():
            self._transport.close()
        self._answer.set_result(Answer(status, self._headers, bytes(self._body)))

    def _fail(self, error: Exception) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_exception(error)
