"""An allowed site, a forbidden one, and a window."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser.site import Site, chromium, serving
from toolyard.browser.shared import Visit, close_browser, open_visit


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="session")
def private() -> Iterator[Site]:
    """Also on loopback, but not allowed."""
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
async def browser(site: Site) -> AsyncIterator[None]:
    """One for all tests of a file, as in a server."""
    chromium()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLYARD_BROWSER_ALLOW", site.host)
        patch.setenv("TOOLYARD_BROWSER_SECONDS", "3")
        yield
        await close_browser()


@pytest.fixture
async def visit(browser: None) -> AsyncIterator[Visit]:
    visit = await open_visit()
    yield visit
    await visit.close()
