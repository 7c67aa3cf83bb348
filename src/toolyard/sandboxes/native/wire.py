"""Messages between the processes of the sandbox: a JSON object, then bytes if it says so, over a socket that keeps
packets apart. Blocking; the server's side of it is `channel.py`."""

from __future__ import annotations

import _socket
import array
import json
import socket
from collections.abc import Mapping, Sequence
from typing import Any

HEADER_MOST = 64 * 1024
PIECE = 64 * 1024
LIST_MOST = 4 * 1024 * 1024
"""The names of one directory. Every other message is shorter."""
_FDS_MOST = 16
_RIGHTS_MOST = socket.CMSG_LEN(_FDS_MOST * array.array("i").itemsize)
_CLOSED_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_RIGHTS = int(socket.SOL_SOCKET), int(socket.SCM_RIGHTS)
encoded = json.JSONEncoder().encode
decoded = json.JSONDecoder().decode
"""The two of json.dumps and json.loads that do the work, for processes that count every step."""


class Closed(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def at(fd: int) -> _socket.socket:
    """The socket of this number, without what Python wraps around one: a guest is born faster without it."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)


def packets(header: Mapping[str, object], payload: bytes = b"") -> Sequence[bytes]:
    """The message as it goes out. `size` in the header says how many bytes follow."""
    first = encoded({**header, "size": len(payload)}).encode()
    if len(first) > HEADER_MOST:
        raise ValueError(f"a header of {len(first)} bytes")
    return [first, *(payload[at : at + PIECE] for at in range(0, len(payload), PIECE))]


def send(sock: _socket.socket, header: Mapping[str, object], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
    first, *rest = packets(header, payload)
    sock.sendmsg([first], [(*_RIGHTS, array.array("i", fds))] if fds else [])
    for piece in rest:
        sock.sendall(piece)


def receive(sock: _socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """A message from a side that we trust, with the file descriptors that came along."""
    first, came, _, _ = sock.recvmsg(HEADER_MOST, _RIGHTS_MOST, _CLOSED_ON_EXEC)
    if not first:
        raise Closed
    fds = array.array("i", came[0][2]).tolist() if came else []
    header: dict[str, Any] = decoded(first.decode())
    payload = bytearray()
    while len(payload) < header["size"]:
        piece = sock.recv(PIECE)
        if not piece:
            raise Closed
        payload += piece
    return header, bytes(payload), fds
