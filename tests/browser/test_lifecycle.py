"""One browser for many sessions, and nothing of it left behind."""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.site import Site
from tests.wires.wire import until
from toolyard.browser import chromium, shared
from toolyard.browser.actions import Goto, Look
from toolyard.browser.chromium import Home
from toolyard.browser.shared import Visit, close_browser, open_visit
from toolyard.core.errors import BrowserLost, BrowserUnavailable

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

_PROGRAM = """
import asyncio, signal
from toolyard.browser.shared import open_visit

async def main():
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await open_visit()
    print("open", flush=True)
    await stop.wait()

asyncio.run(main())
"""


@pytest.fixture
def directory() -> Iterator[Path]:
    """A directory for temporary files, like the usual one."""
    made = Path(tempfile.mkdtemp(prefix="toolyard-test-"))
    made.chmod(0o1777)
    yield made
    shutil.rmtree(made)


def commands() -> dict[int, str]:
    """The command lines of all living processes."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if ") Z " not in (process / "stat").read_text():
                found[int(process.name)] = (
                    (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
        except OSError:  # it has ended
            continue
    return found


def processes_of(directory: Path) -> list[int]:
    return [process for process, command in commands().items() if str(directory) in command]


def is_below(process: int, ancestor: int) -> bool:
    while process not in (0, ancestor):
        process = int(Path(f"/proc/{process}/stat").read_text().rpartition(") ")[2].split()[1])
    return process == ancestor


def has_driver(server: int) -> bool:
    threads = Path(f"/proc/{server}/task").glob("*/children")
    children = {int(child) for thread in threads for child in thread.read_text().split()}
    return any("run-driver" in command for process, command in commands().items() if process in children)


def chromiums_here() -> list[tuple[int, str]]:
    """The browsers of this process, with their command lines."""
    return [
        (process, command)
        for process, command in commands().items()
        if command.startswith("/") and "--remote-debugging-pipe" in command and "launcher.py" not in command
        if "--type=" not in command and is_below(process, os.getpid())
    ]


def user_of(process: int) -> int:
    return os.stat(f"/proc/{process}").st_uid


def start_server(directory: Path) -> subprocess.Popen[str]:
    env = {**os.environ, "TMPDIR": str(directory)}
    return subprocess.Popen([sys.executable, "-c", _PROGRAM], env=env, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
async def test_a_server_that_ends_leaves_no_process_and_no_file(browser: None, directory: Path, how: signal.Signals):
    with start_server(directory) as server:
        assert server.stdout is not None
        assert server.stdout.readline() == "open\n"
        assert len(processes_of(directory)) > 3
        server.send_signal(how)
    await until(lambda: not processes_of(directory) and not list(directory.iterdir()), seconds=20)


async def test_a_server_that_is_killed_while_the_driver_starts_leaves_nothing(browser: None, directory: Path):
    with start_server(directory) as server:
        await until(lambda: has_driver(server.pid))
        server.kill()
    await until(lambda: not processes_of(directory) and not list(directory.iterdir()), seconds=20)


async def test_when_the_browser_dies_its_sessions_are_told_and_the_next_gets_another(visit: Visit, site: Site):
    await visit.perform(Goto(f"{site.url}/about.html"))
    ((running, _),) = chromiums_here()
    os.kill(running, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(BrowserLost, match="the browser has ended"):
            await visit.perform(Look())
    again = await open_visit()
    try:
        assert (await again.perform(Goto(f"{site.url}/about.html"))).title == "About"
    finally:
        await again.close()


async def test_a_call_that_is_running_when_the_browser_dies_is_lost_at_once(visit: Visit, site: Site):
    before = len(site.asked)
    opening = asyncio.ensure_future(visit.perform(Goto(f"{site.url}/silent")))
    await until(lambda: len(site.asked) > before)
    ((running, _),) = chromiums_here()
    os.kill(running, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(BrowserLost):
        await opening
    assert time.monotonic() - begun < 2


async def test_a_browser_of_root_runs_as_somebody_else_and_in_its_own_sandbox_if_it_can(visit: Visit):
    ((running, command),) = chromiums_here()
    assert user_of(running) != 0
    home = Home()
    try:
        can = await home.can_sandbox(str(chromium.find_chromium()))
    finally:
        await home.close()
    assert ("--no-sandbox" in command) is not can


async def test_only_so_many_sessions_share_a_browser(browser: None, monkeypatch: pytest.MonkeyPatch):
    await close_browser()
    monkeypatch.setenv("TOOLYARD_BROWSER_SESSIONS", "2")
    first, second = await open_visit(), await open_visit()
    with pytest.raises(BrowserUnavailable, match="a window for each of 2 sessions, and no more are allowed"):
        await open_visit()
    await first.close()
    third = await open_visit()
    await asyncio.gather(second.close(), third.close())
    await close_browser()


async def test_windows_that_nobody_waits_for_any_longer_count_until_they_are_closed(
    browser: None, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOOLYARD_BROWSER_SESSIONS", "3")
    await close_browser()
    kept = await open_visit()
    try:
        for _ in range(2):
            opening = asyncio.create_task(open_visit())
            for _ in range(10):  # it waits for a window that is not free
                await asyncio.sleep(0)
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        with pytest.raises(BrowserUnavailable, match="a window for each of 3 sessions"):
            await open_visit()
        shared_browser = shared._keepers[asyncio.get_running_loop()].browser
        assert shared_browser is not None
        await until(lambda: shared_browser._windows == 1 and len(shared_browser._chromium.contexts) == 1, 20)
        await (await open_visit()).close()
    finally:
        await kept.close()
        await close_browser()


async def test_sessions_work_at_once_and_know_nothing_of_each_other(visit: Visit, site: Site):
    visits = await asyncio.gather(*(open_visit() for _ in range(6)))
    try:
        urls = [f"{site.url}/echo?number={i}" for i in range(6)]
        views = await asyncio.gather(*(one.perform(Goto(url)) for one, url in zip(visits, urls, strict=True)))
        assert [view.text for view in views] == [f"number={i}" for i in range(6)]
        assert (await visit.perform(Look())).url == "about:blank"
    finally:
        await asyncio.gather(*(one.close() for one in visits))


@pytest.mark.alone
async def test_a_page_on_a_warm_browser_is_there_in_well_under_a_second(visit: Visit, site: Site):
    await visit.perform(Goto(f"{site.url}/about.html"))
    took = []
    for _ in range(5):
        begun = time.monotonic()
        other = await open_visit()
        await other.perform(Goto(f"{site.url}/about.html"))
        took.append(time.monotonic() - begun)
        await other.close()
    logging.getLogger(__name__).info("a window and a page: %s", [f"{seconds:.3f}" for seconds in took])
    assert min(took) < 1


async def test_a_browser_that_cannot_be_started_is_an_error_in_words(browser: None, monkeypatch: pytest.MonkeyPatch):
    await close_browser()
    monkeypatch.setenv("TOOLYARD_BROWSER_CHROMIUM", "false")
    with pytest.raises(BrowserUnavailable, match="the browser could not be started"):
        await open_visit()


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TOOLYARD_BROWSER_CHROMIUM", "no-such-program", "'no-such-program', which cannot be run"),
        ("TOOLYARD_BROWSER_ALLOW", "10.0.0.0/99", "cannot be used"),
        ("TOOLYARD_BROWSER_SESSIONS", "many", "cannot be used"),
    ],
)
def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str):
    monkeypatch.setenv(name, value)
    assert said in chromium.missing()
