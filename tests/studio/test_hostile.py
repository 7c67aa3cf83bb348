"""What tools return is text or an image, and never more: no script of theirs runs, and no request is made."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Request, expect

from tests.studio.conftest import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture
def asked(page: Page, url: str) -> list[str]:
    """What the page asked for, beside Studio's own."""
    asked: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith(f"{url}/studio/"):
            asked.append(request.url)

    page.on("request", note)
    return asked


def test_a_hostile_session_shows_as_text(page: Page, asked: list[str], url: str):
    page.goto(f"{url}/studio/environments/hostile")
    expect(page.get_by_text("<script>document.title = 'caught'</script>")).to_be_visible()
    expect(page.get_by_text("0 to 0 of 1")).to_be_visible()
    page.get_by_role("link", name="Play", exact=True).click()
    page.get_by_role("button", name="Open session").click()
    page.get_by_role("button", name="Call say").click()
    log = page.get_by_role("log")
    for words in ("<script>document.title='caught'</script>", "ESC[31mred", "U+202Egnp.exe", "U+200Bzero", "U+0000"):
        expect(log).to_contain_text(words)
        expect(page.locator(".prompt")).to_contain_text(words)
    expect(page.get_by_role("button", name="Call <i>U+202Etool</i>")).to_be_visible()
    page.get_by_label("<b>U+202Ex</b>", exact=True).fill("x")
    page.get_by_label("__proto__", exact=True).fill("1")
    page.get_by_role("button", name="Call <i>U+202Etool</i>").click()
    expect(log.locator(".step")).to_have_count(2)
    page.get_by_role("button", name="Call drawing").click()
    expect(log).to_contain_text("An image that browsers do not show safely")
    expect(log).to_contain_text("its data is broken")
    page.goto(f"{url}/studio/sessions")
    page.locator("tbody a").first.click()
    expect(page.get_by_role("log")).to_contain_text("ESC[31mred")
    assert "caught" not in page.title()
    assert page.locator("main script, main a[href^='javascript'], main img[onerror]").count() == 0
    assert asked == []


def test_a_line_of_five_megabytes_is_cut_and_the_rest_is_fetched(page: Page, url: str):
    page.goto(f"{url}/studio/play/hostile")
    page.get_by_role("button", name="Open session").click()
    page.get_by_role("button", name="Call shout").click()
    log = page.get_by_role("log")
    rest = log.locator(".rest")
    expect(rest).to_contain_text("8,000 of ")
    shown = log.locator("pre")
    assert len(shown.inner_text()) < 20_000
    rest.get_by_role("button", name="Show more").click()
    expect(rest).to_contain_text("58,000 of ")
    assert shown.evaluate("pre => [...pre.textContent].length") == 58_000
    assert shown.evaluate("pre => pre.textContent.startsWith('x😀yx😀y') && !pre.textContent.includes('\\ufffd')")
    with page.expect_download() as saving:
        rest.get_by_role("link", name="Save all of it").click()
    assert saving.value.suggested_filename == "result.txt"
    assert page.evaluate("1 + 1") == 2
