"""What toolsets that ask another server share: connections that stay open from one call and one session to the next."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import httpx2

from toolyard.core.environment import Environment, Toolset
from toolyard.core.errors import ServiceUnavailable
from toolyard.tools.http import BYTES_MOST, Answer, tls

_AT_ONCE = 256
"""Connections, at most, to one scheme's servers."""
_ATTEMPTS = 2
"""A connection that was kept may be dead without our knowing."""

_BROKEN = (httpx2.ConnectError, httpx2.ReadError, httpx2.WriteError, httpx2.RemoteProtocolError)

_DIRECT = {f"all://{host}": None for host in ("127.0.0.1", "localhost", "[::1]")}
"""No proxy stands between this machine and itself, whatever the environment variables say."""


@dataclass(slots=True)
class _Clients:
    """Those of one event loop, by scheme. They are closed when no session is left that used one."""

    by_scheme: dict[str, httpx2.AsyncClient] = field(default_factory=dict)
    sessions: int = 0

    def client(self, url: str) -> httpx2.AsyncClient:
        scheme = httpx2.URL(url).scheme
        if (client := self.by_scheme.get(scheme)) is None:
            limits = httpx2.Limits(max_connections=_AT_ONCE, max_keepalive_connections=_AT_ONCE)
            client = httpx2.AsyncClient(verify=tls(scheme), mounts=_DIRECT, limits=limits, timeout=None)
            self.by_scheme[scheme] = client
        return client

    async def leave(self) -> None:
        self.sessions -= 1
        if not self.sessions:
            closing, self.by_scheme = self.by_scheme, {}
            for client in closing.values():
                await client.aclose()


_clients: WeakKeyDictionary[asyncio.AbstractEventLoop, _Clients] = WeakKeyDictionary()


class RemoteToolset(Toolset):
    """A toolset whose tools say `await self.post(url, …)`."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._clients: _Clients | None = None

    async def post(self, url: str, body: object, *, seconds: float, headers: Mapping[str, str] = {}) -> Answer:
        """What a server answers within so many seconds. Raises `ServiceUnavailable` if it does not."""
        clients = self._joined()
        try:
            async with asyncio.timeout(seconds):
                return await _posted(clients.client(url), url, body, headers)
        except TimeoutError:
            raise ServiceUnavailable(f"there was no answer within {seconds:g} seconds") from None
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
            raise ServiceUnavailable(f"it cannot be reached: {error or type(error).__name__}") from None

    async def teardown(self) -> None:
        if self._clients is not None:
            await self._clients.leave()

    def _joined(self) -> _Clients:
        if self._clients is None:
            self._clients = _clients.setdefault(asyncio.get_running_loop(), _Clients())
            self._clients.sessions += 1
        return self._clients


async def _posted(client: httpx2.AsyncClient, url: str, body: object, headers: Mapping[str, str]) -> Answer:
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            async with client.stream("POST", url, json=body, headers=headers) as response:
                return Answer(response.status_code, response.headers, await _received(response))
        except _BROKEN:
            if attempt == _ATTEMPTS:
                raise
    raise AssertionError("unreachable")


async def _received(response: httpx2.Response) -> bytes:
    received = bytearray()
    async for piece in response.aiter_bytes():
        received += piece
        if len(received) > BYTES_MOST:
            raise ServiceUnavailable(f"its answer is longer than {BYTES_MOST:,} bytes")
    return bytes(received)


def json_of(answer: Answer) -> Any:  # any JSON value
    """What a good answer says. Raises `ServiceUnavailable` for one that is not."""
    if answer.status != 200:
        raise ServiceUnavailable(f"it answered {answer.status}: {answer.text[:200]}")
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise ServiceUnavailable(f"its answer is not JSON: {answer.text[:200]!r}") from None
