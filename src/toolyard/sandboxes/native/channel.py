"""The server's end of a socket to a helper process or to a sandbox.

A sandbox is not trusted: its messages are bounded and carry no file descriptors, and an unexpected message ends the
channel.
"""

from __future__ import annotations

import array
import asyncio
import json
import os
import socket
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from toolyard.core.errors import NoRoom, SandboxLost
from toolyard.sandboxes.native import wire

_AT_ONCE = 64


@dataclass(slots=True)
class Answer:
    header: Mapping[str, Any]
    payload: bytes
    fds: Sequence[int] = ()


@dataclass(slots=True)
class _Arriving:
    """A message whose header has arrived."""

    header: Mapping[str, Any]
    payload: bytearray


def pair() -> tuple[socket.socket, socket.socket]:
    """A socket pair; the server keeps one end."""
    try:
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    except OSError as error:
        raise without_room(error.strerror) from error


def without_room(why: str | None) -> NoRoom:
    """The error when the server itself can open nothing more. It must not look like a program's fault."""
    return NoRoom(f"the server has no room for what a sandbox needs: {why}")


class Channel:
    """Requests, answered by number, and events."""

    def __init__(
        self,
        sock: socket.socket,
        *,
        on_event: Callable[[Mapping[str, Any]], None],
        on_lost: Callable[[str], None] = lambda _: None,
        payload_most: int = 0,
        trusted: bool = False,
    ) -> None:
        self._sock = sock
        self._on_event = on_event
        self._on_lost = on_lost
        self._payload_most = payload_most
        self._trusted = trusted
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._forsaken: set[int] = set()
        """Requests whose callers no longer wait."""
        self._arriving: _Arriving | None = None
        self._numbers = 0
        self._turn = asyncio.Lock()
        self._cut_off: asyncio.Task[None] | None = None
        """Sends the rest of a message whose sender was cancelled."""
        self._room = asyncio.Event()
        self.lost = ""
        """Why nothing more can be sent; empty while the channel is open."""
        self.hung_up = False
        """Whether the other side closed the socket or ended."""
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(sock, self._readable)

    @property
    def unanswered(self) -> int:
        """How many requests wait for an answer."""
        return len(self._waiting)

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    async def ask(
        self, op: str, /, *, payload: bytes = b"", fds: Sequence[int] = (), number: int = 0, **more: object
    ) -> Answer:
        """Send a request and wait for its answer. The caller keeps the descriptors."""
        number = number or self.number()
        answer: asyncio.Future[Answer] = self._loop.create_future()
        self._waiting[number] = answer
        try:
            await self._send({"op": op, "id": number, **more}, payload, fds)
            return await answer
        except asyncio.CancelledError:
            if answer.done() and not answer.cancelled() and answer.exception() is None:  # just arrived
                _close(answer.result().fds)
            raise
        finally:
            self._forsake(number)

    def _forsake(self, number: int) -> None:
        """Stop waiting for this answer, if it has not come."""
        if self._waiting.pop(number, None) is not None:
            self._forsaken.add(number)

    def begin(self, op: str, payload: bytes) -> asyncio.Future[Answer]:
        """Send a request and return a future of its answer. A short request is sent at once, without a task."""
        number = self.number()
        packets = wire.packets({"op": op, "id": number}, payload, dumped)
        if len(packets) > 1 or self.lost or self._turn.locked() or self._cut_off is not None:
            return asyncio.ensure_future(self.ask(op, payload=payload, number=number))
        try:
            self._sock.send(packets[0])
        except OSError:  # the socket is full, or the other side is gone
            return asyncio.ensure_future(self.ask(op, payload=payload, number=number))
        answer = self._waiting[number] = self._loop.create_future()
        answer.add_done_callback(lambda done: self._forsake(number) if done.cancelled() else None)
        return answer

    async def tell(self, header: Mapping[str, object]) -> None:
        """Send a message that has no answer."""
        await self._send(header, b"", ())

    def close(self, why: str = "it was closed") -> None:
        if self.lost:
            return
        self.lost = why
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)  # otherwise the loop keeps it for the next socket of this number
        self._room.set()
        self._sock.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(SandboxLost(f"the sandbox is gone: {why}"))
                answer.exception()  # mark as retrieved, even if no caller waits
        on_lost, self._on_lost, self._on_event = self._on_lost, _nobody, _nobody  # they hold references back to us
        on_lost(why)

    async def _send(self, header: Mapping[str, object], payload: bytes, fds: Sequence[int]) -> None:
        packets = deque(wire.packets(header, payload, dumped))
        whole = len(packets)
        async with self._turn:
            if self._cut_off is not None:
                await asyncio.wait((self._cut_off,))
            try:
                await self._put(packets, fds)
            except asyncio.CancelledError:
                if packets and len(packets) < whole:  # the other side would wait for the rest
                    self._cut_off = asyncio.ensure_future(self._put(packets))
                    self._cut_off.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise

    async def _put(self, packets: deque[bytes], fds: Sequence[int] = ()) -> None:
        """Send the packets; the first carries the descriptors."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        while packets:
            if self.lost:
                raise SandboxLost(f"the sandbox is gone: {self.lost}")
            try:
                self._sock.sendmsg([packets[0]], rights)
            except BlockingIOError:
                await self._writable()
            except OSError as error:
                self.close(str(error))
            else:
                packets.popleft()
                rights = []

    async def _writable(self) -> None:
        self._room.clear()
        self._loop.add_writer(self._sock, self._room.set)
        try:
            await self._room.wait()
        finally:
            if not self.lost:
                self._loop.remove_writer(self._sock)

    def _readable(self) -> None:
        for _ in range(_AT_ONCE):
            fds: Sequence[int] = ()
            try:
                if self._trusted:
                    packet, fds, _, _ = socket.recv_fds(self._sock, wire.HEADER_MOST, 4, socket.MSG_CMSG_CLOEXEC)
                else:
                    packet = self._sock.recv(wire.HEADER_MOST)
            except BlockingIOError:
                return
            except OSError as error:
                self.hung_up = True
                self.close(str(error))
                return
            if not packet:
                _close(fds)
                self.hung_up = True
                self.close("it ended")
                return
            try:
                self._take(packet, fds)
            except (ValueError, KeyError, TypeError, RecursionError) as error:
                _close(fds)
                self.close(f"it sent something that is not a message ({type(error).__name__})")
            if self.lost or self._arriving is None:  # the rest of a message comes at once, the next message seldom
                return

    def _take(self, packet: bytes, fds: Sequence[int]) -> None:
        if self._arriving is None:
            text, begun = wire.parted(packet)
            header = loaded(text)
            if not isinstance(header, dict) or not 0 <= header["size"] <= self._payload_most:
                raise ValueError(header)
            self._arriving = _Arriving(header, bytearray(begun))
        else:
            self._arriving.payload += packet
        header, payload = self._arriving.header, self._arriving.payload
        if len(payload) > header["size"]:
            raise ValueError(len(payload))
        if len(payload) == header["size"]:
            self._arriving = None
            self._deliver(header, bytes(payload), fds)
        else:
            _close(fds)  # only answers of one packet carry descriptors

    def _deliver(self, header: Mapping[str, Any], payload: bytes, fds: Sequence[int]) -> None:
        if "id" not in header:
            self._on_event(header)
            _close(fds)
            return
        answer = self._waiting.pop(header["id"], None)
        if answer is None or answer.done():
            if answer is None and header["id"] not in self._forsaken:
                raise ValueError(header["id"])
            self._forsaken.discard(header["id"])
            _close(fds)
            return
        answer.set_result(Answer(header, payload, fds))


def _nobody(_: object) -> None:
    """Ignores what comes after the end."""


def loaded(text: bytes) -> Any:
    """Parse JSON with the fast library; fall back for lone surrogates, which file names can contain."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return json.loads(text)


def dumped(value: object) -> bytes:
    """Encode as JSON, with the same fallback."""
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(value).encode()


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
