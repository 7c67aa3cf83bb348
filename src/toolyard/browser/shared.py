"""One browser for all sessions of a server. It starts with the first and ends some time after the last.

A thread with its own event loop drives it: pages do not delay the server, and the browser can close in order after the
server's loop has ended.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
import threading
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any, TypeVar

from playwright.async_api import Browser as Chromium
from playwright.async_api import Error, Playwright, async_playwright

from toolyard.browser.actions import Action
from toolyard.browser.chromium import BrowserSettings, Home
from toolyard.browser.gate import AddressGate
from toolyard.browser.pages import WebPage
from toolyard.browser.views import PageView
from toolyard.browser.window import Window
from toolyard.core.errors import BrowserLost, BrowserUnavailable

log = logging.getLogger("toolyard.browser")

T = TypeVar("T")

_IDLE_SECONDS = 60
"""How long the browser stays open without any session."""
_START_SECONDS = 30
_CLOSE_SECONDS = 5
_STOP_SECONDS = 20
_ENDED = "the browser has ended, and the session's pages with it"


class Visit:
    """The window of one session, as used on the server's loop."""

    def __init__(self, browser: SharedBrowser, window: Window) -> None:
        self._browser = browser
        self._window = window

    async def perform(self, action: Action) -> PageView:
        """Raises `ToolError` for what the agent should read, and `BrowserLost` when its pages are gone."""
        return await self._browser.run(self._window.perform(action))

    async def read(self, url: str) -> WebPage:
        """Read a whole page. Raises as `perform` does."""
        return await self._browser.run(self._window.read(url))

    async def close(self) -> None:
        await self._browser.close_window(self._window)


class SharedBrowser:
    """Chromium, its driver and its gate, in a thread."""

    def __init__(self, settings: BrowserSettings) -> None:
        self.settings = settings
        self.started: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.stopped: concurrent.futures.Future[None] = concurrent.futures.Future()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end: asyncio.Event | None = None
        self._chromium: Chromium | None = None
        self._gate = AddressGate(settings.addresses)
        self._windows = 0
        self._idle: asyncio.TimerHandle | None = None
        threading.Thread(target=self._drive, name="toolyard-browser", daemon=True).start()

    @property
    def usable(self) -> bool:
        return not self.stopped.done() and not (self._end is not None and self._end.is_set())

    async def open_window(self) -> Visit:
        opening = self._begin(self._open_window())
        try:
            return Visit(self, await self._outcome(asyncio.shield(asyncio.wrap_future(opening))))
        except asyncio.CancelledError:  # the window may have opened just before its caller was cancelled
            opening.add_done_callback(self._close_unwanted)
            raise

    async def close_window(self, window: Window) -> None:
        """Close a window, even if the caller is cancelled."""
        with suppress(BrowserLost):  # then it is closed
            closing = self._begin(self._close_window(window))
            await self._outcome(asyncio.shield(asyncio.wrap_future(closing)))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the browser's loop."""
        return await self._outcome(asyncio.wrap_future(self._begin(work)))

    def _begin(self, work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
        if not self.usable or self._loop is None:
            work.close()
            raise BrowserLost(_ENDED)
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def _outcome(self, begun: Awaitable[T]) -> T:
        try:
            return await begun
        except BrowserLost:
            self.stop()
            raise
        except asyncio.CancelledError:
            if (current := asyncio.current_task()) is not None and current.cancelling():
                raise
            raise BrowserLost(_ENDED) from None  # the browser's loop has ended

    def _close_unwanted(self, opened: concurrent.futures.Future[Window]) -> None:
        if not opened.cancelled() and opened.exception() is None:
            with suppress(BrowserLost, RuntimeError):  # then it is closed
                self._begin(self._close_window(opened.result()))

    def stop(self) -> None:
        """End the browser, from any thread; `stopped` is done when nothing is left."""
        if self._loop is not None and self._end is not None and not self.stopped.done():
            with suppress(RuntimeError):  # the browser's loop has just ended by itself
                self._loop.call_soon_threadsafe(self._end.set)

    def _drive(self) -> None:
        try:
            asyncio.run(self._live())
        except Exception as error:
            log.warning("the browser: %s", error)
            if not self.started.done():
                self.started.set_exception(BrowserUnavailable(f"the browser could not be started: {_said(error)}"))
        finally:
            self.stopped.set_result(None)

    async def _live(self) -> None:
        self._loop, self._end = asyncio.get_running_loop(), asyncio.Event()
        async with AsyncExitStack() as last_first:
            await last_first.enter_async_context(self._gate)
            async with asyncio.timeout(_START_SECONDS):
                driver = await last_first.enter_async_context(async_playwright())
                home = Home()  # made late: until Chromium's launcher runs, only this process can remove it
                last_first.push_async_callback(home.close)
                self._chromium = await self._launch(driver, home)
            last_first.push_async_callback(self._close_chromium)
            self._chromium.on("disconnected", self._disconnected)
            self._rest()
            self.started.set_result(None)
            await self._end.wait()

    async def _launch(self, driver: Playwright, home: Home) -> Chromium:
        chromium = self.settings.chromium
        sandboxed = await home.can_sandbox(chromium)
        command = home.command(chromium, proxy=self._gate.port, sandboxed=sandboxed)
        started = await driver.chromium.launch(
            executable_path=sys.executable,
            args=command,
            ignore_default_args=True,
            env=home.environment(),
            artifacts_dir=str(home.artifacts),
            handle_sigint=False,
            handle_sigterm=False,
            handle_sighup=False,
        )
        log.info("browser: Chromium %s as user %d", started.version, home.user)
        if not sandboxed:
            log.warning("Chromium runs without its own sandbox: this host does not let user %d have one", home.user)
        return started

    async def _close_chromium(self) -> None:
        assert self._chromium is not None
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._chromium.close()
        except (TimeoutError, Error) as error:
            log.warning("the browser is killed, since it does not close: %s", error)

    def _disconnected(self, chromium: Chromium) -> None:
        assert self._end is not None
        if not self._end.is_set():
            log.warning("the browser has ended by itself")
            self._end.set()

    async def _open_window(self) -> Window:
        """Open a window. It counts as long as the browser has it, even if its session is gone."""
        assert self._chromium is not None
        if self._windows >= self.settings.windows:
            raise BrowserUnavailable(
                f"the browser has a window for each of {self._windows} sessions, and no more are allowed"
            )
        if self._idle is not None:
            self._idle.cancel()
        self._windows += 1
        try:
            return await Window.open(self._chromium, self._gate, self.settings.answer_seconds)
        except Error as error:
            self._windows -= 1
            raise BrowserLost(f"the browser opens no window: {_said(error)}") from error

    async def _close_window(self, window: Window) -> None:
        try:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await window.close()
        except (TimeoutError, Error) as error:
            log.warning("a window does not close: %s", error)
        self._windows -= 1
        self._rest()

    def _rest(self) -> None:
        """End the browser if no window opens for a while."""
        assert self._loop is not None
        assert self._end is not None
        if self._idle is not None:
            self._idle.cancel()
        if self._windows <= 0:
            self._idle = self._loop.call_later(_IDLE_SECONDS, self._end.set)


def _said(error: Exception) -> str:
    """The gist of an error: a browser that does not start fails at length."""
    lines = str(error).splitlines() or [type(error).__name__]
    written = [line.partition("[err]")[2].strip() for line in lines if "[err]" in line]
    return " ".join([lines[0], *written[-3:]])[:500]


class _Keeper:
    """Keeps one browser for an event loop, and ends it with the loop at the latest."""

    def __init__(self) -> None:
        self.browser: SharedBrowser | None = None
        self._keeping: asyncio.Task[None] | None = None

    async def get(self) -> SharedBrowser:
        if self.browser is None or not self.browser.usable:
            self.browser = SharedBrowser(BrowserSettings.read())
            self._keeping = asyncio.create_task(self._keep(self.browser))
        browser = self.browser
        await asyncio.shield(asyncio.wrap_future(browser.started))
        return browser

    async def _keep(self, browser: SharedBrowser) -> None:
        stopped = asyncio.wrap_future(browser.stopped)
        try:
            await asyncio.shield(stopped)
        finally:
            browser.stop()
            await asyncio.wait((stopped,), timeout=_STOP_SECONDS)


_keepers: dict[asyncio.AbstractEventLoop, _Keeper] = {}


async def open_visit() -> Visit:
    """Open a window in this server's browser; the caller closes it."""
    for ended in [loop for loop in _keepers if loop.is_closed()]:
        del _keepers[ended]
    keeper = _keepers.setdefault(asyncio.get_running_loop(), _Keeper())
    try:
        return await (await keeper.get()).open_window()
    except BrowserLost:  # the browser ended between two sessions: take the next one
        return await (await keeper.get()).open_window()


async def close_browser() -> None:
    """End the browser of this event loop now, instead of some time after its last session."""
    keeper = _keepers.pop(asyncio.get_running_loop(), None)
    if keeper is not None and keeper.browser is not None:
        keeper.browser.stop()
        await asyncio.wait((asyncio.wrap_future(keeper.browser.stopped),), timeout=_STOP_SECONDS)
