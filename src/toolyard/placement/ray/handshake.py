"""Two processes that share a key prove it to each other over a socket. Neither sends the key."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import socket
from typing import Literal, TypeAlias

Side: TypeAlias = Literal["server", "host"]

_SIZE = 32
_SECONDS = 15.0
_PATIENCE = {"TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 5, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": 20_000}
"""A machine that is gone sends nothing: after 20 s without a sign of life, the kernel closes the connection."""


class NotProven(Exception):
    """The other side does not have the key."""


async def prove(sock: socket.socket, key: bytes, *, side: Side) -> None:
    """Return when both sides have proven to have the key. Raises `NotProven`, `OSError` or `TimeoutError`."""
    other: Side = "host" if side == "server" else "server"
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(_SECONDS):
        challenge = secrets.token_bytes(_SIZE)
        await loop.sock_sendall(sock, challenge)
        theirs = await _exactly(sock)
        await loop.sock_sendall(sock, _proof(key, side, theirs))
        if not hmac.compare_digest(await _exactly(sock), _proof(key, other, challenge)):
            raise NotProven(f"the {other} at {sock.getpeername()} does not have the key")


async def connect(address: tuple[str, int], key: bytes) -> socket.socket:
    """Connect to the host at this address, and check that it has the key."""
    sock = _opened(address)
    try:
        await asyncio.get_running_loop().sock_connect(sock, address)
        await prove(sock, key, side="server")
    except BaseException:
        sock.close()
        raise
    watch(sock)
    return sock


async def admit(listener: socket.socket, key: bytes) -> socket.socket:
    """Accept connections until one proves to have the key. Close all others."""
    while True:
        sock, _ = await asyncio.get_running_loop().sock_accept(listener)
        sock.setblocking(False)
        try:
            await prove(sock, key, side="host")
        except (NotProven, OSError, TimeoutError):
            sock.close()
        else:
            watch(sock)
            return sock


def listen(address: str) -> socket.socket:
    """Listen on a free port of this address alone."""
    listener = _opened((address, 0))
    listener.bind((address, 0))
    listener.listen(8)
    return listener


def watch(sock: socket.socket) -> None:
    """Let the kernel notice when the other machine is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _PATIENCE.items():
        if (option := getattr(socket, name, None)) is not None:  # not every system has all of them
            sock.setsockopt(socket.IPPROTO_TCP, option, value)


def _opened(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    sock.setblocking(False)
    return sock


def _proof(key: bytes, side: Side, challenge: bytes) -> bytes:
    return hmac.digest(key, side.encode() + challenge, hashlib.sha256)


async def _exactly(sock: socket.socket) -> bytes:
    """Read a challenge or a proof, and no more: what follows belongs to the connection."""
    data = b""
    while len(data) < _SIZE:
        if not (more := await asyncio.get_running_loop().sock_recv(sock, _SIZE - len(data))):
            raise ConnectionResetError("the other side hung up")
        data += more
    return data
