"""Pages of episodes for everybody and from everywhere: axe in both colour schemes, on phones, behind gateways."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from benchmarks.large_store import Special, fill
from tests.studio.conftest import serving
from tests.studio.test_accessibility import axe, faults
from tests.studio.test_several import KEY, log_in
from toolyard import Client

pytestmark = pytest.mark.thorough
__all__ = ["axe"]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Special]]:
    path = tmp_path_factory.mktemp("stores") / "runs.db"
    special = fill(path, episodes=300, steps=6000, result=10_000)
    with serving("--record", str(path)) as url:
        yield f"{url}/studio", special


@pytest.fixture(params=["light", "dark"])
def coloured(browser: Browser, request: Any) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, reduced_motion="reduce", bypass_csp=True)
    yield context.new_page()
    context.close()


def addresses(special: Special) -> list[tuple[str, str]]:
    return [
        ("episodes", "tr[data-id]"),
        ("episodes?run=nobody", "#none p"),
        (f"episodes/{special.long}", "article"),
        (f"episodes/{special.large}", "article .rest"),
        (f"episodes/{special.images}", "article img"),
        (f"episodes/{special.root}", "#near li"),
        (f"compare?a={special.root}&b={special.images}", ".pair-of-steps"),
    ]


def test_no_page_of_episodes_has_a_serious_fault(coloured: Page, axe: str, large: tuple[str, Special]):
    url, special = large
    for address, shown in addresses(special):
        coloured.goto(f"{url}/{address}")
        expect(coloured.locator(shown).first).to_be_visible()
        coloured.wait_for_load_state("networkidle")
        assert faults(coloured, axe) == []
    coloured.goto(f"{url}/episodes/{special.root}")
    for key in ("?", "p"):
        expect(coloured.locator("article").first).to_be_visible()
        coloured.keyboard.press(key)
        expect(coloured.get_by_role("dialog")).to_be_visible()
        assert faults(coloured, axe) == []
        coloured.keyboard.press("Escape")


@pytest.mark.parametrize("width", [320, 390])
def test_pages_of_episodes_fit_a_phone(page: Page, large: tuple[str, Special], width: int):
    url, special = large
    page.set_viewport_size({"width": width, "height": 700})
    for address, shown in addresses(special):
        page.goto(f"{url}/{address}")
        expect(page.locator(shown).first).to_be_visible()
        page.wait_for_load_state("networkidle")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, address


def test_gateways_with_a_key_share_a_store_and_play_on_from_it(page: Page, tmp_path):
    with serving("--gateways", "2", "--api-key", KEY, "--record", str(tmp_path / "runs.db")) as url:
        with Client(url, api_key=KEY) as client:
            for _ in range(6):
                with client.environments.get("counter").session(split="test", index=0) as session:
                    session.call_tool("add", {"n": 2})
        log_in(page, url, "/studio/episodes")
        expect(page.locator("tr[data-id]")).to_have_count(6, timeout=15_000)
        page.locator("tr[data-id] a.open").first.click()
        page.locator("#step-1").hover()
        for _ in range(3):  # whichever gateway opens the session
            page.get_by_role("button", name="Play from step 1").click()
            page.get_by_role("dialog").get_by_role("button", name="Open the session").click()
            page.wait_for_url(re.compile("/studio/play/counter"))
            expect(page.get_by_role("log")).to_contain_text("add")
            page.go_back()
            page.locator("#step-1").hover()
