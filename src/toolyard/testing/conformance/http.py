"""A client that judges nothing: it sends any request, however wrong, and keeps the whole answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, NoReturn, Self

import aiohttp
from yarl import URL

_MOST = 8 * 2**20
_SHOWN = 240

Headers = Mapping[str, str] | Sequence[tuple[str, str]]


class Unmet(Exception):
    """The server answered otherwise than the case expects; the text says how."""


def require(met: object, came: object) -> None:
    """Fail the case unless `met`, and name the answer."""
    if not met:
        raise Unmet(str(came))


@dataclass(frozen=True, slots=True)
class Answer:
    asked: str
    status: int
    headers: Mapping[str, str]
    """Lookup ignores upper and lower case."""
    body: bytes

    def __str__(self) -> str:
        text = self.body.decode("utf-8", "replace")
        return f"{self.asked} → {self.status} {shortened(text) or '(empty)'}"

    @property
    def kind(self) -> str:
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()

    @property
    def json(self) -> Any:
        """The body, which must be JSON as the standard has it: without NaN and Infinity."""
        try:
            return read_json(self.body)
        except ValueError as error:
            raise Unmet(f"{self}, which is not JSON: {error}") from None

    @property
    def object(self) -> dict[str, Any]:
        value = self.json
        require(isinstance(value, dict), f"{self}, which is no object")
        found: dict[str, Any] = value
        return found

    def require(self, *statuses: int) -> Self:
        require(self.status in statuses, self)
        return self


def read_json(text: bytes | str) -> Any:
    return json.loads(text, parse_constant=_refuse)


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not part of JSON")


def shortened(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]}…"


class Http:
    """Reads every answer up to a bound, in a bounded time. Follows no redirects, keeps no cookies."""

    def __init__(self, url: str, *, api_key: str, seconds: float) -> None:
        self.url = url.rstrip("/")
        self.seconds = seconds
        self._key = {"X-API-Key": api_key, "Authorization": f"Bearer {api_key}"} if api_key else {}
        self._client: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        timeout = aiohttp.ClientTimeout(total=self.seconds)
        self._client = aiohttp.ClientSession(timeout=timeout, cookie_jar=aiohttp.DummyCookieJar())
        return self

    async def __aexit__(self, *ended: object) -> None:
        if self._client is not None:
            await self._client.close()

    async def ask(
        self,
        method: str,
        path: str,
        *,
        json: Any = ...,
        content: bytes | aiohttp.FormData | None = None,
        headers: Headers = (),
        without: Iterable[str] = (),
        url: str = "",
        label: str = "",
        head_only: bool = False,
    ) -> Answer:
        """Send one request. `json` may be None, which is JSON too. `without` names headers to leave out.

        `label` replaces the body in reports of the request.
        """
        data, body_kind = (content, {}) if json is ... else (dumped(json), {"Content-Type": "application/json"})
        pairs = list(headers.items() if isinstance(headers, Mapping) else headers)
        other = {name.lower() for name in (*without, *(name for name, _ in pairs))}
        usual = [(name, value) for name, value in {**self._key, **body_kind}.items() if name.lower() not in other]
        assert self._client is not None
        async with self._client.request(
            method,
            URL((url or self.url) + path, encoded=True),
            data=data,
            headers=[*usual, *pairs],
            skip_auto_headers=[*without, *(() if body_kind or data is not None else ("Content-Type",))],
            allow_redirects=False,
        ) as response:
            body = b"" if head_only else await _read(response)
        said = label or shortened(data.decode("utf-8", "replace") if isinstance(data, bytes) else "")
        return Answer(f"{method} {path or URL(url).path} {said}".rstrip(), response.status, response.headers, body)

    @asynccontextmanager
    async def socket(self, url: str) -> AsyncIterator[aiohttp.ClientWebSocketResponse]:
        """Open a WebSocket, and close it at the end if the server has not."""
        assert self._client is not None
        async with self._client.ws_connect(URL(url, encoded=True), headers=self._key, max_msg_size=_MOST) as socket:
            yield socket


def dumped(value: Any) -> bytes:
    return json.dumps(value).encode()


async def _read(response: aiohttp.ClientResponse) -> bytes:
    parts, size = [], 0
    async for part in response.content.iter_any():
        parts.append(part)
        size += len(part)
        require(size <= _MOST, f"an answer of more than {_MOST} bytes")
    return b"".join(parts)
