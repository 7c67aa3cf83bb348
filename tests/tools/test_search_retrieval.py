"""`search_retrieval`: what Search-R1 shows of a retriever's results, and honesty when there are none."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from tests.tools.acting import Seen, Trainer
from tests.tools.loopback import serving
from toolyard.client import Client, InfrastructureError
from toolyard.core.errors import DefinitionError
from toolyard.retriever import Retriever
from toolyard.testing import running
from toolyard.tools import search_retrieval
from toolyard.tools.corpus import read_corpus
from toolyard.tools.environment import toolbox
from toolyard.tools.search_retrieval import SearchRetrieval

pytestmark = pytest.mark.anyio

FACTS = Path(__file__).parents[2] / "examples" / "data" / "facts.jsonl"


class Stub:
    """A retriever whose answers the test sets."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[Any] = []
        self.peers: set[Any] = set()
        self.answer: Callable[[], Response] = lambda: passages("T\ntext")
        self.app = Starlette(routes=[Route("/retrieve", self.retrieve, methods=["POST"])])

    async def retrieve(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.peers.add(request.client)
        return self.answer()


def passages(*contents: str) -> Response:
    return JSONResponse({"result": [[{"document": {"contents": one}, "score": 1.5} for one in contents]]})


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stub]:
    stub = Stub()
    with serving(stub.app) as url:
        stub.url = f"{url}/retrieve"
        monkeypatch.setenv("RETRIEVER_URL", stub.url)
        yield stub


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with running([], tools="search_retrieval") as served:
        yield served.url


@pytest.fixture
async def trainer(url: str) -> AsyncIterator[Trainer]:
    async with Trainer(url) as client:
        yield client


def wrapped(text: str) -> str:
    return f"\n\n<information>{text}</information>\n\n"


async def test_passages_come_back_with_their_titles(trainer: Trainer, stub: Stub) -> None:
    seen = await trainer.act("<think>hm</think><search>who?</search>")
    assert seen == (wrapped("Doc 1(Title: T) text"), False, True)
    assert stub.asked == [{"queries": ["who?"], "topk": 3, "return_scores": True}]


async def test_several_passages_are_numbered_and_keep_their_lines(trainer: Trainer, stub: Stub) -> None:
    stub.answer = lambda: passages('"A"\none\nmore', "only a title", "", "\nonly a text ")
    shown = 'Doc 1(Title: "A") one\nmore\nDoc 2(Title: only a title) \nDoc 3(Title: No title) No content\n'
    assert (await trainer.act("<search>x</search>")).text == wrapped(f"{shown}Doc 4(Title: ) only a text")


async def test_passages_without_scores_are_understood_too(trainer: Trainer, stub: Stub) -> None:
    stub.answer = lambda: JSONResponse({"result": [[{"id": "7", "contents": "T\ntext"}]]})
    assert (await trainer.act("<search>x</search>")).text == wrapped("Doc 1(Title: T) text")


async def test_the_last_search_wins_and_may_be_empty(trainer: Trainer, stub: Stub) -> None:
    await trainer.act("<search>one</search> <search>\n two </search>")
    await trainer.act("<search>one</search><search></search>")
    assert [asked["queries"] for asked in stub.asked] == [["two"], [""]]


async def test_nothing_found_is_an_empty_block(trainer: Trainer, stub: Stub) -> None:
    stub.answer = passages
    assert await trainer.act("<search>x</search>") == (wrapped(""), False, True)


async def test_an_answer_ends_the_trajectory(trainer: Trainer, stub: Stub) -> None:
    assert await trainer.act("So: <answer>42</answer>") == ("", True, False)
    assert stub.asked == []


async def test_a_search_comes_before_an_answer(trainer: Trainer, stub: Stub) -> None:
    seen = await trainer.act("<answer>42</answer> or rather <search>x</search>")
    assert (seen.done, seen.valid) == (False, True)
    assert len(stub.asked) == 1


async def test_how_many_passages_is_set_by_a_variable(
    trainer: Trainer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRIEVER_TOPK", "5")
    await trainer.act("<search>x</search>")
    assert stub.asked[0]["topk"] == 5


@pytest.mark.parametrize("given", ["many", "0", "-1", "1.5"])
def test_a_number_that_makes_no_sense_keeps_the_server_from_starting(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv("RETRIEVER_TOPK", given)
    with pytest.raises(DefinitionError, match="RETRIEVER_TOPK is"), running([], tools="search_retrieval"):
        pass


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


BAD_ANSWERS: dict[str, Callable[[], Response]] = {
    "it answered 500: broken": lambda: Response("broken", 500),
    "its answer is not JSON": lambda: Response("<html>", 200),
    'its answer has no "result"': lambda: JSONResponse({"results": []}),
    'has no "result" with a list for the query': lambda: JSONResponse({"result": []}),
    'one of its passages has no "contents"': lambda: JSONResponse({"result": [[{"document": {}}]]}),
    "its answer is longer than": lambda: StreamingResponse(b"x" * 2**20 for _ in range(100)),
}


@pytest.mark.parametrize("problem", BAD_ANSWERS)
async def test_a_retriever_that_fails_costs_the_agent_no_reward(trainer: Trainer, stub: Stub, problem: str) -> None:
    stub.answer = BAD_ANSWERS[problem]
    seen = await trainer.act("<search>x</search>")
    assert (seen.done, seen.valid) == (True, False)
    assert (seen.observation["reason"], seen.observation["retryable"]) == ("lost", True)
    assert seen.observation["reward"] is None
    assert problem in seen.observation["error"]
    assert f"the retriever at {stub.url} failed" in seen.observation["error"]


async def test_a_retriever_that_is_not_there_is_an_infrastructure_failure_on_every_wire(
    url: str, trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RETRIEVER_URL", f"http://127.0.0.1:{free_port()}/retrieve")
    seen = await trainer.act("<search>x</search>")
    assert seen.observation["reason"] == "lost"
    assert "cannot be reached" in seen.observation["error"]

    def over_ors() -> None:
        with (
            Client(url) as client,
            client.environment("toolbox").session(split="train", index=0) as session,
            pytest.raises(InfrastructureError, match="cannot be reached"),
        ):
            session.call_tool("search_retrieval", {"query": "x"})

    await anyio.to_thread.run_sync(over_ors)


async def test_a_retriever_that_is_silent_is_waited_for_only_so_long(
    trainer: Trainer, stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_retrieval, "SECONDS", 0.3)

    async def never() -> AsyncIterator[bytes]:
        yield b"{"
        await asyncio.Event().wait()

    stub.answer = lambda: StreamingResponse(never())
    with anyio.fail_after(10):
        seen = await trainer.act("<search>x</search>")
    assert "there was no answer within 0.3 seconds" in seen.observation["error"]


async def test_a_trajectory_whose_retriever_failed_finds_it_when_it_is_back(trainer: Trainer, stub: Stub) -> None:
    stub.answer = lambda: Response(status_code=503)
    assert (await trainer.act("<search>x</search>", "t-back")).valid is False
    stub.answer = lambda: passages("T\ntext")
    assert (await trainer.act("<search>x</search>", "t-back")).text == wrapped("Doc 1(Title: T) text")
    await trainer.finish("t-back")


async def test_connections_are_used_again_by_other_trajectories(trainer: Trainer, stub: Stub) -> None:
    await trainer.act("<search>0</search>", "t-first")
    for n in range(20):
        await trainer.act(f"<search>{n}</search>")
    assert len(stub.asked) == 21
    assert len(stub.peers) == 1


async def test_a_connection_that_died_meanwhile_is_replaced(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    port = free_port()
    monkeypatch.setenv("RETRIEVER_URL", f"http://127.0.0.1:{port}/retrieve")
    for _ in range(2):
        with serving(Stub().app, port):
            assert (await trainer.act("<search>x</search>", "t-restart")).text == wrapped("Doc 1(Title: T) text")
    await trainer.finish("t-restart")


async def test_each_of_many_trajectories_gets_its_own_passages(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    corpus = read_corpus(str(FACTS))
    titles = [passage.title for passage in corpus.passages] * 4
    with serving(Retriever(corpus)) as retriever:
        monkeypatch.setenv("RETRIEVER_URL", f"{retriever}/retrieve")
        body = {
            "trajectory_ids": [f"many-{i}" for i in range(len(titles))],
            "actions": [f"<search>{title}</search>" for title in titles],
            "is_last_step": [True] * len(titles),
        }
        answer = (await trainer.post("/get_observation", json=body)).json()
    assert answer["valids"] == [True] * len(titles)
    for title, seen in zip(titles, answer["observations"], strict=True):
        assert seen.startswith(f"\n\n<information>Doc 1(Title: {title}) ")


async def test_a_corpus_of_our_own_needs_no_server(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRIEVER_CORPUS", str(FACTS))
    monkeypatch.setenv("RETRIEVER_TOPK", "1")
    seen = await trainer.act("<search>deepest lake</search>")
    assert seen.text.startswith("\n\n<information>Doc 1(Title: Lake Baikal) Baikal, in southern Siberia")
    assert await trainer.act("<search>xyzzy</search>") == (wrapped(""), False, True)


def test_a_corpus_that_is_not_there_keeps_the_server_from_starting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RETRIEVER_CORPUS", "nowhere.jsonl")
    with (
        pytest.raises(DefinitionError, match=r"RETRIEVER_CORPUS: nowhere.jsonl"),
        running([], tools="search_retrieval"),
    ):
        pass


async def test_it_is_a_tool_over_ors_too(trainer: Trainer, stub: Stub) -> None:
    async with trainer.session() as sid:
        answer = await trainer.call(sid, "search_retrieval", {"query": "x"}, env="toolbox")
        assert answer.text == "Doc 1(Title: T) text"
        assert answer.output["metadata"] == {"passages": 1}
        output = (await trainer.call(sid, "answer", {"answer": "42"}, env="toolbox")).output
        assert output["finished"] is True
        assert output["metadata"]["answer"] == "42"


async def test_it_is_called_by_json_as_well(trainer: Trainer, stub: Stub) -> None:
    call = json.dumps({"name": "search_retrieval", "arguments": {"query": "who?"}})
    assert (await trainer.act(f"<tool_call>{call}</tool_call>")).text == wrapped("Doc 1(Title: T) text")


async def test_in_an_environment_of_ones_own_nobody_else_waits_until_the_corpus_is_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow = tmp_path / "slow.jsonl"
    os.mkfifo(slow)  # opening it blocks until a writer comes
    with running([toolbox([SearchRetrieval])]) as served:
        monkeypatch.setenv("RETRIEVER_CORPUS", str(slow))  # now, since the server reads a corpus before it starts
        async with Trainer(served.url) as trainer, anyio.create_task_group() as group:
            seen: list[Seen] = []

            async def ask() -> None:
                seen.append(await trainer.act("<search>moon</search>"))

            group.start_soon(ask)
            try:
                with anyio.fail_after(10):
                    while (await trainer.get("/verl/health")).json()["active_tasks"] < 1:
                        await anyio.sleep(0.01)
                    assert (await trainer.act("no search")).valid is False
                    assert not seen
            finally:
                await anyio.to_thread.run_sync(slow.write_text, '{"contents": "Moon\\nIt is far."}')
    assert [one.text for one in seen] == ["\n\n<information>Doc 1(Title: Moon) It is far.</information>\n\n"]


async def test_in_an_environment_of_ones_own_a_corpus_that_cannot_be_read_costs_the_agent_no_reward(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with running([toolbox([SearchRetrieval])]) as served:
        monkeypatch.setenv("RETRIEVER_CORPUS", "nowhere.jsonl")
        async with Trainer(served.url) as trainer:
            problem = (await trainer.act("<search>moon</search>")).why_lost()
            assert "RETRIEVER_CORPUS: nowhere.jsonl cannot be read: No such file or directory" in problem


async def test_an_environment_of_ones_own_whose_corpus_cannot_be_read_is_not_served(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RETRIEVER_CORPUS", "nowhere.jsonl")
    with (
        pytest.raises(DefinitionError, match=r"RETRIEVER_CORPUS: nowhere.jsonl cannot be read: No such file"),
        running([toolbox([SearchRetrieval])]),
    ):
        pass
