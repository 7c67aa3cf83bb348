"""Search engines for tools: Google through Serper, Bing through Bright Data, or a corpus instead of both.

With $TOOLYARD_SEARCH_CORPUS set, a search needs no key and no network, and its results have the same form.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated
from urllib.parse import urlencode

from pydantic import Field

from toolyard.core.errors import ServiceUnavailable, ToolError
from toolyard.core.output import JsonObject
from toolyard.tools.corpus import Corpus, corpus_named, missing_corpus
from toolyard.tools.http import without
from toolyard.tools.remote import RemoteToolset, blaming, object_of

CORPUS = "TOOLYARD_SEARCH_CORPUS"
RESULTS = 10
SNIPPET = 1_000
"""The most characters to show of one result."""
QUERY_MOST = 500
SECONDS = 30
"""The default time limit of a search."""
_TOO_MANY = 429
_PAUSES = (1, 2)
"""Seconds to wait before each further try, if a service answers that it gets too many requests."""

_CHINESE = re.compile("[\u4e00-\u9fff]")
_JAPANESE = re.compile("[\u3040-\u30ff]")
_REGION = re.compile(r"([a-z]{2,3})[-_]([a-z]{2})", re.IGNORECASE)

Query = Annotated[str, Field(min_length=1, max_length=QUERY_MOST)]


@dataclass(frozen=True, slots=True)
class Result:
    title: str
    link: str
    snippet: str
    page: str = ""
    """The whole text of the page, if it is at hand."""


@dataclass(frozen=True, slots=True)
class Region:
    language: str = "en"
    country: str = "us"

    @classmethod
    def parse(cls, written: str) -> Region:
        """Read a region such as `de-AT`. Raises `ToolError` for anything else."""
        if (found := _REGION.fullmatch(written.strip())) is None:
            raise ToolError(f"{written!r} is not a region such as en-US or zh-CN")
        return cls(found[1].lower(), found[2].lower())

    @classmethod
    def of(cls, query: str) -> Region:
        """The region that fits the script of a query."""
        is_chinese = _CHINESE.search(query) and not _JAPANESE.search(query)
        return cls("zh", "cn") if is_chinese else cls()


class Recent:
    """Keeps results for an hour: they cost money, and the rollouts of one group ask the same."""

    def __init__(self, seconds: float = 3600, most: int = 4096) -> None:
        self._seconds = seconds
        self._most = most
        self._kept: OrderedDict[object, tuple[float, Sequence[Result]]] = OrderedDict()
        self._asking: dict[object, asyncio.Future[Sequence[Result]]] = {}

    def get(self, key: object) -> Sequence[Result] | None:
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] > time.monotonic() else None

    def put(self, key: object, results: Sequence[Result]) -> None:
        self._kept[key] = (time.monotonic() + self._seconds, results)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    async def once(
        self, key: object, seconds: float, ask: Callable[[], Awaitable[Sequence[Result]]]
    ) -> Sequence[Result]:
        """The kept results, or those that `ask` finds within `seconds`. Concurrent equal searches share one `ask`."""
        asked = (asyncio.get_running_loop(), key, seconds)
        while (kept := self.get(key)) is None:
            if (asking := self._asking.get(asked)) is None:
                kept = await self._ask(asked, ask)
                self.put(key, kept)
                break
            await asyncio.wait((asking,))
            if not asking.cancelled():  # a cancelled search has no caller left
                return asking.result()
        return kept

    async def _ask(self, asked: object, ask: Callable[[], Awaitable[Sequence[Result]]]) -> Sequence[Result]:
        asking = self._asking[asked] = asyncio.get_running_loop().create_future()
        try:
            results = await ask()
            asking.set_result(results)
        except Exception as error:
            asking.set_exception(error)
            asking.exception()  # marks it as retrieved, in case no other search waits for it
            raise
        finally:
            asking.cancel()
            del self._asking[asked]
        return results


@dataclass(frozen=True, slots=True)
class SearchEngine:
    """A service: its key, its address, and the form of its requests."""

    key: str
    """The environment variable with the key."""
    url_variable: str
    usual_url: str
    headers: Callable[[str], Mapping[str, str]]
    """Makes the headers with a key."""
    body: Callable[[str, Region], JsonObject]
    """Makes the body for a query."""
    recent: Recent = field(default_factory=Recent)

    @property
    def has_key(self) -> bool:
        return bool(os.environ.get(self.key))

    @property
    def url(self) -> str:
        return os.environ.get(self.url_variable, self.usual_url)


def _serper_body(query: str, region: Region) -> JsonObject:
    language = f"zh-{region.country}" if region.language == "zh" else region.language
    return {"q": query, "hl": language, "gl": region.country, "num": RESULTS}


def _bright_data_body(query: str, region: Region) -> JsonObject:
    market = f"{region.language}-{region.country.upper()}"
    asked = {"q": query, "mkt": market, "setLang": region.language, "brd_json": 1, "cc": region.country}
    zone = os.environ.get("BRIGHTDATA_ZONE", "serp_api1")
    return {"zone": zone, "url": f"https://www.bing.com/search?{urlencode(asked)}", "format": "raw"}


GOOGLE = SearchEngine(
    key="SERPER_API_KEY",
    url_variable="SERPER_URL",
    usual_url="https://google.serper.dev/search",
    headers=lambda key: {"X-API-KEY": key},
    body=_serper_body,
)
BING = SearchEngine(
    key="BRIGHTDATA_API_KEY",
    url_variable="BRIGHTDATA_URL",
    usual_url="https://api.brightdata.com/request",
    headers=lambda key: {"Authorization": f"Bearer {key}"},
    body=_bright_data_body,
)
ENGINES = (BING, GOOGLE)
"""In order of preference."""


def missing_engine(*engines: SearchEngine) -> str:
    """What all of these engines lack; empty if one can be used."""
    if os.environ.get(CORPUS):
        return missing_corpus(CORPUS)
    if any(engine.has_key for engine in engines):
        return ""
    keys = " or ".join(engine.key for engine in engines)
    return f"set {keys} to your key, or {CORPUS} to a file or folder of texts to search instead of the web"


class SearchToolset(RemoteToolset):
    """A toolset whose tools say `await self.find(engine, query, …)`."""

    async def find(
        self, engine: SearchEngine, query: str, *, seconds: float, region: Region | None = None
    ) -> Sequence[Result]:
        """The results, best first. Raises `ServiceUnavailable` if the search fails."""
        query = query.strip().replace('"', "")
        if os.environ.get(CORPUS):
            return found_in(await corpus_named(CORPUS), query)
        region = region or Region.of(query)
        kept = (engine.url, region, query)
        with blaming(f"the search engine at {engine.url}"):
            return await engine.recent.once(kept, seconds, lambda: self._asked(engine, query, region, seconds))

    async def find_anywhere(self, query: str, region: str | None, most: int) -> Sequence[Result]:
        """As `find`, with any engine that has a key. Raises `ToolError` if there is none, or no such region."""
        if problem := await asyncio.to_thread(missing_engine, *ENGINES):  # in a thread, since it may read a corpus
            raise ToolError(f"there is no search engine here: {problem}")
        where = Region.parse(region) if region else None
        engine = next((one for one in ENGINES if one.has_key), BING)
        found = await self.find(engine, query, seconds=SECONDS, region=where)
        return [one for _, one in distinct(found)][:most]

    async def _asked(self, engine: SearchEngine, query: str, region: Region, seconds: float) -> Sequence[Result]:
        key = os.environ.get(engine.key, "")
        headers = engine.headers(key)
        try:
            async with asyncio.timeout(seconds):
                for pause in (*_PAUSES, None):
                    answer = await self.post(engine.url, engine.body(query, region), seconds=seconds, headers=headers)
                    if answer.status != _TOO_MANY or pause is None:
                        break
                    await asyncio.sleep(pause)
        except TimeoutError:
            raise ServiceUnavailable(f"there was no answer within {seconds:g} seconds") from None
        return results_in(object_of(replace(answer, body=without(answer.body, [key]))))


def found_in(corpus: Corpus, query: str) -> Sequence[Result]:
    passages = [hit.passage for hit in corpus.search(query, RESULTS)]
    return [Result(one.title, one.url, one.text.strip(), page=one.contents.strip()) for one in passages]


def results_in(answer: JsonObject) -> Sequence[Result]:
    """The results in an answer; both services call them organic."""
    listed = answer.get("organic")
    return [_result(one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _result(said: JsonObject) -> Result:
    snippet = said.get("snippet", said.get("description"))
    return Result(*(str(one or "").strip() for one in (said.get("title", "No title"), said.get("link"), snippet)))


def distinct(results: Sequence[Result]) -> Sequence[tuple[int, Result]]:
    """Leave out empty and repeated results; the others keep their numbers."""
    first: dict[str, tuple[int, Result]] = {}
    for number, one in enumerate(results, 1):
        if one.snippet:
            first.setdefault(one.snippet, (number, one))
    return list(first.values())


def shortened(snippet: str) -> str:
    return snippet if len(snippet) <= SNIPPET else f"{snippet[:SNIPPET]}..."
