"""Every page, in both colour schemes, by axe: no serious fault."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.peers.npm import NpmPeer, installed
from tests.peers.venvs import PeerError
from tests.studio.conftest import serving

pytestmark = pytest.mark.thorough
AXE = NpmPeer("axe", {"axe-core": "4.10.3"})


@pytest.fixture(scope="module")
def axe() -> str:
    try:
        return (installed(AXE) / "node_modules" / "axe-core" / "axe.min.js").read_text()
    except (PeerError, OSError) as error:
        pytest.skip(f"axe-core cannot be had here: {error}")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: Any) -> Iterator[Page]:
    context = browser.new_context(color_scheme=request.param, reduced_motion="reduce", bypass_csp=True)
    yield context.new_page()
    context.close()


def faults(page: Page, axe: str) -> list[str]:
    page.evaluate(axe)
    found: dict[str, Any] = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{one['id']}: {one['help']}: {node['html'][:200]}: {node.get('failureSummary', '')}"
        for one in found["violations"]
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/studio/", "calls since the start"),
        ("/studio/environments", "Count to ten."),
        ("/studio/environments/counter", "0 to 49 of 1,000,000"),
        ("/studio/environments/hostile", "0 to 0 of 1"),
        ("/studio/play/counter", "Open session"),
        ("/studio/sessions", "open."),
        ("/studio/episodes", "Episodes"),
        ("/studio/nothing", "That is not possible"),
    ],
)
def test_a_page_has_no_serious_fault(page: Page, axe: str, url: str, address: str, shown: str):
    page.goto(f"{url}{address}")
    expect(page.get_by_text(shown).first).to_be_visible()
    assert faults(page, axe) == []


def test_playing_and_watching_has_no_serious_fault(page: Page, axe: str, url: str):
    page.goto(f"{url}/studio/play/counter")
    page.get_by_role("button", name="Open session").click()
    for tool in ("picture", "breaks", "add"):
        page.get_by_role("button", name=f"Call {tool}").click()
    expect(page.get_by_text("n is missing")).to_be_visible()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("button", name="Branch 2")).to_be_visible()
    assert faults(page, axe) == []
    page.goto(f"{url}/studio/sessions")
    page.locator("tbody a").first.click()
    expect(page.locator(".step").first).to_be_visible()
    assert faults(page, axe) == []


@pytest.mark.parametrize("width", [320, 390])
def test_pages_fit_a_phone(page: Page, axe: str, url: str, width: int):
    page.set_viewport_size({"width": width, "height": 700})
    for address in ("/studio/", "/studio/environments/counter", "/studio/play/counter", "/studio/sessions"):
        page.goto(f"{url}{address}")
        page.wait_for_load_state("load")
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_form_for_the_key_has_no_serious_fault(page: Page, axe: str):
    with serving("--api-key", "sesame") as url:
        page.goto(f"{url}/studio/")
        assert faults(page, axe) == []


_CONTROLS = """() => {
  const told = (one) => [one.tagName, one.getAttribute("aria-label") || one.name || "", one.getAttribute("href") || "",
    one.innerText?.trim().slice(0, 60) || ""].join(" ");
  const shown = (one) => one.checkVisibility({ visibilityProperty: true }) && !one.disabled;
  const found = document.querySelectorAll("a[href], button, input, select, textarea, summary, [role=button]");
  return [...found].filter(shown).map(told);
}"""
_FOCUSED = """() => {
  const one = document.activeElement;
  const told = [one.tagName, one.getAttribute("aria-label") || one.name || "", one.getAttribute("href") || "",
    one.innerText?.trim().slice(0, 60) || ""].join(" ");
  const style = getComputedStyle(one);
  return [told, style.outlineStyle !== "none" || style.boxShadow !== "none"];
}"""


def out_of_reach(page: Page) -> tuple[set[str], set[str]]:
    """The controls that Tab does not lead to, and those that do not show that they have the focus."""
    wanted = page.evaluate(_CONTROLS)
    assert len(wanted) > 3
    reached, unmarked = set(), set()
    for _ in range(len(wanted) + 10):
        page.keyboard.press("Tab")
        told, is_marked = page.evaluate(_FOCUSED)
        reached.add(told)
        if not is_marked and not told.startswith("BODY"):
            unmarked.add(told)
    return set(wanted) - reached, unmarked


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("/studio/", "calls since the start"),
        ("/studio/environments", "Count to ten."),
        ("/studio/environments/counter", "0 to 49 of 1,000,000"),
        ("/studio/play/counter", "Open session"),
        ("/studio/sessions", "open."),
        ("/studio/episodes", "Episodes"),
    ],
)
def test_every_control_is_reached_by_the_keyboard_and_shows_it(page: Page, url: str, address: str, shown: str):
    page.goto(f"{url}{address}")
    expect(page.get_by_text(shown).first).to_be_visible()
    assert out_of_reach(page) == (set(), set())


def test_every_control_of_an_open_session_is_reached_by_the_keyboard(page: Page, url: str):
    page.goto(f"{url}/studio/play/counter")
    page.get_by_role("button", name="Open session").click()
    page.get_by_role("button", name="Call picture").click()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("button", name="Branch 2")).to_be_visible()
    assert out_of_reach(page) == (set(), set())
    page.goto(f"{url}/studio/sessions")
    page.locator("tbody a").first.click()
    expect(page.locator(".step").first).to_be_visible()
    assert out_of_reach(page) == (set(), set())
