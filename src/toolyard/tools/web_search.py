"""`google_search` and `bing_search`: what the web says, through Serper and Bright Data, or a corpus in its place.

With $TOOLYARD_SEARCH_CORPUS set they need no key and no network, and answer in the same form.
"""

from __future__ import annotations

import asyncio
import logging
import os
import re
import time
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar
from urllib.parse import urlencode

from pydantic import Field

from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.tools.corpus import missing_corpus, read_corpus
from toolyard.tools.remote import RemoteToolset, json_of

log = logging.getLogger("toolyard.web_search")

CORPUS = "TOOLYARD_SEARCH_CORPUS"
RESULTS = 10
SNIPPET = 1_000
"""Characters that are shown of one result."""
QUERY_MOST = 500
_TOO_MANY = 429
_PAUSES = (1, 2)
"""Seconds before asking again a service that says that it is asked too often."""

_FOUND_NOTHING = "No search results found."
_CHINESE = re.compile("[\u4e00-\u9fff]")
_JAPANESE = re.compile("[\u3040-\u30ff]")


@dataclass(frozen=True, slots=True)
class QueryForm:
    """The first `<search>` tag, or else a fence marked search, or else what follows `search:` on a line."""

    patterns: Sequence[re.Pattern[str]]
    """Those with a closing look for it from the first opening only: a model may write openings by the thousand."""
    shown: Sequence[str] = ("error",)

    def read(self, text: str) -> JsonObject | None:
        for pattern in self.patterns:
            if (found := pattern.search(text)) and 0 < len(query := found[1].strip()) <= QUERY_MOST:
                return {"query": query}
        return None

    def answer(self, text: str, result: str) -> str:
        return f"<result>{result}</result>"


GOOGLE_FORM = QueryForm(
    [
        re.compile(r"\A(?>.*?<search>)(.*?)</search>", re.DOTALL | re.IGNORECASE),
        re.compile(r"\A(?>.*?```\s*search\s*\n)(.*?)\n```", re.DOTALL | re.IGNORECASE),
        re.compile(r"\bsearch:[ \t]*(.*)", re.IGNORECASE),
        re.compile(r"\bgoogle:[ \t]*(.*)", re.IGNORECASE),
    ]
)
BING_FORM = QueryForm(
    [
        re.compile(r"\A(?>.*?<search>)(.*?)</search>", re.DOTALL),
        re.compile(r"\A(?>.*?```\n?search\n)(.*?)\n```", re.DOTALL),
        re.compile(r"\bsearch:[ \t]*(.*)", re.IGNORECASE),
    ]
)

Query = Annotated[str, Field(min_length=1, max_length=QUERY_MOST)]
Seconds = Annotated[float, Field(gt=0, le=600), Given()]


@dataclass(frozen=True, slots=True)
class Result:
    title: str
    link: str
    snippet: str


class Recent:
    """Results of the last hour: they cost money, and the rollouts of one group ask the same."""

    def __init__(self, seconds: float = 3600, most: int = 4096) -> None:
        self._seconds = seconds
        self._most = most
        self._kept: OrderedDict[str, tuple[float, Sequence[Result]]] = OrderedDict()

    def get(self, key: str) -> Sequence[Result] | None:
        kept = self._kept.get(key)
        return kept[1] if kept is not None and kept[0] > time.monotonic() else None

    def put(self, key: str, results: Sequence[Result]) -> None:
        self._kept[key] = (time.monotonic() + self._seconds, results)
        self._kept.move_to_end(key)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)


class WebSearch(RemoteToolset):
    """What the two have in common. Each says which key it needs, and where it asks."""

    key: ClassVar[str]
    """The environment variable with the key."""
    url: ClassVar[tuple[str, str]]
    """The environment variable with the address of the service, and the address if it is not set."""
    recent: ClassVar[Recent]

    @classmethod
    def missing(cls) -> str:
        if os.environ.get(CORPUS):
            return missing_corpus(CORPUS)
        if not os.environ.get(cls.key):
            return f"set {cls.key} to your key, or {CORPUS} to a file or folder of texts to search instead of the web"
        return ""

    async def find(self, query: str, seconds: float) -> Sequence[Result]:
        """Raises `ServiceUnavailable` if that could not be found out."""
        query = query.strip().replace('"', "")
        if path := os.environ.get(CORPUS):
            return found_in(path, query)
        variable, usual = self.url
        url = os.environ.get(variable, usual)
        kept = f"{url} {query}"
        if (results := self.recent.get(kept)) is None:
            async with asyncio.timeout(seconds):
                results = results_in(await self._asked(url, query, seconds))
            self.recent.put(kept, results)
        return results

    async def _asked(self, url: str, query: str, seconds: float) -> object:
        for pause in (*_PAUSES, None):
            answer = await self.post(url, self.body(query), seconds=seconds, headers=self.headers())
            if answer.status != _TOO_MANY or pause is None:
                break
            await asyncio.sleep(pause)
        return json_of(answer)

    def body(self, query: str) -> JsonObject:
        raise NotImplementedError

    def headers(self) -> Mapping[str, str]:
        raise NotImplementedError


class GoogleSearch(WebSearch):
    key = "SERPER_API_KEY"
    url = ("SERPER_URL", "https://google.serper.dev/search")
    recent = Recent()

    @tool(form=GOOGLE_FORM, concurrent=True)
    async def google_search(self, query: Query, timeout: Seconds = 30) -> ToolOutput:  # noqa: ASYNC109  # as it is given
        """Search the web with Google and return titles, links and snippets of the best pages.

        Args:
            query: What to look for.
            timeout: Seconds to wait for the search engine.
        """
        try:
            text, metadata = pages(await self.find(query, timeout)), None
        except (ServiceUnavailable, TimeoutError) as error:
            problem = explained(error, timeout)
            log.warning("google_search: %s", problem)
            text, metadata = f"Search failed for '{query}': {problem}", {"error": problem}
        return ToolOutput(blocks=[TextBlock(text=f"Search results for '{query}':\n\n{text}")], metadata=metadata)

    def body(self, query: str) -> JsonObject:
        language, country = ("zh-cn", "cn") if is_chinese(query) else ("en", "us")
        return {"q": query, "hl": language, "gl": country, "num": RESULTS}

    def headers(self) -> Mapping[str, str]:
        return {"X-API-KEY": os.environ.get(self.key, "")}


class BingSearch(WebSearch):
    key = "BRIGHTDATA_API_KEY"
    url = ("BRIGHTDATA_URL", "https://api.brightdata.com/request")
    recent = Recent()

    @tool(form=BING_FORM, concurrent=True)
    async def bing_search(self, query: Query, timeout: Seconds = 60) -> ToolOutput:  # noqa: ASYNC109  # as it is given
        """Search the web with Bing and return snippets of the best pages.

        Args:
            query: What to look for.
            timeout: Seconds to wait for the search engine.
        """
        try:
            text = snippets(await self.find(query, timeout))
        except (ServiceUnavailable, TimeoutError) as error:
            problem = explained(error, timeout)
            log.warning("bing_search: %s", problem)
            told = f"Search for '{query}' returned no results or failed."
            return ToolOutput(blocks=[TextBlock(text=told)], metadata={"error": problem, "valid": False})
        return ToolOutput(blocks=[TextBlock(text=f"Search results for '{query}':\n\n{text}")])

    def body(self, query: str) -> JsonObject:
        market, language, country = ("zh-CN", "zh", "cn") if is_chinese(query) else ("en-US", "en", "us")
        asked = urlencode({"q": query, "mkt": market, "setLang": language, "brd_json": 1, "cc": country})
        zone = os.environ.get("BRIGHTDATA_ZONE", "serp_api1")
        return {"zone": zone, "url": f"https://www.bing.com/search?{asked}", "format": "raw"}

    def headers(self) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {os.environ.get(self.key, '')}"}


def found_in(path: str, query: str) -> Sequence[Result]:
    hits = read_corpus(path).search(query, RESULTS)
    return [Result(hit.passage.title, hit.passage.url, hit.passage.text.strip()) for hit in hits]


def results_in(answer: object) -> Sequence[Result]:
    """Pages that say something, each thing once. Both services call them organic."""
    if not isinstance(answer, dict):
        raise ServiceUnavailable(f"its answer is not an object: {str(answer)[:200]}")
    listed = answer.get("organic")
    return [_result(one) for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _result(said: JsonObject) -> Result:
    snippet = said.get("snippet", said.get("description"))
    return Result(*(str(one or "").strip() for one in (said.get("title", "No title"), said.get("link"), snippet)))


def pages(results: Sequence[Result]) -> str:
    told = [
        f"**Page {number}**\n**Title:** {one.title}\n**Link:** {one.link}\n**Snippet:** {shortened(one.snippet)}\n"
        for number, one in distinct(results[:RESULTS])
    ]
    return "\n".join(told) or _FOUND_NOTHING


def snippets(results: Sequence[Result]) -> str:
    told = [one.snippet[:SNIPPET] for _, one in distinct(results)][:RESULTS]
    return "\n".join(f"Page {number}: {one}" for number, one in enumerate(told, 1)) or _FOUND_NOTHING


def distinct(results: Sequence[Result]) -> Sequence[tuple[int, Result]]:
    """Without those that say nothing, or what another has said; the others keep their numbers."""
    first: dict[str, tuple[int, Result]] = {}
    for number, one in enumerate(results, 1):
        if one.snippet:
            first.setdefault(one.snippet, (number, one))
    return list(first.values())


def shortened(snippet: str) -> str:
    return snippet if len(snippet) <= SNIPPET else f"{snippet[:SNIPPET]}..."


def explained(error: Exception, seconds: float) -> str:
    return f"there was no answer within {seconds:g} seconds" if isinstance(error, TimeoutError) else str(error)


def is_chinese(query: str) -> bool:
    return bool(_CHINESE.search(query)) and not _JAPANESE.search(query)
