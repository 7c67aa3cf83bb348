"""Sends requests to other servers over cheap connections, and reads answers of bounded size."""

from __future__ import annotations

import asyncio
import functools
import json
import ssl
import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus
from urllib.request import getproxies, proxy_bypass

import httpx2

from toolyard.core.errors import ServiceUnavailable

BYTES_MOST = 8 * 2**20
"""The most bytes of one answer."""


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


@functools.cache
def tls(scheme: str) -> ssl.SSLContext:
    """The TLS context, made once, because loading all root certificates takes long; empty for plain HTTP."""
    return httpx2.create_ssl_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client(url: str, **more: Any) -> httpx2.AsyncClient:
    """A client for this server."""
    return httpx2.AsyncClient(verify=tls(httpx2.URL(url).scheme), **more)


def proxy_for(url: httpx2.URL) -> str | None:
    """The proxy from environment variables."""
    return None if proxy_bypass(url.host) else getproxies().get(url.scheme)


async def received(response: httpx2.Response, too_long: Exception) -> HttpAnswer:
    """Read an answer, and unpack it within a bound: a small answer may unpack to a very large one."""
    encoding = response.headers.get("content-encoding", "identity").lower()
    if encoding not in ("identity", "gzip", "deflate", ""):
        raise ServiceUnavailable(f"its answer is packed as {encoding[:20]!r}, which the request did not ask for")
    body = bytearray()
    async for piece in response.aiter_raw():
        body += piece
        if len(body) > BYTES_MOST:
            raise too_long
    unpacked = bytes(body)
    if encoding not in ("identity", ""):  # in a thread, because it may unpack to much
        unpacked = await asyncio.to_thread(_unpacked, unpacked, too_long)
    return HttpAnswer(response.status_code, response.headers, unpacked)


def _unpacked(body: bytes, too_long: Exception) -> bytes:
    unpacking = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
    try:
        unpacked = unpacking.decompress(body, BYTES_MOST + 1)
    except zlib.error as error:
        raise ServiceUnavailable(f"its answer cannot be unpacked: {error}") from None
    if len(unpacked) > BYTES_MOST:
        raise too_long
    if not unpacking.eof:
        raise ServiceUnavailable("its answer ends too early")
    return unpacked


def without(body: bytes, secrets: Iterable[str]) -> bytes:
    """Hide keys from the agent: a server may repeat what it received."""
    for written in {form for secret in secrets if len(secret) > 3 for form in _forms(secret)}:
        body = body.replace(written.encode(), b"***")
    return body


def _forms(secret: str) -> Sequence[str]:
    return secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote_plus(secret)
