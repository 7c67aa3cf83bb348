"""`Gateway`: one of several processes behind a port, and its connections to the others."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable, Sequence
from typing import TypeAlias

from starlette.types import ASGIApp, Scope

from toolyard.asgi import Request
from toolyard.gateways.answering import answering
from toolyard.gateways.asking import Asking
from toolyard.rpc import RpcConnection
from toolyard.runtime.owners import GatewayLost, Owners

log = logging.getLogger("toolyard.gateways")

_OK = 200
_END = b"."
"""Goes with the end of a connection between gateways. Other words are what a client has sent on its own connection."""
_MOST = 96 * 1024
"""Bytes that go with a socket: the head of a request, and what came with it."""

Adopt: TypeAlias = Callable[[socket.socket, bytes], object]
"""Goes on with a client's connection that another gateway has accepted, and has read so far."""


class Mailboxes:
    """One mailbox for each gateway, made before the gateways start. To connect to a gateway, another one puts an end of
    a socket into its mailbox. It stays there until the gateway of that number takes it."""

    def __init__(self, count: int) -> None:
        pairs = [socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET) for _ in range(count)]
        self._slots = [slot for slot, _ in pairs]
        self.boxes: Sequence[socket.socket] = [box for _, box in pairs]
        for end in (*self._slots, *self.boxes):
            end.setblocking(False)

    def put(self, number: int, file: int, words: bytes = _END) -> None:
        socket.send_fds(self._slots[number], [words], [file])

    def take(self, number: int) -> tuple[socket.socket, bytes]:
        words, (file,), _, _ = socket.recv_fds(self.boxes[number], _MOST, 1)
        return socket.socket(fileno=file), words


class Gateway:
    """Used on one event loop, from `start` on until its process ends."""

    def __init__(self, number: int, mailboxes: Mailboxes, api_key: str) -> None:
        self.owners = Owners(number, len(mailboxes.boxes), self.ask)
        self._mailboxes = mailboxes
        self._api_key = api_key
        self._asking: dict[int, asyncio.Task[Asking]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        """One for each connection that another gateway has opened."""
        self._app: ASGIApp | None = None
        self._adopt: Adopt | None = None

    def start(self, app: ASGIApp, adopt: Adopt) -> None:
        """From now on, answer requests of other gateways, and adopt connections that they give away."""
        self._app = app
        self._adopt = adopt
        box = self._mailboxes.boxes[self.owners.number]
        asyncio.get_running_loop().add_reader(box, self._take)

    async def pass_on(self, owner: int, request: Request, body: bytes) -> None:
        """Let the gateway that owns the session answer a request."""
        asking = await self._way_to(owner)
        await asking.ask(request.scope, body).bring_back(request)

    def give(self, owner: int, file: int, head: bytes) -> bool:
        """Let the gateway that owns its session go on with a client's connection. False if it cannot be reached."""
        if len(head) > _MOST:
            return False
        try:
            self._mailboxes.put(owner, file, head)
        except OSError as error:
            log.warning("gateway %d cannot be given a connection: %s", owner, error)
            return False
        return True

    async def ask(self, owner: int, question: str, about: bytes) -> bytes:
        """Send a request of our own to a gateway, `POST /path` and a body. Return the body of the answer."""
        asking = await self._way_to(owner)
        status, answer = await asking.ask(self._scope(*question.split()), about).whole()
        if status != _OK:
            raise GatewayLost(f"gateway {owner} answered {status}: {answer[:200].decode(errors='replace')}")
        return answer

    def _scope(self, method: str, path: str) -> Scope:
        return {
            "http_version": "1.1",
            "server": None,
            "client": None,
            "scheme": "http",
            "method": method,
            "root_path": "",
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "headers": [(b"x-api-key", self._api_key.encode())],
        }

    # Connections to others.

    async def _way_to(self, owner: int) -> Asking:
        opening = self._asking.get(owner)
        if opening is None:
            opening = self._asking[owner] = asyncio.ensure_future(self._open(owner))
        return opening.result() if opening.done() else await asyncio.shield(opening)

    async def _open(self, owner: int) -> Asking:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                self._mailboxes.put(owner, theirs.fileno())
            connection = await RpcConnection.on(ours)
        except OSError as error:
            ours.close()
            self._asking.pop(owner, None)
            raise GatewayLost(f"gateway {owner} cannot be reached: {error}") from error
        # The next request opens another connection, to the gateway that has the number then.
        connection.lost.add_done_callback(lambda _: self._asking.pop(owner, None))
        return Asking(connection)

    # Connections from others.

    def _take(self) -> None:
        try:
            end, words = self._mailboxes.take(self.owners.number)
        except BlockingIOError:
            return
        if words != _END:
            assert self._adopt is not None
            self._adopt(end, words)
            return
        taken = asyncio.ensure_future(self._answer_on(end))
        self._answering.add(taken)
        taken.add_done_callback(self._answering.discard)

    async def _answer_on(self, end: socket.socket) -> None:
        assert self._app is not None
        await (await RpcConnection.on(end, answering(self._app))).lost


async def all_closed(pipe: int, seconds: float) -> None:
    """Wait until no process holds the other end of a pipe any more, but no longer than this."""
    loop = asyncio.get_running_loop()
    closed = asyncio.Event()
    loop.add_reader(pipe, closed.set)
    try:
        async with asyncio.timeout(seconds):
            await closed.wait()
    except TimeoutError:
        log.warning("other gateways have not drained within %g s", seconds)
    finally:
        loop.remove_reader(pipe)
        os.close(pipe)
