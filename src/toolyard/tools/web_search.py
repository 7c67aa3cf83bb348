"""`google_search` and `bing_search`: web searches, with results in verl-tool's form."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field

from toolyard.core.output import JsonObject
from toolyard.core.tool import Given, tool
from toolyard.tools.search_engines import (
    BING,
    GOOGLE,
    QUERY_MOST,
    RESULTS,
    SNIPPET,
    Query,
    Result,
    SearchToolset,
    distinct,
    missing_engine,
    shortened,
)

_FOUND_NOTHING = "No search results found."


@dataclass(frozen=True, slots=True)
class QueryForm:
    """Reads the first `<search>` tag, or else a fence marked search, or else the text after `search:` on a line."""

    patterns: Sequence[re.Pattern[str]]
    """Patterns with a closing search for it from the first opening only: a model may write thousands of openings."""
    shown: Sequence[str] = ()

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

Seconds = Annotated[float, Field(gt=0, le=600), Given()]


class GoogleSearch(SearchToolset):
    @classmethod
    def missing(cls) -> str:
        return missing_engine(GOOGLE)

    @tool(form=GOOGLE_FORM, concurrent=True)
    async def google_search(self, query: Query, timeout: Seconds = 30) -> str:  # noqa: ASYNC109  # as it is given
        """Search the web with Google and return titles, links and snippets of the best pages.

        Args:
            query: What to look for.
            timeout: Seconds to wait for the search engine.
        """
        return headed(query, pages(await self.find(GOOGLE, query, seconds=timeout)))


class BingSearch(SearchToolset):
    @classmethod
    def missing(cls) -> str:
        return missing_engine(BING)

    @tool(form=BING_FORM, concurrent=True)
    async def bing_search(self, query: Query, timeout: Seconds = 60) -> str:  # noqa: ASYNC109  # as it is given
        """Search the web with Bing and return snippets of the best pages.

        Args:
            query: What to look for.
            timeout: Seconds to wait for the search engine.
        """
        return headed(query, snippets(await self.find(BING, query, seconds=timeout)))


def headed(query: str, found: str) -> str:
    return f"Search results for '{query}':\n\n{found or _FOUND_NOTHING}"


def pages(results: Sequence[Result]) -> str:
    return "\n".join(
        f"**Page {number}**\n**Title:** {one.title}\n**Link:** {one.link}\n**Snippet:** {shortened(one.snippet)}\n"
        for number, one in distinct(results[:RESULTS])
    )


def snippets(results: Sequence[Result]) -> str:
    snippets = [one.snippet[:SNIPPET] for _, one in distinct(results)][:RESULTS]
    return "\n".join(f"Page {number}: {one}" for number, one in enumerate(snippets, 1))
