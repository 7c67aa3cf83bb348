"""The pages of one session: performs actions in them, and handles what they do by themselves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Self

from playwright.async_api import Browser, BrowserContext, Dialog, Download, Error, Page, ViewportSize
from playwright.async_api import TimeoutError as PlaywrightTimeout

from toolyard.browser.actions import (
    Action,
    Click,
    CloseTab,
    FocusTab,
    GoBack,
    GoForward,
    Goto,
    Hover,
    Look,
    NewTab,
    Press,
    Scroll,
    TypeText,
)
from toolyard.browser.addresses import AddressRefused, completed
from toolyard.browser.gate import AddressGate
from toolyard.browser.keys import copies, pastes, spelled
from toolyard.browser.pages import WebPage
from toolyard.browser.tab import PageHung, Tab, is_gone
from toolyard.browser.views import PageView
from toolyard.core.errors import BrowserLost, ToolError

SIZE = ViewportSize(width=1280, height=720)
_TABS_MOST = 8
_NOTES_MOST = 5
_KEYED_MOST = 200
"""Longer texts are inserted at once, not key by key."""
_INPUT_SECONDS = 6
_MILLISECONDS = 1000
_OK, _REFUSED = 200, 400


class Window:
    """Lives on the browser's event loop. Performs one action at a time."""

    def __init__(self, context: BrowserContext, gate: AddressGate, answer_seconds: float) -> None:
        self._context = context
        self._gate = gate
        self._answer_seconds = answer_seconds
        self._tabs: list[Tab] = []
        self._current = 0
        self._opening = 0
        """How many windows pages have asked for."""
        self._opened: list[Page] = []
        """The windows that are open, which they are once their servers have answered."""
        self._arrived = asyncio.Event()
        self._notes: list[str] = []
        self._copied = ""
        """The session's clipboard."""
        context.on("page", self._page)

    @classmethod
    async def open(cls, browser: Browser, gate: AddressGate, answer_seconds: float) -> Self:
        context = await browser.new_context(viewport=SIZE, accept_downloads=False, locale="en-US")
        context.set_default_timeout(answer_seconds * _MILLISECONDS)
        window = cls(context, gate, answer_seconds)
        await window._new_tab()
        return window

    async def close(self) -> None:
        await self._context.close()

    async def perform(self, action: Action) -> PageView:
        """Perform the action, then look at the page. Raises `ToolError` if that fails."""
        async with self._explained():
            await self._drop_closed()
            await self._do_in_time(action)
            return await self._look()

    async def read(self, url: str) -> WebPage:
        """Read the whole page at this address. Raises `ToolError`, also when its server refuses."""
        async with self._explained():
            status = await self._goto(url)
            if status >= _REFUSED:
                raise ToolError(f"{url} answered {status}")
            await self._tab.settle()
            if self._tab.url == "about:blank":
                raise ToolError(f"{url} is not a page: {'; '.join(self._notes) or 'it shows nothing'}")
            return await self._tab.read()

    @asynccontextmanager
    async def _explained(self) -> AsyncIterator[None]:
        """Turn failures into `ToolError` for the agent, or into `BrowserLost` if the browser is gone."""
        try:
            yield
        except TimeoutError:
            await self._tab.stop()
            raise ToolError("the page is about to be replaced by another, which does not answer") from None
        except (PageHung, Error) as error:
            if self._is_lost(error):
                raise BrowserLost("the browser has ended, and the session's pages with it") from error
            if isinstance(error, PageHung) or self._tab.crashed:
                await self._give_up_tab()
                said = "broke down" if isinstance(error, Error) else "stopped responding"
                raise ToolError(f"the page {said} and was closed") from error
            raise ToolError(_first_line(error)) from error

    def _is_lost(self, error: Exception) -> bool:
        """Whether the browser is gone, not only this page."""
        browser = self._context.browser
        if browser is None or not browser.is_connected():
            return True
        return isinstance(error, Error) and is_gone(error) and not self._tab.page.is_closed()

    @property
    def _tab(self) -> Tab:
        return self._tabs[self._current]

    async def _do_in_time(self, action: Action) -> None:
        """Limit the time of the action: mouse and keyboard wait for the page's own handlers."""
        navigates = isinstance(action, Goto | GoBack | GoForward)  # these have time limits of their own
        try:
            async with asyncio.timeout(None if navigates else _INPUT_SECONDS):
                await self._do(action)
        except TimeoutError:
            if self._tab.navigating:
                raise
            raise PageHung from None

    async def _do(self, action: Action) -> None:
        match action:
            case Look():
                return
            case Goto(url, new_tab):
                await self._goto(url, new_tab)
            case Click(element):
                await self._click(element)
            case Hover(element):
                place = await self._tab.use(f"toolyard.point({element})")
                await self._tab.page.mouse.move(place["x"], place["y"])
            case TypeText(element, text, enter):
                await self._type(element, text, enter)
            case Press(keys):
                await self._press(spelled(keys))
            case Scroll(direction):
                await self._tab.script(f"toolyard.scroll({1 if direction == 'down' else -1})")
            case GoBack():
                await self._go_back()
            case GoForward():
                await self._go_forward()
            case NewTab():
                await self._new_tab()
            case FocusTab(index):
                await self._focus(index)
            case CloseTab():
                await self._close_tab()

    async def _goto(self, url: str, new_tab: bool = False) -> int:
        """Open a page, and return its server's status."""
        url = completed(url)
        try:
            await self._gate.addresses.check(url)
        except AddressRefused as error:
            raise ToolError(str(error)) from None
        if new_tab:
            await self._new_tab()
        try:
            answer = await self._tab.page.goto(url, wait_until="commit")
        except PlaywrightTimeout:
            await self._tab.stop()
            raise ToolError(f"{url} did not answer in {self._answer_seconds:g} seconds") from None
        except Error as error:
            if "Download is starting" in str(error):
                return _OK
            if "net::ERR_" not in str(error):
                raise
            raise ToolError(f"{url} could not be opened: {self._tab.why_failed()}") from None
        return answer.status if answer is not None else _OK

    async def _click(self, element: int) -> None:
        place = await self._tab.use(f"toolyard.aim({element})")
        if "x" in place:
            await self._tab.page.mouse.click(place["x"], place["y"])

    async def _type(self, element: int, text: str, enter: bool) -> None:
        keyboard = self._tab.page.keyboard
        field = await self._tab.use(f"toolyard.fill({element}, {json.dumps(text)})")
        if "ready" in field:
            if not text:
                await keyboard.press("Delete")
            elif len(text) > _KEYED_MOST:
                await keyboard.insert_text(text)
            else:
                await keyboard.type(text)
        if enter:
            await keyboard.press("Enter")

    async def _press(self, keys: str) -> None:
        """Press keys. Paste only from the session's own clipboard: all sessions share the browser's."""
        keyboard = self._tab.page.keyboard
        if pastes(keys):
            if self._copied:
                await keyboard.insert_text(self._copied)
            return
        if copies(keys):
            self._copied = await self._tab.script("toolyard.selected()") or self._copied
        await keyboard.press(keys)

    async def _go_back(self) -> None:
        if await self._tab.has_earlier():
            await self._tab.page.go_back(wait_until="commit")
        elif len(self._tabs) > 1:
            await self._close_tab()
        else:
            raise ToolError("there is no page before this one")

    async def _go_forward(self) -> None:
        if not await self._tab.has_later():
            raise ToolError("there is no page after this one")
        await self._tab.page.go_forward(wait_until="commit")

    async def _new_tab(self) -> None:
        if len(self._tabs) >= _TABS_MOST:
            raise ToolError(f"there are {_TABS_MOST} tabs, and no more can be opened")
        await self._adopt(await self._context.new_page())

    async def _focus(self, index: int) -> None:
        if index >= len(self._tabs):
            raise ToolError(f"there is no tab {index}; there are {len(self._tabs)}, from 0")
        self._current = index
        await self._tab.page.bring_to_front()

    async def _close_tab(self) -> None:
        await self._tab.page.close()
        await self._drop_closed()

    async def _give_up_tab(self) -> None:
        """Close the tab of a page that does not answer, without running its closing scripts."""
        tab = self._tabs.pop(self._current)
        self._current = 0
        await tab.page.close()
        await self._drop_closed()

    async def _look(self) -> PageView:
        """Wait until everything stands still, and show the current page, or one that it opened meanwhile."""
        settled = await self._tab.settle()
        if await self._follow():
            settled = await self._tab.settle()
        await self._drop_closed()
        view = await self._tab.look()
        notes = [*self._notes, *(["the page is still loading"] if not settled else [])]
        self._notes.clear()
        tabs = [tab.url for tab in self._tabs] if len(self._tabs) > 1 else ()
        return replace(view, notes=notes, tabs=tabs, tab=self._current)

    async def _follow(self) -> bool:
        """Show the last page that was opened meanwhile. Return whether there is one."""
        await self._await_opening()
        pages = [
            page for page in self._opened if not page.is_closed() and all(page is not tab.page for tab in self._tabs)
        ]
        self._opened.clear()
        for page in pages:
            if len(self._tabs) >= _TABS_MOST:
                self._note(f"a new tab was refused, because there are {_TABS_MOST}")
                await page.close()
                continue
            await self._adopt(page)
            self._note("a new tab was opened, and is shown now; go back to return")
        return bool(pages)

    async def _await_opening(self) -> None:
        try:
            async with asyncio.timeout(self._answer_seconds):
                while len(self._opened) < self._opening:
                    self._arrived.clear()
                    await self._arrived.wait()
        except TimeoutError:
            self._note(f"a new tab has not been answered in {self._answer_seconds:g} seconds")
        self._opening = 0

    async def _adopt(self, page: Page) -> None:
        page.on("dialog", self._dialog)
        page.on("download", self._download)
        devtools = await self._context.new_cdp_session(page)
        devtools.on("Page.windowOpen", self._asked_for_window)
        await devtools.send("Page.enable")
        self._tabs.append(Tab(page, devtools, self._gate, self._answer_seconds))
        self._current = len(self._tabs) - 1

    async def _drop_closed(self) -> None:
        """Drop pages that closed themselves, and keep at least one."""
        shown = self._tabs[self._current] if self._current < len(self._tabs) else None
        self._tabs = [tab for tab in self._tabs if not tab.page.is_closed()]
        if shown in self._tabs:
            self._current = self._tabs.index(shown)
            return
        self._current = len(self._tabs) - 1
        if not self._tabs:
            await self._new_tab()

    def _note(self, text: str) -> None:
        if len(self._notes) < _NOTES_MOST:
            self._notes.append(text)

    def _asked_for_window(self, event: Mapping[str, Any]) -> None:
        self._opening += 1

    def _page(self, page: Page) -> None:
        self._opened.append(page)
        self._arrived.set()

    async def _dialog(self, dialog: Dialog) -> None:
        if dialog.type == "beforeunload":
            await dialog.accept()
            return
        self._note(f"the page showed a dialog, which was dismissed: {dialog.type} {dialog.message[:500]!r}")
        await dialog.dismiss()

    def _download(self, download: Download) -> None:
        self._note(f"a download was refused: {download.suggested_filename[:200]!r}")


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0][:500]
