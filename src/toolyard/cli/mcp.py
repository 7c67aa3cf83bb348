"""Give one session to a host, such as an editor, that starts this program and talks to it over standard streams."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import logging
import os
import re
import signal
import socket
import tempfile
import threading
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import quote

import aiohttp

from toolyard import logs
from toolyard.cli._settings import add_settings
from toolyard.client.address import Address
from toolyard.core.errors import ToolyardError
from toolyard.loading import Loaded, load_targets
from toolyard.protocols.mcp.bridge import Bridge
from toolyard.protocols.mcp.content import unavailable
from toolyard.sandboxes.installation import Installation, use
from toolyard.server import Server
from toolyard.settings import Settings, SettingsError

log = logging.getLogger("toolyard.mcp")

HELP = "give one session to a host that speaks MCP over standard input and output"

_PROTOCOLS = ("mcp", "ors")
_AS_LONG_AS_ITS_HOST = 1e9
"""Seconds without a use after which the session is closed: a host may be quiet for days."""
_AGENTS_URL = re.compile(r"/agent/[^/?#]+/mcp/*$")
_NO_NUMBER = 0
"""No limit on connections: a request that cancels a call must not wait behind a hundred calls."""
_NO_LIMIT = aiohttp.ClientTimeout(total=None, sock_connect=30)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "target", nargs="?", metavar="TARGET", help="file.py, file.py:Class, package.module or package.module:Class"
    )
    parser.add_argument("--split", help="split of the task [the first]")
    parser.add_argument("--index", type=int, default=0, help="number of the task in its split [0]")
    parser.add_argument(
        "--url", help="instead of a target: a server that runs already, or the URL that an agent was given"
    )
    parser.add_argument("--session", metavar="SID", help="the session of that server, which goes on when the host ends")
    add_settings(parser)


def run(args: argparse.Namespace) -> int:
    settings = Settings.read(vars(args))
    remote = args.url is not None
    if remote == bool(args.target or settings.tools or settings.apis) or needs_session(args.url) != bool(args.session):
        raise SettingsError(
            "name a target to play here; or --url and --session for a session of a running server; "
            "or, as --url alone, the URL of an agent, http://…/agent/…/mcp"
        )
    host = Host.take()
    logs.configure(settings.log_format, settings.log_level)
    if remote:
        asyncio.run(bridge_to(args.url, args.session, settings, host))
        return 0
    with served(args.target, settings) as (environment, path):
        asyncio.run(Local(host, path, environment, args.split, args.index, settings.api_key).play())
    return 0


@dataclass(slots=True)
class Host:
    """The program that started this one, and its two streams."""

    source: BinaryIO
    sink: BinaryIO
    most: int = 16 * 2**20
    """The most bytes of a line. A longer one is dropped."""
    _lines: asyncio.Queue[bytes] = field(default_factory=asyncio.Queue)

    @classmethod
    def take(cls) -> Host:
        """Take over the streams: other code in this process reads nothing, and prints to standard error."""
        host = cls(os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb"))
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        os.dup2(2, 1)
        return host

    async def lines(self) -> AsyncIterator[bytes]:
        """Its lines, until it stops writing or this program has to stop."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        threading.Thread(target=self._read, args=(loop,), daemon=True).start()
        while line := await self._lines.get():
            if line.strip():
                yield line

    def end(self) -> None:
        self._lines.put_nowait(b"")

    def write(self, message: bytes) -> None:
        try:
            self.sink.write(message + b"\n")
            self.sink.flush()
        except BrokenPipeError:  # the host reads no more
            self.end()

    def _read(self, loop: asyncio.AbstractEventLoop) -> None:
        """Runs in a thread, because standard input can be any kind of file."""
        while line := self.source.readline(self.most):
            whole = line.endswith(b"\n") or len(line) < self.most
            rest = line
            while not rest.endswith(b"\n") and (rest := self.source.readline(self.most)):
                continue
            if whole:
                loop.call_soon_threadsafe(self._lines.put_nowait, line)
            else:
                log.warning("the host wrote a line of more than %d bytes; it gets no answer", self.most)
        loop.call_soon_threadsafe(self.end)


# A session of a running server.


def needs_session(url: str | None) -> bool:
    """Whether the URL is a server's; an agent's URL already names a session."""
    return url is not None and not _AGENTS_URL.search(url)


async def bridge_to(url: str, session_id: str | None, settings: Settings, host: Host) -> None:
    try:
        address = Address.of(url, settings.api_key if session_id else None)
    except ValueError as error:
        raise SettingsError(str(error)) from None
    path = f"{address.prefix}/mcp/s/{quote(session_id, safe='')}" if session_id else address.prefix

    async def opened() -> str:
        return path

    connector = aiohttp.TCPConnector(limit=_NO_NUMBER)
    async with aiohttp.ClientSession(
        address.origin, connector=connector, headers=dict(address.headers), timeout=_NO_LIMIT, trust_env=True
    ) as http:
        await Bridge(http, opened, host.write, before=path).run(host.lines())


# A session in this process.


@contextmanager
def served(target: str | None, settings: Settings) -> Iterator[tuple[str, Path]]:
    """Serve on a socket that only this user can reach. Yield the environment's name and the socket's path."""
    use(Installation.at(settings.sandbox_python))
    loaded = load_targets([target]) if target is not None else Loaded([], [])
    settings = dataclasses.replace(settings, protocol=_PROTOCOLS, gateways=1, idle_seconds=_AS_LONG_AS_ITS_HOST)
    server = Server(loaded.environments, toolsets=loaded.toolsets, settings=settings)
    with tempfile.TemporaryDirectory(prefix="toolyard-") as folder, socket.socket(socket.AF_UNIX) as listening:
        path = Path(folder) / "server"
        listening.bind(str(path))
        listening.listen()
        thread = Serving(server, listening)
        thread.start()
        try:
            thread.wait()
            first, *others = server.runtime.environments
            if others:
                log.warning("serving %s, the first; name another as file.py:Class: %s", first, ", ".join(others))
            yield first, path
        finally:
            server.stop()
            thread.join()


class Serving(threading.Thread):
    """A server in a thread. It starts, or reports why it cannot."""

    def __init__(self, server: Server, listening: socket.socket) -> None:
        super().__init__(name="toolyard-server", daemon=True)
        self._server = server
        self._listening = listening
        self._settled = threading.Event()
        self._refused: ToolyardError | None = None

    def run(self) -> None:
        try:
            self._server.serve(self._listening, on_start=self._settled.set)
        except ToolyardError as error:  # an environment needs a better sandbox than there is
            self._refused = error
        finally:
            self._settled.set()

    def wait(self) -> None:
        self._settled.wait()
        if self._refused is not None:
            raise self._refused


@dataclass(slots=True)
class Local:
    """The one session of this process: it opens when its tools are first needed, and ends with the host."""

    host: Host
    socket: Path
    environment: str
    split: str | None
    index: int
    api_key: str
    sid: str = field(default_factory=lambda: str(uuid.uuid4()))

    async def play(self) -> None:
        headers = {"X-API-Key": self.api_key} if self.api_key else {}
        connector = aiohttp.UnixConnector(str(self.socket), limit=_NO_NUMBER)
        async with aiohttp.ClientSession(
            "http://localhost", connector=connector, headers=headers, timeout=_NO_LIMIT
        ) as http:

            async def opened() -> str:
                return await self._open(http)

            await Bridge(http, opened, self.host.write, before="/mcp").run(self.host.lines())
            await http.post("/delete", headers=self._named)

    @property
    def _named(self) -> Mapping[str, str]:
        return {"X-Session-ID": self.sid}

    async def _open(self, http: aiohttp.ClientSession) -> str:
        split = self.split
        if split is None:
            async with http.get(f"/{self.environment}/splits") as answer:
                split = (await answer.json())[0]["name"]
        body = {"env_name": self.environment, "split": split, "index": self.index}
        async with http.post("/create", json=body, headers=self._named) as answer:
            if answer.status != 200:
                said = await answer.json()
                raise unavailable(f"the session could not be opened: {said.get('hint') or said['detail']}", "failed")
        return f"/mcp/s/{self.sid}"
