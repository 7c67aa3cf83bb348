"""For toolsets that ask a server nearby, thousands of times: connections stay open for the next call, of any session.

A plain HTTP server is taken to be near: it is asked directly, never through a proxy. One with TLS may be far away.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import httpx2

from toolyard.core.encoding import encode
from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import JsonObject
from toolyard.tools import http
from toolyard.tools.http import BYTES_MOST, HttpAnswer

_AT_ONCE = 64
"""Connections to one server. A request beyond them waits for one."""
REFUSED = frozenset({400, 413, 422})
"""Statuses by which a server says that what it was sent is wrong. All other failures are its own."""


class RemoteToolset(Toolset):
    """A toolset whose tools say `await self.post(url, …)`."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._connections: _Connections | None = None

    async def post(self, url: str, body: object, *, seconds: float, headers: Mapping[str, str] = {}) -> HttpAnswer:
        """What a server answers within so many seconds. Raises `ServiceUnavailable` if it does not.

        They begin when the server is asked. Waiting for a connection here does not count. What was sent is
        never sent again: the server may have done it, and died of it.
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


def json_of(answer: HttpAnswer) -> Any:  # any JSON value
    """What a good answer says. Raises `ServiceUnavailable` for one that is not."""
    if answer.status != 200:
        raise ServiceUnavailable(f"it answered {answer.status}: {answer.text[:200]}")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ServiceUnavailable(f"its answer is not JSON: {answer.text[:200]!r}") from None


def object_of(answer: HttpAnswer) -> JsonObject:
    """The same of an answer that must be a JSON object."""
    said = json_of(answer)
    if not isinstance(said, dict):
        raise ServiceUnavailable(f"its answer is not an object: {answer.text[:200]}")
    return said


@contextmanager
def blaming(service: str) -> Iterator[None]:
    """Name the service in `ServiceUnavailable`: its failure is not an answer that the agent would pay for."""
    try:
        yield
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"{service} failed: {error}") from None


@functools.lru_cache(64)
def address_of(url: str) -> httpx2.URL:
    """Raises `ServiceUnavailable` if it is none of an HTTP server."""
    try:
        address = httpx2.URL(url)
    except httpx2.InvalidURL:
        address = httpx2.URL("")
    if address.scheme not in ("http", "https") or not address.host:
        raise ServiceUnavailable(f"{url!r} is not the address of an HTTP server")
    return address


class _Server:
    """Connections to one server. They stay open. If a server closes an idle one, the next request opens another."""

    def __init__(self, address: httpx2.URL) -> None:
        proxy = http.proxy_for(address) if address.scheme == "https" else None
        limits = httpx2.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE, keepalive_expiry=None)
        self._transport = httpx2.AsyncHTTPTransport(verify=http.tls(address.scheme), limits=limits, proxy=proxy)
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def ask(self, request: httpx2.Request, seconds: float) -> HttpAnswer:
        async with self._slots, asyncio.timeout(seconds):
            response = await self._transport.handle_async_request(request)
            try:
                return await http.received(response, ServiceUnavailable(_TOO_LONG))
            finally:
                await response.aclose()

    async def close(self) -> None:
        await self._transport.aclose()


@dataclass(slots=True)
class _Connections:
    """Those of one event loop. They are closed when no session is left that used one."""

    servers: dict[tuple[str, bytes], _Server] = field(default_factory=dict)
    sessions: int = 0

    async def ask(self, url: str, body: bytes, headers: Mapping[str, str], seconds: float) -> HttpAnswer:
        address = address_of(url)
        if not all(value.isprintable() for value in headers.values()):
            raise ServiceUnavailable("a key has characters that cannot be sent")
        origin = address.scheme, address.netloc
        if (server := self.servers.get(origin)) is None:
            server = self.servers[origin] = _Server(address)
        request = httpx2.Request("POST", address, headers={**_HEADERS, **headers}, content=body)
        return await server.ask(request, seconds)

    async def leave(self) -> None:
        self.sessions -= 1
        if not self.sessions:
            left, self.servers = self.servers, {}
            for server in left.values():
                await server.close()


_HEADERS = {"content-type": "application/json", "accept-encoding": "gzip", "user-agent": "toolyard"}
_TOO_LONG = f"its answer is longer than {BYTES_MOST:,} bytes"
_connections: WeakKeyDictionary[asyncio.AbstractEventLoop, _Connections] = WeakKeyDictionary()
