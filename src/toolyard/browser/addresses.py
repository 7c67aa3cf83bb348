"""Which addresses a browser may connect to: public ones, and those that the operator names."""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self, TypeAlias
from urllib.parse import urlsplit

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address

_NOT_PUBLIC_4 = [
    ipaddress.IPv4Network(text)
    for text in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # behind a provider's NAT; Alibaba's metadata service at 100.100.100.200
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # Azure's metadata service
        "169.254.0.0/16",  # link-local; metadata services of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; Oracle's metadata service at 192.0.0.192
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # relays of 6to4
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
    )
]
"""IANA's special-purpose addresses, and the metadata services of clouds, which hand out secrets."""
_GLOBAL_6 = ipaddress.IPv6Network("2000::/3")
"""Global unicast: without loopback, link-local and unique local addresses (such as Amazon's fd00:ec2::254)."""
_NOT_PUBLIC_6 = [
    ipaddress.IPv6Network(text)
    for text in (
        "2001::/23",  # protocol assignments; Teredo, benchmarks, ORCHID
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
]
_EMBEDDING = [
    (ipaddress.IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (ipaddress.IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (ipaddress.IPv6Network("2002::/16"), 80),  # 6to4
]
"""Networks that embed an IPv4 address, and how many bits follow it."""
_SCHEMES = ("http", "https")
_HAS_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\d)", re.IGNORECASE)


class AddressRefused(Exception):
    """The message names the address, and why it is refused."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """`host`, `*.host`, an address or a network such as `10.0.0.0/8`, each with or without `:port`."""

    host: str
    port: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        host, colon, port = text.rpartition(":")
        if not (colon and port.isdigit()) or (":" in host and not host.endswith("]")):
            host, port = text, ""
        return cls(host.strip("[]").lower(), int(port) if port else None)

    def matches(self, host: str, address: Address, port: int) -> bool:
        if self.port not in (None, port):
            return False
        if "/" in self.host:
            return address in ipaddress.ip_network(self.host, strict=False)
        return fnmatchcase(host, self.host) or fnmatchcase(str(address), self.host)


@dataclass(frozen=True, slots=True)
class Addresses:
    allowed: Sequence[Pattern] = ()
    """Patterns to allow beside public addresses."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read patterns, separated by commas or spaces. Raises ValueError for a malformed network."""
        patterns = [Pattern.parse(one) for one in text.replace(",", " ").split()]
        for pattern in patterns:
            if "/" in pattern.host:
                ipaddress.ip_network(pattern.host, strict=False)
        return cls(patterns)

    def permits(self, host: str, address: Address, port: int) -> bool:
        return is_public(address) or any(pattern.matches(host, address, port) for pattern in self.allowed)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The allowed addresses of a host. Connect to one of them: a second look-up of the name may differ."""
        host = host.lower().rstrip(".")
        addresses = await _look_up(host, port)
        permitted = [str(address) for address in addresses if self.permits(host, address, port)]
        if not permitted:
            raise AddressRefused(f"{host} port {port} is not a public address, and browsing there is not allowed")
        return permitted

    async def check(self, url: str) -> None:
        """Raise unless this address of a page is allowed; the gate checks redirects when they come."""
        try:
            parts = urlsplit(url)
            scheme, host, port = parts.scheme, parts.hostname, parts.port
        except ValueError as error:
            raise AddressRefused(f"{url[:200]!r} is not an address: {error}") from None
        if scheme not in _SCHEMES:
            raise AddressRefused(f"only http and https addresses can be opened, not {scheme or url!r}")
        if not host:
            raise AddressRefused(f"{url[:200]!r} names no host")
        await self.resolve(host, port or (443 if scheme == "https" else 80))


def completed(url: str) -> str:
    """Add https:// to an address that begins with a host."""
    url = url.strip()
    return url if _HAS_SCHEME.match(url) else f"https://{url}"


async def _look_up(host: str, port: int) -> Sequence[Address]:
    with suppress(ValueError):
        return [ipaddress.ip_address(host)]
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise AddressRefused(f"there is no host {host[:200]!r}") from None
    return [ipaddress.ip_address(str(entry[4][0]).partition("%")[0]) for entry in found]


def is_public(address: Address) -> bool:
    """Whether an address is on the internet; looks inside IPv6 addresses that embed an IPv4 address.

    The tables above decide, not `ipaddress`: what that takes for global differs between versions of Python.
    """
    if isinstance(address, ipaddress.IPv4Address):
        return not any(address in network for network in _NOT_PUBLIC_4)
    if (inner := _inner(address)) is not None:
        return is_public(inner)
    return address in _GLOBAL_6 and not any(address in network for network in _NOT_PUBLIC_6)


def _inner(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that packets for this one end up at."""
    for network, shift in _EMBEDDING:
        if address in network:
            return ipaddress.IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return None
