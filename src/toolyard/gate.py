"""Keeps web pages out: checks `Host`, `Origin` and `Sec-Fetch-Site` of each request before any route.

Every page that a developer's browser has open can reach a server on the developer's machine. Only browsers send the
headers that this gate refuses.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolyard.asgi import (
    AGENTS,
    ANSWER,
    PASSED,
    Headers,
    HttpError,
    HttpOptions,
    Request,
    answer_error,
    refusing,
    without_token,
)

_STUDIO, _STUDIO_API = "/studio", "/studio/api/"

_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
_KNOWN_MOST = 1024
_LOOPBACK = ipaddress.IPv6Address("::1")
_NOT_KEPT: Headers = [(b"cache-control", b"no-store")]
"""Sent with a refusal. A cache must not give it to other clients, which may be let in."""
_SHOWN_MOST = 200
_EXPOSED = b"Retry-After, X-Backend-State, X-Process-Time, Content-Disposition"
"""Headers of our answers that a page of an allowed origin may read, beside those that browsers let every page read."""


@dataclass(frozen=True, slots=True)
class Allowed:
    """Other hosts and origins to let in. `settings.py` explains each."""

    allow_host: tuple[str, ...] = ()
    allow_origin: tuple[str, ...] = ()


class Gate:
    """The ASGI application in front of another one."""

    def __init__(self, app: ASGIApp, options: HttpOptions, allowed: Allowed) -> None:
        self._app = app
        self._options = options
        self._hosts = frozenset(host.lower() for host in allowed.allow_host)
        self._origins = frozenset(without_default_port(origin.lower()) for origin in allowed.allow_origin)
        self._checks_host = bool(self._hosts)
        self._known: set[bytes] = set()
        """Values of `Host` that were admitted."""

    def require_known_host(self) -> None:
        """From now on, admit only loopback names and allowed hosts."""
        self._checks_host = True

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan" and scope["path"].startswith(AGENTS):
            scope = without_token(scope)
        if scope["type"] == "lifespan" or PASSED in scope:  # the gateway that passed it on has checked it
            await self._app(scope, receive, send)
            return
        headers: dict[bytes, bytes] = dict(scope["headers"])
        try:
            self._check_host(headers)
            readable = self._check_page(scope, headers)
        except HttpError as refusal:
            await answer_error(refusal, Request(scope, receive, refusing(scope, send), self._options))
            return
        if scope["type"] == "websocket":  # browsers let any page read one that opens
            await self._app(scope, receive, send)
            return
        if readable and is_preflight(scope, headers):
            request = Request(scope, receive, send, self._options)
            await request.answer(200, [*readable, *preflight_headers(headers)], b"")
            return
        if readable:
            send = _answering_with(readable, scope, send)
        await self._app(scope, receive, send)

    def _check_host(self, headers: Mapping[bytes, bytes]) -> None:
        if not self._checks_host or not (value := headers.get(b"host")) or value in self._known:
            return
        host = value.decode("latin-1").strip().lower()
        name = without_port(host)
        if not (is_loopback_name(name) or name in self._hosts or host in self._hosts):
            raise HttpError(
                421,
                f"this server does not answer to the name {host[:_SHOWN_MOST]!r}. If that is a name of this server, "
                f"start it with --allow-host {name[:_SHOWN_MOST]}",
                _NOT_KEPT,
            )
        if len(self._known) < _KNOWN_MOST and len(value) <= _SHOWN_MOST:
            self._known.add(value)

    def _check_page(self, scope: Scope, headers: Mapping[bytes, bytes]) -> Headers:
        """Return the headers that let a page of an allowed origin read the answer; there are none for other clients."""
        if b"origin" not in headers:
            if b"sec-fetch-site" in headers:
                self._check_site(scope, headers)
            return ()
        origin = headers[b"origin"].decode("latin-1").strip().lower()
        if is_own(origin, headers.get(b"host", b"").decode("latin-1").strip().lower()):
            return ()
        if origin not in self._origins:
            raise foreign(origin[:_SHOWN_MOST])
        return cors_headers(headers[b"origin"])

    def _check_site(self, scope: Scope, headers: Mapping[bytes, bytes]) -> None:
        site = headers[b"sec-fetch-site"]
        if site in (b"same-origin", b"none") or is_link_to_page(scope, headers):
            return
        raise HttpError(
            403,
            "a web page of another site may not use this server. If it should, let the page ask with fetch() in CORS "
            "mode, and start the server with --allow-origin and the page's origin",
            _NOT_KEPT,
        )


def foreign(origin: str) -> HttpError:
    """The refusal of a page whose origin is not allowed. It never suggests to allow `null`, which any page can send."""
    how = f"--allow-origin {origin}"
    if origin == "null":  # a file, or a frame in a sandbox
        how = "--allow-origin and the address of a web server that the page is loaded from"
    refusal = f"a web page of {origin!r} may not use this server. If it should, start the server with {how}"
    return HttpError(403, refusal, _NOT_KEPT)


def without_port(host: str) -> str:
    """`name` of `name:8080`, and `[::1]` of `[::1]:8080`."""
    name, colon, port = host.rpartition(":")
    return name if colon and port.isdigit() and (":" not in name or name.endswith("]")) else host


def is_loopback_name(name: str) -> bool:
    """Whether a name always means this machine, so that no DNS server can point it elsewhere.

    Browsers send `Sec-Fetch-Site` to these names over plain HTTP. They do not for `[::ffff:127.0.0.1]`.
    """
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return address == _LOOPBACK if isinstance(address, ipaddress.IPv6Address) else address.is_loopback


def without_default_port(origin: str) -> str:
    """The origin as browsers write it."""
    return origin.removesuffix(_DEFAULT_PORTS.get(origin.partition("://")[0], ""))


def is_own(origin: str, host: str) -> bool:
    """Whether a page came from this server. A proxy may have added TLS, so the scheme does not count."""
    scheme, separator, place = origin.partition("://")
    return bool(separator and place) and host in (place, place + _DEFAULT_PORTS.get(scheme, ""))


def is_link_to_page(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    """Whether the user followed a link to a page for people. The site with the link cannot read that page."""
    to_document = headers.get(b"sec-fetch-mode") == b"navigate" and headers.get(b"sec-fetch-dest") == b"document"
    return to_document and scope.get("method") == "GET" and is_for_people(scope["path"])


def is_for_people(path: str) -> bool:
    return path in ("/", _STUDIO) or (path.startswith(_STUDIO + "/") and not path.startswith(_STUDIO_API))


def is_preflight(scope: Scope, headers: Mapping[bytes, bytes]) -> bool:
    return bool(scope["method"] == "OPTIONS" and b"access-control-request-method" in headers)


def cors_headers(origin: bytes) -> Headers:
    """Let a page of this origin read the answer."""
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-allow-credentials", b"true"),
        (b"access-control-expose-headers", _EXPOSED),
        (b"vary", b"Origin"),
    ]


def preflight_headers(headers: Mapping[bytes, bytes]) -> Iterable[tuple[bytes, bytes]]:
    """Allow the page to send the request that its preflight describes."""
    yield b"access-control-allow-methods", b"GET, HEAD, POST, PUT, PATCH, DELETE"
    yield b"access-control-max-age", b"600"
    if wanted := headers.get(b"access-control-request-headers"):
        yield b"access-control-allow-headers", wanted
    if headers.get(b"access-control-request-private-network") == b"true":
        yield b"access-control-allow-private-network", b"true"


def _answering_with(more: Headers, scope: Scope, send: Send) -> Send:
    """Add headers to the answer, whether the application sends it whole or as messages."""
    if (answer := scope.get(ANSWER)) is not None:
        scope[ANSWER] = lambda status, headers, body: answer(status, (*headers, *more), body)

    async def send_with(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *more]}
        await send(message)

    return send_with
