"""`WebEnv`, with local pages and a local search engine: through Chromium, and over plain HTTP."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.responses import Response

from tests.browser.site import Site, chromium, serving
from tests.browser.test_lifecycle import chromiums_here
from tests.tools.acting import Trainer
from tests.tools.search_service import Service, found, searching
from tests.wires.wire import Answer
from toolyard.testing import running
from toolyard.tools.environment import toolbox
from toolyard.tools.web import WebEnv

pytestmark = pytest.mark.anyio

FACTS = Path(__file__).parents[2] / "examples" / "data" / "facts.jsonl"


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture(scope="module")
def private() -> Iterator[Site]:
    """Also on loopback, but not allowed."""
    with serving() as site:
        yield site


@pytest.fixture(scope="module", params=["chromium", "http"])
def reader(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def url(reader: str, site: Site) -> Iterator[str]:
    """A server whose tools read pages in one way or the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLYARD_WEB_READER", reader)
        patch.setenv("TOOLYARD_BROWSER_ALLOW", site.host)
        patch.setenv("TOOLYARD_BROWSER_SECONDS", "3")
        if reader == "chromium":
            chromium()
        assert WebEnv.missing() == ""
        with running([toolbox([WebEnv])]) as server:
            yield server.url


@pytest.fixture
async def trainer(url: str) -> AsyncIterator[Trainer]:
    async with Trainer(url) as trainer:
        yield trainer


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with searching(monkeypatch) as service:
        yield service


async def call(trainer: Trainer, tool: str, **arguments: Any) -> Answer:
    async with trainer.session() as sid:
        return await trainer.call(sid, tool, {"goals_to_browse": "what it says", **arguments}, env="toolbox")


async def browse(trainer: Trainer, url: str) -> Answer:
    return await call(trainer, "browse_website", url=url)


async def refused(trainer: Trainer, url: str) -> str:
    """The agent's error; the infrastructure is not to blame."""
    failure = (await browse(trainer, url)).failure
    error: str = failure["error"]
    assert error.startswith("Tool 'browse_website' failed: ")
    return error


async def test_a_page_is_its_text_and_then_its_links(trainer: Trainer, site: Site) -> None:
    text = (await browse(trainer, f"{site.url}/about.html")).text
    assert text == (
        f"About\n# About the tools\nThe saw was made in 1820.\nHome\n\nLinks:\nHome ({site.url}/index.html)\n"
    )
    text = (await browse(trainer, f"{site.url}/index.html")).text
    assert text.startswith(
        "The yard\n# Tools of the yard\nThere are three kinds of tools. Read about them or all of it."
    )
    assert "Saw | 12\nAxe | 30\n" in text
    assert "\ntwo\n  lines\n" in text
    assert "never shown" not in text
    assert text.endswith(f"\n\nLinks:\nabout them ({site.url}/about.html)\nall of it ({site.url}/long.html)\n")


async def test_a_page_without_links_is_only_text(trainer: Trainer, site: Site) -> None:
    assert (await browse(trainer, f"{site.url}/echo?saw=sharp")).text == "Echo\nsaw=sharp"


async def test_only_a_browser_runs_what_a_page_is_made_by(trainer: Trainer, site: Site, reader: str) -> None:
    is_browser = reader == "chromium"
    text = (await browse(trainer, f"{site.url}/long.html")).text
    assert text.startswith("A long page\n# Numbers\n")
    assert ("\nThis is line 1.\n" in text, "\nThis is line 120.\n" in text) == (is_browser, is_browser)
    text = (await browse(trainer, f"{site.url}/late.html")).text
    seen = ["Nothing yet." in text, "Here it is." in text, "In the shadow" in text]
    assert seen == ([False, True, True] if is_browser else [True, False, False])


async def test_a_redirect_is_followed(trainer: Trainer, site: Site) -> None:
    assert (await browse(trainer, f"{site.url}/redirect?to=/about.html")).text.startswith("About\n")


async def test_an_error_of_the_server_is_a_failure_that_the_agent_reads(trainer: Trainer, site: Site) -> None:
    assert "/nowhere.html answered 404" in await refused(trainer, f"{site.url}/nowhere.html")
    assert "could not be opened" in await refused(trainer, f"{site.url}/gone")


async def test_a_server_that_says_nothing_is_given_up(trainer: Trainer, site: Site) -> None:
    with anyio.fail_after(20):
        assert "/silent did not answer in 3 seconds" in await refused(trainer, f"{site.url}/silent")


async def test_what_is_no_page_is_said_to_be_none(trainer: Trainer, site: Site) -> None:
    assert "/download is not a page: " in await refused(trainer, f"{site.url}/download")


async def test_private_addresses_are_refused_also_behind_a_redirect(
    trainer: Trainer, site: Site, private: Site
) -> None:
    for url in (private.url, f"{site.url}/redirect?to={private.url}/secret"):
        assert f"127.0.0.1 port {private.server_port} is not a public address" in await refused(trainer, url)
    assert private.connections == 0
    assert "is not a public address" in await refused(trainer, "http://169.254.169.254/latest/meta-data")


@pytest.mark.parametrize(
    "address", ["file:///etc/passwd", "javascript:alert(1)", "http://", "http://[", "", "no such host"]
)
async def test_what_is_no_address_of_the_web_is_refused(trainer: Trainer, address: str) -> None:
    assert len(await refused(trainer, address)) < 300


async def test_redirects_in_a_circle_come_to_an_end(trainer: Trainer, site: Site) -> None:
    site.asked.clear()
    assert "redirect" in (await refused(trainer, f"{site.url}/circle")).lower()
    assert len(site.asked) < 30


async def test_results_of_a_search_are_opened(trainer: Trainer, service: Service, site: Site, private: Site) -> None:
    service.answers = [
        lambda: found(
            {"title": "About", "link": f"{site.url}/about.html", "snippet": "The saw."},
            {"title": "Gone", "link": f"{site.url}/nowhere.html", "snippet": "An axe."},
            {"title": "Private", "link": private.url, "snippet": "A secret."},
            {"title": "Too many", "link": f"{site.url}/index.html", "snippet": "The yard."},
        )
    ]
    listed = json.loads((await call(trainer, "search_and_browse", search_query="saws", region="en-GB")).text)
    assert [(one["name"], one["snippet"]) for one in listed] == [
        ("About", "The saw."),
        ("Gone", "An axe."),
        ("Private", "A secret."),
    ]
    assert listed[0]["page"].startswith("About\n# About the tools\n")
    assert listed[1]["page"] == f"This page could not be opened: {site.url}/nowhere.html answered 404."
    assert "is not a public address" in listed[2]["page"]
    assert "mkt=en-GB" in service.asked[0]["url"]
    answer = await call(trainer, "search_and_browse", search_query="saws", region="en-GB", num_results=1)
    assert len(json.loads(answer.text)) == 1


async def test_a_search_that_finds_nothing_still_has_an_item(trainer: Trainer, service: Service) -> None:
    service.answers = [found]
    answer = await call(trainer, "search_and_browse", search_query="xyzzy")
    assert json.loads(answer.text) == [{"name": "No results", "snippet": "", "page": "No page was found for 'xyzzy'."}]


async def test_a_search_engine_that_fails_is_nobodys_fault(trainer: Trainer, service: Service) -> None:
    service.answers = [lambda: Response("broken", 500)]
    ended = (await call(trainer, "search_and_browse", search_query="saws")).events[-1]
    assert ended.name == "error"  # not a result, with or without a reward
    assert "could not be run: the search engine at" in ended.data


async def test_a_corpus_has_its_pages_itself(
    trainer: Trainer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLYARD_SEARCH_CORPUS", str(FACTS))
    first = json.loads((await call(trainer, "search_and_browse", search_query="deepest lake")).text)[0]
    assert first["name"] == "Lake Baikal"
    assert first["page"].startswith("Lake Baikal\nBaikal, in southern Siberia")
    assert service.asked == []


async def test_a_corpus_that_takes_long_to_read_is_read_once_and_holds_up_nobody(
    trainer: Trainer, site: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    corpus = tmp_path / "facts.txt"
    os.mkfifo(corpus)  # readable only while a writer writes, and only once
    monkeypatch.setenv("TOOLYARD_SEARCH_CORPUS", str(corpus))
    found: list[str] = []

    async def search() -> None:
        found.append((await call(trainer, "search_and_browse", search_query="saws")).text)

    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(search)
        with anyio.fail_after(20):
            assert (await browse(trainer, f"{site.url}/about.html")).text.startswith("About\n")
        await anyio.to_thread.run_sync(corpus.write_text, "Saws are sharp.")
    assert [json.loads(text)[0]["page"] for text in found] == ["facts\nSaws are sharp."] * 3


async def test_without_a_search_engine_pages_can_still_be_read(
    trainer: Trainer, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("BRIGHTDATA_API_KEY", "SERPER_API_KEY", "TOOLYARD_SEARCH_CORPUS"):
        monkeypatch.delenv(name, raising=False)
    assert WebEnv.missing() == ""
    failure = (await call(trainer, "search_and_browse", search_query="saws")).failure
    assert "there is no search engine here: set BRIGHTDATA_API_KEY or SERPER_API_KEY" in failure["error"]
    assert (await browse(trainer, f"{site.url}/about.html")).text.startswith("About\n")


async def test_many_pages_are_read_at_once_in_one_session(trainer: Trainer, site: Site) -> None:
    texts: dict[int, str] = {}

    async def read(number: int, sid: str) -> None:
        arguments = {"url": f"{site.url}/echo?number={number}", "goals_to_browse": ""}
        texts[number] = (await trainer.call(sid, "browse_website", arguments, env="toolbox")).text

    async with trainer.session() as sid, anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(read, number, sid)
    assert texts == {number: f"Echo\nnumber={number}" for number in range(6)}


def test_the_reader_is_chosen_by_a_variable_or_by_what_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOOLYARD_WEB_READER", raising=False)
    monkeypatch.setenv("TOOLYARD_BROWSER_CHROMIUM", "no-such-program")
    assert WebEnv.missing() == ""  # plain HTTP needs no extra package
    monkeypatch.setenv("TOOLYARD_WEB_READER", "chromium")
    assert "apt install chromium" in WebEnv.missing()
    monkeypatch.setenv("TOOLYARD_WEB_READER", "telnet")
    assert WebEnv.missing() == "TOOLYARD_WEB_READER is 'telnet'; it must be chromium or http"
    monkeypatch.setenv("TOOLYARD_WEB_READER", "http")
    monkeypatch.setenv("TOOLYARD_BROWSER_ALLOW", "10.0.0.0/99")
    assert WebEnv.missing().startswith("a TOOLYARD_BROWSER_ variable cannot be used: ")


async def test_no_browser_is_started_for_plain_http(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    before = chromiums_here()
    monkeypatch.setenv("TOOLYARD_WEB_READER", "http")
    monkeypatch.setenv("TOOLYARD_BROWSER_ALLOW", site.host)
    with running([toolbox([WebEnv])]) as server:
        async with Trainer(server.url) as trainer:
            assert (await browse(trainer, f"{site.url}/about.html")).text.startswith("About\n")
            assert chromiums_here() == before


def test_its_tools_are_called_as_the_tool_server_calls_them() -> None:
    assert WebEnv.prefixed
    listed = {tool.name: tool.input_schema or {} for tool in toolbox([WebEnv]).list_tools().tools}
    assert listed["browse_website"]["required"] == ["url", "goals_to_browse"]
    assert listed["search_and_browse"]["required"] == ["search_query", "goals_to_browse"]
