"""What carrying out a step has in common, awaited or not: steps as requests, and connections that last."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_jsonable_python

from toolyard.client.address import Address
from toolyard.client.steps import Ask, Listen

CONNECTING = 10.0
"""Seconds for a connection to be made."""
IDLE = 3.0
"""Seconds to keep a connection that nobody uses: it goes before a server would close it under a request."""
PIECE = 64 * 1024
"""Bytes of a body that are sent at once. Each piece may take as long as an answer may be silent."""

SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
"""By these a connection notices, in hours of waiting, that the other machine is no longer there."""
if hasattr(socket, "TCP_KEEPIDLE"):
    SOCKET_OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    ]
if hasattr(socket, "TCP_USER_TIMEOUT"):  # for what was sent last before we gave up
    SOCKET_OPTIONS.append((socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 90_000))


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes | None


def request_of(step: Ask | Listen, address: Address) -> Request:
    headers = dict(address.headers)
    if step.session:
        headers["X-Session-ID"] = step.session
    if isinstance(step, Listen):  # signs of life must not be held back to be compressed
        headers |= {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
    method = "POST" if isinstance(step, Listen) else step.method
    body = None if step.body is None else encode(step.body)
    if body is not None:
        headers["Content-Type"] = "application/json"
    if method == "POST":
        headers["Content-Length"] = str(len(body or b""))
    return Request(method, address.prefix + step.path, headers, body)


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON with everything that Python's knows: NaN and lone surrogates too, which a model may well write."""
    return json.dumps(body, separators=(",", ":"), default=to_jsonable_python).encode()


def pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + PIECE] for start in range(0, len(body), PIECE))


def is_stream(status: int, headers: Mapping[str, str]) -> bool:
    return status == 200 and (headers.get("content-type") or "").startswith("text/event-stream")
