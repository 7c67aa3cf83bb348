"""Messages between the processes of the sandbox: a JSON object, optionally a zero byte and a payload, over a socket
that keeps packets apart. What is too long for the first packet follows in others. This side blocks; the server's side
is `channel.py`."""

from __future__ import annotations

import _socket
import array
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, TypeAlias

HEADER_MOST = 64 * 1024
PIECE = 64 * 1024
LIST_MOST = 4 * 1024 * 1024
"""The names of one directory. Every other message is shorter."""
Encoder: TypeAlias = Callable[[object], bytes]

_FDS_MOST = 16
_RIGHTS_MOST = _socket.CMSG_LEN(_FDS_MOST * array.array("i").itemsize)
_CLOSED_ON_EXEC = _socket.MSG_CMSG_CLOEXEC
_RIGHTS = _socket.SOL_SOCKET, _socket.SCM_RIGHTS
_decoded = json.JSONDecoder().raw_decode
"""The core of json.loads. The server uses a faster library, which no guest has to load."""


def _encoder() -> Callable[[object], str]:
    """The core of json.dumps, which rebuilds it for every text; in a new process that copies much memory."""
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    if make is None:
        return json.JSONEncoder().encode
    pieces = make(None, _unknown, json.encoder.encode_basestring_ascii, None, ": ", ", ", False, False, True)
    return lambda value: "".join(pieces(value, 0))


def _unknown(value: object) -> NoReturn:
    raise TypeError(f"{type(value).__name__} is not for JSON")


encoded = _encoder()


def _in_json(header: object) -> bytes:
    return encoded(header).encode()


class Closed(Exception):
    """The other side is gone."""


def at(fd: int) -> _socket.socket:
    """The socket of this number, without Python's wrapper: a guest starts faster without it."""
    return _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET, 0, fd)


def pair() -> tuple[_socket.socket, _socket.socket]:
    return _socket.socketpair(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)


def packets(header: Mapping[str, object], payload: bytes = b"", encode: Encoder = _in_json) -> Sequence[bytes]:
    """The packets of a message. `size` in the header says how many bytes follow."""
    message = encode({**header, "size": len(payload)})
    if len(message) >= HEADER_MOST:
        raise ValueError(f"a header of {len(message)} bytes")
    if payload:
        message += b"\0" + payload
    if len(message) <= PIECE:
        return [message]
    return [message[at : at + PIECE] for at in range(0, len(message), PIECE)]


def parted(packet: bytes) -> tuple[bytes, bytes]:
    """Split the first packet of a message into the header and the beginning of the payload. JSON has no zero bytes."""
    header, _, payload = packet.partition(b"\0")
    return header, payload


def send(sock: _socket.socket, header: Mapping[str, object], payload: bytes = b"", fds: Sequence[int] = ()) -> None:
    first, *rest = packets(header, payload)
    send_packet(sock, first, fds)
    for piece in rest:
        sock.sendall(piece)


def send_packet(sock: _socket.socket, packet: bytes, fds: Sequence[int]) -> None:
    sock.sendmsg([packet], [(*_RIGHTS, array.array("i", fds))] if fds else [])


def receive(sock: _socket.socket) -> tuple[dict[str, Any], bytes, list[int]]:
    """Receive a message from a trusted side, with its file descriptors."""
    first, came, _, _ = sock.recvmsg(HEADER_MOST, _RIGHTS_MOST, _CLOSED_ON_EXEC)
    if not first:
        raise Closed
    fds = array.array("i", came[0][2]).tolist() if came else []
    text, payload = parted(first)
    header: dict[str, Any] = _decoded(text.decode())[0]
    if len(payload) < header["size"]:
        payload = _whole(payload, header["size"], sock)
    return header, payload, fds


def _whole(begun: bytes, size: int, sock: _socket.socket) -> bytes:
    payload = bytearray(begun)
    while len(payload) < size:
        piece = sock.recv(PIECE)
        if not piece:
            raise Closed
        payload += piece
    return bytes(payload)
