"""A connection to one MCP server, made when first needed and kept for later calls."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import httpx2
from mcp import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from toolyard.core.errors import describe
from toolyard.tools import http

log = logging.getLogger("toolyard.mcp")

CONNECT_SECONDS = 10
CLOSE_SECONDS = 5
SILENCE_SECONDS = 300
"""After this many seconds of silence, a server counts as dead."""


class McpConnection:
    """The official client, in an asyncio task of its own: the task that entered it must leave it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._ready: asyncio.Future[Client] | None = None
        self._ended = asyncio.Event()
        self._owners: set[asyncio.Task[None]] = set()
        """The tasks of this connection, and of earlier ones that still end."""
        self.was_made = False
        """Whether the server has ever answered."""

    async def client(self) -> Client:
        """The connected client; connects anew if the last connection is over."""
        if self._ready is None or self._ended.is_set():
            self._ended = asyncio.Event()
            self._ready = asyncio.get_running_loop().create_future()
            self._ready.add_done_callback(lambda ready: ready.cancelled() or ready.exception())  # mark it as retrieved
            owner = asyncio.create_task(self._own(self._ready, self._ended))
            self._owners.add(owner)
            owner.add_done_callback(self._owners.discard)
        return await asyncio.shield(self._ready)

    def drop(self) -> None:
        """Give up this connection; the next call gets a new one."""
        self._ended.set()

    async def close(self) -> None:
        self._ended.set()
        if self._owners:
            _, late = await asyncio.wait(self._owners, timeout=CLOSE_SECONDS)
            for owner in late:
                owner.cancel()
            if late:
                await asyncio.wait(late)

    async def _own(self, ready: asyncio.Future[Client], ended: asyncio.Event) -> None:
        connecting = Client(_transport(self._url, ended.set), mode="legacy" if is_sse(self._url) else "auto")
        try:
            async with asyncio.timeout(CONNECT_SECONDS) as limit, connecting as client:
                limit.reschedule(None)
                ready.set_result(client)
                self.was_made = True
                await ended.wait()
        except Exception as error:  # the other server, the network, or the SDK
            first = cause(error)
            if ready.done():
                log.info("the connection to %s ended: %s", self._url, describe(first))
            elif isinstance(first, TimeoutError):
                ready.set_exception(TimeoutError(f"it could not be connected to within {CONNECT_SECONDS} seconds"))
            else:
                ready.set_exception(first)
        finally:
            ready.cancel()
            ended.set()


def is_sse(url: str) -> bool:
    """Whether the address is one of SSE, the older transport."""
    return httpx2.URL(url).path.endswith("/sse")


@asynccontextmanager
async def _transport(url: str, on_end: Callable[[], None]) -> AsyncGenerator[tuple[Any, Any]]:  # the SDK's streams
    """SSE if the address says so, else Streamable HTTP."""
    if is_sse(url):
        made = partial(http.client, url)
        connecting = sse_client(
            url, timeout=CONNECT_SECONDS, sse_read_timeout=SILENCE_SECONDS, httpx_client_factory=made
        )
        async with connecting as (read, write):
            yield Watched(read, on_end), write
    else:
        timeout = httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
        async with (
            http.client(url, timeout=timeout) as client,
            streamable_http_client(url, http_client=client) as (read, write),
        ):
            yield Watched(read, on_end), write


class Watched:
    """A server's stream that reports its end: the SDK closes its own end without a notice."""

    def __init__(self, stream: Any, on_end: Callable[[], None]) -> None:
        self._stream = stream
        self._on_end = on_end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def __aiter__(self) -> Any:
        return self._stream.__aiter__()

    async def __aenter__(self) -> Any:
        return await self._stream.__aenter__()

    async def __aexit__(self, *error: Any) -> None:
        self._on_end()
        await self._stream.__aexit__(*error)


def cause(error: Exception) -> Exception:
    """The first exception of a group, which caused the others."""
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
