"""Playing an environment by hand, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.command import TOOLYARD, Command, WarmCommand
from tests.studio.conftest import WORLD, serving
from toolyard import Client


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with serving() as url:
        yield url


@pytest.fixture
def played(page: Page, url: str) -> Page:
    """A session of the counter, as somebody opens it who chooses nothing."""
    page.goto(f"{url}/studio/environments/counter")
    page.get_by_role("link", name="Play", exact=True).click()
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_text("Count to 10.")).to_be_visible()
    return page


def call(page: Page, tool: str, **fields: Any) -> None:
    """Fill in the form of a tool, and send it."""
    form = page.locator("form").filter(has=page.get_by_role("button", name=f"Call {tool}", exact=True))
    for name, value in fields.items():
        form.get_by_label(name, exact=True).fill(str(value))
    form.get_by_role("button", name=f"Call {tool}", exact=True).click()


def test_a_whole_episode_is_played_by_hand(played: Page):
    log = played.get_by_role("log")
    expect(played.get_by_role("button", name=re.compile("^Call "))).to_have_count(7)
    call(played, "add", n=4)
    expect(log).to_contain_text("the count is 4")
    expect(log).to_contain_text("reward 0.25")
    expect(log).not_to_contain_text("finished")
    call(played, "add", n=6)
    expect(log).to_contain_text("reward 1")
    expect(log).to_contain_text("finished")
    expect(played.get_by_role("status").first).to_contain_text("The episode is over")
    call(played, "weigh", n=1)
    expect(log).to_contain_text("Nothing ran: the episode is over.")
    played.get_by_role("button", name="Close session").click()
    expect(log).to_contain_text("This session is closed.")
    expect(played.get_by_role("button", name="Open session")).to_be_visible()


def test_the_prompt_and_results_show_images(played: Page):
    expect(played.locator(".prompt img")).to_be_visible()
    call(played, "picture")
    image = played.get_by_role("log").get_by_role("img")
    expect(image).to_be_visible()
    assert image.evaluate("image => image.naturalWidth") == 8


def test_every_kind_of_parameter_has_a_field_of_its_kind(played: Page):
    log = played.get_by_role("log")
    played.get_by_label("how", exact=True).select_option("down")
    played.get_by_label("loud", exact=True).check()
    played.get_by_label("note", exact=True).fill("two\nlines")
    played.get_by_label("extra", exact=True).fill('{"a": [1, 2]}')
    call(played, "add", n=-12345678901234567890)
    expect(log).to_contain_text("the count is 12345678901234567890!")
    expect(log).to_contain_text("{'a': [1, 2]}")


@pytest.mark.parametrize(
    ("tool", "fields", "words"),
    [
        ("add", {"n": ""}, "n is missing: it is a whole number."),
        ("add", {"n": "1.5"}, 'n is "1.5"; it must be a whole number.'),
        ("weigh", {"n": "heavy"}, 'n is "heavy"; it must be a number, such as 0.5.'),
        ("add", {"n": 1, "extra": "{a: 1}"}, "extra is not JSON yet"),
        ("add", {"n": 1, "extra": "[1]"}, "extra must be an object"),
    ],
)
def test_what_does_not_fit_a_field_is_said_beside_it_and_nothing_is_called(
    played: Page, tool: str, fields: dict[str, Any], words: str
):
    call(played, tool, **fields)
    expect(played.get_by_text(words)).to_be_visible()
    assert played.evaluate("document.activeElement.getAttribute('aria-invalid')") == "true"
    assert played.locator(".step").count() == 0


def test_failures_are_told_apart_in_a_sentence(played: Page):
    log = played.get_by_role("log")
    call(played, "refuse", why="not today")
    expect(log).to_contain_text("The tool refused, and says why.")
    expect(log).to_contain_text("not today")
    call(played, "breaks")
    expect(log).to_contain_text("The tool broke")
    played.get_by_label("extra", exact=True).fill('{"a": "x"}')
    call(played, "add", n=1)
    expect(log).to_contain_text("The arguments do not fit the tool.")


def test_both_branches_of_a_fork_are_played(played: Page, url: str):
    log = played.get_by_role("log")
    call(played, "add", n=4)
    expect(log).to_contain_text("the count is 4")
    played.get_by_role("button", name="Fork").click()
    expect(played.get_by_role("button", name="Branch 2")).to_have_attribute("aria-pressed", "true")
    expect(log).to_contain_text("the count is 4")
    call(played, "add", n=5)
    expect(log).to_contain_text("the count is 9")
    played.get_by_role("button", name="Branch 1").click()
    expect(log).not_to_contain_text("the count is 9")
    call(played, "add", n=1)
    expect(log).to_contain_text("the count is 5")
    played.get_by_role("button", name="Branch 2").click()
    call(played, "add", n=1)
    expect(log).to_contain_text("the count is 10")
    expect(log).to_contain_text("finished")
    assert played.get_by_role("log").count() == 1
    sessions = played.context.new_page()
    sessions.goto(f"{url}/studio/sessions")
    family = sessions.get_by_role("row", name=re.compile(played.url.partition("session=")[2][:12]))
    expect(family).to_have_count(2)
    expect(family.filter(has_text="fork")).to_have_count(1)
    # The page goes on with both after it was loaded again.
    played.reload()
    expect(played.get_by_role("button", name="Branch 2")).to_be_visible()
    expect(played.get_by_role("log")).to_contain_text("the count is 10")


def test_a_server_that_was_killed_and_started_again_is_told_apart_from_one_that_is_gone(page: Page):
    def start(port: str) -> Command:
        command = WarmCommand([TOOLYARD, "serve", str(WORLD), "--port", port], env={})
        command.until("Stop with Ctrl-C", 15)
        return command

    command = start("0")
    try:
        url = command.until(r"http://127\.0\.0\.1:\d+").group()
        page.goto(f"{url}/studio/play/stubborn")
        page.get_by_role("button", name="Open session").click()
        call(page, "look")
        expect(page.get_by_role("log")).to_contain_text("nothing")
        status = page.locator("#status")
        watching = page.context.new_page()
        watching.goto(f"{url}/studio/sessions/{page.url.partition('session=')[2]}")
        expect(watching.get_by_role("log")).to_contain_text("nothing")
        command.process.kill()
        command.wait()
        for shown in (page, watching):
            expect(shown.locator("#status")).to_contain_text("The server does not answer.")
        command = start(url.rpartition(":")[2])
        expect(page.get_by_role("log")).to_contain_text("there is no open session")
        expect(status).to_be_hidden()
        expect(page.get_by_role("button", name="Open session")).to_be_visible()
        expect(watching.get_by_role("log")).to_contain_text("there is no open session")
        expect(watching.locator("#status")).to_be_hidden()
    finally:
        command.process.terminate()
        command.wait()


def test_what_cannot_be_forked_says_why_and_goes_on(page: Page, url: str):
    page.goto(f"{url}/studio/play/stubborn")
    page.get_by_role("button", name="Open session").click()
    page.get_by_role("button", name="Fork").click()
    expect(page.get_by_role("status").first).to_contain_text("fork")
    call(page, "look")
    expect(page.get_by_role("log")).to_contain_text("nothing")


def test_a_setup_that_fails_is_said(page: Page, url: str):
    page.goto(f"{url}/studio/play/stubborn?task=1")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_text("there is no such world").first).to_be_visible()


def test_a_task_that_is_not_there_is_said(page: Page, url: str):
    page.goto(f"{url}/studio/play/stubborn?task=7")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("status").first).to_contain_text("has 2 tasks, no number 7")
    expect(page.get_by_role("button", name="Open session")).to_be_enabled()


def test_the_episode_is_copied_as_a_program_that_runs(played: Page, url: str):
    call(played, "add", n=3)
    expect(played.get_by_role("log")).to_contain_text("the count is 3")
    played.get_by_role("button", name="Copy as Python").click()
    program = played.get_by_role("dialog").locator("pre").inner_text()
    printed: list[str] = []
    exec(compile(program, "copied.py", "exec"), {"print": lambda *said: printed.append(str(said))})
    assert "the count is 3" in printed[-1]
    played.get_by_role("button", name="Done").click()
    played.get_by_role("button", name="Copy as curl").click()
    expect(played.get_by_role("dialog").locator("pre")).to_contain_text('{"name":"add","input":{"n":3}}')


def test_an_episode_is_played_with_the_keyboard_alone(page: Page, url: str):
    def go_to(name: str) -> None:
        for _ in range(60):
            page.keyboard.press("Tab")
            focused = page.evaluate("(document.activeElement.labels?.[0] ?? document.activeElement).textContent.trim()")
            if focused == name:
                return
        raise AssertionError(f"the keyboard does not reach {name!r}")

    page.goto(f"{url}/studio/environments/counter")
    go_to("Play")
    page.keyboard.press("Enter")
    page.wait_for_url("**/studio/play/counter")
    go_to("Open session")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Call add")).to_be_visible()
    go_to("n")
    page.keyboard.type("10")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("log")).to_contain_text("finished")
    go_to("Fork")
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Branch 2")).to_be_visible()


def test_a_million_tasks_are_browsed_and_one_is_opened(page: Page, url: str):
    page.goto(f"{url}/studio/environments/counter")
    expect(page.get_by_text("0 to 49 of 1,000,000")).to_be_visible()
    page.get_by_label("First number").fill("999980")
    page.get_by_label("First number").press("Enter")
    expect(page.get_by_text("999,980 to 999,999 of 1,000,000")).to_be_visible()
    assert page.locator(".tasks li").count() == 20
    page.get_by_role("link", name="Task 999999").click()
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("log")).to_be_attached()
    assert any(row["index"] == 999_999 for row in httpx2.get(f"{url}/studio/api/v1/sessions").json()["sessions"])


def test_a_session_that_its_server_closes_says_so(played: Page, url: str):
    newest = httpx2.get(f"{url}/studio/api/v1/sessions").json()["sessions"][0]["id"]
    httpx2.post(f"{url}/delete", headers={"X-Session-ID": newest})
    expect(played.get_by_role("log")).to_contain_text("This session is closed.")


def test_a_session_that_a_client_runs_is_watched_call_by_call_and_ended(page: Page, url: str):
    with Client(url) as client, client.environments.get("counter").session(split="test", index=0) as session:
        session.call_tool("weigh", {"n": 1})
        page.goto(f"{url}/studio/sessions")
        page.get_by_role("link", name=session.sid[:12]).click()
        log = page.get_by_role("log")
        expect(log).to_contain_text("1 earlier call is not shown")
        session.call_tool("weigh", {"n": 77})
        expect(log).to_contain_text("it weighs 77")
        expect(log.locator(".step .number")).to_have_text("2")
        page.get_by_text("The task, with what the agent may not see").click()
        expect(page.locator("#task")).to_contain_text("<b>short</b>")
        page.get_by_role("button", name="End session").click()
        page.get_by_role("button", name="End it").click()
        expect(log).to_contain_text("This session is closed.")
        with pytest.raises(Exception, match="no session"):
            session.call_tool("weigh", {"n": 1})


def test_the_overview_moves_with_the_calls_and_says_what_is_wrong(page: Page, url: str):
    page.goto(f"{url}/studio/")
    with Client(url) as client, client.environments.get("counter").session(split="test", index=0) as session:
        for _ in range(3):
            with pytest.raises(Exception, match="author did not expect"):
                session.call_tool("breaks", {})
        expect(page.locator("#troubles")).to_contain_text("because a tool raised an error", timeout=5000)
        expect(page.locator("#plot-rate svg")).to_have_attribute("aria-label", re.compile("now: calls"))
        expect(page.locator('[data-environment="counter"]')).to_contain_text("calls since the start")
