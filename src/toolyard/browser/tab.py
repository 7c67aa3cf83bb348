"""One page: when it stands still, what it shows, and where its elements are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from playwright.async_api import CDPSession, Error, Frame, Page, Request

from toolyard.browser import pages
from toolyard.browser.gate import AddressGate
from toolyard.browser.pages import WebPage
from toolyard.browser.views import PageView
from toolyard.core.errors import ToolError

LONGEST = 20_000
"""The most characters of a page to show at once."""
SETTLE_SECONDS = 4
"""How long to wait until a page has loaded and stands still."""
_SCRIPT_SECONDS = 8
_STILL_MS, _STILL_MOST_MS = 80, 1500
_WAITED_FOR = frozenset({"document", "script", "stylesheet", "xhr", "fetch"})
_TRIES = 5
_WORLD = "toolyard"
_SCRIPT = Path(__file__).with_name("page.js").read_text(encoding="utf-8")
_ERROR_PAGE = "chrome-error:"


class PageHung(Exception):
    """The page's scripts block everything else."""


class Tab:
    def __init__(self, page: Page, devtools: CDPSession, gate: AddressGate, answer_seconds: float) -> None:
        self.page = page
        self.crashed = False
        self._devtools = devtools
        self._gate = gate
        self._answer_seconds = answer_seconds
        self._world: int | None = None
        """The world in which page.js runs; None after the page has changed."""
        self._pending: set[Request] = set()
        self._ended = asyncio.Event()
        self._failed: Request | None = None
        self._never_loads = False
        page.on("request", self._began)
        page.on("requestfinished", self._finished)
        page.on("requestfailed", self._finished)
        page.on("framenavigated", self._navigated)
        page.on("crash", self._broke)

    @property
    def url(self) -> str:
        """The page's address, or the address that could not be opened."""
        if self.page.url.startswith(_ERROR_PAGE) and self._failed is not None:
            return self._failed.url
        return self.page.url

    async def script(self, call: str) -> Any:
        """Call a function of page.js, again if the page changes meanwhile."""
        for _ in range(_TRIES):
            try:
                async with asyncio.timeout(_SCRIPT_SECONDS):
                    return await self._evaluate(call)
            except TimeoutError:
                if self.navigating:  # no script runs meanwhile
                    raise
                raise PageHung from None
            except Error as error:
                if self.crashed or self.page.is_closed() or is_gone(error):
                    raise
                self._world = None
        raise ToolError("the page changes all the time")

    async def use(self, call: str) -> Mapping[str, Any]:
        """As `script`, for a function that may report a problem with an element."""
        found: Mapping[str, Any] = await self.script(call)
        if "problem" in found:
            raise ToolError(found["problem"])
        return found

    async def settle(self) -> bool:
        """Wait until the page has loaded and stands still. Return whether it does."""
        begun = time.monotonic()
        while (left := begun + self._patience() - time.monotonic()) > 0:
            self._ended.clear()
            try:
                async with asyncio.timeout(left):
                    if not self.navigating:
                        await self._stand_still()
                    if not self._pending:
                        return not self._never_loads
                    await self._ended.wait()
            except TimeoutError:
                continue
        await self._stop_waiting()
        return False

    def _patience(self) -> float:
        return self._answer_seconds if self.navigating else SETTLE_SECONDS

    @property
    def navigating(self) -> bool:
        """Whether the tab is loading another page."""
        return any(map(_navigates, self._pending))

    async def _stand_still(self) -> None:
        if not self._never_loads:
            await self.page.wait_for_load_state("load", timeout=0)
        await self.script(f"toolyard.quiet({_STILL_MS}, {_STILL_MOST_MS})")

    async def _stop_waiting(self) -> None:
        """Give up on what has not loaded by now, also for later actions on this page."""
        if self.navigating:
            await self.stop()
        else:
            self._never_loads = True
        self._pending.clear()

    async def stop(self) -> None:
        """Give up opening the next page."""
        await self._devtools.send("Page.stopLoading")

    async def look(self) -> PageView:
        if self.page.url.startswith(_ERROR_PAGE):
            return PageView(self.url, "", f"This page could not be opened: {self.why_failed()}.")
        seen = await self.script(f"toolyard.look({LONGEST})")
        return PageView(**{**seen, "text": seen["text"][:LONGEST]})

    async def read(self) -> WebPage:
        """The whole page, also what is out of view."""
        if self.page.url.startswith(_ERROR_PAGE):
            raise ToolError(f"{self.url} could not be opened: {self.why_failed()}")
        seen = await self.script(f"toolyard.read({pages.LONGEST}, {pages.LINKS_MOST})")
        links = [(name, url) for name, url in seen["links"]]
        return WebPage(seen["title"], seen["text"][: pages.LONGEST], links, seen["cut"])

    async def has_earlier(self) -> bool:
        """Whether there is an earlier page, apart from the empty page of a new tab."""
        history = await self._devtools.send("Page.getNavigationHistory")
        return any(entry["url"] != "about:blank" for entry in history["entries"][: history["currentIndex"]])

    async def has_later(self) -> bool:
        history = await self._devtools.send("Page.getNavigationHistory")
        return bool(len(history["entries"]) > history["currentIndex"] + 1)

    async def _evaluate(self, call: str) -> Any:
        if self._world is None:
            self._world = await self._make_world()
        answer = await self._devtools.send(
            "Runtime.evaluate",
            {"expression": call, "contextId": self._world, "awaitPromise": True, "returnByValue": True},
        )
        if "exceptionDetails" in answer:
            problem = answer["exceptionDetails"].get("exception", {}).get("description", "").partition("\n")[0]
            if "toolyard is not defined" in problem:  # the world belongs to an earlier page
                raise Error(problem)
            raise ToolError(f"the page cannot be read: {problem[:200]}")
        return answer["result"].get("value")

    async def _make_world(self) -> int:
        tree = await self._devtools.send("Page.getFrameTree")
        where = {"frameId": tree["frameTree"]["frame"]["id"], "worldName": _WORLD}
        world: int = (await self._devtools.send("Page.createIsolatedWorld", where))["executionContextId"]
        await self._devtools.send("Runtime.evaluate", {"expression": _SCRIPT, "contextId": world})
        return world

    def why_failed(self) -> str:
        """Why the last page could not be opened."""
        failed = self._failed
        if failed is None:
            return "there is no answer"
        return self._gate.problem(failed.url) or (failed.failure or "there is no answer").removeprefix("net::")

    def _began(self, request: Request) -> None:
        if request.resource_type in _WAITED_FOR:
            self._pending.add(request)

    def _finished(self, request: Request) -> None:
        self._pending.discard(request)
        self._ended.set()
        if request.failure and _navigates(request):
            self._failed = request

    def _navigated(self, frame: Frame) -> None:
        if frame == self.page.main_frame:
            self._world = None
            self._never_loads = False
            self._pending = {request for request in self._pending if not _navigates(request)}
            self._ended.set()

    def _broke(self, page: Page) -> None:
        self.crashed = True


def _navigates(request: Request) -> bool:
    """Whether the request is for a page itself, not for a part of one."""
    if not request.is_navigation_request():
        return False
    try:
        return request.frame.parent_frame is None
    except Error:  # the page does not exist yet
        return True


def is_gone(error: Error) -> bool:
    """Whether the page, the browser or its driver is closed."""
    return any(words in error.message for words in ("has been closed", "Connection closed", "Browser closed"))
