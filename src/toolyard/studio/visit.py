"""`Visit`: one request of a browser, and the ways to answer it: a page, JSON, a file, or a stream of events."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http.cookies import CookieError, SimpleCookie
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.parse import parse_qsl, quote

from toolyard.asgi import HEAD, Headers, HttpError, Request, decode
from toolyard.core.encoding import encode
from toolyard.core.pictures import PICTURES
from toolyard.studio.parts import Parts

STATIC = Path(__file__).with_name("static")
_TYPES = {
    ".css": b"text/css; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".svg": b"image/svg+xml",
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src {style}; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_COMMON: Headers = [
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_NOT_KEPT: Headers = [(b"cache-control", b"no-store")]


class Visit:
    def __init__(self, request: Request, parts: Parts, named: Sequence[str] = ()) -> None:
        self.request = request
        self.parts = parts
        self.named = named
        """What stands in the address for each `*` of its pattern."""

    # What it asks.

    @property
    def query(self) -> Mapping[str, str]:
        return dict(parse_qsl(self.request.scope["query_string"].decode("latin-1"), keep_blank_values=True))

    def number(self, name: str, default: int) -> int:
        """A whole number of the query."""
        given = self.query.get(name)
        if given is None or not given.isascii() or not given.removeprefix("-").isdigit() or len(given) > 15:
            if given:
                raise HttpError(400, f"{name} is {given[:100]!r}; it must be a whole number")
            return default
        return int(given)

    async def body(self) -> Mapping[str, Any]:
        """The JSON object that a page has sent."""
        given = decode(await self.request.body() or b"{}")
        if not isinstance(given, dict):
            raise HttpError(400, "the body must be a JSON object")
        return given

    @property
    def cookie(self) -> str:
        """Ours, as the browser sends it; empty if it has none."""
        name = self.parts.key.cookie_name
        for header, value in self.request.scope["headers"]:
            if header == b"cookie":
                try:
                    found = SimpleCookie(value.decode("latin-1")).get(name)
                except CookieError:
                    continue
                if found is not None:
                    return found.value
        return ""

    # How it is answered.

    async def page(self, template: str, *, status: int = 200, headers: Headers = (), **values: object) -> None:
        """A page made from `templates/`. Whatever `values` hold is shown as text."""
        html = self.parts.layout.get_template(template).render(
            token=self.parts.key.token(self.cookie), path=self.request.scope["path"], **values
        )
        await self._answer(status, b"text/html; charset=utf-8", html.encode(errors="replace"), (*_NOT_KEPT, *headers))

    async def json(self, value: object, status: int = 200) -> None:
        await self._answer(status, b"application/json", encode(value), _NOT_KEPT)

    async def text(self, text: str, *, file_name: str = "") -> None:
        """Text from a tool: a browser shows it as text, or saves it."""
        headers = [*_NOT_KEPT]
        if file_name:
            headers.append((b"content-disposition", f"attachment; filename*=UTF-8''{quote(file_name)}".encode()))
        await self._answer(200, b"text/plain; charset=utf-8", text.encode(errors="replace"), headers)

    async def picture(self, data: bytes, kind: str) -> None:
        """An image. A browser never gets another type as what it claims to be: it saves that as a file."""
        if kind in PICTURES:
            await self._answer(200, kind.encode(), data, _NOT_KEPT)
        else:
            saved = (b"content-disposition", b"attachment; filename=image")
            await self._answer(200, b"application/octet-stream", data, [*_NOT_KEPT, saved])

    async def file(self, name: str) -> None:
        """One of the files of `static/`."""
        path = STATIC / name
        if path.parent != STATIC or path.suffix not in _TYPES or not path.is_file():
            raise HttpError(404, f"Studio has no file {name[:100]!r}")
        data = path.read_bytes()
        tag = b'"%s"' % hashlib.sha256(data).hexdigest()[:16].encode()
        kept = [(b"cache-control", b"no-cache"), (b"etag", tag)]
        if self.request.header(b"if-none-match") == tag.decode():
            await self.request.answer(304, [*kept, *_COMMON], b"")
        else:
            await self._answer(200, _TYPES[path.suffix], data, kept)

    async def redirect(self, to: str, headers: Headers = ()) -> None:
        await self._answer(303, b"text/plain", b"", [(b"location", to.encode()), *_NOT_KEPT, *headers])

    async def events(self, events: AsyncIterator[object]) -> None:
        """Server-sent events, until the iterator or the server ends, or the browser leaves. None keeps the connection
        open."""
        kind = (b"content-type", b"text/event-stream; charset=utf-8")
        await self.request.start([kind, *_NOT_KEPT, *_COMMON, (b"x-accel-buffering", b"no")])
        if HEAD in self.request.scope:  # whoever asks for headers alone would wait for the end of the stream
            await self.request.write(b"", last=True)
            return
        gone = asyncio.ensure_future(self.request.until_gone())
        try:
            async for event in events:
                if gone.done():
                    return
                await self.request.write(b": \n\n" if event is None else b"data: %b\n\n" % encode(event))
                if self.parts.runtime.draining:
                    break
            await self.request.write(b"", last=True)
        finally:
            gone.cancel()

    async def _answer(self, status: int, kind: bytes, body: bytes, headers: Headers) -> None:
        policy = _POLICY.format(style=self.parts.style_of_login if status == 401 else "'self'").encode()
        sent = [(b"content-type", kind), *headers, *_COMMON, (b"content-security-policy", policy)]
        await self.request.answer(status, sent, body)


Answer: TypeAlias = Callable[[Visit], Awaitable[None]]


class Page(NamedTuple):
    """An address of Studio, below `/studio/`, and what answers it. A `*` stands for any one part of the path."""

    method: str
    address: str
    answer: Answer
