"""What the forms of tools can say, and what pages tell of parameters, tools and names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

import httpx2
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.studio.conftest import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture
def kinds(page: Page, url: str) -> Page:
    page.goto(f"{url}/studio/play/kinds")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("button", name="Call silent")).to_be_visible()
    return page


def form(page: Page, tool: str) -> Locator:
    return page.locator("form").filter(has=page.get_by_role("button", name=f"Call {tool}", exact=True))


def fill(page: Page, tool: str, fields: Mapping[str, str]) -> None:
    for name, value in fields.items():
        field = form(page, tool).get_by_label(name, exact=True)
        if field.evaluate("field => field.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)
    form(page, tool).get_by_role("button", name=f"Call {tool}", exact=True).click()


@pytest.mark.parametrize(
    ("tool", "fields", "got"),
    [
        ("nulls", {"choice": "null", "flag": "null"}, "(None, None, None, None)"),
        ("nulls", {"number": "null", "text": "x", "choice": "b", "flag": "false"}, "(None, 'x', 'b', False)"),
        ("defaults", {}, "(3, True, None)"),
        ("defaults", {"number": "null", "flag": "null", "point": "null"}, "(None, None, None)"),
    ],
)
def test_null_can_be_said_wherever_a_tool_takes_it(kinds: Page, tool: str, fields: dict[str, str], got: str):
    fill(kinds, tool, fields)
    expect(kinds.get_by_role("log")).to_contain_text(got)


def test_a_field_says_what_fits_it(kinds: Page):
    shapes = form(kinds, "shapes")
    for words in ('such as {"x":1,"label":"…"}', "such as [1]", "at least 1; at most 10; optional, 5 if left out"):
        expect(shapes).to_contain_text(words)
    expect(form(kinds, "nulls")).to_contain_text("whole number; null if left empty")
    expect(form(kinds, "defaults")).to_contain_text("optional, 3 if left out; or null")
    fill(kinds, "shapes", {"point": '{"x":1,"label":"…"}', "colour": '"green"', "sizes": "[1]"})
    expect(kinds.get_by_role("log")).to_contain_text("Point(x=1, label='…'), <Colour.green: 'green'>, [1], 5")


def test_an_empty_log_and_an_empty_result_are_told_in_words(kinds: Page):
    log = kinds.get_by_role("log")
    expect(log.get_by_text("No call yet.")).to_be_visible()
    form(kinds, "silent").get_by_role("button").click()
    expect(log).to_contain_text("An empty text.")
    expect(log.get_by_text("No call yet.")).to_be_hidden()


def test_the_result_of_a_call_comes_into_view_however_long_prompt_and_log_are(kinds: Page):
    button, steps = form(kinds, "silent").get_by_role("button"), kinds.locator(".step")
    for number in range(1, 9):
        button.click()
        expect(steps).to_have_count(number)
    kinds.evaluate("scrollTo(0, 0)")
    expect(steps.last).not_to_be_in_viewport()
    button.click()
    expect(steps).to_have_count(9)
    expect(steps.last).to_be_in_viewport()


def test_the_keyboard_goes_on_where_a_session_opens_and_where_it_ends(page: Page, url: str):
    page.goto(f"{url}/studio/play/kinds")
    page.get_by_role("button", name="Open session").press("Enter")
    expect(page.get_by_role("heading", name="Tools")).to_be_focused()
    page.get_by_role("button", name="Close session").press("Enter")
    expect(page.get_by_role("button", name="Open session")).to_be_focused()


def test_the_page_of_an_environment_tells_what_each_parameter_takes(page: Page, url: str):
    page.goto(f"{url}/studio/environments/kinds")
    for words in (
        "number integer or null",
        "text string or null",
        'choice "a" | "b" or null',
        "number integer, 3 if left out",
        "point Point",
        'colour "red" | "green"',
        "sizes list of integer",
    ):
        expect(page.locator(".parameters dt", has_text=words).first).to_be_visible()
    about = page.locator(".about").inner_text()
    assert "that its author broke to fit an editor.\n\n- one\n- two" in about


def test_characters_that_hide_or_turn_names_are_shown_by_theirs(page: Page, url: str):
    for address in ("", "environments", "environments/unseen"):
        page.goto(f"{url}/studio/{address}")
        main = page.locator("main")
        expect(main).to_contain_text("Begins U+202EbackU+202C and has U+200BnothingESC[31m.")
    expect(main).to_contain_text("Look U+2066here.")
    expect(page.get_by_label("Split")).to_contain_text("teU+202Est")
    page.get_by_role("link", name="Task 0").click()
    expect(page.get_by_label("Split")).to_contain_text("teU+202Est")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("button", name="Call look")).to_be_visible()
    opened = {"env_name": "unseen", "split": "te\u202est", "index": 0}
    # Headers hold bytes: this is how a client's own name of a session gets here.
    headers = {b"x-session-id": b"back\x9bwards"}
    assert httpx2.post(f"{url}/create", json=opened, headers=headers).status_code == 200
    page.goto(f"{url}/studio/sessions")
    page.get_by_role("link", name="backU+009Bwards").click()
    expect(page.get_by_role("heading", name="backU+009Bwards")).to_be_visible()
    page.goto(f"{url}/studio/nothing%C2%9Bhere")
    expect(page.locator(".problem").last).not_to_contain_text("\x9b")


@pytest.mark.parametrize("width", [320, 390])
def test_a_phone_shows_every_link_of_the_bar(page: Page, url: str, width: int):
    page.set_viewport_size({"width": width, "height": 700})
    page.goto(f"{url}/studio/")
    rights = page.locator("nav a").evaluate_all("links => links.map(link => link.getBoundingClientRect().right)")
    assert len(rights) == 4
    assert max(rights) <= width


def test_a_filter_that_no_session_matches_says_so(kinds: Page, url: str):
    kinds.goto(f"{url}/studio/sessions")
    expect(kinds.locator("tbody tr").first).to_be_visible()
    kinds.get_by_label("Filter").fill("no such session")
    expect(kinds.locator("#said")).to_contain_text(re.compile(r"open\. None of them match the filter\."))
    expect(kinds.locator("table")).to_be_hidden()
    kinds.get_by_label("Filter").fill("kinds")
    expect(kinds.locator("tbody tr").first).to_be_visible()


def test_a_long_task_that_cannot_be_fetched_says_why(page: Page):
    with serving() as url:
        page.goto(f"{url}/studio/environments/kinds")
        expect(page.get_by_role("link", name="Task 0")).to_be_visible()
    page.get_by_role("button", name="All 411 characters").click()
    expect(page.locator("#told")).to_contain_text("The server does not answer.")
