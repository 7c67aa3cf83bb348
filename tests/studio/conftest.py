"""A server as a person starts it, and a browser that looks at it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.browser.site import chromium
from tests.command import TOOLYARD, WarmCommand

WORLD = Path(__file__).with_name("world.py")
SECONDS = 15_000.0
"""Milliseconds, as playwright counts, in which something has to show."""
expect.set_options(timeout=SECONDS)


@contextmanager
def serving(*flags: str, **variables: str) -> Iterator[str]:
    """`toolyard serve`, and its address."""
    command = WarmCommand([TOOLYARD, "serve", str(WORLD), "--port", "0", *flags], env=variables)
    try:
        command.until("Stop with Ctrl-C", 15)
        yield command.until(r"http://127\.0\.0\.1:\d+").group()
    finally:
        command.process.terminate()
        command.wait()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For tests that are plain functions: playwright keeps an event loop running in this thread meanwhile."""
    path = chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page on which no error may happen."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(SECONDS)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda said: problems.append(said.text) if "Content Security Policy" in said.text else None)
    yield page
    context.close()
    assert problems == []
