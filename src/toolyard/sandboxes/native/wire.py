"""Messages between the processes of the sandbox: a JSON object, then bytes if it says so, over a socket that keeps
packets apart. Blocking; the server's side of it is `channel.py`."""

from __future__ import annotations

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


class Closed(Exception):
    """The other side is gone."""


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def packets(header: Mapping[str, object], payload: bytes = b"") -> Sequence[bytes]:
    """The message as it goes out. `size` in the header says how many bytes follow."""
    first = json.dumps({**header, "size": len(payload)}).encode()
    if len(first) > HEADER_MOST:
        raise ValueError(f"a header of {len(first)} bytes")
    return [first, *(payload[at : at + PIECE] for at in range(0, len(payload), PIECE))]


def send(sock: socket.socket, header: Mapping[str, object], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
    first, *rest = packets(header, payload)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    sock.sendmsg([first], rights)
    for piece in rest:
        sock.sendall(piece)


def receive(sock: socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """A message from a side that we trust, with the file descriptors that came along."""
    first, fds, _, _ = socket.recv_fds(sock, HEADER_MOST, _FDS_MOST, socket.MSG_CMSG_CLOEXEC)
    if not first:
        raise Closed
    header: dict[str, Any] = json.loads(first)
    payload = bytearray()
    while len(payload) < header["size"]:
        piece = sock.recv(PIECE)
        if not piece:
            raise Closed
        payload += piece
    return header, bytes(payload), list(fds)
