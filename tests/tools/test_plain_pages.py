"""Pages over plain HTTP: what servers may answer, and where requests may go."""

from __future__ import annotations

import asyncio
import gzip
import time
import zlib
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.tools.loopback import serving
from toolyard.browser.addresses import Addresses
from toolyard.browser.chromium import BrowserSettings
from toolyard.browser.pages import LINKS_MOST, LONGEST
from toolyard.core.errors import ToolError
from toolyard.tools import http, plain_pages
from toolyard.tools.html_text import read_html
from toolyard.tools.plain_pages import load_page

pytestmark = pytest.mark.anyio

PEM = str(Path(__file__).with_name("loopback.pem"))
ALLOWED = BrowserSettings("", Addresses.parse("127.0.0.1, localhost"), answer_seconds=5)


class Counterpart:
    """Answers every path with what the test has put there."""

    def __init__(self) -> None:
        self.answers: dict[str, Response] = {}
        self.asked: list[dict[str, str]] = []
        self.app = Starlette(routes=[Route("/{path:path}", self.answer)])

    async def answer(self, request: Request) -> Response:
        self.asked.append(dict(request.headers))
        return self.answers[request.url.path]


@pytest.fixture
def there() -> Counterpart:
    return Counterpart()


@pytest.fixture
def url(there: Counterpart) -> Iterator[str]:
    with serving(there.app) as address:
        yield address


def html(text: str, **headers: str) -> Response:
    return Response(text, headers={"content-type": "text/html; charset=utf-8", **headers})


@pytest.mark.thorough
async def test_a_page_that_is_packed_is_unpacked_but_never_without_end(url: str, there: Counterpart) -> None:
    there.answers["/"] = Response(gzip.compress(b"<p>Hello"), headers={"content-encoding": "gzip"})
    assert (await load_page(url, ALLOWED)).told() == "Hello"
    there.answers["/"] = Response(zlib.compress(b"<p>Hello"), headers={"content-encoding": "deflate"})
    assert (await load_page(url, ALLOWED)).told() == "Hello"
    bomb = gzip.compress(b"<p>x</p>" * 2**23)
    there.answers["/"] = Response(bomb, headers={"content-encoding": "gzip"})
    page = await load_page(url, ALLOWED)
    assert (len(page.text), page.cut) == (LONGEST, True)
    for encoding, problem in (("br", "packed as 'br'"), ("gzip", "cannot be unpacked")):
        there.answers["/"] = Response(b"no", headers={"content-encoding": encoding})
        with pytest.raises(ToolError, match=problem):
            await load_page(url, ALLOWED)


async def test_a_page_without_end_is_read_as_far_as_it_makes_sense(url: str, there: Counterpart) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while True:
            sent += 1
            yield b"<p>" + b"x" * 65536
            await asyncio.sleep(0)

    there.answers["/"] = StreamingResponse(endless(), headers={"content-type": "text/html"})
    page = await load_page(url, ALLOWED)
    assert page.cut
    assert page.told().endswith("\n(the rest is left out: too long)")
    assert sent < 1000


async def test_a_page_that_comes_drop_by_drop_is_given_up(url: str, there: Counterpart) -> None:
    async def drops() -> AsyncIterator[bytes]:
        while True:
            yield b"x"
            await asyncio.sleep(0.05)

    there.answers["/"] = StreamingResponse(drops(), headers={"content-type": "text/html"})
    settings = BrowserSettings("", ALLOWED.addresses, answer_seconds=0.5)
    with anyio.fail_after(15), pytest.raises(ToolError, match=r"did not answer in 0\.5 seconds"):
        await load_page(url, settings)


@pytest.mark.parametrize(
    ("kind", "body", "expected"),
    [
        ("text/html; charset=iso-8859-1", b"caf\xe9 \x80", "café €"),
        ("text/html", '<meta charset="shift_jis"><p>東京'.encode("shift_jis"), "東京"),
        ("text/html", "<p>東京".encode(), "東京"),
        ("text/html; charset=klingon", "<p>東京".encode(), "東京"),
        ("text/html; charset=punycode", b"plain", "plain"),
        ("text/html; charset=zlib", b"plain", "plain"),
        ("text/html", b"\xff\xfe\x00", "\ufffd\ufffd\x00"),
        ("text/plain", b"a <b>\n\n  c", "a <b>\n  c"),
        ("application/json", b'{"a": 1}', '{"a": 1}'),
        ("application/feed+xml", b"<a>1</a>", "<a>1</a>"),
        ("", b"<b>bold</b>", "bold"),
    ],
)
async def test_text_of_all_kinds_is_read_in_its_characters(
    url: str, there: Counterpart, kind: str, body: bytes, expected: str
) -> None:
    there.answers["/"] = Response(body, headers={"content-type": kind})
    assert (await load_page(url, ALLOWED)).told() == expected


@pytest.mark.parametrize("kind", ["application/pdf", "image/png", "application/octet-stream"])
async def test_what_is_not_text_is_not_shown(url: str, there: Counterpart, kind: str) -> None:
    there.answers["/"] = Response(b"%PDF", headers={"content-type": kind})
    with pytest.raises(ToolError, match=f"is not a page: it is {kind}"):
        await load_page(url, ALLOWED)


async def test_redirects_are_followed_but_not_for_ever(url: str, there: Counterpart) -> None:
    for i in range(plain_pages.REDIRECTS_MOST):
        there.answers[f"/{i}"] = RedirectResponse(f"/{i + 1}", (301, 302, 303, 307, 308)[i])
    there.answers["/5"] = html('<a href="next">Next</a>')
    assert (await load_page(f"{url}/0", ALLOWED)).links == [("Next", f"{url}/next")]
    there.answers["/before"] = RedirectResponse("/0")
    with pytest.raises(ToolError, match="more than 5 redirects"):
        await load_page(f"{url}/before", ALLOWED)


@pytest.mark.parametrize("location", ["file:///etc/passwd", "//169.254.169.254/", "http://[", "http://a b/"])
async def test_a_redirect_leads_no_further_than_a_link(url: str, there: Counterpart, location: str) -> None:
    there.answers["/"] = Response(status_code=302, headers={"location": location})
    with pytest.raises(ToolError):
        await load_page(url, ALLOWED)
    assert len(there.asked) == 1


class Fickle(Addresses):
    """Resolves a name once. Later look-ups, or those elsewhere, find a different address."""

    asked = 0

    async def resolve(self, host: str, port: int) -> Sequence[str]:
        type(self).asked += 1
        return ["127.0.0.1"] if self.asked == 1 else ["127.0.0.2"]


async def test_it_connects_to_the_address_that_was_looked_at(url: str, there: Counterpart) -> None:
    there.answers["/"] = html("<p>here")
    port = url.rpartition(":")[2]
    page = await load_page(f"http://rebinding.invalid:{port}/", BrowserSettings("", Fickle()))
    assert page.told() == "here"
    assert Fickle.asked == 1
    assert there.asked[0]["host"] == f"rebinding.invalid:{port}"


class Several(Addresses):
    async def resolve(self, host: str, port: int) -> Sequence[str]:
        return ["127.0.0.2", "127.0.0.1"]


async def test_the_next_address_of_a_host_is_tried_when_one_does_not_answer(url: str, there: Counterpart) -> None:
    there.answers["/"] = html("<p>here")
    assert (await load_page(url, BrowserSettings("", Several()))).told() == "here"


async def test_no_proxy_stands_between(url: str, there: Counterpart, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    there.answers["/"] = html("<p>here")
    assert (await load_page(url, ALLOWED)).told() == "here"


async def test_a_certificate_must_be_of_the_name_that_was_asked_for(
    there: Counterpart, monkeypatch: pytest.MonkeyPatch
) -> None:
    there.answers["/"] = html("<p>secure")
    monkeypatch.setenv("SSL_CERT_FILE", PEM)
    http.tls.cache_clear()
    with serving(there.app, ssl_certfile=PEM, ssl_keyfile=PEM, loop="asyncio") as url:
        assert (await load_page(url, ALLOWED)).told() == "secure"
        with pytest.raises(ToolError, match=r"(?i)certificate"):
            await load_page(url.replace("127.0.0.1", "localhost"), ALLOWED)
    http.tls.cache_clear()


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        ("<title> A\n title </title><p>text", "A title\ntext"),
        ("one<br>two<hr>three", "one\ntwo\nthree"),
        ("<h2>Head</h2><ul><li>a<li><b>b</b></ul>", "## Head\n- a\n- b"),
        ("a <script>no()</script><style>no</style><template>no</template>b", "a b"),
        ("<noscript>shown</noscript>", "shown"),
        ("a<svg><title>no</title><g/></svg>b<svg/>c", "abc"),
        ("<div hidden>no<div>no</div>no</div>yes", "yes"),
        ('<p style="display: none">no<p>yes', "yes"),
        ("<img alt='A saw' hidden><img alt='An axe'>", "A saw An axe"),
        ("<select><option>no</select>yes", "yes"),
        ("<table><tr><td>1<td><p>2</p><tr><th>3<td></table>4", "1 | 2\n3 |\n4"),
        ("<pre>a\n  b</pre>c   d", "a\n  b\nc d"),
        ("1 &lt; 2 &amp; 3 < 4 > 0", "1 < 2 & 3 < 4 > 0"),
        ("text <a href='unclosed", "text"),
        ("text <!-- unclosed <p>no", "text"),
        ("</p></div></svg>text", "text"),
        ("a<![endif]-->b<![if !IE]>c<![endif]>d<![CDATA[x]]>e<![ y]>f<![z]>g", "abcdefg"),
        ("text <![ unclosed <p", "text"),
        (f"a&#{'9' * 5000};b&#0000000065;", "a\ufffdbA"),
        ("", "(there is no text here)"),
    ],
)
def test_html_becomes_text(written: str, expected: str) -> None:
    assert read_html(written, "https://x.example/").told() == expected


def test_links_are_whole_addresses_of_the_web_each_once() -> None:
    written = """
    <base href="https://y.example/d/"><a href="a"> The
    <b>first</b></a> <a href="a">The first</a> <a href="../b#c">second<a href='//z.example'>third</a>
    <a href="mailto:x">no</a><a href="javascript:x">no</a><a name="x">no</a><a href="https://x.example/p#top">no</a>
    <a href="e"></a><a href="http://[">no</a><a href="f"><img alt="A picture"></a><a href="g">last
    """
    assert read_html(written, "https://x.example/p").links == [
        ("The first", "https://y.example/d/a"),
        ("second", "https://y.example/b#c"),
        ("third", "https://z.example"),
        ("A picture", "https://y.example/d/f"),
        ("last", "https://y.example/d/g"),
    ]
    many = "".join(f"<a href='/{i}'>{i}</a>" for i in range(1000))
    assert len(read_html(many, "https://x.example/").links) == LINKS_MOST


@pytest.mark.thorough
@pytest.mark.parametrize("piece", ["<", "<!--", "<a ", "<a b='", "</a ", "&#", "<![CDATA[", "<script>", "<td>", "<a/>"])
def test_no_page_takes_long_to_read(piece: str) -> None:
    written = piece * (plain_pages.BYTES_MOST // 4 // len(piece))
    begun = time.process_time()
    read_html(written, "https://x.example/")
    assert time.process_time() - begun < 10
