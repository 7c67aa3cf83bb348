"""Studio's pages of episodes in a real Chromium: the list, one episode, two side by side."""

from __future__ import annotations

import asyncio
import base64
import re
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from benchmarks.large_store import Special, fill
from tests.browser.site import chromium
from tests.episodes.stores import Player, Quiz, graded
from tests.studio.world import Counter
from tests.wires.wire import _NO_TLS
from toolyard import Client, ToolOutput, tool
from toolyard.episodes import lists, schema
from toolyard.episodes.schema import looking
from toolyard.episodes.store import Filter
from toolyard.testing import running

HOSTILE = (
    "</pre><script>document.title='owned'</script><img src=/owned onerror=\"document.title='owned'\">"
    "\x1b[31mred\x1b[0m \u202eturned\u202c \u2066x\u2069 \x00 \x07 {{7*7}} <style>*{display:none}</style> \ud800"
)
SVG = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg' onload='document.title=1'/>").decode()


class Quizzes(Quiz):
    """A quiz with named rewards, and a tool that never says the same."""

    rolled = 0
    hung: threading.Event | None = None

    @classmethod
    def name(cls) -> str:
        return "quiz"

    @tool
    async def named(self, correct: float, style: float) -> ToolOutput:
        """Give rewards with names."""
        return ToolOutput(rewards={"correct": correct, "style": style}, finished=True)

    @tool
    async def hang(self) -> str:
        """Hangs when it is called again."""
        if Quizzes.hung is not None:
            Quizzes.hung.set()
            await asyncio.Event().wait()
        return "not yet"

    @tool
    async def roll(self) -> str:
        """Never twice the same."""
        Quizzes.rolled += 1
        return f"rolled {Quizzes.rolled}"


class Studio:
    """A server that records, a player on it, and what its store has."""

    def __init__(self, url: str, client: httpx2.Client, path: Path) -> None:
        self.url = f"{url}/studio"
        self.player = Player(client)
        self.client = client
        self.path = path

    def recorded(self) -> int:
        with looking(self.path) as file:
            return lists.count(file, Filter(reward=None)) - lists.count(file, Filter(outcome="open"))

    def newest(self) -> str:
        with looking(self.path) as file:
            return str(lists.page(file, Filter(), limit=1)[0]["id"])

    def until_recorded(self, count: int) -> None:
        until(lambda: self.recorded() >= count)


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


@contextmanager
def serving(path: Path, *environments: type) -> Iterator[Studio]:
    with (
        running(environments or [Quizzes], record=str(path)) as server,
        httpx2.Client(base_url=server.url, verify=_NO_TLS, timeout=30, trust_env=False) as client,
    ):
        yield Studio(server.url, client, path)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    with browser.new_context(viewport={"width": 1280, "height": 900}) as context:
        yield context


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A page that logs no error, and asks for nothing but Studio."""
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("request", lambda asked: None if "/studio/" in asked.url else errors.append(asked.url))
    yield page
    assert [error for error in errors if "status of 4" not in error and "status of 5" not in error] == []


@pytest.fixture(scope="module")
def studio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Studio]:
    with serving(tmp_path_factory.mktemp("stores") / "runs.db") as made:
        play = made.player.play
        for index, (first, second) in enumerate([(1, 1), (0, 1), (0, 0.5), (0.25, 0)]):
            play(*graded(first), index=index, run="old", labels={"step": "1"})
            play(("say", {"text": f"word{index}"}), *graded(0, second), index=index, run="new")
        play(("refuse", {}), ("say", {"text": "the lighthouse keeper"}), index=5, run="old")
        play(("named", {"correct": 1, "style": 0.5}), index=6, run="named")
        made.until_recorded(10)
        yield made


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Studio, Special]]:
    path = tmp_path_factory.mktemp("stores") / "large.db"
    special = fill(path, episodes=900, steps=12_000)
    with serving(path) as made:
        yield made, special


def rows(page: Page) -> list[str]:
    return page.locator("tr[data-id]").all_inner_texts()


# The list.


def test_the_list_shows_what_was_recorded_with_named_rewards_as_columns(studio, page):
    page.goto(f"{studio.url}/episodes")
    expect(page.locator("tr[data-id]")).to_have_count(10)
    expect(page.get_by_role("heading", level=1)).to_contain_text("10")
    heads = page.locator(".rows thead th").all_inner_texts()
    assert [head.strip("↑↓ \n") for head in heads[1:]] == [
        *("Opened", "Environment", "Task", "Run", "Steps", "Return", "correct", "style", "Ended", "Time")
    ]
    newest = page.locator("tr[data-id]").first
    expect(newest).to_contain_text("train 6")
    assert newest.locator("td.named").all_inner_texts() == ["1", "0.5"]


def test_the_order_is_in_the_address_and_the_way_back_works(studio, page):
    page.goto(f"{studio.url}/episodes")
    page.get_by_role("button", name="Return").click()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Return")
    expect(page.locator("tr[data-id]").first).to_contain_text("1.5")
    assert page.url.endswith("?by=return")
    page.get_by_role("button", name="Return").click()
    expect(page.locator("th[aria-sort=ascending]")).to_contain_text("Return")
    expect(page.locator("tr[data-id] td.column-return").first).to_have_text("0")
    expect(page.locator("tr[data-id] td.column-return").last).to_have_text("–")
    page.go_back()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Return")
    page.go_back()
    expect(page.locator("th[aria-sort=descending]")).to_contain_text("Opened")


@pytest.mark.parametrize(
    ("field", "value", "count"),
    [
        ("Run", "old", 5),
        ("Task", "2", 2),
        ("Label", "step=1", 4),
        ("Words", "lighthouse keeper", 1),
        ("Return at least", "1", 4),
        ("Return at most", "0.25", 4),
    ],
)
def test_a_filter_is_in_the_address_and_survives_a_reload(studio, page, field, value, count):
    page.goto(f"{studio.url}/episodes")
    expect(page.locator("tr[data-id]")).to_have_count(10)
    page.get_by_label(field, exact=True).fill(value)
    expect(page.locator("tr[data-id]")).to_have_count(count)
    page.reload()
    expect(page.locator("tr[data-id]")).to_have_count(count)
    expect(page.get_by_label(field, exact=True)).to_have_value(value)
    page.get_by_role("button", name="Clear filters").first.click()
    expect(page.locator("tr[data-id]")).to_have_count(10)
    assert "?" not in page.url


@pytest.mark.thorough
def test_a_choice_filters(studio, page):
    page.goto(f"{studio.url}/episodes")
    page.get_by_label("Outcome").select_option("closed")
    expect(page.locator("tr[data-id]")).to_have_count(1)
    page.get_by_label("Environment").select_option("quiz")
    page.go_back()
    expect(page.get_by_label("Environment")).to_have_value("")


def test_plots_say_in_words_and_tables_what_they_draw(studio, page):
    page.goto(f"{studio.url}/episodes")
    expect(
        page.get_by_role("img", name=re.compile("Histogram of returns. 9 of 10 episodes have a return"))
    ).to_be_visible()
    expect(page.get_by_role("img", name=re.compile("Mean return over time, by run"))).to_be_visible()
    figure = page.locator("#histogram")
    figure.get_by_text("As a table").click()
    cells = figure.locator("tbody tr").all_inner_texts()
    assert sum(int(cell.split()[-1]) for cell in cells) == 9
    expect(page.locator("#tasks tbody tr").first).to_contain_text("0%")
    page.locator("#tasks").get_by_role("button", name="train 3").click()
    expect(page.locator("tr[data-id]")).to_have_count(2)
    assert "index=3" in page.url
    page.go_back()
    page.locator("#curves").get_by_role("button", name="named").click()
    expect(page.locator("tr[data-id]")).to_have_count(1)


def test_tasks_of_several_environments_are_told_apart_also_on_a_phone(tmp_path, page):
    class Recount(Counter):
        pass

    with serving(tmp_path / "runs.db", Counter, Recount) as made, Client(made.url.removesuffix("/studio")) as client:
        for name in ("counter", "recount"):
            with client.environments.get(name).session(split="test", index=0) as session:
                session.call_tool("answer", {"text": "ten"})
        made.until_recorded(2)
        page.set_viewport_size({"width": 390, "height": 800})
        page.goto(f"{made.url}/episodes")
        for name in ("counter", "recount"):
            expect(page.locator("#tasks").get_by_role("button", name=f"{name} test 0", exact=True)).to_be_visible()
            expect(page.locator("tr[data-id] .column-environment", has_text=re.compile(f"^{name}$"))).to_be_visible()
        page.locator("#tasks").get_by_role("button", name="recount test 0").click()
        expect(page.locator("tr[data-id]")).to_have_count(1)


def test_no_match_says_so_and_offers_the_way_out(studio, page):
    page.goto(f"{studio.url}/episodes?run=nobody")
    expect(page.locator("#none")).to_contain_text("No episode matches these filters.")
    page.locator("#none").get_by_role("button", name="Clear filters").click()
    expect(page.locator("tr[data-id]")).to_have_count(10)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("by=nothing", "not sorted by 'nothing'"),
        ("least=much", "least is 'much'; it must be a number"),
        ("least=nan", "it must be a number"),
        ("label=x", "it must be a name and a value"),
        ("index=-1", "it must be the number of a task"),
        ("after=x", "is no place in a list"),
        ("limit=x", "it must be a whole number"),
    ],
)
def test_a_question_without_sense_is_refused_in_words(studio, query, words):
    answer = studio.client.get(f"/studio/api/v1/episodes?{query}")
    assert answer.status_code in (400, 409)
    assert words in answer.json()["error"]


def test_without_a_store_the_page_says_how_to_keep_one(page):
    with running([Quizzes]) as server:
        page.goto(f"{server.url}/studio/episodes")
        expect(page.locator("main")).to_contain_text("--record runs.db")
        answer = httpx2.get(f"{server.url}/studio/api/v1/episodes", trust_env=False)
        assert (answer.status_code, "--record" in answer.json()["error"]) == (404, True)


@pytest.mark.thorough
def test_new_episodes_arrive_by_themselves_and_never_move_what_is_read(tmp_path, page):
    with serving(tmp_path / "runs.db") as studio:
        page.goto(f"{studio.url}/episodes")
        expect(page.locator("#none")).to_contain_text("No episode yet.")
        studio.player.play(*graded(1), run="first")
        expect(page.locator("tr[data-id]")).to_have_count(1, timeout=15_000)
        page.locator("tr[data-id] a.open").focus()
        studio.player.play(*graded(0), run="second")
        button = page.get_by_role("button", name="1 new episode: show")
        expect(button).to_be_visible(timeout=15_000)
        expect(page.locator("tr[data-id]")).to_have_count(1)
        button.click()
        expect(page.locator("tr[data-id]").first).to_contain_text("second")


@pytest.mark.thorough
def test_only_rows_in_view_are_elements_and_the_rest_is_fetched(large, page):
    studio, _ = large
    page.goto(f"{studio.url}/episodes?by=steps")
    expect(page.locator("tr[data-id]").first).to_contain_text("12,000")
    seen = set()
    for _ in range(60):
        seen |= set(page.locator("tr[data-id]").evaluate_all("all => all.map(one => one.dataset.id)"))
        assert page.locator("tr[data-id]").count() < 90
        if len(seen) >= 907:
            break
        page.mouse.wheel(0, 1500)
        page.wait_for_timeout(30)  # as fast as a reader turns a wheel
    assert len(seen) == 907
    page.evaluate("scrollTo(0, 0)")
    expect(page.locator("tr[data-id]").first).to_contain_text("12,000")


@pytest.mark.thorough
def test_the_reader_comes_back_to_where_he_was(large, page):
    studio, _ = large
    page.goto(f"{studio.url}/episodes")
    expect(page.locator("tr[data-id]").first).to_be_visible()
    for _ in range(8):
        page.mouse.wheel(0, 1500)
        page.wait_for_timeout(50)
    row = page.locator("tr[data-id]").nth(25)
    wanted = row.get_attribute("data-id")
    row.locator("a.open").click()
    expect(page.locator("#timeline article").first).to_be_visible()
    page.go_back()
    expect(page.locator(f"tr[data-id='{wanted}']")).to_be_in_viewport()


# One episode.


def open_one(studio: Studio, page: Page, run: str) -> None:
    page.goto(f"{studio.url}/episodes?run={run}")
    page.locator("tr[data-id] a.open").first.click()
    expect(page.locator("#timeline article").first).to_be_visible()


def test_an_episode_shows_calls_arguments_results_images_and_rewards(studio, page):
    studio.player.play(
        ("say", {"text": "two\nlines"}),
        ("picture", {}),
        ("refuse", {}),
        ("named", {"correct": 0.5, "style": 0.25}),
        run="shown",
        labels={"step": "7"},
    )
    studio.until_recorded(11)
    open_one(studio, page, "shown")
    expect(page.locator("#about")).to_contain_text("Question 0?")
    expect(page.locator("#facts")).to_contain_text("return 0.75")
    expect(page.locator("#facts")).to_contain_text("step=7")
    steps = page.locator("#timeline article")
    expect(steps).to_have_count(4)
    assert steps.nth(0).locator("pre").all_inner_texts() == ["two\nlines", "two\nlines"]
    assert steps.nth(1).locator("img").evaluate("async one => { await one.decode(); return one.naturalWidth }") == 1
    expect(steps.nth(2)).to_contain_text("not like that")
    expect(steps.nth(2)).to_contain_text("tool failed")
    expect(steps.nth(3)).to_contain_text("reward 0.75")
    expect(steps.nth(3)).to_contain_text("correct 0.5")
    page.keyboard.press("f")
    expect(steps.nth(2)).to_be_focused()
    page.keyboard.press("r")
    expect(steps.nth(3)).to_be_focused()
    page.keyboard.press("k")
    expect(steps.nth(2)).to_be_focused()
    page.keyboard.press("F")
    expect(page.get_by_role("status").filter(has_text="no failure before")).to_be_visible()
    page.get_by_label("Words in a step").fill("seen")
    page.keyboard.press("Enter")
    expect(steps.nth(1)).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_contain_text("next failure")


@pytest.mark.thorough
def test_an_episode_that_goes_on_grows_before_its_reader(studio, page):
    headers = {"X-Session-ID": "going-on", "X-Toolyard-Run": "going"}
    assert studio.client.post("/create", headers=headers, json={"task_spec": {"n": 1}}).status_code == 200
    say = {"name": "say", "input": {"text": "first"}}
    studio.client.post("/quiz/call", headers=headers, json=say)

    def is_there() -> bool:
        with looking(studio.path) as file:
            return any(row["steps"] for row in lists.page(file, Filter(run="going")))

    until(is_there)
    open_one(studio, page, "going")
    expect(page.locator("#timeline article")).to_have_count(1)
    studio.client.post("/quiz/call", headers=headers, json={"name": "say", "input": {"text": "second"}})
    expect(page.locator("#timeline article")).to_have_count(2, timeout=15_000)
    studio.client.post("/delete", headers=headers)
    expect(page.locator("#facts")).to_contain_text("closed", timeout=15_000)


def test_a_hostile_episode_is_text_and_asks_for_nothing(studio, page):
    assert studio.client.post("/create", headers={"X-Session-ID": "hostile"}, json={"task_spec": {}}).status_code == 200
    studio.client.post("/delete", headers={"X-Session-ID": "hostile"})
    studio.player.play(
        ("say", {"text": HOSTILE, HOSTILE: HOSTILE}),
        (HOSTILE[:100], {}),
        ("picture", {"data": SVG, "kind": "image/svg+xml"}),
        ("picture", {"data": SVG, "kind": "image/png"}),
        ("picture", {"kind": HOSTILE[:60]}),
        ("say", {"text": HOSTILE}),
        task={"n": HOSTILE},
        run="<script>document.title='owned'</script>",
        labels={"<b>": HOSTILE[:100].replace("\ud800", "")},
    )
    until(lambda: "script" in str(studio.client.get("/studio/api/v1/episodes").json()["rows"]))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(urlsplit(request.url).path))
    page.goto(f"{studio.url}/episodes")
    expect(page.locator("tr[data-id]").first).to_contain_text("<script>")
    page.locator("tr[data-id] a.open").first.click()
    steps = page.locator("#timeline article")
    expect(steps).to_have_count(6)
    last = steps.nth(5).locator(".result pre")
    expect(last).to_contain_text("</pre><script>")
    expect(last).to_contain_text("ESC[31mred")
    expect(last).to_contain_text("U+202E")
    expect(steps.nth(2)).to_contain_text("An image of the type image/svg+xml, which is not shown")
    expect(steps.nth(3)).to_contain_text("calls itself image/png and is no such image")
    for fold in page.locator("details").all():
        fold.evaluate("one => { one.open = true }")
    assert "owned" not in page.title()
    assert all(path.startswith("/studio/") for path in asked), asked
    assert page.evaluate("document.querySelectorAll('main script, main style').length") == 0


def test_images_are_sent_as_images_and_nothing_else_is(studio):
    studio.player.play(("picture", {}), ("picture", {"data": SVG, "kind": "image/svg+xml"}), run="pictures")
    until(lambda: studio.client.get("/studio/api/v1/episodes?run=pictures&outcome=closed").json()["rows"])
    (row,) = studio.client.get("/studio/api/v1/episodes?run=pictures").json()["rows"]
    api = f"/studio/api/v1/episodes/{row['id']}"
    shown = studio.client.get(f"{api}/image?step=1&block=1")
    assert shown.headers["content-type"] == "image/png"
    assert shown.headers["x-content-type-options"] == "nosniff"
    for address in (f"{api}/image?step=2&block=1", f"{api}/image?step=1&block=0", f"{api}/image?step=9&block=0"):
        refused = studio.client.get(address)
        assert refused.status_code == 409
        assert refused.headers["content-type"] == "application/json"
    saved = studio.client.get(f"{api}/file?step=1&name=block.0")
    assert (saved.text, saved.headers["content-disposition"][:10]) == ("look:", "attachment")
    for kind in ("html", "jsonl"):
        kept = studio.client.get(f"/studio/episodes/{row['id']}/{kind}")
        assert kept.headers["content-disposition"].startswith("attachment")
        assert "look:" in kept.text


def test_a_long_episode_keeps_few_elements_and_every_step_can_be_reached(large, page):
    studio, special = large
    page.goto(f"{studio.url}/episodes/{special.long}")
    expect(page.locator("#step-1")).to_be_visible()
    page.keyboard.press("End")
    expect(page.locator("#step-12000")).to_be_focused()
    page.keyboard.press("k")
    expect(page.locator("#step-11999")).to_be_focused()
    page.get_by_label("Step", exact=True).fill("6000")
    page.keyboard.press("Enter")
    expect(page.locator("#step-6000")).to_be_focused()
    expect(page).to_have_url(re.compile(r"#step-6000$"))
    for _ in range(25):
        page.keyboard.press("PageDown")
        page.wait_for_timeout(30)  # as fast as a reader presses it
        assert page.locator("#timeline article").count() <= 120
    shown = [int(one) for one in page.locator("#timeline article").evaluate_all("all => all.map(o => o.dataset.step)")]
    assert shown == list(range(shown[0], shown[-1] + 1))
    assert shown[-1] > 6060
    page.keyboard.press("f")
    expect(page.locator("#step-9973")).to_be_focused()
    page.keyboard.press("Home")
    expect(page.locator("#step-1")).to_be_focused()
    page.goto(f"{studio.url}/episodes/{special.long}#step-7000")
    expect(page.locator("#step-7000")).to_be_in_viewport()


@pytest.mark.thorough
def test_what_is_read_stays_where_it_is_while_steps_come_and_go(large, page):
    studio, special = large
    page.goto(f"{studio.url}/episodes/{special.long}#step-5000")
    step = page.locator("#step-5000")
    expect(step).to_be_focused()
    page.wait_for_load_state("networkidle")
    before = step.bounding_box()["y"]
    for direction in (-1, 1):
        for _ in range(6):
            page.mouse.move(640, 600)
            page.mouse.wheel(0, direction * 300)
            page.wait_for_timeout(40)  # as fast as a reader turns a wheel
    page.wait_for_load_state("networkidle")
    assert step.bounding_box()["y"] == pytest.approx(before, abs=3)


@pytest.mark.thorough
def test_a_result_of_5_mb_comes_in_parts_of_which_few_stay(large, page):
    studio, special = large
    page.goto(f"{studio.url}/episodes/{special.large}")
    result = page.locator("#step-1 .result")
    expect(result).to_contain_text("4 KB of 5.0 MB")
    for _ in range(8):
        result.get_by_role("button", name="Show more").click()
        page.wait_for_load_state("networkidle")
    assert len(result.locator("pre").inner_text()) == 4 * 64 * 1024
    expect(result).to_contain_text("260 KB to 516 KB of 5.0 MB")
    result.get_by_role("button", name="Show what is before").click()
    expect(result).to_contain_text("196 KB to 452 KB of 5.0 MB")
    with page.expect_download() as saved:
        result.get_by_role("link", name="Save all of it").click()
    assert Path(saved.value.path()).stat().st_size == 5 * 2**20


def test_forks_are_a_tree_and_lead_to_each_other(large, page):
    studio, special = large
    page.goto(f"{studio.url}/episodes/{special.root}")
    tree = page.locator("#near .tree").first
    expect(tree.locator("li")).to_have_count(4)
    expect(tree).to_contain_text("from step 2")
    tree.locator(".tree a").first.click()
    expect(page.locator("#about")).to_contain_text("It goes on from step 2 of another episode")
    page.locator("#about").get_by_role("link", name="Compare them").click()
    expect(page.locator("#said")).to_contain_text("They first differ at step 3.")


def test_an_episode_that_is_not_there_is_named(studio, page):
    page.goto(f"{studio.url}/episodes/nobody")
    expect(page.locator("main")).to_contain_text("there is no episode 'nobody'")
    for address in ("episodes/nobody", "episodes/nobody/html", "compare?a=&b=", "api/v1/episodes/nobody/steps"):
        assert studio.client.get(f"/studio/{address}").status_code == 404


@pytest.mark.parametrize(("how", "runs"), [("Python", [sys.executable, "-"]), ("curl", ["bash"])])
def test_an_episode_is_copied_as_a_program_that_makes_its_calls(studio, page, how, runs):
    """Also where what was said means something to a shell."""
    studio.player.play(("say", {"text": "it's $HOME"}), *graded(0.5), index=2, run=f"copied {how}")
    until(lambda: studio.client.get(f"/studio/api/v1/episodes?run=copied {how}&outcome=finished").json()["rows"])
    open_one(studio, page, f"copied {how}")
    page.get_by_role("button", name=f"Copy as {how}").click()
    program = page.get_by_label("The program").input_value()
    ran = subprocess.run(runs, input=program, capture_output=True, text=True, timeout=60, check=True)
    assert "Question 2?" in ran.stdout
    assert "it's $HOME" in ran.stdout
    assert "graded" in ran.stdout


def test_a_copy_of_a_fork_begins_with_its_parent(large):
    studio, special = large
    tree = studio.client.get(f"/studio/api/v1/episodes/{special.root}/near").json()["family"]
    written = studio.client.get(f"/studio/api/v1/episodes/{tree[1]['id']}/copy/python").text
    assert re.findall(r"call_tool\('(\w+)', {'text': '([^']*)'}\)", written) == [
        *(("search", "step 1"), ("search", "step 2"), ("search", "step 1"), ("submit", "step 2"))
    ]
    written = studio.client.get(f"/studio/api/v1/episodes/{special.long}/copy/curl").text
    assert "# Only the first 1000 of 12000 calls are here." in written
    assert studio.client.get(f"/studio/api/v1/episodes/{special.long}/copy/perl").status_code == 404


# Two.


def test_two_episodes_stand_side_by_side_with_the_first_difference_marked(studio, page):
    calls = [("say", {"text": f"word {number}"}) for number in range(60)]
    studio.player.play(*calls, run="pair")
    studio.player.play(*calls[:40], ("say", {"text": "else"}), *calls[41:58], run="pair")
    until(lambda: len(studio.client.get("/studio/api/v1/episodes?run=pair&outcome=closed").json()["rows"]) == 2)
    page.goto(f"{studio.url}/episodes?run=pair")
    expect(page.locator("tr[data-id]")).to_have_count(2)
    for box in page.locator("tr[data-id] input").all():
        box.check()
    page.get_by_role("link", name="Compare these two").click()
    expect(page.locator("#said")).to_contain_text("They first differ at step 41.")
    pair = page.locator(".pair-of-steps[data-step='41']")
    expect(pair).to_be_in_viewport()
    expect(pair).to_contain_text("differs: arguments, result")
    expect(page.locator(".pair-of-steps[data-step='40']")).not_to_contain_text("differs")
    page.keyboard.press("d")
    expect(page.locator("#said")).to_contain_text("They differ at step 59.")
    expect(page.locator(".pair-of-steps[data-step='59']")).to_contain_text("has no such step")


# Play from here.


def play_from(page: Page, step: int) -> None:
    article = page.locator(f"#step-{step}")
    article.hover()
    article.get_by_role("button", name=f"Play from step {step}").click()
    page.get_by_role("dialog").get_by_role("button", name="Open the session").click()


def test_play_from_a_step_opens_a_session_that_is_there_already(studio, page):
    studio.player.play(*[("say", {"text": f"said {number}"}) for number in range(5)], *graded(1), index=3, run="again")
    until(lambda: studio.client.get("/studio/api/v1/episodes?run=again&outcome=finished").json()["rows"])
    open_one(studio, page, "again")
    play_from(page, 3)
    page.wait_for_url(re.compile(r"/studio/play/quiz\?session="))
    log = page.get_by_role("log")
    expect(log).to_contain_text("said 2")
    expect(log).not_to_contain_text("said 3")
    page.get_by_label("text").first.fill("by hand")
    page.get_by_role("button", name="Call say").click()
    expect(log).to_contain_text("by hand")


@pytest.mark.thorough
def test_play_from_says_what_came_back_otherwise(studio, page):
    studio.player.play(("roll", {}), ("say", {"text": "after"}), run="rolled")
    until(lambda: studio.client.get("/studio/api/v1/episodes?run=rolled&outcome=closed").json()["rows"])
    open_one(studio, page, "rolled")
    play_from(page, 2)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Step 1 came back otherwise than recorded")
    expect(dialog.locator("pre")).to_contain_text("-rolled")
    dialog.get_by_role("link", name="Go on anyway").click()
    expect(page.get_by_role("log")).to_contain_text("after")


@pytest.mark.thorough
def test_play_from_says_when_the_environment_is_not_served(large, page):
    studio, special = large
    page.goto(f"{studio.url}/episodes/{special.root}")
    page.locator("#step-1").hover()
    page.get_by_role("button", name="Play from step 1").click()
    expect(page.get_by_role("dialog")).to_contain_text("This server does not serve the environment maze")


@pytest.mark.thorough
def test_play_from_can_be_stopped_and_leaves_no_session(studio, page, monkeypatch):
    studio.player.play(("say", {"text": "first"}), ("hang", {}), run="hangs")
    until(lambda: studio.client.get("/studio/api/v1/episodes?run=hangs&outcome=closed").json()["rows"])
    monkeypatch.setattr(Quizzes, "hung", threading.Event())
    open_one(studio, page, "hangs")
    play_from(page, 2)
    assert Quizzes.hung is not None
    assert Quizzes.hung.wait(20)
    running = studio.client.get("/studio/api/v1/sessions").text
    assert "hang" in running
    page.get_by_role("dialog").get_by_role("button", name="Stop").click()
    expect(page.get_by_role("dialog")).to_contain_text("Stopped. The session is closed.")
    until(lambda: "hang" not in studio.client.get("/studio/api/v1/sessions").text)


def test_play_from_needs_the_token_of_the_page(studio):
    answer = studio.client.post(f"/studio/api/v1/episodes/{studio.newest()}/play", json={"step": 1})
    assert answer.status_code == 403


# The store.


@pytest.mark.thorough
def test_a_store_that_a_stranger_wrote_is_text_or_a_sentence(tmp_path, page):
    path = tmp_path / "runs.db"
    with serving(path) as studio:
        for number in range(3):
            studio.player.play(("say", {"text": "x"}), run=f"r{number}")
        studio.until_recorded(3)
        file = sqlite3.connect(path, isolation_level=None)
        file.execute("UPDATE episodes SET id = ?, run = ?, wire = ?, outcome = ? WHERE run = 'r0'", [HOSTILE[:95]] * 4)
        hostile = file.execute("UPDATE steps SET tool = ?, outcome = ?", [HOSTILE[:95]] * 2).rowcount
        assert hostile == 3
        file.execute("UPDATE episodes SET labels = '[1, \"<b>\"]', task = 'no JSON' WHERE run = 'r1'")
        file.execute("UPDATE steps SET blocks = '[7]', arguments = '[]' WHERE episode = 3")
        page.goto(f"{studio.url}/episodes")
        expect(page.locator("tr[data-id]")).to_have_count(3)
        page.locator("tr[data-id]", has_text="script").locator("a.open").click()
        expect(page.locator("#timeline article")).to_contain_text("<script>document")
        page.goto(f"{studio.url}/episodes?run=r1")
        page.locator("tr[data-id] a.open").click()
        expect(page.locator("#timeline article")).to_be_visible()
        (broken,) = studio.client.get("/studio/api/v1/episodes?run=r2").json()["rows"]
        answer = studio.client.get(f"/studio/api/v1/episodes/{broken['id']}/steps")
        assert (answer.status_code, "no Toolyard has written" in answer.json()["error"]) == (409, True)
        file.execute("UPDATE episodes SET labels = 'no JSON' WHERE run = 'r2'")
        file.close()
        page.goto(f"{studio.url}/episodes?run=r2")
        expect(page.get_by_role("alert")).to_contain_text("no Toolyard has written")
        assert "owned" not in page.title()


@pytest.mark.thorough
def test_a_store_that_is_gone_locked_or_newer_is_a_sentence(tmp_path, page, monkeypatch):
    path = tmp_path / "runs.db"
    with serving(path) as studio:
        studio.player.play(*graded(1))
        studio.until_recorded(1)
        page.goto(f"{studio.url}/episodes")
        expect(page.locator("tr[data-id]")).to_have_count(1)
        aside = path.with_name("aside.db")
        other = sqlite3.connect(path)
        other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        other.close()
        path.rename(aside)
        expect(page.get_by_role("alert")).to_contain_text("there is no file", timeout=15_000)
        expect(page.locator("tr[data-id]")).to_have_count(1)
        aside.rename(path)
        expect(page.get_by_role("alert")).to_be_hidden(timeout=15_000)
        monkeypatch.setattr(schema, "VERSION", schema.VERSION - 1)
        answer = studio.client.get("/studio/api/v1/episodes")
        assert (answer.status_code, "newer Toolyard" in answer.json()["error"]) == (409, True)
        answer = studio.client.get(f"/studio/episodes/{'x' * 21}", headers={"accept": "text/html"})
        assert (answer.status_code, "newer Toolyard" in answer.text) == (409, True)
