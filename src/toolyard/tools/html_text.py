"""Reads HTML as text, without a browser: `read_html(html, url)`. Ignores styles and scripts."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin

from toolyard.browser.pages import LINKS_MOST, LONGEST, WebPage

_NAME_MOST, _TITLE_MOST, _ADDRESS_MOST = 150, 300, 2000

_UNSEEN = frozenset({"script", "style", "template", "svg", "select", "datalist", "object", "iframe"})
_ENDS_BY_ITSELF = frozenset({"li", "dt", "dd", "td", "th", "tr", "tbody", "thead", "html", "body", "head"})
"""Elements whose end tag is optional, so that the end of a hidden one is uncertain."""
_WITHOUT_END = frozenset({"br", "hr", "img", "input", "meta", "link", "wbr", "area", "base", "col", "source", "track"})
_LINE = frozenset(
    {"p", "div", "section", "article", "header", "footer", "main", "nav", "aside", "figure", "figcaption"}
    | {"form", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "dl", "dt", "dd", "table", "caption"}
    | {"tr", "blockquote", "pre", "address", "fieldset", "legend", "details", "summary", "body", "title"}
    | {"br", "hr", "option", "dialog"}
)
"""Elements that stand on lines of their own."""
_CELL = " | "
_SPACE = re.compile(r"\s+")
_ENDLESS_NUMBER = re.compile(r"&#[0-9]{1000,}")
_NO_CHARACTER = "&#9999999"
_HIDING = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)


def read_html(html: str, url: str) -> WebPage:
    """Read a page, in linear time for any input. Leaves out an unclosed tag at the end, as browsers do."""
    reader = _Reader(url)
    html = _ENDLESS_NUMBER.sub(_NO_CHARACTER, html)  # the library raises for thousands of digits
    reader.feed(f"{html}<br>")  # without a last tag it would keep the last text; close() could take very long
    reader.end()
    return WebPage(reader.title[:_TITLE_MOST], reader.text[:LONGEST], reader.links, reader.is_full)


def read_text(text: str) -> WebPage:
    """Read a text that is not HTML."""
    return WebPage("", text[:LONGEST], cut=len(text) > LONGEST)


class _Reader(HTMLParser):
    """HTMLParser calls its handle_ methods for each tag and text."""

    def __init__(self, url: str) -> None:
        super().__init__(convert_charrefs=True)
        self._here = self._base = url
        self._title: list[str] = []
        self._lines: list[str] = []
        self._line: list[str] = []
        self._length = 0
        self._prefix = ""
        self._in_title = False
        self._verbatim = 0
        self._unseen = ""
        """The tag of the skipped element, and how many of its kind are open in it."""
        self._unseen_open = 0
        self._link: tuple[str, list[str]] | None = None
        self._links: dict[tuple[str, str], None] = {}

    @property
    def title(self) -> str:
        return _squeezed(self._title)

    @property
    def text(self) -> str:
        return "\n".join(self._lines)

    @property
    def links(self) -> Sequence[tuple[str, str]]:
        return list(self._links)[:LINKS_MOST]

    @property
    def is_full(self) -> bool:
        return self._length > LONGEST

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._unseen == "p" and tag in _LINE and tag != "br":
            self._unseen = ""  # a paragraph ends where the next block begins
        given = {name: value or "" for name, value in reversed(attrs)}
        if self._unseen:
            self._unseen_open += tag == self._unseen
        elif tag in _UNSEEN or _is_hidden(tag, given):
            self._unseen, self._unseen_open = tag, 1
        else:
            self._begin(tag, given)

    def _begin(self, tag: str, given: Mapping[str, str]) -> None:
        if tag in _LINE and (tag == "tr" or self._line[-1:] != [_CELL]):
            self._new_line()
        match tag:
            case "h1" | "h2" | "h3" | "h4" | "h5" | "h6":
                self._prefix = "#" * int(tag[1]) + " "
            case "li":
                self._prefix = "- "
            case "td" | "th" if self._line:
                self._add(_CELL)
            case "pre":
                self._verbatim += 1
            case "title":
                self._in_title = True
            case "base":
                self._base = _joined(self._here, given.get("href", "")) or self._base
            case "a":
                self._end_link()
                self._link = (given.get("href", ""), [])
            case "img":
                self.handle_data(f" {given.get('alt', '')} ")

    def handle_endtag(self, tag: str) -> None:
        if self._unseen:
            self._unseen_open -= tag == self._unseen
            self._unseen = self._unseen if self._unseen_open else ""
            return
        if tag in _LINE:
            self._new_line()
            self._prefix = ""
        match tag:
            case "pre":
                self._verbatim = max(0, self._verbatim - 1)
            case "title":
                self._in_title = False
            case "a":
                self._end_link()

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """In HTML, `<div/>` stays open. Skipped elements count as closed."""
        if not self._unseen and tag not in _UNSEEN:
            self.handle_starttag(tag, attrs)

    def handle_data(self, data: str) -> None:
        if self._unseen or self.is_full:
            return
        if self._in_title:
            self._title.append(data[:_TITLE_MOST])
            return
        if self._link is not None:
            self._link[1].append(data[:_NAME_MOST])
        if not self._verbatim:
            self._add(_SPACE.sub(" ", data))
            return
        for i, line in enumerate(data.splitlines()):
            if i:
                self._new_line()
            self._add(line)

    def parse_marked_section(self, i: int, report: bool = True) -> int:
        """Treat `<![` to the next `>` as a comment, as browsers do. The library raises for most of them."""
        return self.parse_bogus_comment(i)

    def end(self) -> None:
        self._end_link()
        self._new_line()

    def _add(self, text: str) -> None:
        if not self._line:
            if not text.strip():
                return
            text, self._prefix = self._prefix + (text if self._verbatim else text.lstrip()), ""
        self._line.append(text)
        self._length += len(text)

    def _new_line(self) -> None:
        line = "".join(self._line).rstrip()
        self._line = []
        if line:
            self._lines.append(line if self._verbatim else re.sub(" {2,}", " ", line))

    def _end_link(self) -> None:
        if self._link is None:
            return
        (href, said), self._link = self._link, None
        name, address = _squeezed(said)[:_NAME_MOST], _joined(self._base, href)
        if name and address and not address.startswith(f"{urldefrag(self._here)[0]}#"):
            self._links[name, address] = None


def _is_hidden(tag: str, given: Mapping[str, str]) -> bool:
    if tag in _ENDS_BY_ITSELF or tag in _WITHOUT_END:
        return False
    return "hidden" in given or _HIDING.search(given.get("style", "")) is not None


def _joined(base: str, href: str) -> str:
    """The address that a link leads to; empty if a browser cannot go there."""
    try:
        address = urljoin(base, href.strip())
    except ValueError:
        return ""
    is_web = address.startswith(("http://", "https://"))
    return address if href and is_web and len(address) <= _ADDRESS_MOST else ""


def _squeezed(said: Sequence[str]) -> str:
    return _SPACE.sub(" ", "".join(said)).strip()
