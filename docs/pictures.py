"""Take the pictures of Studio in docs/pictures/, light and dark, of a server with the examples and some load.

python docs/pictures.py

It needs Chromium, and the extra `browser`. Run it by hand after a change of the pages, and look at what it took.
"""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

from toolyard import Client
from toolyard.browser.chromium import find_chromium
from toolyard.client import Session, ToolCallFailed

PICTURES = Path(__file__).parent / "pictures"
EXAMPLES = Path(__file__).parents[1] / "examples"
TOOLYARD = Path(sys.executable).with_name("toolyard")
PORT = 8097
URL = f"http://127.0.0.1:{PORT}"
LOAD_SECONDS = 45
MOST_BYTES = 150_000
SIZE = {"width": 1240, "height": 800}


@contextmanager
def served() -> Iterator[None]:
    """The examples, recorded, with agents that play them at random."""
    with tempfile.TemporaryDirectory() as folder:
        files = [str(EXAMPLES / f"{name}.py") for name in ("maze", "arithmetic", "chart")]
        command = [str(TOOLYARD), "serve", *files, "--port", str(PORT), "--record", f"{folder}/episodes.db"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            for line in server.stdout:
                if "Stop with Ctrl-C" in line:
                    break
            over = threading.Event()
            agents = [threading.Thread(target=play, args=(number, over)) for number in range(12)]
            for agent in agents:
                agent.start()
            try:
                yield
            finally:
                over.set()
                for agent in agents:
                    agent.join()
        finally:
            server.terminate()
            server.wait()


def play(number: int, over: threading.Event) -> None:
    dice = random.Random(number)
    run = f"baseline-{number % 3}"
    with Client(URL) as client:
        mazes, sums = client.environments.get("maze"), client.environments.get("arithmetic")
        episodes = 0
        while not over.is_set():
            episodes += 1
            if number % 4:
                with mazes.session(split="train", index=dice.randrange(20), run=run) as session:
                    walk(session, dice, over, skill=min(0.3 + 0.02 * episodes, 0.95))
            else:
                with sums.session(split="train", index=dice.randrange(9), run=run) as session:
                    session.get_prompt()
                    over.wait(dice.random() * 0.4)
                    session.call_tool("submit", {"answer": str(dice.randrange(20))})


def walk(session: Session, dice: random.Random, over: threading.Event, skill: float) -> None:
    session.get_prompt()
    for _ in range(14):
        over.wait(dice.random() * 0.12)
        good = dice.random() < skill
        direction = dice.choice(["east", "south"] if good else ["north", "west", "up"])
        try:
            if session.call_tool("move", {"direction": direction}).finished:
                return
        except ToolCallFailed:
            continue


def take(page: Page, name: str, scheme: str) -> None:
    path = PICTURES / f"studio-{name}-{scheme}.png"
    page.screenshot(path=path)
    size = path.stat().st_size
    print(f"{path.name}: {size:,} bytes")
    if size > MOST_BYTES:
        raise SystemExit(f"{path.name} is larger than {MOST_BYTES:,} bytes")


def take_all(browser: Browser, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport=SIZE)  # type: ignore[arg-type]  # light or dark
    page = context.new_page()
    page.goto(f"{URL}/studio/")
    page.wait_for_selector("#plot-rate path[d]")
    page.wait_for_timeout(2500)
    take(page, "overview", scheme)
    page.goto(f"{URL}/studio/sessions")
    page.wait_for_selector("tbody tr")
    take(page, "sessions", scheme)
    with Client(URL) as client:
        bar = client.environments.get("chart").get_task("train", 0).task_spec["ask"]
    page.goto(f"{URL}/studio/environments/chart")
    page.wait_for_selector(".tasks li")
    take(page, "environment", scheme)
    page.get_by_role("link", name="Play", exact=True).click()
    page.get_by_role("button", name="Open session").click()
    log = page.get_by_role("log")
    page.get_by_label("bar", exact=True).fill(bar)
    page.get_by_role("button", name="Call look_closer").click()
    log.locator(".step").first.wait_for()
    page.get_by_label("value", exact=True).fill("41.5")
    page.get_by_role("button", name="Call submit").click()
    log.get_by_text("finished").wait_for()
    log.locator("img").first.evaluate("image => image.decode()")
    page.evaluate("scrollTo(0, 0)")
    take(page, "play", scheme)
    take_episodes(page, scheme)
    context.close()


def take_episodes(page: Page, scheme: str) -> None:
    page.goto(f"{URL}/studio/episodes")
    page.wait_for_selector("#tasks tbody tr")
    page.wait_for_selector("#curves svg")
    take(page, "episodes", scheme)
    page.goto(f"{URL}/studio/episodes?environment=maze&outcome=finished&by=steps")
    page.locator("tr[data-id] a.open").first.click()
    page.wait_for_selector("#near li")
    take(page, "episode", scheme)
    page.locator("#near .siblings .aside").first.click()
    page.wait_for_selector(".pair-of-steps")
    page.wait_for_timeout(500)
    take(page, "compare", scheme)


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    with served(), sync_playwright() as playwright:
        time.sleep(LOAD_SECONDS)
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=["--no-sandbox"])
        for scheme in ("light", "dark"):
            take_all(browser, scheme)
        browser.close()


if __name__ == "__main__":
    main()
