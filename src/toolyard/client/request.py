"""What both clients need to run a step: steps as requests, and options of connections."""

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
"""Seconds to connect."""
IDLE = 3.0
"""Seconds to keep an unused connection: we close it before a server would close it under a request."""
PIECE = 64 * 1024
"""Bytes of a body to send at once. Each piece may take as long as an answer may be silent."""

SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
"""With these a connection that waits for hours notices that the other machine has gone."""
if hasattr(socket, "TCP_KEEPIDLE"):
    SOCKET_OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    ]
if hasattr(socket, "TCP_USER_TIMEOUT"):  # for data that the other machine does not acknowledge
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
    headers |= step.headers
    if isinstance(step, Listen):  # a proxy that compresses would hold pings back
        headers |= {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
    method = "POST" if isinstance(step, Listen) else step.method
    body = None if step.body is None else encode(step.body)
    if body is not None:
        headers["Content-Type"] = "application/json"
    if method == "POST" or body is not None:
        headers["Content-Length"] = str(len(body or b""))
    return Request(method, address.prefix + step.path, headers, body)


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON as Python's encoder writes it, with NaN and lone surrogates, which a model may write."""
    return json.dumps(body, separators=(",", ":"), default=to_jsonable_python).encode()


def pieces(body: bytes) -> Iterator[bytes]:
    return (body[start : start + PIECE] for start in range(0, len(body), PIECE))


def is_stream(status: int, headers: Mapping[str, str]) -> bool:
    return status == 200 and (headers.get("content-type") or "").startswith("text/event-stream")
