"""`WebEnv`: reads web pages as text, and searches and opens the results at once. `WebSearch`: only the search.

It reads pages with Chromium if there is one, or else over plain HTTP; $TOOLYARD_WEB_READER overrides this.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Annotated

from pydantic import Field

from toolyard.browser.chromium import BrowserSettings, wrong_settings
from toolyard.browser.chromium import missing as missing_chromium
from toolyard.browser.pages import WebPage
from toolyard.core.errors import ToolError
from toolyard.core.tool import tool
from toolyard.tools.plain_pages import load_page
from toolyard.tools.search_engines import (
    ENGINES,
    RESULTS,
    Query,
    Result,
    SearchToolset,
    missing_engine,
    shortened,
)

with suppress(ImportError):  # an extra
    from toolyard.browser.shared import open_visit

READER = "TOOLYARD_WEB_READER"
CHROMIUM, HTTP = "chromium", "http"
FEW = 3
"""How many results a search returns by default."""


class WebEnv(SearchToolset):
    """Reads and searches the web. It keeps no state."""

    prefixed = True

    @classmethod
    def missing(cls) -> str:
        match reader():
            case "chromium":
                return missing_chromium()
            case "http":
                return wrong_settings()
            case other:
                return f"{READER} is {other!r}; it must be {CHROMIUM} or {HTTP}"

    @tool(concurrent=True)
    async def browse_website(self, url: str, goals_to_browse: str) -> str:
        """Open a web page and return its text, and after that the links on it.

        Args:
            url: The address of the page, with http or https.
            goals_to_browse: What you want to find on the page, for the model that sums it up for you.
        """
        return (await read_page(url)).told()

    @tool(concurrent=True)
    async def search_and_browse(
        self,
        search_query: Query,
        goals_to_browse: str,
        region: str | None = None,
        num_results: Annotated[int, Field(ge=1, le=RESULTS)] = FEW,
    ) -> Sequence[Mapping[str, str]]:
        """Search the web, open the best pages, and return the text of each.

        Args:
            search_query: What to look for.
            goals_to_browse: What you want to find on the pages, for the model that sums them up for you.
            region: Language and country to search in, such as en-US, zh-CN or de-DE.
            num_results: How many pages to open.
        """
        found = await self.find_anywhere(search_query, region, num_results)
        if not found:  # clients rely on a result
            return [_item("No results", "", f"No page was found for {search_query!r}.")]
        opened = await asyncio.gather(*map(_opened, found), return_exceptions=True)  # all end, even if one fails
        return [_outcome(one) for one in opened]


class WebSearch(SearchToolset):
    """The ToolServer's search, with any engine that has a key."""

    @classmethod
    def missing(cls) -> str:
        return missing_engine(*ENGINES)

    @tool(concurrent=True)
    async def bing_search(self, query: Query, region: str | None = None) -> Sequence[Mapping[str, str]]:
        """Search the web and return addresses, names and snippets of the best pages, but not the pages themselves.

        Args:
            query: What to look for.
            region: Language and country to search in, such as en-US, zh-CN or de-DE.
        """
        found = await self.find_anywhere(query, region, FEW)
        return [{"url": one.link, "name": one.title, "snippet": shortened(one.snippet)} for one in found]


async def _opened(result: Result) -> Mapping[str, str]:
    try:
        page = result.page or (await read_page(result.link)).told()
    except ToolError as error:
        page = f"This page could not be opened: {error}."
    return _item(result.title, shortened(result.snippet), page)


def _outcome(one: Mapping[str, str] | BaseException) -> Mapping[str, str]:
    if isinstance(one, BaseException):
        raise one
    return one


def _item(name: str, snippet: str, page: str) -> Mapping[str, str]:
    return {"name": name, "snippet": snippet, "page": page}


async def read_page(url: str) -> WebPage:
    """Read a page. Raises `ToolError` for the agent, and `BrowserError` if the browser fails."""
    if reader() == HTTP:
        return await load_page(url, BrowserSettings.read())
    visit = await open_visit()
    try:
        return await visit.read(url)
    finally:
        await visit.close()


def reader() -> str:
    return os.environ.get(READER) or (HTTP if missing_chromium() else CHROMIUM)
