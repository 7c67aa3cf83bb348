"""The address of a server, and the proxy that environment variables set for it."""

from __future__ import annotations

import base64
import functools
import importlib
import ipaddress
import os
import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Self
from urllib.parse import SplitResult, quote, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from toolyard.version import __version__


@dataclass(frozen=True, slots=True, eq=False)
class Address:
    """The address of one server."""

    url: str
    """The URL from the user, completed."""
    origin: str
    """Scheme, host and port of the URL."""
    prefix: str
    """Its path, which stands before the path of every request."""
    headers: Mapping[str, str]
    """Headers of every request."""
    proxy: str | None

    @classmethod
    def of(cls, base_url: str, api_key: str | None) -> Self:
        url = url_of(base_url)
        parts = urlsplit(url)
        origin = f"{parts.scheme.lower()}://{parts.netloc.rpartition('@')[2]}"
        prefix = quote(parts.path, safe="/%:@!$&'()*+,;=~")
        return cls(url, origin, prefix, {**headers_of(api_key), **basic_auth(parts)}, proxy_of(parts))

    @property
    def tls(self) -> ssl.SSLContext | None:
        return certificates() if self.origin.startswith("https:") else None


def url_of(base_url: str) -> str:
    """Complete the URL of a server as people write it: without `http://`, or with a slash at the end."""
    url = base_url.strip()
    if "://" not in url:
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        port = parts.port  # may raise ValueError
    except ValueError as error:
        raise ValueError(f"{base_url!r} is not a URL: {error}") from None
    if parts.scheme.lower() not in ("http", "https") or not _is_host(parts.hostname or "") or port == 0:
        raise ValueError(f"{base_url!r} is not the URL of a server, such as http://127.0.0.1:8080")
    return url.rstrip("/")


def _is_host(name: str) -> bool:
    return bool(name) and name.isprintable() and not set(name) & set(' "<>\\^`{|}')


def headers_of(api_key: str | None) -> dict[str, str]:
    headers = {"User-Agent": f"toolyard/{__version__}", "Accept": "application/json"}
    if key := api_key or os.environ.get("TOOLYARD_API_KEY"):
        if not (key.isascii() and key.isprintable()):
            raise ValueError("the key of the server has a character, or a line end, that cannot be sent in a header")
        headers["X-API-Key"] = key
    return headers


def basic_auth(parts: SplitResult, header: str = "Authorization") -> dict[str, str]:
    """The header with the user and password of a URL; empty if it has none."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: f"Basic {base64.b64encode(pair.encode()).decode()}"}


@functools.cache
def certificates() -> ssl.SSLContext:
    """The certificates that our tools trust, too. Their library is loaded only for servers with TLS."""
    context: ssl.SSLContext = importlib.import_module("toolyard.tools.http").tls("https")
    return context


def proxy_of(parts: SplitResult) -> str | None:
    """The proxy that the environment variables name for this server."""
    proxies = getproxies()
    proxy = proxies.get(parts.scheme.lower()) or proxies.get("all")
    if not proxy or proxy_bypass(parts.netloc.rpartition("@")[2]) or _is_near(parts.hostname or "", proxies):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not proxy.lower().startswith(("http://", "https://")):
        raise ValueError(f"clients talk to proxies over HTTP, and the environment variables name {proxy!r}")
    return proxy


def _is_near(host: str, proxies: Mapping[str, str]) -> bool:
    """Whether `no_proxy` names a network with this address: `proxy_bypass()` only compares names."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    return any(address in network for network in _networks(proxies.get("no", "")))


def _networks(exceptions: str) -> Iterator[ipaddress.IPv4Network | ipaddress.IPv6Network]:
    """The entries of `no_proxy` that are networks, such as 10.0.0.0/8."""
    for word in exceptions.split(","):
        try:
            yield ipaddress.ip_network(word.strip().strip("[]"), strict=False)
        except ValueError:
            continue  # a name
