"""`text_browser` as trainers use it, and its tools as an ORS client uses them."""

from __future__ import annotations

import asyncio
import os
import signal
import uuid
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.browser.site import Site, chromium, serving
from tests.browser.test_lifecycle import chromiums_here
from tests.tools.acting import Trainer
from toolyard.testing import Running
from toolyard.testing import running as serve
from toolyard.tools.text_browser import TextBrowser

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def server(site: Site) -> Iterator[Running]:
    chromium()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLYARD_BROWSER_ALLOW", site.host)
        with serve([], tools="python_code,text_browser") as server:
            yield server


@pytest.fixture
async def trainer(server: Running) -> AsyncIterator[Trainer]:
    async with Trainer(server.url) as trainer:
        yield trainer


def thought(action: str, thinking: str = "Let me see.") -> str:
    return f"<think>{thinking}</think>\n```{action}```"


def framed(question: str, url: str, title: str, page: str, before: str) -> str:
    return (
        f"Objective: {question}\n\nURL: {url}\nObservation:\nTitle: {title}\n{page}\n"
        f"Parsed Previous Action:\n{before}\n"
    )


ABOUT = '# About the tools\nThe saw was made in 1820.\n[1] link "Home"'


async def test_no_text_shows_the_first_page_and_is_no_valid_action(trainer: Trainer, site: Site):
    url = f"{site.url}/about.html"
    seen = await trainer.act("", question="When was the saw made?", gt="1820", url=url)
    assert seen == (framed("When was the saw made?", url, "About", ABOUT, "None"), False, False)


async def test_actions_in_fences_after_thoughts_lead_from_page_to_page(trainer: Trainer, site: Site):
    trajectory = uuid.uuid4().hex
    extra = {"question": "How old is the saw?", "url": f"{site.url}/index.html"}
    seen = await trainer.act(thought("click [1]"), trajectory, **extra)
    about = f"{site.url}/about.html"
    assert seen == (framed("How old is the saw?", about, "About", ABOUT, "click [1]"), False, True)
    seen = await trainer.act(thought("go_back", "Back\nagain"), trajectory, **extra)
    assert "Title: The yard" in seen.text
    assert seen.text.endswith("Parsed Previous Action:\ngo_back\n")
    again = await trainer.act("", trajectory, **extra)
    assert (again.text, again.valid) == (seen.text, False)
    await trainer.finish(trajectory)


async def test_typing_presses_enter_unless_told_not_to(trainer: Trainer, site: Site):
    for written, title in (
        ("type [1] [Ada [L.]]", "Echo"),
        ("type [1] [Ada [L.]] [1]", "Echo"),
        ("type [1] [Ada [L.]] [press_enter_after=0]", "A form"),
        ("type [1] [Ada [L.]] [0]", "A form"),
    ):
        seen = await trainer.act(thought(written), url=f"{site.url}/form.html")
        assert f"Title: {title}\n" in seen.text
        assert "Ada [L.]" in seen.text
        assert seen.valid


async def test_every_action_of_the_notation_is_understood(trainer: Trainer, site: Site):
    trajectory = uuid.uuid4().hex
    extra = {"url": f"{site.url}/long.html", "max_steps": 30}
    for action, expected in (
        ("scroll [down]", "part 2 of"),
        ("scroll [direction=up]", "part 1 of"),
        ("scroll down", "part 2 of"),
        ("hover [1]", "At the end"),
        ("press [Ctrl+a]", "Title: A long page"),
        (f"goto [{site.url}/form.html]", "Title: A form"),
        ("select [4] [Green]", 'combobox "Colour" value "Green"'),
        ("go_back", "Title: A long page"),
        ("go_forward", "Title: A form"),
        ("new_tab", "Tab 1 (current): about:blank"),
        (f"goto [{site.url}/about.html] [1]", f"Tab 2 (current): {site.url}/about.html"),
        ("tab_focus [0]", "Title: A form"),
        ("close_tab", "Title: About"),
    ):
        seen = await trainer.act(thought(action), trajectory, **extra)
        assert expected in seen.text, action
        assert (seen.done, seen.valid) == (False, True)
    await trainer.finish(trajectory)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("action", "problem"),
    [
        ("clik [1]", "The action is invalid, please retry: there is no action 'clik'; there are click, type, "),
        ("click the link", "The action is invalid, please retry: 'click the link' is not written as click [id]"),
        ("", "The action is invalid, please retry"),
        ("click [99]", "click [99]\nThat failed: there is no element [99] on the page"),
        ("goto [file:///etc/passwd]", "That failed: only http and https addresses can be opened, not 'file'"),
        ("goto [http://169.254.169.254/]", "That failed: 169.254.169.254 port 80 is not a public address"),
    ],
)
async def test_an_action_that_fails_shows_the_page_and_the_reason(
    trainer: Trainer, site: Site, action: str, problem: str
):
    seen = await trainer.act(thought(action or " "), url=f"{site.url}/about.html")
    assert ABOUT in seen.text
    assert problem in seen.text or not action
    assert (seen.done, seen.valid) == (False, False)


async def test_a_first_page_that_cannot_be_opened_is_told(trainer: Trainer):
    seen = await trainer.act("", url="http://127.0.0.1:1/")
    assert "The first page could not be opened: 127.0.0.1 port 1 is not a public address" in seen.text
    assert (seen.done, seen.valid) == (False, False)


@pytest.mark.parametrize(
    ("answer", "truth", "reward"),
    [
        ("Natalia Gastiain Tena", "natalia  gastiain tena", 1.0),
        ("'1820'", "1820", 1.0),
        ("1820", ["1819", "1820"], 1.0),
        ("1821", "1820", 0.0),
        ("", "1820", 0.0),
    ],
)
async def test_stopping_ends_the_trajectory_and_rewards_a_true_answer(
    trainer: Trainer, answer: str, truth: object, reward: float
):
    seen = await trainer.act(thought(f"stop [{answer}]"), gt=truth)
    assert seen == ({"obs": "", "reward": reward}, True, True)


async def test_stopping_without_a_known_answer_has_no_reward_and_forgets_the_page(trainer: Trainer, site: Site):
    trajectory = uuid.uuid4().hex
    await trainer.act(thought("click [1]"), trajectory, url=f"{site.url}/index.html")
    assert await trainer.act(thought("stop"), trajectory) == ("", True, True)
    seen = await trainer.act("", trajectory, url=f"{site.url}/index.html")
    assert "Title: The yard" in seen.text
    assert seen.text.endswith("Parsed Previous Action:\nNone\n")


async def test_extra_fields_are_also_found_inside_extra_fields(trainer: Trainer, site: Site):
    nested = {"question": "Who?", "gt": "me", "url": f"{site.url}/about.html"}
    seen = await trainer.act("", extra_fields=nested)
    assert seen.text.startswith("Objective: Who?\n")
    assert "Title: About" in seen.text
    assert (await trainer.act(thought("stop [me]"), extra_fields=nested)).observation == {"obs": "", "reward": 1.0}


async def test_the_trajectory_ends_after_its_steps(trainer: Trainer, site: Site):
    trajectory = uuid.uuid4().hex
    extra = {"url": f"{site.url}/about.html", "max_steps": 2}
    assert not (await trainer.act(thought("scroll [down]"), trajectory, **extra)).done
    assert await trainer.act(thought("scroll [down]"), trajectory, **extra) == ("", True, True)


@pytest.mark.parametrize(
    "text",
    [
        "click [1]",
        "```click [1]```",
        "<think>x</think>```click [1]```",
        "<think>x</think>\n\n```click [1]```",
        "<think>x</think> click [1]",
        " ",
    ],
)
async def test_text_that_is_written_otherwise_is_no_action_of_the_browser(trainer: Trainer, text: str):
    assert await trainer.act(text) == ("", False, False)


@pytest.mark.thorough
async def test_trajectories_of_a_batch_browse_at_once_each_its_own_page(trainer: Trainer, site: Site):
    pages = [f"{site.url}/echo?number={i}" for i in range(8)]
    seen = await asyncio.gather(*(trainer.act("", url=page) for page in pages))
    assert [f"number={i}\n" in one.text for i, one in enumerate(seen)] == [True] * 8


async def test_an_ors_client_browses_with_plain_tools(trainer: Trainer, site: Site):
    async with trainer.session() as sid:
        page = (await trainer.call(sid, "open_page", {"url": f"{site.url}/index.html"}, env="toolbox")).text
        assert page.startswith(f"Title: The yard\nURL: {site.url}/index.html\n# Tools of the yard\n")
        about = (await trainer.call(sid, "click", {"element": 1}, env="toolbox")).text
        assert about == f"Title: About\nURL: {site.url}/about.html\n{ABOUT}"
        assert (await trainer.call(sid, "go_back", env="toolbox")).text == page
        form = {"url": f"{site.url}/form.html"}
        await trainer.call(sid, "open_page", form, env="toolbox")
        typed = {"element": 1, "text": "Ada", "enter": True}
        assert "name=Ada" in (await trainer.call(sid, "type_text", typed, env="toolbox")).text
        await trainer.call(sid, "open_page", {"url": f"{site.url}/long.html"}, env="toolbox")
        assert "part 2 of" in (await trainer.call(sid, "scroll", {"direction": "down"}, env="toolbox")).text
        assert "part 2 of" in (await trainer.call(sid, "read_page", env="toolbox")).text
        failed = await trainer.call(sid, "click", {"element": 99}, env="toolbox")
        assert failed.failure["error"] == "Tool 'click' failed: there is no element [99] on the page"


async def test_both_ways_of_calling_share_one_page_and_the_task_names_the_first(trainer: Trainer, site: Site):
    async with trainer.session(url=f"{site.url}/index.html", gt="1820") as sid:
        assert "Title: The yard" in (await trainer.call(sid, "read_page", env="toolbox")).text
        clicked = await trainer.call(sid, "text_browser", {"action": "click [1]"}, env="toolbox")
        assert "Title: About" in clicked.text
        assert "The saw was made in 1820." in (await trainer.call(sid, "read_page", env="toolbox")).text
        ended = await trainer.call(sid, "text_browser", {"action": "stop [1820]"}, env="toolbox")
        assert (ended.output["finished"], ended.output["reward"]) == (True, 1.0)


async def test_a_json_call_is_answered_as_one(trainer: Trainer, site: Site):
    call = f'{{"name": "open_page", "arguments": {{"url": "{site.url}/about.html"}}}}'
    seen = await trainer.act(f"<tool_call>{call}</tool_call>")
    assert seen.text.startswith("\n<tool_response>\nTitle: About\n")


@pytest.mark.thorough
async def test_a_browser_that_dies_is_nobodys_fault_and_the_next_trajectory_gets_another(trainer: Trainer, site: Site):
    trajectory = uuid.uuid4().hex
    extra = {"url": f"{site.url}/about.html"}
    await trainer.act("", trajectory, **extra)
    ((running, _),) = chromiums_here()
    os.kill(running, signal.SIGKILL)
    seen = await trainer.act(thought("click [1]"), trajectory, **extra)
    assert (seen.done, seen.valid) == (True, False)
    assert seen.observation["retryable"] is True
    assert seen.observation["reward"] is None
    assert "the browser has ended" in seen.observation["error"]
    assert "Title: About" in (await trainer.act("", **extra)).text


@pytest.mark.thorough
async def test_windows_close_with_their_sessions_and_the_browser_with_its_server(
    server: Running, site: Site, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("TOOLYARD_BROWSER_SESSIONS", "1")
    before = chromiums_here()
    page = {"url": f"{site.url}/about.html"}
    with serve([], tools="text_browser") as small:
        async with Trainer(small.url) as trainer:
            await trainer.act("", "first", **page)
            refused = await trainer.act("", "second", **page)
            assert (refused.done, refused.valid) == (True, False)
            assert "a window for each of 1 sessions, and no more are allowed" in refused.observation["error"]
            await trainer.finish("first")
            assert "Title: About" in (await trainer.act("", "third", **page)).text
            assert len(chromiums_here()) == len(before) + 1
    assert chromiums_here() == before


def test_what_is_missing_is_said_before_the_server_starts(monkeypatch: pytest.MonkeyPatch):
    assert TextBrowser.missing() == ""
    monkeypatch.setenv("TOOLYARD_BROWSER_CHROMIUM", "no-such-program")
    assert "apt install chromium" in TextBrowser.missing()
