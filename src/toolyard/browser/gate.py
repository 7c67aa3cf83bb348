"""The browser's only way out: a SOCKS proxy that checks every address, and connects to the address that it checked.

Chromium sends everything through it, loopback too: pages, what they load, redirects, WebSockets. Chromium resolves no
names itself, so a name cannot mean one address for the check and another for the connection.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections import OrderedDict
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit

from toolyard.browser.addresses import Addresses, AddressRefused

_CONNECT_SECONDS = 10
_REMEMBERED = 1000
_CHUNK = 64 * 1024
_VERSION, _CONNECT, _NO_LOGIN = 5, 1, 0
_IPV4, _NAME = 1, 3
_DONE, _NOT_ALLOWED, _UNREACHABLE, _NOT_SUPPORTED = 0, 2, 4, 7


class AddressGate:
    def __init__(self, addresses: Addresses) -> None:
        self.addresses = addresses
        self._server: asyncio.Server | None = None
        self._pipes: set[asyncio.Task[None]] = set()
        self._problems: OrderedDict[tuple[str, int], str] = OrderedDict()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for pipe in self._pipes:
            pipe.cancel()
        if self._pipes:
            await asyncio.wait(self._pipes)

    @property
    def port(self) -> int:
        assert self._server is not None
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def problem(self, url: str) -> str:
        """Why the last connection to this address's host failed; empty if it did not."""
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
        return self._problems.get((parts.hostname or "", port), "")

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        serving = asyncio.current_task()
        assert serving is not None
        self._pipes.add(serving)
        try:
            await self._connect(reader, writer)
        except (OSError, asyncio.IncompleteReadError, UnicodeError):
            return  # either side hung up
        except asyncio.CancelledError:
            return  # the gate closes; the server that started this task does not expect it to be cancelled
        finally:
            self._pipes.discard(serving)
            writer.close()

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        _, methods = await reader.readexactly(2)
        await reader.readexactly(methods)
        writer.write(bytes((_VERSION, _NO_LOGIN)))
        _, command, _, kind = await reader.readexactly(4)
        host = await _read_host(reader, kind)
        port = int.from_bytes(await reader.readexactly(2), "big")
        if command != _CONNECT:
            _reply(writer, _NOT_SUPPORTED)
            return
        try:
            addresses = await self.addresses.resolve(host, port)
            there = await _reach(addresses, port)
        except (AddressRefused, OSError) as error:
            refused = isinstance(error, AddressRefused)
            self._remember(host, port, str(error) if refused else f"{host} port {port} does not answer")
            _reply(writer, _NOT_ALLOWED if refused else _UNREACHABLE)
            return
        self._problems.pop((host, port), None)
        _reply(writer, _DONE)
        await _pipe((reader, writer), there)

    def _remember(self, host: str, port: int, problem: str) -> None:
        self._problems[host, port] = problem
        if len(self._problems) > _REMEMBERED:
            self._problems.popitem(last=False)


async def _read_host(reader: asyncio.StreamReader, kind: int) -> str:
    if kind == _NAME:
        (length,) = await reader.readexactly(1)
        return (await reader.readexactly(length)).decode("ascii")
    if kind == _IPV4:
        return str(ipaddress.IPv4Address(await reader.readexactly(4)))
    return str(ipaddress.IPv6Address(await reader.readexactly(16)))


async def _reach(addresses: Sequence[str], port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    problem = OSError("no address")
    for address in addresses:
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return await asyncio.open_connection(address, port)
        except OSError as error:  # a TimeoutError is one
            problem = error
    raise problem


def _reply(writer: asyncio.StreamWriter, code: int) -> None:
    writer.write(bytes((_VERSION, code, 0, _IPV4, 0, 0, 0, 0, 0, 0)))


async def _pipe(
    here: tuple[asyncio.StreamReader, asyncio.StreamWriter], there: tuple[asyncio.StreamReader, asyncio.StreamWriter]
) -> None:
    """Copy both ways, until either side has ended."""
    ways = [asyncio.ensure_future(_copy(here[0], there[1])), asyncio.ensure_future(_copy(there[0], here[1]))]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        there[1].close()
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
