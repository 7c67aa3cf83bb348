"""`google_search` and `bing_search`, against local counterparts of Serper and Bright Data, and against a corpus."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import pytest
from starlette.responses import JSONResponse, Response, StreamingResponse

from tests.tools.acting import Trainer
from tests.tools.search_service import KEY, PAGE, Service, found, searching
from tests.wires.wire import until
from toolyard.core.errors import DefinitionError
from toolyard.testing import running
from toolyard.tools import search_engines
from toolyard.tools.environment import toolbox
from toolyard.tools.search_engines import Recent, Result
from toolyard.tools.web import WebSearch
from toolyard.tools.web_search import BING_FORM, GOOGLE_FORM

pytestmark = pytest.mark.anyio

FACTS = Path(__file__).parents[2] / "examples" / "data" / "facts.jsonl"


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with searching(monkeypatch) as service:
        yield service


@pytest.fixture
async def google(service: Service) -> AsyncIterator[Trainer]:
    with running([], tools="google_search") as served:
        async with Trainer(served.url) as trainer:
            yield trainer


@pytest.fixture
async def bing(service: Service) -> AsyncIterator[Trainer]:
    with running([], tools="bing_search") as served:
        async with Trainer(served.url) as trainer:
            yield trainer


async def test_google_shows_titles_links_and_snippets(google: Trainer, service: Service) -> None:
    service.answers = [lambda: found(PAGE, {"title": "B", "link": "https://b.example", "description": "Two."})]
    seen = await google.act('<search>tool "yard"</search>')
    assert seen == (
        "<result>Search results for 'tool \"yard\"':\n\n"
        "**Page 1**\n**Title:** Toolyard\n**Link:** https://t.example\n**Snippet:** One server.\n\n"
        "**Page 2**\n**Title:** B\n**Link:** https://b.example\n**Snippet:** Two.\n</result>",
        False,
        True,
    )
    assert service.asked == [{"q": "tool yard", "hl": "en", "gl": "us", "num": 10}]
    assert service.keys == [KEY]


async def test_bing_shows_snippets(bing: Trainer, service: Service) -> None:
    service.answers = [lambda: found({"description": "One."}, {"description": "One."}, {"description": "Two."})]
    seen = await bing.act("<search>tool yard</search>")
    assert seen == ("<result>Search results for 'tool yard':\n\nPage 1: One.\nPage 2: Two.</result>", False, True)
    (asked,) = service.asked
    assert (asked["zone"], asked["format"]) == ("serp_api1", "raw")
    where = urlsplit(asked["url"])
    assert (where.hostname, where.path) == ("www.bing.com", "/search")
    assert parse_qs(where.query) == {
        **{"q": ["tool yard"], "mkt": ["en-US"], "setLang": ["en"], "brd_json": ["1"], "cc": ["us"]}
    }
    assert service.keys == [f"Bearer {KEY}"]


async def test_a_chinese_query_is_asked_in_chinese(google: Trainer, service: Service) -> None:
    await google.act("<search>北京的天气</search>")
    await google.act("<search>東京のてんき</search>")
    assert [(asked["hl"], asked["gl"]) for asked in service.asked] == [("zh-cn", "cn"), ("en", "us")]


async def test_what_says_nothing_or_says_it_again_is_left_out_and_long_snippets_are_cut(
    google: Trainer, service: Service
) -> None:
    long = {"title": "L", "link": "l", "snippet": "x" * 2000}
    service.answers = [
        lambda: found({"title": "A", "link": "a"}, PAGE, PAGE, long, *[{"snippet": str(i)} for i in range(20)])
    ]
    text = (await google.act("<search>q</search>")).text
    assert "**Page 2**\n**Title:** Toolyard" in text
    assert "**Page 1**" not in text
    assert "**Page 3**" not in text
    assert f"**Snippet:** {'x' * 1000}...\n" in text
    assert "**Page 10**" in text
    assert "**Page 11**" not in text


@pytest.mark.parametrize("answer", [{}, {"organic": []}, {"organic": None}, {"organic": ["x"]}])
async def test_nothing_found_is_said(google: Trainer, service: Service, answer: object) -> None:
    service.answers = [lambda: JSONResponse(answer)]
    seen = await google.act("<search>q</search>")
    assert seen == ("<result>Search results for 'q':\n\nNo search results found.</result>", False, True)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (lambda: Response("Unauthorized.", 403), "it answered 403: Unauthorized."),
        (lambda: Response("broken", 502), "it answered 502: broken"),
        (lambda: JSONResponse({"message": "Not enough credits"}, 400), "it answered 400: "),
        (lambda: Response("<html>", 200), "its answer is not JSON: '<html>'"),
        (lambda: JSONResponse([]), "its answer is not an object: []"),
    ],
)
async def test_a_search_engine_that_fails_costs_the_agent_no_reward(
    google: Trainer, bing: Trainer, service: Service, answer: Callable[[], Response], problem: str
) -> None:
    service.answers = [answer, answer]
    for trainer, path in ((google, "/search"), (bing, "/request")):
        said = (await trainer.act("<search>q</search>")).why_lost()
        assert f"{path} failed: {problem}" in said
        assert said.startswith(f"Tool '{'google' if trainer is google else 'bing'}_search' could not be run: ")


async def test_no_key_is_ever_shown(google: Trainer, service: Service, caplog: pytest.LogCaptureFixture) -> None:
    service.answers = [lambda: Response(f"bad key {KEY}", 401), lambda: found({**PAGE, "snippet": f"Of {KEY}."})]
    seen = await google.act("<search>q</search>")
    assert KEY not in json.dumps(seen.observation)
    assert "it answered 401: bad key ***" in caplog.text
    assert KEY not in caplog.text
    assert "Of ***." in (await google.act("<search>q</search>")).text


async def test_a_service_that_is_not_there_is_told_apart(google: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERPER_URL", "http://127.0.0.1:1/search")
    assert (
        "http://127.0.0.1:1/search failed: it cannot be reached" in (await google.act("<search>q</search>")).why_lost()
    )


async def test_a_service_that_is_asked_too_often_is_asked_again(
    google: Trainer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_engines, "_PAUSES", (0.01, 0.01))
    busy = lambda: Response("slow down", 429)  # noqa: E731
    service.answers = [busy, busy]
    assert "One server." in (await google.act("<search>q</search>")).text
    service.answers = [busy, busy, busy]
    assert "it answered 429: slow down" in (await google.act("<search>r</search>")).why_lost()
    assert len(service.asked) == 6


async def test_the_trainer_says_how_long_to_wait(google: Trainer, service: Service) -> None:
    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    service.answers = [lambda: StreamingResponse(never())]
    with anyio.fail_after(15):
        seen = await google.act("<search>q</search>", timeout=0.2)
    assert "there was no answer within 0.2 seconds" in seen.why_lost()


async def test_pauses_count_as_waiting(google: Trainer, service: Service) -> None:
    service.answers = [lambda: Response("slow down", 429)]
    with anyio.fail_after(15):
        seen = await google.act("<search>q</search>", timeout=0.2)
    assert "there was no answer within 0.2 seconds" in seen.why_lost()
    assert len(service.asked) == 1


async def test_the_same_question_is_paid_for_once_but_a_failure_is_not_kept(google: Trainer, service: Service) -> None:
    service.answers = [lambda: Response(status_code=500)]
    (await google.act("<search>q</search>")).why_lost()
    for _ in range(3):
        assert "One server." in (await google.act('<search>"q"</search>')).text
    assert len(service.asked) == 2


@pytest.mark.parametrize("first", ["waits", "is gone"])
async def test_rollouts_that_ask_the_same_at_the_same_time_pay_once(
    google: Trainer, service: Service, first: str
) -> None:
    may_answer = threading.Event()

    async def late() -> AsyncIterator[bytes]:
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        yield json.dumps({"organic": [PAGE]}).encode()

    service.answers = [lambda: StreamingResponse(late())]
    async with anyio.create_task_group() as group:
        group.start_soon(google.act, "<search>q</search>", "first")
        await until(lambda: len(service.asked) == 1)
        others = [asyncio.create_task(google.act("<search>q</search>")) for _ in range(4)]
        with anyio.fail_after(10):
            while (await google.get("/verl/health")).json()["active_tasks"] < 5:
                await anyio.sleep(0.01)
        if first == "is gone":
            await google.finish("first")
        else:
            may_answer.set()
        assert all("One server." in seen.text for seen in await asyncio.gather(*others))
        may_answer.set()
    assert len(service.asked) == (1 if first == "waits" else 2)


def test_results_are_forgotten_when_they_are_old_or_too_many() -> None:
    one = [Result("t", "l", "s")]
    recent = Recent(seconds=0)
    recent.put("a", one)
    assert recent.get("a") is None
    recent = Recent(most=2)
    for key in "abc":
        recent.put(key, one)
    assert [recent.get(key) for key in "abc"] == [None, one, one]


@pytest.mark.parametrize(
    ("text", "google", "bing"),
    [
        ("<search> a </search><search>b</search>", "a", "a"),
        ("<SEARCH>a</SEARCH>", "a", None),
        ("```search\na\nb\n```", "a\nb", "a\nb"),
        ("``` search \na\n```", "a", None),
        ("I will search: the moon\nand more", "the moon", "the moon"),
        ("google: the moon", "the moon", None),
        ("my research: the moon", None, None),
        ("<search></search>", None, None),
        (f"<search>{'x' * 501}</search>", None, None),
        (f"<search>{'x' * 500}</search>", "x" * 500, "x" * 500),
        ("<search></search> search: a", "a", "a"),
        ("nothing", None, None),
    ],
)
def test_a_query_is_found_in_all_its_forms(text: str, google: str | None, bing: str | None) -> None:
    for form, query in ((GOOGLE_FORM, google), (BING_FORM, bing)):
        assert form.read(text) == (None if query is None else {"query": query})


@pytest.mark.parametrize(("name", "key"), [("google_search", "SERPER_API_KEY"), ("bing_search", "BRIGHTDATA_API_KEY")])
def test_without_a_key_it_says_what_to_set(monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> None:
    monkeypatch.delenv(key, raising=False)
    monkeypatch.delenv("TOOLYARD_SEARCH_CORPUS", raising=False)
    problem = f"set {key} to your key, or TOOLYARD_SEARCH_CORPUS"
    with pytest.raises(DefinitionError, match=problem), running([], tools=name):
        pass


async def test_a_corpus_takes_the_place_of_the_web(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    pages = [{"title": "Moon", "text": "It is far.", "url": "https://moon.example"}, {"contents": "Sun\nIt is hot."}]
    corpus.write_text("\n".join(map(json.dumps, pages)))
    monkeypatch.setenv("TOOLYARD_SEARCH_CORPUS", str(corpus))
    monkeypatch.delenv("SERPER_API_KEY", raising=False)
    with running([], tools="google_search") as served:
        async with Trainer(served.url) as trainer:
            seen = await trainer.act("<search>how far is the moon</search>")
            assert seen.text == (
                "<result>Search results for 'how far is the moon':\n\n"
                "**Page 1**\n**Title:** Moon\n**Link:** https://moon.example\n**Snippet:** It is far.\n</result>"
            )
            assert "No search results found." in (await trainer.act("<search>xyzzy</search>")).text
    with running([], tools="bing_search") as served:
        async with Trainer(served.url) as trainer:
            seen = await trainer.act("<search>hot</search>")
            assert seen.text == "<result>Search results for 'hot':\n\nPage 1: It is hot.</result>"


async def test_it_is_a_tool_over_ors_too(google: Trainer) -> None:
    listed = (await google.get("/toolbox/tools")).json()["tools"][0]
    assert list(listed["input_schema"]["properties"]) == ["query"]
    async with google.session() as sid:
        answer = await google.call(sid, "google_search", {"query": "q"}, env="toolbox")
        assert answer.text.startswith("Search results for 'q':\n\n**Page 1**")
        failure = (await google.call(sid, "google_search", {"query": ""}, env="toolbox")).failure
        assert "query" in failure["error"]


@pytest.fixture
async def standing_alone(service: Service) -> AsyncIterator[Trainer]:
    with running([toolbox([WebSearch])]) as served:
        async with Trainer(served.url) as trainer:
            yield trainer


async def search(trainer: Trainer, **arguments: Any) -> Any:
    async with trainer.session() as sid:
        return json.loads((await trainer.call(sid, "bing_search", arguments, env="toolbox")).text)


async def test_the_tool_servers_search_lists_addresses_names_and_snippets(
    standing_alone: Trainer, service: Service
) -> None:
    more = [{"title": str(i), "link": f"https://{i}.example", "description": "x" * (1100 + i)} for i in range(5)]
    service.answers = [lambda: found(PAGE, PAGE, {"title": "silent"}, *more)]
    listed = await search(standing_alone, query="tool yard")
    assert listed[0] == {"url": "https://t.example", "name": "Toolyard", "snippet": "One server."}
    assert [one["url"] for one in listed] == ["https://t.example", "https://0.example", "https://1.example"]
    assert listed[1]["snippet"] == "x" * 1000 + "..."
    service.answers = [found]
    assert await search(standing_alone, query="nothing") == []


async def test_a_region_is_searched_in_its_language(
    standing_alone: Trainer, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    await search(standing_alone, query="Säge", region="de-AT")
    asked = parse_qs(urlsplit(service.asked[-1]["url"]).query)
    assert [asked[one] for one in ("mkt", "setLang", "cc")] == [["de-AT"], ["de"], ["at"]]
    monkeypatch.delenv("BRIGHTDATA_API_KEY")  # then Google is asked
    for region, expected in {"ja_jp": ("ja", "jp"), "zh-TW": ("zh-tw", "tw"), None: ("en", "us")}.items():
        await search(standing_alone, query="saw", region=region)
        assert (service.asked[-1]["hl"], service.asked[-1]["gl"]) == expected
    async with standing_alone.session() as sid:
        wrong = await standing_alone.call(sid, "bing_search", {"query": "saw", "region": "the moon"}, env="toolbox")
        assert "'the moon' is not a region such as en-US or zh-CN" in wrong.failure["error"]


async def test_without_an_engine_the_agent_is_told(standing_alone: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("BRIGHTDATA_API_KEY")
    monkeypatch.delenv("SERPER_API_KEY")
    assert WebSearch.missing().startswith("set BRIGHTDATA_API_KEY or SERPER_API_KEY to your key, or TOOLYARD_SEARCH")
    async with standing_alone.session() as sid:
        told = await standing_alone.call(sid, "bing_search", {"query": "saw"}, env="toolbox")
        assert "there is no search engine here: set BRIGHTDATA_API_KEY or" in told.failure["error"]


async def test_the_tool_servers_search_finds_a_corpus_too(
    standing_alone: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLYARD_SEARCH_CORPUS", str(FACTS))
    first = (await search(standing_alone, query="deepest lake", region="en-US"))[0]
    assert first["name"] == "Lake Baikal"
    assert "Siberia" in first["snippet"]
