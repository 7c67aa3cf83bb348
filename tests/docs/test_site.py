"""The site of the pages, built as `make docs` builds it and read by a crawler."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import PAGES, ROOT

pytestmark = pytest.mark.thorough

LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "srcset"}
"""What a browser fetches by itself."""


class Read(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if one := given.get("id"):
            self.ids.add(one)
        if tag == "a" and (link := given.get("href")):
            self.links.append(link)
        if tag in LOADED and given.get("rel") != "canonical" and (address := given.get(LOADED[tag])):
            self.loaded.append(address)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Mapping[Path, Read]:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", folder]
    subprocess.run(build, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}, check=True, timeout=170)
    return {path: Read(path.read_text()) for path in folder.rglob("*.html") if path.name != "404.html"}


def led_to(page: Path, link: str) -> Path | None:
    address = urlsplit(link)
    if address.scheme or address.netloc:
        return None
    found = (page.parent / unquote(address.path)).resolve() if address.path else page
    return found / "index.html" if found.is_dir() else found


def test_every_page_is_in_it_and_the_first_one_leads_to_all(site):
    first = next(page for page in site if page.name == "index.html" and page.parent == common(site))
    reached, waiting = {first}, [first]
    while waiting:
        page = waiting.pop()
        new = {found for link in site[page].links if (found := led_to(page, link)) in site} - reached
        reached |= new
        waiting += new
    assert {page.stem for page in PAGES if page.parent.name == "docs"} <= {page.stem for page in reached}
    assert site.keys() - reached == set()


def test_no_link_in_it_is_dead(site):
    for page, read in site.items():
        for link in [*read.links, *read.loaded]:
            if (found := led_to(page, link)) is not None:
                assert found.exists(), (page.name, link)
                fragment = unquote(urlsplit(link).fragment)
                assert not fragment or found not in site or fragment in {*site[found].ids, "__skip"}, (page.name, link)


def test_it_loads_nothing_from_elsewhere(site):
    assert {link for read in site.values() for link in read.loaded if "//" in link} == set()


def common(site: Mapping[Path, Read]) -> Path:
    return Path(os.path.commonpath([page.parent for page in site]))
