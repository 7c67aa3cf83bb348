"""For toolsets that ask a nearby server thousands of times: connections stay open for later calls of all sessions.

A plain HTTP server counts as near: requests go there directly, never through a proxy. A server with TLS may be far.
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
"""The most connections to one server. A further request waits for one."""
REFUSED = frozenset({400, 413, 422})
"""Statuses that blame the request. All other failures are the server's own."""


class RemoteToolset(Toolset):
    """A toolset whose tools say `await self.post(url, …)`."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._connections: _Connections | None = None

    async def post(self, url: str, body: object, *, seconds: float, headers: Mapping[str, str] = {}) -> HttpAnswer:
        """The server's answer within `seconds`. Raises `ServiceUnavailable` without one.

        The time starts when the request is sent, without the wait for a connection. A request is never repeated: the
        server may have acted on it, and died of it.
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
    """The JSON of a good answer. Raises `ServiceUnavailable` for any other."""
    if answer.status != 200:
        raise ServiceUnavailable(f"it answered {answer.status}: {answer.text[:200]}")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ServiceUnavailable(f"its answer is not JSON: {answer.text[:200]!r}") from None


def object_of(answer: HttpAnswer) -> JsonObject:
    """As `json_of`, for an answer that must be an object."""
    said = json_of(answer)
    if not isinstance(said, dict):
        raise ServiceUnavailable(f"its answer is not an object: {answer.text[:200]}")
    return said


@contextmanager
def blaming(service: str) -> Iterator[None]:
    """Name the service in `ServiceUnavailable`: its failure must not count against the agent."""
    try:
        yield
    except ServiceUnavailable as error:
        raise ServiceUnavailable(f"{service} failed: {error}") from None


@functools.lru_cache(64)
def address_of(url: str) -> httpx2.URL:
    """Parse an address. Raises `ServiceUnavailable` unless it is an HTTP server's."""
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
    """The connections of one event loop. They close with the last session that used one."""

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
