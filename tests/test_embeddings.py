"""`--retrieval embeddings`: tools are found by what a question means too, over every wire, without any network."""

from __future__ import annotations

import json
import logging
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from toolyard import Client, Server, Toolset
from toolyard.core.errors import ModelUnavailable
from toolyard.core.retrieval import ToolIndex
from toolyard.core.search import search, use_model
from toolyard.core.tool import ToolSpec
from toolyard.embeddings import WordVectors, word_vectors
from toolyard.settings import Settings
from toolyard.testing import running
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.search_tools import SearchTools

ASKED = "What will the climate be like in my village?"
"""Shares no word with any of these tools."""
WANTED = "forecast_for_open_sky"


def spec(name: str, description: str) -> ToolSpec:
    return ToolSpec(name=name, description=description, input_schema=None)


SPECS = [
    spec("transfer_for_savings", "Send money from one account to another."),
    spec("balance_for_savings", "How much money there is."),
    spec("song_for_jukebox", "Play some music."),
    spec("forecast_for_open_sky", "Weather, rain and temperature for a town."),
    spec("stations_for_open_sky", "Where the weather is measured."),
    spec("resize_for_pictures", "Makes an image smaller."),
]


class Catalogue(Toolset):
    catalogue = {one.name: one for one in SPECS}

    def call_task_tool(self, name: str, arguments: object) -> str:
        return name


class Market(ToolsEnvironment):
    toolsets = (Catalogue, SearchTools)

    @classmethod
    def name(cls) -> str:
        return "market"


@pytest.fixture(scope="module")
def index() -> ToolIndex:
    return ToolIndex(SPECS, model=word_vectors())


def names(index: ToolIndex, question: str, top_k: int = 5) -> list[str]:
    return [found.name for found in index.search(question, top_k)]


# What it finds.


@pytest.mark.parametrize(
    ("question", "first"),
    [
        (ASKED, WANTED),
        ("Is my cash gone?", "balance_for_savings"),
        ("I'd love to hear a melody", "song_for_jukebox"),
        ("shrink this photo", "resize_for_pictures"),
    ],
)
def test_a_question_in_other_words_finds_what_it_means_where_words_find_nothing(index, question, first):
    assert names(ToolIndex(SPECS), question) == []
    assert names(index, question)[0] == first


@pytest.mark.parametrize("asked", SPECS, ids=lambda one: one.name)
def test_a_tool_is_still_found_by_its_name(index, asked):
    assert names(index, asked.name)[0] == asked.name


def test_the_relatives_of_what_is_meant_come_before_strangers(index):
    assert set(names(index, ASKED, 2)) == {"forecast_for_open_sky", "stations_for_open_sky"}


def test_words_that_are_the_same_count_for_more_than_such_that_mean_something_alike(index):
    assert names(index, "the climate of the jukebox")[0] == "song_for_jukebox"


def test_what_is_quoted_is_a_value_here_too_unless_there_is_nothing_else(index):
    assert names(index, "draw 'climate and storms'")[0] == "resize_for_pictures"
    assert names(index, "'climate and storms'")[0] == WANTED


@pytest.mark.parametrize("question", ["", " \n ", "...", "please help me with the API", "\0", "\ud800"])
def test_a_question_that_says_nothing_finds_nothing(index, question):
    assert names(index, question) == []


def test_no_tools_and_one_tool_can_be_searched_too():
    assert ToolIndex([], model=word_vectors()).search(ASKED, 5) == []
    assert ToolIndex([SPECS[3]], model=word_vectors()).search(ASKED, 5) == [SPECS[3]]


@pytest.mark.parametrize("text", ["x" * 10**6, "aB" * 10**6, "天气 " * 10**5, "é" * 10**6, "climate " * 10**5])
def test_no_question_and_no_tool_is_too_odd_for_it(text):
    odd = ToolIndex([*SPECS, spec("odd", text)], model=word_vectors())
    assert names(odd, "odd")[0] == "odd"
    odd.search(text, 5)


def test_the_same_question_has_the_same_answer_in_every_process():
    code = "from tests.test_embeddings import *; print(names(ToolIndex(SPECS, model=word_vectors()), ASKED * 3, 6))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=Path(__file__).parents[1],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(answers) == 1
    assert WANTED.encode() in answers.pop()


# The model.


def test_likeness_is_between_nothing_and_the_weight_and_a_family_has_that_of_its_best():
    texts = [{"weather": 1.0}, {"music": 1.0}, {"rain": 1.0}]
    alike = word_vectors().read(texts, [1, 0, 1], weight=3.0)
    tools, families = alike({"weather": 2.0})
    assert tools[0] == pytest.approx(3, rel=1e-3)
    assert 0 <= tools[1] < tools[2] < 3
    assert families == [tools[1], tools[0]]
    assert alike({}) == ([0, 0, 0], [0, 0])


def test_a_word_that_counts_for_more_is_more_of_what_a_text_means():
    alike = word_vectors().read([{"weather": 1.0}, {"music": 1.0}], [0, 1], weight=1.0)
    (weather, music), _ = alike({"weather": 5.0, "music": 1.0})
    assert weather > music


def test_the_model_is_loaded_once():
    assert word_vectors() is word_vectors()


def test_loading_it_asks_nobody_and_leaves_the_logs_alone(monkeypatch):
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("nothing is to be downloaded")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    handlers = list(logging.getLogger().handlers)
    assert isinstance(word_vectors.__wrapped__(), WordVectors)
    assert "wordllama" not in sys.modules
    assert logging.getLogger().handlers == handlers


@pytest.mark.parametrize("absent", ["numpy", "safetensors", "tokenizers", "wordllama"])
def test_without_the_extra_the_server_says_what_to_install(absent):
    code = f"import sys; sys.modules[{absent!r}] = None\n"
    code += "from toolyard.cli import main; sys.exit(main(['serve', '--retrieval', 'embeddings', '--port', '0']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    told = " ".join(done.stderr.split())
    assert told.startswith("toolyard serve: --retrieval embeddings needs the package wordllama")
    assert told.endswith("pip install 'toolyard[embeddings]'")
    assert "Traceback" not in done.stderr


def test_a_package_without_its_files_is_told_apart(tmp_path, monkeypatch):
    (tmp_path / "wordllama").mkdir()
    (tmp_path / "wordllama" / "__init__.py").touch()
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelUnavailable, match="with its model: pip install"):
        word_vectors.__wrapped__()


def test_nobody_who_does_not_ask_for_it_loads_it():
    code = (
        "import sys, toolyard\n"
        "from toolyard.server import Server\n"
        "from examples.arithmetic import Arithmetic\n"
        "Server([Arithmetic])\n"
        "print([name for name in ('numpy', 'tokenizers', 'safetensors', 'toolyard.embeddings') if name in sys.modules])"
    )
    root = Path(__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Over the wires.


@pytest.fixture(scope="module", params=["local", "process"])
def url(request) -> str:
    with running([Market], retrieval="embeddings", placement=request.param) as server:
        yield server.url


def test_the_client_finds_by_meaning(url):
    with Client(url) as client:
        assert client.environment("market").search_tools(ASKED, top_k=1)[0].name == WANTED


def test_an_agent_finds_by_meaning_wherever_its_session_lives(url):
    with Client(url) as client, client.environment("market").session({}) as session:
        (found,) = json.loads(session.call_tool("search_tools", {"question": ASKED, "top_k": 1}).text)
        assert found["name"] == WANTED


def test_the_toolserver_finds_by_meaning(url):
    with httpx2.Client(base_url=url) as http:
        http.post("/get_cookies").raise_for_status()
        found = http.post("/retrieving_tools", json={"question": ASKED, "top_k": 1}).json()
        assert found["retrieved_tools"] == [WANTED]


def test_a_server_beside_it_that_goes_by_words_still_does(url):
    with running([Market]) as other, Client(other.url) as client:
        assert client.environment("market").search_tools(ASKED) == []
    with Client(url) as client:
        assert client.environment("market").search_tools(ASKED) != []


@pytest.mark.anyio
async def test_what_hands_on_a_request_is_left_as_it_was():
    app = Server([Market], settings=Settings(retrieval="embeddings")).app
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://here") as http:
        found = (await http.post("/market/search_tools", json={"question": ASKED})).json()["tools"]
    assert found[0]["name"] == WANTED
    assert search(Market, ASKED, 5) == []


def test_the_model_of_a_context_is_that_of_the_indexes_made_in_it():
    before = use_model(word_vectors())
    try:
        assert search(Market, ASKED, 1)[0].name == WANTED
    finally:
        before.var.reset(before)
    assert search(Market, ASKED, 1) == []
