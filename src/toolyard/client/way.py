"""`Way`: how a socket reaches a server, directly or through a proxy."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPSConnection
from typing import Self
from urllib.parse import SplitResult, urlsplit

from toolyard.client.address import Address, basic_auth, certificates
from toolyard.client.request import CONNECTING, SOCKET_OPTIONS


@dataclass(frozen=True, slots=True)
class Way:
    host: str
    """The server, as the `Host` header names it."""
    place: tuple[str, int]
    """Where to connect: to the server, or to the proxy."""
    tls: ssl.SSLContext | None
    tunnel: tuple[str, int] | None = None
    """The server behind a proxy that only passes bytes on."""
    asking: Mapping[str, str] = field(default_factory=dict)
    """Headers of the CONNECT request to such a proxy."""
    target: str = ""
    """The prefix of the path of requests, for a proxy that reads them."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers of requests to such a proxy."""

    @classmethod
    def to(cls, address: Address) -> Self:
        there = urlsplit(address.origin)
        if address.proxy is None:
            return cls(there.netloc, _place(there), address.tls)
        proxy = urlsplit(address.proxy)
        tls = certificates() if proxy.scheme.lower() == "https" else None
        password = basic_auth(proxy, "Proxy-Authorization")
        if address.tls is None:
            return cls(there.netloc, _place(proxy), tls, target=address.origin, headers=password)
        if tls is not None:
            raise ValueError(f"Client cannot reach {address.origin} by way of a proxy with TLS; AsyncClient can")
        return cls(there.netloc, _place(proxy), address.tls, tunnel=_place(there), asking=password)

    def connect(self) -> socket.socket:
        host, port = self.place
        connection = (
            HTTPConnection(host, port, timeout=CONNECTING)
            if self.tls is None
            else HTTPSConnection(host, port, timeout=CONNECTING, context=self.tls)
        )
        if self.tunnel is not None:
            connection.set_tunnel(*self.tunnel, headers=self.asking)
        try:
            connection.connect()
            for option in SOCKET_OPTIONS:
                connection.sock.setsockopt(*option)
        except BaseException:
            connection.close()
            raise
        return connection.sock  # typeshed has Any here


def _place(url: SplitResult) -> tuple[str, int]:
    return url.hostname or "", url.port or (443 if url.scheme.lower() == "https" else 80)
