"""Asking other servers: a connection that costs little to make, and answers of a size that one can afford."""

from __future__ import annotations

import functools
import json
import ssl
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import httpx2

BYTES_MOST = 8 * 2**20
"""Of one answer."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


@functools.cache
def tls(scheme: str) -> ssl.SSLContext:
    """Made once: to load all root certificates takes long. Without TLS none are needed."""
    return httpx2.create_ssl_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(url: str, **more: Any) -> httpx2.AsyncClient:
    """For requests to this server."""
    return httpx2.AsyncClient(verify=tls(httpx2.URL(url).scheme), **more)


def without(body: bytes, secrets: Iterable[str]) -> bytes:
    """A server may repeat what it was sent. The agent does not get to read keys."""
    for written in {form for secret in secrets if len(secret) > 3 for form in _forms(secret)}:
        body = body.replace(written.encode(), b"***")
    return body


def _forms(secret: str) -> Sequence[str]:
    return secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret)
