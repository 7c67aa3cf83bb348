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

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_SCHEMES = ("http", "https")
_HAS_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:(?!\d)", re.IGNORECASE)


class AddressRefused(Exception):
    """The message says what is refused, and why."""


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
    """Beside the public ones."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Patterns, separated by commas or spaces. Raises ValueError for a network that is none."""
        patterns = [Pattern.parse(one) for one in text.replace(",", " ").split()]
        for pattern in patterns:
            if "/" in pattern.host:
                ipaddress.ip_network(pattern.host, strict=False)
        return cls(patterns)

    def permits(self, host: str, address: Address, port: int) -> bool:
        return is_public(address) or any(pattern.matches(host, address, port) for pattern in self.allowed)

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        """The addresses of a host that may be connected to. Connect to one of these: a name may change its mind."""
        host = host.lower().rstrip(".")
        addresses = await _look_up(host, port)
        permitted = [str(address) for address in addresses if self.permits(host, address, port)]
        if not permitted:
            raise AddressRefused(f"{host} port {port} is not a public address, and browsing there is not allowed")
        return permitted

    async def check(self, url: str) -> None:
        """Whether a page may be asked for by this address; whoever it sends us to is looked at then."""
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
    """One that begins with a host, and perhaps its port, is meant to be of https."""
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
    """Whether it is out on the internet, also when it is written inside an IPv6 address."""
    if isinstance(address, ipaddress.IPv6Address):
        if address in _NAT64:
            return is_public(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
        if (inner := address.ipv4_mapped or address.sixtofour) is not None:
            return is_public(inner)
        if address.teredo is not None or address.is_site_local:
            return False
    return address.is_global and not address.is_multicast and not address.is_reserved
