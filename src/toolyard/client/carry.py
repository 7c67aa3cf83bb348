"""What carrying out a step has in common, whether it is awaited or not: steps as httpx2 requests, failures as data."""

from __future__ import annotations

import functools
import json
import os
import socket
import ssl
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies

import httpx2
from pydantic_core import to_jsonable_python

from toolyard.client.steps import Answer, Ask, Broken, Listen
from toolyard.core.errors import describe
from toolyard.version import __version__

CONNECTING = 10.0
"""Seconds for a connection to be made."""

LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=3)
"""As many as there are calls at once. Idle ones go before a server would close them under a request."""

_NEVER_SENT = (httpx2.ConnectError, httpx2.ConnectTimeout, httpx2.PoolTimeout, httpx2.UnsupportedProtocol)

_SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
if hasattr(socket, "TCP_KEEPIDLE"):
    _SOCKET_OPTIONS += [
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 6),
    ]


@functools.cache
def tls(scheme: str) -> ssl.SSLContext:
    """Made once: to load all root certificates takes longer than an episode. Without TLS none are needed."""
    return httpx2.create_ssl_context() if scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def client_options(url: str, headers: Mapping[str, str]) -> dict[str, Any]:
    """Keyword arguments of httpx2's clients."""
    return {"base_url": url, "headers": headers, "limits": LIMITS, "verify": tls(scheme_of(url))}


def transport_options(url: str) -> dict[str, Any] | None:
    """Keyword arguments of a transport that notices, in hours of waiting, when the other machine is no longer there.

    None where a proxy is to be used: httpx2 only looks for one when it makes the transport itself.
    """
    if getproxies():
        return None
    return {"limits": LIMITS, "verify": tls(scheme_of(url)), "socket_options": _SOCKET_OPTIONS}


def url_of(base_url: str) -> str:
    """The URL of a server as people write it: `http://` may be left out, and a slash at the end makes no difference."""
    url = base_url.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port  # looked at here, where it can still be explained
    except ValueError as error:
        raise ValueError(f"{base_url!r} is not a URL: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname or port == 0:
        raise ValueError(f"{base_url!r} is not the URL of a server, such as http://127.0.0.1:8080")
    return url.rstrip("/")


def scheme_of(url: str) -> str:
    return url.partition("://")[0].lower()


def headers_of(api_key: str | None) -> dict[str, str]:
    """What every request says."""
    headers = {"User-Agent": f"toolyard/{__version__}", "Accept": "application/json"}
    if key := api_key or os.environ.get("TOOLYARD_API_KEY"):
        headers["X-API-Key"] = key
    return headers


def request_of(step: Ask | Listen) -> dict[str, Any]:
    """Keyword arguments of httpx2's `request` and `stream`."""
    headers = {"X-Session-ID": step.session} if step.session else {}
    if isinstance(step, Listen):  # signs of life must not be held back to be compressed
        headers |= {"Accept": "text/event-stream", "Accept-Encoding": "identity"}
    if step.body is not None:
        headers["Content-Type"] = "application/json"
    return {
        "method": "POST" if isinstance(step, Listen) else step.method,
        "url": step.path,
        "headers": headers,
        "content": None if step.body is None else encode(step.body),
        "timeout": httpx2.Timeout(step.silence, connect=CONNECTING, pool=None),
    }


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON with everything that Python's knows: NaN and lone surrogates too, which a model may well write."""
    return json.dumps(body, separators=(",", ":"), default=to_jsonable_python).encode()


def answer_of(response: httpx2.Response) -> Answer:
    return Answer(response.status_code, response.headers, response.content)


def is_stream(response: httpx2.Response) -> bool:
    return response.status_code == 200 and response.headers.get("content-type", "").startswith("text/event-stream")


def broken_by(error: httpx2.RequestError) -> Broken:
    return Broken(describe(error), sent=not isinstance(error, _NEVER_SENT))
