"""Sends requests to APIs: bounded in time and size, never redirected to another host. A failure says whose fault it
is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from typing import Any

import httpx2

from toolyard.browser.addresses import Addresses, AddressRefused
from toolyard.core.encoding import encode
from toolyard.core.errors import ServiceUnavailable, ToolError
from toolyard.core.pictures import PICTURES
from toolyard.tools import http
from toolyard.tools.apis.operation import ApiRequest
from toolyard.tools.http import BYTES_MOST, HttpAnswer, without

SECONDS = 30.0
CONNECT_SECONDS = 10.0
REDIRECTS = 5
_AT_ONCE = 64
"""The most connections of one collection. A further request waits for one."""
_SHOWN = 500
"""The most characters to show of an error's answer."""
_LARGE = 2**18
"""An answer of more bytes than this is read in a thread."""
PUBLIC = Addresses()
_NOT_THE_AGENTS = frozenset({401, 403, 407, 408, 429})
"""Statuses that are no fault of the agent: the operator's key is wrong, has no right or is used up, or the API is
slow."""
_MOVED = frozenset({301, 302, 303, 307, 308})


@dataclass(slots=True)
class ApiConnections:
    """Connections to the servers of one collection, in one event loop. They close when no session uses them."""

    addresses: Addresses | None
    """The addresses to allow. None allows all, if the operator named the server, which may then be anywhere."""
    sessions: int = 0
    _transports: dict[tuple[str, str | None], httpx2.AsyncHTTPTransport] = field(default_factory=dict)

    async def ask(self, request: ApiRequest, seconds: float) -> HttpAnswer:
        """The API's answer. Raises `ServiceUnavailable` if there is none, `ToolError` if it is too long."""
        try:
            async with asyncio.timeout(seconds):
                for _ in range(REDIRECTS + 1):
                    answer = await self._once(request)
                    if answer.status not in _MOVED or "location" not in answer.headers:
                        return answer
                    request = _moved(request, answer)
        except TimeoutError:
            raise ServiceUnavailable(f"there was no answer within {seconds:g} seconds") from None
        except (OSError, httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise ServiceUnavailable(f"it cannot be reached: {type(error).__name__}") from None
        raise ServiceUnavailable(f"it redirects more than {REDIRECTS} times")

    async def _once(self, request: ApiRequest) -> HttpAnswer:
        url = httpx2.URL(request.url)
        headers = {"accept": "*/*", "accept-encoding": "gzip", "user-agent": "toolyard", **request.headers}
        there, extensions = url, dict[str, Any](timeout={"connect": CONNECT_SECONDS})
        if self.addresses is not None:
            there = url.copy_with(host=await _address(url, self.addresses))
            headers["host"] = url.netloc.decode()
            extensions["sni_hostname"] = url.raw_host.decode()
        asked = httpx2.Request(request.method, there, headers=headers, content=request.content, extensions=extensions)
        response = await self._transport(url).handle_async_request(asked)
        try:
            return await http.received(response, _too_long())
        finally:
            await response.aclose()

    def _transport(self, url: httpx2.URL) -> httpx2.AsyncHTTPTransport:
        """A bare transport. A full client would keep cookies, which sessions would share, and log requests with their
        keys."""
        key = url.scheme, self._proxy(url)
        if key not in self._transports:
            # Only connections to a server that the operator named stay open: others go to an address, and two names at
            # one address must not share a connection.
            kept = _AT_ONCE if self.addresses is None else 0
            limits = httpx2.Limits(max_connections=_AT_ONCE, max_keepalive_connections=kept)
            self._transports[key] = httpx2.AsyncHTTPTransport(verify=http.tls(key[0]), limits=limits, proxy=key[1])
        return self._transports[key]

    def _proxy(self, url: httpx2.URL) -> str | None:
        """The proxy from environment variables; None for a plain server that the operator named, which is near."""
        near = self.addresses is None and url.scheme == "http"
        return None if near else http.proxy_for(url)

    async def leave(self) -> None:
        self.sessions -= 1
        if not self.sessions:
            left, self._transports = self._transports, {}
            for transport in left.values():
                await transport.aclose()


async def _address(url: httpx2.URL, addresses: Addresses) -> str:
    """The allowed address of the host, looked up once: the next look-up may differ."""
    try:
        return (await addresses.resolve(url.host, url.port or (443 if url.scheme == "https" else 80)))[0]
    except AddressRefused:
        raise ServiceUnavailable(
            f"{url.host} has no public address; a server elsewhere is asked only if the operator names it as base URL"
        ) from None


def _too_long() -> ToolError:
    return ToolError(f"the answer of the API is longer than {BYTES_MOST:,} bytes; ask for less")


def _moved(request: ApiRequest, answer: HttpAnswer) -> ApiRequest:
    """The request after a redirect. Raises if it leads to another host."""
    here = httpx2.URL(request.url)
    there = here.join(answer.headers["location"])
    if (there.scheme, there.host, there.port) != (here.scheme, here.host, here.port):
        raise ServiceUnavailable(f"it redirects to another server, {there.host[:100]!r}, which is not allowed")
    if answer.status in (307, 308) or request.method in ("GET", "HEAD"):
        return replace(request, url=str(there))
    headers = {name: value for name, value in request.headers.items() if name != "content-type"}
    return replace(request, method="GET", url=str(there), headers=headers, content=b"")


async def value_of(answer: HttpAnswer, secrets: Iterable[str]) -> object:
    """The value of a good answer: JSON, text, or the bytes of a picture. Raises for any other answer."""
    if len(answer.body) < _LARGE:
        return _value_of(answer, secrets)
    return await asyncio.to_thread(_value_of, answer, secrets)


def _value_of(answer: HttpAnswer, secrets: Iterable[str]) -> object:
    body = without(answer.body, secrets)
    if answer.status < 300:
        return _value(answer, body)
    shown = body.decode(errors="replace").strip()[:_SHOWN]
    answered = f"the API answered {_status(answer.status)}" + f": {shown}" * bool(shown)
    raise ServiceUnavailable(answered) if is_ours(answer.status) else ToolError(answered)


def is_ours(status: int) -> bool:
    """Whether the failure is no fault of the agent."""
    return status >= 500 or status in _NOT_THE_AGENTS


def _value(answer: HttpAnswer, body: bytes) -> object:
    media = answer.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not body:
        return _status(answer.status)
    if media in PICTURES:
        return body
    try:
        value = json.loads(body)
        encode(value)  # what is nested too deeply to be written again stays text
    except (ValueError, RecursionError, TypeError):
        return _text(body, media)
    return value


def _text(body: bytes, media: str) -> str:
    if b"\0" in body:
        return f"[{len(body):,} bytes of {media or 'something that is not text'}]"
    return body.decode(errors="replace")


def _status(status: int) -> str:
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)
