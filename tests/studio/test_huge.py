"""An environment that says far too much stops neither the page nor the server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.studio.conftest import serving
from tests.studio.test_front_door import token_in


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


def open_session(page: Page, url: str) -> None:
    page.goto(f"{url}/studio/play/huge")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("button", name="Call wide", exact=True)).to_be_visible()


def form(page: Page, tool: str) -> Locator:
    return page.locator("form").filter(has=page.get_by_role("button", name=f"Call {tool}", exact=True))


def first_message(url: str, api: str, *, until: str) -> Any:
    """The first message of a stream that holds some words."""
    with httpx2.stream("GET", f"{url}{api}/events", timeout=30) as stream:
        for line in stream.iter_lines():
            if until in line:
                return json.loads(line.removeprefix("data: "))
    raise AssertionError(f"no message says {until!r}")


@pytest.mark.parametrize("tool", ["parts", "images"])
def test_a_result_of_many_parts_is_cut_in_the_message(url: str, tool: str):
    with httpx2.Client(base_url=url, timeout=30) as http:
        headers = {"X-Toolyard-Token": token_in(http.get("/studio/").text)}
        api = http.post("/studio/api/v1/sessions", json={"environment": "huge"}, headers=headers).json()["api"]
        called = {"tool": tool, "arguments": {"n": 100_000}}
        for _ in range(3):
            assert http.post(f"{api}/calls", json=called, headers=headers).status_code == 202
        http.post(f"{api}/calls", json={"tool": "t" * 1_000_000}, headers=headers)
        message = first_message(url, api, until="99900")
        assert len(json.dumps(message)) < 200_000
        blocks = next(step["blocks"] for step in message["steps"] if step["outcome"] == "ok")
        assert blocks[-1] == {"type": "left", "count": 99_900}


def test_schemas_without_measure_leave_a_page_that_can_be_used(page: Page, url: str):
    open_session(page, url)
    assert page.locator("input, select, textarea, option").count() < 50
    assert len(page.locator("main").inner_text()) < 100_000
    expect(form(page, "wide")).to_contain_text("U+202Ezzz")
    log = page.get_by_role("log")
    form(page, "wide").get_by_label("arguments", exact=True).fill('{"p7": "seven"}')
    form(page, "wide").get_by_role("button").click()
    expect(log).to_contain_text("wide {'p7': 'seven'}")
    form(page, "choices").get_by_label("one", exact=True).fill("v99999")
    form(page, "choices").get_by_role("button").click()
    expect(log).to_contain_text("choices {'one': 'v99999'}")
    form(page, "parts").get_by_label("n", exact=True).fill("100000")
    form(page, "parts").get_by_role("button").click()
    expect(log).to_contain_text("99,900 more parts of the result of call 3 are not shown.")


def test_thousands_of_tools_leave_a_page_that_can_be_used(page: Page, url: str):
    page.goto(f"{url}/studio/play/huge?task=1")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_text("The first 500 of 3,002 tools have forms.")).to_be_visible()
    forms = page.locator("form.tool")
    expect(forms).to_have_count(500)
    forms.nth(450).locator("textarea").fill("seen")
    forms.nth(450).locator("button").click()
    expect(page.get_by_role("log")).to_contain_text("{'text': 'seen'}")


def test_arguments_of_many_levels_are_not_spread_over_lines(page: Page, url: str):
    open_session(page, url)
    token = page.locator('meta[name="toolyard-token"]').get_attribute("content") or ""
    deep = "[" * 150 + ",".join("1" * 3000) + "]" * 150
    called = f'{{"tool": "parts", "arguments": {{"n": {deep}}}}}'
    api = f"{url}/studio/api/v1/sessions/{page.url.partition('session=')[2]}"
    assert httpx2.post(f"{api}/calls", content=called, headers={"X-Toolyard-Token": token}).status_code == 202
    values = page.locator(".step .values pre")
    expect(values).to_contain_text("[[[1,1,1")
    assert len(values.inner_text()) < 10_000


def test_a_task_of_megabytes_comes_in_parts(page: Page, url: str):
    open_session(page, url)
    page.goto(f"{url}/studio/sessions/{page.url.partition('session=')[2]}")
    page.get_by_text("The task, with what the agent may not see").click()
    task = page.locator("#task")
    expect(task).to_contain_text("8,000 of 3,000,011 characters of the task.")
    task.get_by_role("button", name="Show more").click()
    expect(task).to_contain_text(re.compile(r"58,000 of 3,000,011 characters"))


def test_a_session_that_is_over_does_not_hide_the_others_of_a_page(page: Page, url: str):
    open_session(page, url)
    page.goto(f"{page.url.replace('session=', 'session=gone&session=')}")
    expect(page.get_by_role("button", name="Call wide", exact=True)).to_be_visible()


@pytest.mark.parametrize("address", ["", "environments/counter", "play/counter", "sessions", "episodes"])
def test_a_browser_without_scripts_says_what_is_missing(browser: Browser, url: str, address: str):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{url}/studio/{address}")
    assert "needs JavaScript" in page.locator("main").inner_text()
    context.close()
