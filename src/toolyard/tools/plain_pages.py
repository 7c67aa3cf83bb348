"""Loads web pages over plain HTTP, without a browser: `await load_page(url, settings)`.

It checks each address on the way as the browser's gate does, and connects only to checked addresses.
"""

from __future__ import annotations

import asyncio
import codecs
import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import httpx2

from toolyard.browser.addresses import AddressRefused, completed
from toolyard.browser.chromium import BrowserSettings
from toolyard.browser.pages import WebPage
from toolyard.core.errors import ToolError
from toolyard.tools import http
from toolyard.tools.html_text import read_html, read_text

BYTES_MOST = 2 * 2**20
"""The most bytes of a page. The rest is not read."""
REDIRECTS_MOST = 5
_HEADERS = {
    "user-agent": "Mozilla/5.0 (compatible; Toolyard)",
    "accept": "text/html,text/*;q=0.9,*/*;q=0.5",
    "accept-language": "en-US,en;q=0.8",
    "accept-encoding": "gzip",
}
_TEXTS = re.compile(r"text/.*|application/(?:.*\+)?(?:json|xml)|application/(?:javascript|x-ndjson|yaml)")
_HTML = ("text/html", "application/xhtml+xml", "")
_DECLARED = re.compile(rb"<meta[^>]{0,200}?charset\s*=\s*[\"']?\s*([\w-]+)", re.IGNORECASE)
_CHARSET = re.compile(r"charset\s*=\s*[\"']?([\w-]+)", re.IGNORECASE)
_CHARACTERS = re.compile(r"ascii|utf-(?:8|16)\S*|iso8859-\d+|cp\d+|koi8-\w|mac-\w+|shift_\S+|euc_\S+|gb\S+|big5\S*")
"""Codecs to allow. Python has others, and some of them are slow on malicious input."""


@dataclass(frozen=True, slots=True)
class Fetched:
    url: httpx2.URL
    status: int
    headers: httpx2.Headers
    body: bytes
    cut: bool

    @property
    def leads_to(self) -> httpx2.URL | None:
        location = self.headers.get("location")
        return self.url.join(location) if self.status in (301, 302, 303, 307, 308) and location else None


async def load_page(url: str, settings: BrowserSettings) -> WebPage:
    """Load a page. Raises `ToolError` if that fails for any reason."""
    try:
        async with asyncio.timeout(settings.answer_seconds):
            fetched = await _follow(httpx2.URL(completed(url)), settings)
    except TimeoutError:
        raise ToolError(f"{url} did not answer in {settings.answer_seconds:g} seconds") from None
    except (AddressRefused, httpx2.InvalidURL, UnicodeError) as error:
        raise ToolError(str(error)) from None
    except (httpx2.HTTPError, OSError) as error:
        raise ToolError(f"{url} could not be opened: {str(error) or type(error).__name__}") from None
    if fetched.status >= 400:
        raise ToolError(f"{url} answered {fetched.status}")
    return await asyncio.to_thread(page_of, fetched)


async def _follow(url: httpx2.URL, settings: BrowserSettings) -> Fetched:
    for _ in range(REDIRECTS_MOST + 1):
        if url.scheme not in ("http", "https") or not url.host:
            raise AddressRefused(f"only http and https addresses can be opened, not {str(url)[:200]!r}")
        port = url.port or (443 if url.scheme == "https" else 80)
        fetched = await _fetch(url, await settings.addresses.resolve(url.raw_host.decode(), port))
        if (next_url := fetched.leads_to) is None:
            return fetched
        url = next_url
    raise ToolError(f"{url} is one of more than {REDIRECTS_MOST} redirects")


async def _fetch(url: httpx2.URL, addresses: Sequence[str]) -> Fetched:
    """Fetch from the first address that answers."""
    for address in addresses[:-1]:
        try:
            return await _fetch_from(address, url)
        except httpx2.ConnectError:
            continue
    return await _fetch_from(addresses[-1], url)


async def _fetch_from(address: str, url: httpx2.URL) -> Fetched:
    """Fetch from this address, without another look-up. The server gets the name, and its certificate must have it."""
    there = url.copy_with(host=address)
    headers = {**_HEADERS, "host": url.netloc.decode()}
    extensions = {"sni_hostname": url.raw_host.decode()}
    async with (
        http.client(str(url), trust_env=False, timeout=None) as client,
        client.stream("GET", there, headers=headers, extensions=extensions) as response,
    ):
        body = bytearray()
        async for piece in response.aiter_raw():
            body += piece
            if len(body) > BYTES_MOST:
                break
        return Fetched(url, response.status_code, response.headers, bytes(body[:BYTES_MOST]), len(body) > BYTES_MOST)


def page_of(fetched: Fetched) -> WebPage:
    kind, _, parameters = fetched.headers.get("content-type", "").lower().partition(";")
    if not _TEXTS.fullmatch(kind.strip()) and kind.strip() not in _HTML:
        raise ToolError(f"{fetched.url} is not a page: it is {kind.strip()[:100]}")
    body = unpacked(fetched.body, fetched.headers.get("content-encoding", ""))
    text = decoded(body, parameters)
    return read_html(text, str(fetched.url)) if kind.strip() in _HTML else read_text(text)


def unpacked(body: bytes, encoding: str) -> bytes:
    """Unpack a body, up to the limit of a page."""
    match encoding.strip().lower():
        case "" | "identity":
            return body
        case "gzip" | "x-gzip" | "deflate":
            try:
                return zlib.decompressobj(wbits=32 + zlib.MAX_WBITS).decompress(body, BYTES_MOST)
            except zlib.error as error:
                raise ToolError(f"the page cannot be unpacked: {error}") from None
        case other:
            raise ToolError(f"the page is packed as {other[:100]!r}, which this request did not ask for")


def decoded(body: bytes, parameters: str) -> str:
    """Decode a page by the server's charset, or else the page's own, or else UTF-8."""
    if (named := _CHARSET.search(parameters)) is not None:
        name = named[1]
    else:
        declared = _DECLARED.search(body[:2048])
        name = declared[1].decode("ascii", "replace") if declared else "utf-8"
    try:
        codec = codecs.lookup(name).name
    except LookupError:
        codec = "utf-8"
    if codec == "iso8859-1":  # as browsers do
        codec = "cp1252"
    return body.decode(codec if _CHARACTERS.fullmatch(codec) else "utf-8", errors="replace")
