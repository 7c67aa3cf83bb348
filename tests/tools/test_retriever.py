"""The built-in retriever: what it finds, its requests, and its answers to bad requests."""

from __future__ import annotations

import gzip
import json
import math
import random
import re
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from toolyard.cli import main
from toolyard.tools.corpus import (
    K1,
    B,
    Corpus,
    CorpusError,
    Passage,
    missing_corpus,
    passages_at,
    read_corpus,
    singular,
    split,
)

FACTS = Path(__file__).parents[2] / "examples" / "data" / "facts.jsonl"


@pytest.fixture(scope="module")
def retriever() -> Iterator[httpx2.Client]:
    """The command itself, as a separate process."""
    command = [sys.executable, "-m", "toolyard", "retriever", str(FACTS), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], 30)[0], "it says nothing"
            assert "36 passages" in process.stdout.readline()
            url = re.search(r"http://[\d.:]+", process.stdout.readline())
            assert url is not None
            with httpx2.Client(base_url=url[0], trust_env=False, timeout=30) as client:
                deadline = time.monotonic() + 20
                while time.monotonic() < deadline and not healthy(client):
                    time.sleep(0.05)
                yield client
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 130


def healthy(client: httpx2.Client) -> bool:
    try:
        return client.get("/health").status_code == 200
    except httpx2.TransportError:
        return False


def ask(client: httpx2.Client, **body: object) -> list[list[dict[str, object]]]:
    response = client.post("/retrieve", json=body)
    assert response.status_code == 200, response.text
    assert response.json().keys() == {"result"}
    found: list[list[dict[str, object]]] = response.json()["result"]
    return found


@pytest.mark.parametrize(
    ("query", "title"),
    [
        ("What is the deepest lake in the world?", "Lake Baikal"),
        ("who discovered penicillin", "Penicillin"),
        ("In which two sciences did Marie Curie win Nobel prizes?", "Marie Curie"),
        ("capital of Canada", "Ottawa"),
        ("how many hearts do octopuses have", "Octopus"),
        ("Champollion hieroglyphs", "Rosetta Stone"),
    ],
)
def test_a_question_finds_the_passage_that_answers_it(retriever: httpx2.Client, query: str, title: str) -> None:
    (found,) = ask(retriever, queries=[query], topk=1, return_scores=True)
    assert str(found[0]["document"]["contents"]).split("\n")[0] == title  # type: ignore[index]


def test_each_query_gets_its_own_list_best_first(retriever: httpx2.Client) -> None:
    first, none, second = ask(retriever, queries=["coral reef", "xyzzy", "planet"], topk=3, return_scores=True)
    assert none == []
    assert len(first) <= 3
    for found in (first, second):
        scores = [one["score"] for one in found]
        assert scores == sorted(scores, reverse=True)  # type: ignore[type-var]
        assert all(one.keys() == {"document", "score"} for one in found)
        assert all(one["document"].keys() == {"id", "contents"} for one in found)  # type: ignore[attr-defined]


def test_without_scores_the_documents_stand_for_themselves(retriever: httpx2.Client) -> None:
    scored = ask(retriever, queries=["moon"], topk=2, return_scores=True)
    plain = ask(retriever, queries=["moon"], topk=2)
    assert plain == [[one["document"] for one in scored[0]]]


def test_whoever_does_not_say_how_many_gets_three(retriever: httpx2.Client) -> None:
    assert len(ask(retriever, queries=["the capital of a country"])[0]) == 3
    assert len(ask(retriever, queries=["the capital of a country"], topk=0)[0]) == 3
    assert ask(retriever, queries=[]) == []


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ([], "the body must be an object with a list of queries"),
        ({}, "queries must be a list of texts"),
        ({"queries": "moon"}, "queries must be a list of texts"),
        ({"queries": [1]}, "queries must be a list of texts"),
        ({"queries": [""] * 10_001}, "there are 10001 queries; 10000 are the most"),
        ({"queries": [], "topk": -1}, "topk must be a whole number up to 1000"),
        ({"queries": [], "topk": 1001}, "topk must be a whole number up to 1000"),
        ({"queries": [], "topk": True}, "topk must be a whole number up to 1000"),
        ({"queries": [], "return_scores": "yes"}, "return_scores must be true or false"),
    ],
)
def test_a_bad_question_is_told_what_is_wrong(retriever: httpx2.Client, body: object, problem: str) -> None:
    response = retriever.post("/retrieve", json=body)
    assert (response.status_code, response.json()["detail"][0]["msg"]) == (422, problem)


def test_other_requests_are_told_where_to_go(retriever: httpx2.Client) -> None:
    assert retriever.post("/retrieve", content=b"{").status_code == 422
    assert retriever.get("/retrieve").status_code == 405
    assert retriever.get("/retrieve").headers["allow"] == "POST"
    assert retriever.post("/health").status_code == 405
    assert "POST /retrieve" in retriever.get("/").json()["detail"]


def test_its_health_says_how_much_it_holds(retriever: httpx2.Client) -> None:
    before = retriever.get("/health").json()
    ask(retriever, queries=["moon", "sun"])
    after = retriever.get("/health").json()
    assert (after["status"], after["passages"]) == ("healthy", 36)
    assert after["queries"] == before["queries"] + 2


def test_scores_are_those_of_bm25() -> None:
    """Against the formula, written again as simply as possible."""
    chance = random.Random(95)
    texts = [" ".join(chance.choices([f"w{i}" for i in range(60)], k=chance.randint(1, 30))) for _ in range(300)]
    corpus = Corpus(Passage(str(i), f"\n{text}") for i, text in enumerate(texts))
    counted = [Counter(text.split()) for text in texts]
    average = sum(map(len, map(str.split, texts))) / len(texts)

    def score(words: set[str], number: int) -> float:
        total, norm = 0.0, K1 * (1 - B + B * len(texts[number].split()) / average)
        for word in words & counted[number].keys():
            spread = sum(word in one for one in counted)
            count = counted[number][word]
            total += math.log(1 + (300 - spread + 0.5) / (spread + 0.5)) * count / (count + norm)
        return total

    for _ in range(30):
        query = chance.choices([f"w{i}" for i in range(65)], k=4)
        expected = sorted((-score(set(query), i), i) for i in range(300))[:7]
        hits = corpus.search(" ".join(query), 7)
        assert [hit.score for hit in hits] == pytest.approx([-value for value, _ in expected if value], abs=1e-4)


def test_words_are_found_in_other_spellings() -> None:
    corpus = Corpus([Passage("1", "Cities\nZürich is a city."), Passage("2", "Tokyo\n東京は日本の首都です")])
    assert [hit.passage.id for hit in corpus.search("ZURICH", 5)] == ["1"]
    assert [hit.passage.id for hit in corpus.search("city", 5)] == ["1"]
    assert [hit.passage.id for hit in corpus.search("首都", 5)] == ["2"]
    assert corpus.search("the of and", 5) == []
    assert corpus.search("", 5) == corpus.search("city", 0) == []


def test_korean_is_searched_sign_by_sign() -> None:
    corpus = Corpus([Passage("1", "서울\n서울은 한국의 수도이다"), Passage("2", "부산\n부산은 항구이다")])
    assert [hit.passage.id for hit in corpus.search("수도", 5)] == ["1"]
    assert split("서울은 Éire") == ["서", "울", "은", "eire"]


def test_singular_and_plural_count_as_one_word() -> None:
    both = Corpus([Passage("1", "a\ncat cats"), Passage("2", "b\ndog")]).search("cats", 1)[0]
    same = Corpus([Passage("1", "a\ncat cat"), Passage("2", "b\ndog")]).search("cat", 1)[0]
    assert both.score == same.score
    assert [singular(word) for word in split("Glass buses, cities & bonus as gas")] == [
        *("glass", "buse", "city", "bonus", "as", "gas")
    ]


def test_of_a_very_long_query_the_rarest_words_decide() -> None:
    corpus = Corpus([Passage(str(i), "\ncommon " + "filler " * 40 + f"rare{i}") for i in range(2000)])
    began = time.process_time()
    assert corpus.search("common filler " * 5000, 3)
    assert corpus.search("common " * 500 + "rare77", 1)[0].passage.id == "77"
    assert time.process_time() - began < 1


@pytest.mark.thorough
def test_among_100_000_passages_a_query_takes_less_than_three_milliseconds() -> None:
    chance = random.Random(7)
    vocabulary = [f"w{i}" for i in range(20_000)]
    weights = [1 / (i + 3) for i in range(20_000)]
    texts = chance.choices(vocabulary, weights, k=20 * 100_000)
    corpus = Corpus(Passage(str(i), "\n" + " ".join(texts[20 * i : 20 * i + 20])) for i in range(100_000))
    queries = [" ".join(chance.choices(vocabulary, weights, k=8)) for _ in range(200)]
    began = time.process_time()
    for query in queries:
        assert len(corpus.search(query, 3)) == 3
    assert (time.process_time() - began) / len(queries) < 0.003


# Input files.


def test_titles_and_texts_or_contents_are_read(tmp_path: Path) -> None:
    lines = [
        {"id": 7, "contents": '"A"\nfirst'},
        {"title": "B", "text": "second", "url": "https://b.example"},
        {"text": "third"},
    ]
    path = tmp_path / "corpus.jsonl"
    path.write_text("\n\n".join(map(json.dumps, lines)))
    one, two, three = passages_at(path)
    assert (one.id, one.contents, one.title, one.text) == ("7", '"A"\nfirst', "A", "first")
    assert (two.id, two.contents, two.url) == ("corpus.jsonl:3", "B\nsecond", "https://b.example")
    assert (three.contents, three.title) == ("\nthird", "")


def test_paragraphs_are_read_under_the_name_of_their_file_and_folders_with_all_that_is_in_them(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "notes.txt").write_text("one\nmore\n\n \n\ntwo\n")
    (tmp_path / "readme.md").write_text("three")
    with gzip.open(tmp_path / "packed.jsonl.gz", "wt") as file:
        file.write('{"contents": "T\\nfour"}\n')
    (tmp_path / "picture.png").write_bytes(b"\x89PNG")
    found = [passage.contents for passage in passages_at(tmp_path)]
    assert found == ["notes\none\nmore", "notes\ntwo", "T\nfour", "readme\nthree"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.jsonl", b"{}\n", r'a.jsonl line 1: a passage is an object with "contents"'),
        ("a.jsonl", b'{"text": "x"}\n[1]\n', "a.jsonl line 2: a passage is an object"),
        ("a.jsonl", b'{"text": "x"}\n\nnonsense\n', "a.jsonl line 3: this is not JSON"),
        ("a.jsonl", b"\xff\xfe", "a.jsonl cannot be read: .*utf-8"),
        ("a.jsonl", b"\n", "there is no passage in"),
        ("a.txt.gz", b"not packed", "a.txt.gz cannot be read"),
        ("a.pdf", b"", "it must be a folder or end in .jsonl, .txt or .md"),
    ],
)
def test_a_corpus_that_cannot_be_read_says_where_and_why(
    tmp_path: Path, name: str, content: bytes, problem: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(CorpusError, match=problem):
        read_corpus(str(tmp_path / name))


def test_what_is_wrong_with_a_corpus_is_found_out_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tmp_path / "a.jsonl"
    corpus.write_text("nonsense")
    monkeypatch.setenv("SOME_CORPUS", str(corpus))
    problem = missing_corpus("SOME_CORPUS")
    assert problem.startswith(f"SOME_CORPUS: {corpus} line 1: this is not JSON")
    corpus.unlink()
    assert missing_corpus("SOME_CORPUS") == problem


def test_the_command_explains_what_it_cannot_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words, problem in [
        (["nowhere.jsonl"], "nowhere.jsonl cannot be read: No such file or directory"),
        ([str(FACTS), "--topk", "0"], "--topk is 0; it must be from 1 to 1000"),
        ([str(FACTS), "--host", "0.0.0.0"], "say --allow-anonymous"),
    ]:
        assert main(["retriever", "--port", "0", *words]) == 2
        assert problem in " ".join(capsys.readouterr().err.split())


def test_without_numpy_it_says_what_to_install_and_other_tools_still_work() -> None:
    program = (
        "import sys\n"
        "sys.modules['numpy'] = None\n"
        "from toolyard.cli import main\n"
        "from toolyard.tools.search_retrieval import SearchRetrieval\n"
        "assert SearchRetrieval.missing() == ''\n"
        f"sys.exit(main(['retriever', {str(FACTS)!r}, '--port', '0']))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 2
    assert "an index needs the package numpy: pip install 'toolyard[search]'" in " ".join(ran.stderr.split())
