"""Studio where sessions live elsewhere: behind several gateways with a key, in other processes, over other wires."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from zlib import crc32

import httpx2
import pytest
from playwright.sync_api import Page, expect

from tests.studio.conftest import serving
from toolyard import Client

pytestmark = pytest.mark.thorough
KEY = "open sesame"
PLACES = [("--gateways", "2"), ("--placement", "process"), ("--placement", "pool", "--pool-processes", "2")]


@pytest.fixture(scope="module")
def locked() -> Iterator[str]:
    with serving("--gateways", "3", "--api-key", KEY) as url:
        yield url


def log_in(page: Page, url: str, address: str) -> None:
    page.goto(f"{url}{address}")
    page.get_by_label("Key").fill(KEY)
    page.get_by_role("button", name="Open Studio").click()
    page.wait_for_url(f"{url}{address}")


def test_the_key_is_asked_for_once_and_every_gateway_knows_the_cookie(page: Page, locked: str):
    log_in(page, locked, "/studio/sessions")
    cookies = {one["name"]: one["value"] for one in page.context.cookies()}
    assert KEY not in str(cookies)
    for _ in range(12):  # each has a connection of its own, which the system leads to one of the gateways
        assert httpx2.get(f"{locked}/studio/", cookies=cookies).status_code == 200
        assert httpx2.get(f"{locked}/studio/").status_code == 401


def test_a_wrong_key_is_said_and_the_right_one_leads_on(page: Page, locked: str):
    page.goto(f"{locked}/studio/environments/counter")
    page.get_by_label("Key").fill("sesame")
    page.get_by_role("button", name="Open Studio").click()
    expect(page.get_by_role("alert")).to_have_text("That is not the key of this server.")
    page.get_by_label("Key").fill(KEY)
    page.get_by_role("button", name="Open Studio").click()
    expect(page.get_by_role("link", name="Play", exact=True)).to_be_visible()
    assert page.url == f"{locked}/studio/environments/counter"


def test_sessions_of_all_gateways_are_listed_watched_and_played(page: Page, locked: str):
    log_in(page, locked, "/studio/sessions")
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(locked, api_key=KEY)) for _ in range(9)]
        asked = [client.environments.get("counter").session(split="test", index=0) for client in clients]
        sessions = [stack.enter_context(session) for session in asked]
        expect(page.locator("tbody tr")).to_have_count(9)
        owners = {crc32(session.sid.encode()) % 3: session for session in sessions}
        assert len(owners) > 1
        for number, session in owners.items():
            with page.expect_response(lambda answer: "/events?" in answer.url):  # a call before that is only counted
                page.goto(f"{locked}/studio/sessions/{session.sid}")
            expect(page.locator("#facts")).to_contain_text("counter")
            session.call_tool("weigh", {"n": 100 + number})
            expect(page.get_by_role("log")).to_contain_text(f"it weighs {100 + number}")
    for _ in range(4):
        page.goto(f"{locked}/studio/play/counter")
        page.get_by_role("button", name="Open session").click()
        page.get_by_label("text", exact=True).fill("hello")
        page.get_by_role("button", name="Call answer").click()
        expect(page.get_by_role("log")).to_contain_text("you said hello")
        page.get_by_role("button", name="Fork").click()
        expect(page.get_by_role("button", name="Branch 2")).to_be_visible()


def test_the_overview_adds_up_all_gateways(page: Page, locked: str):
    log_in(page, locked, "/studio/")
    with Client(locked, api_key=KEY) as client:
        for _ in range(6):
            with client.environments.get("counter").session(split="test", index=0) as session:
                session.call_tool("weigh", {"n": 1})
    metrics = httpx2.get(f"{locked}/metrics", headers={"X-API-Key": KEY}).text
    line = 'environment="counter",outcome="ok"'
    calls = sum(int(float(one.split()[-1])) for one in metrics.splitlines() if "calls_total" in one and line in one)
    expect(page.locator('[data-environment="counter"]')).to_contain_text(f"{calls} calls")


@pytest.mark.parametrize("flags", PLACES, ids=" ".join)
def test_an_episode_is_played_wherever_it_lives(page: Page, flags: tuple[str, ...]):
    with serving(*flags) as url:
        page.goto(f"{url}/studio/play/counter")
        page.get_by_role("button", name="Open session").click()
        expect(page.locator(".prompt img")).to_be_visible()
        page.get_by_label("n", exact=True).first.fill("4")
        page.get_by_role("button", name="Call add").click()
        expect(page.get_by_role("log")).to_contain_text("the count is 4")
        page.get_by_role("button", name="Fork").click()
        page.get_by_label("n", exact=True).first.fill("6")
        page.get_by_role("button", name="Call add").click()
        expect(page.get_by_role("log")).to_contain_text("the count is 10")
        expect(page.get_by_role("log")).to_contain_text("finished")


def test_a_trajectory_of_verl_is_watched_live(page: Page):
    with serving() as url:
        asked = {"trajectory_ids": ["a/b"], "actions": ["<nothing>"], "extra_fields": [{"env_name": "counter"}]}
        httpx2.post(f"{url}/get_observation", json=asked)
        page.goto(f"{url}/studio/sessions")
        rows = httpx2.get(f"{url}/studio/api/v1/sessions").json()["sessions"]
        assert [row["wire"] for row in rows] == ["verl"]
        page.locator("tbody a").first.click()
        expect(page.locator("#facts")).to_contain_text("verl")


def test_an_idle_session_says_why_it_is_over(page: Page):
    with serving("--idle-seconds", "1") as url:
        page.goto(f"{url}/studio/play/counter")
        page.get_by_role("button", name="Open session").click()
        expect(page.get_by_role("log")).to_contain_text("because nobody used it for 1 seconds")
        expect(page.get_by_role("button", name="Open session")).to_be_visible()


def test_a_server_that_ends_does_not_wait_for_pages_that_watch_it(page: Page):
    with serving() as url:
        page.goto(f"{url}/studio/play/counter")
        page.get_by_role("button", name="Open session").click()
        expect(page.get_by_text("Count to 10.")).to_be_visible()
    expect(page.get_by_role("log")).to_contain_text("because the server is shutting down")
    page.get_by_role("button", name="Open session").click()
    expect(page.get_by_role("status").first).to_contain_text("The server does not answer")
