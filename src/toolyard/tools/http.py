"""Asking other servers: a connection that costs little to make, and answers of a size that one can afford."""

from __future__ import annotations

import asyncio
import functools
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

BYTES_MOST = 8 * 2**20
"""Of one answer."""


class AnswerTooLong(Exception):
    """A server answers with more than anybody would show to a model."""


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


async def post(url: str, body: object, *, seconds: float) -> Answer:
    """Raises TimeoutError after so many seconds, `AnswerTooLong`, or an error of httpx2."""
    async with (
        asyncio.timeout(seconds),
        client(url, timeout=seconds) as asking,
        asking.stream("POST", url, json=body) as response,
    ):
        received = bytearray()
        async for piece in response.aiter_bytes():
            received += piece
            if len(received) > BYTES_MOST:
                raise AnswerTooLong(f"the answer is longer than {BYTES_MOST} bytes")
        return Answer(response.status_code, response.headers, bytes(received))
