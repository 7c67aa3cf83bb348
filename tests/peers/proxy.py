"""A TCP proxy between client and server that drops the connection in the middle of an answer, at a given byte."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

_LINGER_SECONDS = 0.5
"""Delay between the last byte and the drop, so that the client has surely read it."""


@dataclass(slots=True)
class Proxy:
    url: str
    answers: list[bytes] = field(default_factory=list)
    """What the server sent, from the answer to each tool call on; kept when nothing was cut."""


@contextmanager
def cutting(upstream: str, cut: Callable[[dict[str, Any]], int | None]) -> Iterator[Proxy]:
    """Proxy for `upstream`. `cut` sees the body of each tool call and returns where to cut its answer, or None."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxy", daemon=True)
    thread.start()
    proxy = Proxy("")

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await _Link(proxy, cut, reader, writer).run(upstream)
        writer.close()

    async def start() -> asyncio.Server:
        return await asyncio.start_server(connected, "127.0.0.1", 0)

    async def stop() -> None:
        server.close()
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)

    server = asyncio.run_coroutine_threadsafe(start(), loop).result()
    proxy.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield proxy
    finally:
        asyncio.run_coroutine_threadsafe(stop(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


class _Link:
    """One connection of a client, and the one to the server that it continues on."""

    def __init__(
        self,
        proxy: Proxy,
        cut: Callable[[dict[str, Any]], int | None],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._cut = cut
        self._reader = reader
        self._writer = writer
        self._left: int | None = None
        """How many more bytes the client gets."""
        self._recording = False

    async def run(self, upstream: str) -> None:
        address = urlsplit(upstream)
        reader, writer = await asyncio.open_connection(address.hostname, address.port)
        try:
            answers = asyncio.create_task(self._answers(reader))
            requests = asyncio.create_task(self._requests(writer))
            done, pending = await asyncio.wait((answers, requests), return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            await asyncio.gather(*done, *pending, return_exceptions=True)
        finally:
            writer.close()

    async def _requests(self, writer: asyncio.StreamWriter) -> None:
        """Whole requests, one by one: a client does not send the next before it has the answer."""
        while True:
            head = await self._reader.readuntil(b"\r\n\r\n")
            length = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            body = await self._reader.readexactly(int(length[0].partition(b":")[2])) if length else b""
            self._recording = False
            if head.partition(b" HTTP/1.1\r\n")[0].endswith(b"/call"):
                self._left = self._cut(json.loads(body))
                self._recording = self._left is None
                if self._recording:
                    self._proxy.answers.append(b"")
            writer.write(head + body)

    async def _answers(self, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(65536):
            if self._recording:
                self._proxy.answers[-1] += data
            if self._left is not None and len(data) >= self._left:
                self._writer.write(data[: self._left])
                await self._writer.drain()
                await asyncio.sleep(_LINGER_SECONDS)
                return
            if self._left is not None:
                self._left -= len(data)
            self._writer.write(data)
            await self._writer.drain()
