"""Runs flows with `await`, over aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import weakref
from collections.abc import AsyncIterator, Mapping
from typing import Any, TypeVar

import aiohttp
from yarl import URL

from toolyard.client.address import Address
from toolyard.client.flow import Peer
from toolyard.client.request import CONNECTING, IDLE, PIECE, SOCKET_OPTIONS, is_stream, pieces, request_of
from toolyard.client.steps import Answer, Ask, Broken, Flow, Listen, Outcome, Sleep, Step
from toolyard.client.stream import Listening
from toolyard.core.errors import describe

if sys.platform != "win32":
    from toolyard.connections import most_connections

T = TypeVar("T")

FAILURES = (aiohttp.ClientError, OSError)
"""The exceptions of a request that got no answer."""
_NEVER_SENT = (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError, aiohttp.ClientHttpProxyError)
"""The exceptions among them after which the server cannot have the request."""


class Line:
    """The connections to one server, and what the client knows of it.

    Each request under way has a connection, up to half of the files that the process may have open, as in a server.
    Further requests wait for one.
    """

    def __init__(self, address: Address, peer: Peer) -> None:
        self.address = address
        self.peer = peer
        self._sessions: dict[asyncio.AbstractEventLoop, aiohttp.ClientSession] = {}
        weakref.finalize(self, _let_go, self._sessions)

    async def run(self, flow: Flow[T]) -> T:
        outcome: Outcome | None = None
        while True:
            try:
                step = flow.send(outcome)
            except StopIteration as done:
                answer: T = done.value
                return answer
            outcome = await self._carry_out(step)

    async def aclose(self) -> None:
        session = self._sessions.get(asyncio.get_running_loop())
        if session is not None:
            await session.close()

    def _session(self) -> aiohttp.ClientSession:
        """Connections belong to an event loop: another asyncio.run() gets its own."""
        loop = asyncio.get_running_loop()
        if loop not in self._sessions:
            for over in [loop for loop in self._sessions if loop.is_closed()]:
                _close_now(self._sessions.pop(over))
            self._sessions[loop] = http_session(limit=_at_once())
        return self._sessions[loop]

    async def _carry_out(self, step: Step) -> Outcome | None:
        match step:
            case Sleep(seconds):
                await asyncio.sleep(seconds)
                return None
            case Ask() | Listen():
                return await self._exchange(step)

    async def _exchange(self, step: Ask | Listen) -> Outcome:
        request = request_of(step, self.address)
        stream: Listening | None = None
        try:
            async with (
                asyncio.timeout(None) as stuck,
                self._session().request(
                    request.method,
                    headers=request.headers,
                    data=_body(request.body, stuck, step.silence),
                    timeout=silence(step.silence),
                    **way_to(self.address, request.path),
                ) as response,
            ):
                if not (isinstance(step, Listen) and is_stream(response.status, response.headers)):
                    return Answer(response.status, response.headers, await response.read())
                stream = Listening()
                async for data in response.content.iter_any():
                    stream.feed(data)
                return stream.heard()
        except FAILURES as error:
            what = describe(error)
            return Broken(what, sent=not isinstance(error, _NEVER_SENT)) if stream is None else stream.heard(what)


def _body(body: bytes | None, stuck: asyncio.Timeout, seconds: float) -> bytes | AsyncIterator[bytes] | None:
    return body if body is None or len(body) <= PIECE else _piecewise(body, stuck, seconds)


async def _piecewise(body: bytes, stuck: asyncio.Timeout, seconds: float) -> AsyncIterator[bytes]:
    """Yield pieces of the body, with a timeout for each: aiohttp would wait for ever until the server takes it."""
    loop = asyncio.get_running_loop()
    for piece in pieces(body):
        stuck.reschedule(loop.time() + seconds)
        yield piece
    stuck.reschedule(None)


def _let_go(sessions: Mapping[asyncio.AbstractEventLoop, aiohttp.ClientSession]) -> None:
    """Close the connections of a client that was never closed."""
    for loop, session in sessions.items():
        if loop.is_closed():
            _close_now(session)
        else:
            loop.call_soon_threadsafe(_close_now, session)


def _close_now(session: aiohttp.ClientSession) -> None:
    """Close the session without waiting for its last bytes."""
    closing = session.close()
    with contextlib.suppress(StopIteration):
        closing.send(None)
    closing.close()


def _at_once() -> int:
    return 0 if sys.platform == "win32" else most_connections(0)


def http_session(limit: int, limit_per_host: int = 0) -> aiohttp.ClientSession:
    """An aiohttp session with our options."""
    connector = aiohttp.TCPConnector(
        limit=limit, limit_per_host=limit_per_host, keepalive_timeout=IDLE, socket_factory=_socket
    )
    cookies = aiohttp.CookieJar(unsafe=True)  # a load balancer may be known by its IP address
    return aiohttp.ClientSession(connector=connector, cookie_jar=cookies)


def _socket(address: Any) -> socket.socket:
    """`address` is one of `getaddrinfo()`."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    for option in SOCKET_OPTIONS:
        made.setsockopt(*option)
    return made


def way_to(address: Address, path: str) -> dict[str, Any]:
    """Keyword arguments of aiohttp's `request`."""
    url = URL(address.origin + path, encoded=True)
    return {"url": url, "proxy": address.proxy, "ssl": address.tls or True, "allow_redirects": False}


@functools.cache
def silence(seconds: float) -> aiohttp.ClientTimeout:
    """A timeout for silence alone. A request may wait for a connection, and take, as long as it likes."""
    return aiohttp.ClientTimeout(total=None, sock_connect=CONNECTING, sock_read=seconds)
