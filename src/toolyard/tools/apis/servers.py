"""Checks the addresses of APIs: those that the operator sets, and those that only a document names."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import SplitResult, quote, urlsplit

from toolyard.browser.addresses import is_public
from toolyard.core.errors import DefinitionError
from toolyard.tools.apis.operation import IN_PATH

_AS_IT_IS = "/:@!$&'()*+,;=~%?"
_OPEN = re.compile(r"[{}]")


def base_url(url: str, what: str) -> str:
    """An address that the operator sets. It may be anywhere, also on this machine."""
    parts = _split(url, what)
    if parts.query or parts.fragment or parts.username is not None:
        raise DefinitionError(f"{what}: {url[:200]!r} should have nothing but a host and a path")
    return url.rstrip("/")


def endpoint(url: str, what: str) -> str:
    """The address that all requests go to, unchanged."""
    _split(url, what)
    return url


def named_server(url: str, where: str) -> str:
    """An address that only the document names. It must not lead to places that only the operator may reach."""
    found = base_url(url, where)
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost") or not _may_be_public(host):
        raise DefinitionError(f"{where}: {host} is not a public address; name it as base URL if it is to be asked")
    return found


def path_template(path: str, where: str) -> str:
    """The path to send, still with its `{parameters}`."""
    if not path.startswith("/"):
        raise DefinitionError(f"{where}: a path begins with a slash, and {path[:100]!r} does not")
    path = path.partition("#")[0]
    pieces = IN_PATH.split(path)  # every second piece is a parameter
    if any(_OPEN.search(piece) for piece in pieces[::2]):
        raise DefinitionError(f"{where}: a brace in {path[:100]!r} is not closed or not opened")
    if not {".", ".."}.isdisjoint(re.split(r"[/?\\]", path)):
        raise DefinitionError(f"{where}: {path[:100]!r} has '.' or '..' as one of its steps")
    pieces[::2] = [quote(piece, safe=_AS_IT_IS, errors="replace") for piece in pieces[::2]]
    return "".join(f"{{{piece}}}" if number % 2 else piece for number, piece in enumerate(pieces))


def _split(url: str, where: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise DefinitionError(f"{where}: {url[:200]!r} is not an address: {error}") from None
    plain = url.isascii() and url.isprintable() and " " not in url
    if parts.scheme not in ("http", "https") or not parts.hostname or port == 0 or not plain:
        raise DefinitionError(f"{where}: {url[:200]!r} is not an address of an HTTP server")
    return parts


def _may_be_public(host: str) -> bool:
    """False for an address that is not public. Names are looked up with each request."""
    try:
        return is_public(ipaddress.ip_address(host))
    except ValueError:
        return True
