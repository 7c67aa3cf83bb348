"""`toolyard episodes` for people and programs: its output, its refusals, and hostile text in it."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.command import TOOLYARD
from tests.episodes.stores import PNG, graded, recording
from toolyard.cli import main

LISTED = [
    *("id", "session", "environment", "split", "index", "run", "wire", "steps", "return", "finished", "outcome"),
    *("complete", "opened", "closed"),
]
STEP = [
    *("number", "tool", "arguments", "said", "outcome", "blocks", "reward", "rewards", "finished", "metadata"),
    *("queued_seconds", "ran_seconds", "at"),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs over five tasks, and episodes without a reward, without a run, and without a call."""
    path = tmp_path_factory.mktemp("stores") / "runs.db"
    with recording(path) as player:
        for index, (first, second) in enumerate([(1, 1), (0, 1), (0, 0.5), (0.25, 0)]):
            player.play(*graded(first), index=index, run="old", labels={"step": "1"})
            player.play(("say", {"text": f"word{index}"}), *graded(0, second), index=index, run="new")
        player.play(("refuse", {}), ("say", {"text": "the lighthouse keeper"}), index=5, run="old")
        player.play(*graded(1), task={"n": 77, "why": "of its client's own"})
        player.play(index=6)
    return path


def ended_with(argv: Sequence[str]) -> object:
    try:
        return main(argv)
    except SystemExit as ended:  # argparse
        return ended.code


@pytest.fixture
def toolyard(capsys: pytest.CaptureFixture[str]):
    """Run a command; returns its output and its error messages."""

    def run(*words: object, code: int = 0) -> str:
        assert ended_with(["episodes", *map(str, words)]) == code
        out, complaint = capsys.readouterr()
        return " ".join(complaint.split()) if code else out

    return run


@pytest.fixture
def rows(toolyard, path):
    def run(*words: object) -> list[dict[str, Any]]:
        return [json.loads(line) for line in toolyard(*words, "--store", path, "--json").splitlines()]

    return run


def returns(found: Sequence[dict[str, Any]]) -> list[float | None]:
    return [one["return"] for one in found]


# list


def test_each_line_of_a_list_has_the_names_that_programs_read(rows):
    found = rows("list")
    assert len(found) == 11
    assert all(list(one) == LISTED for one in found)
    first = found[0]
    assert {name: first[name] for name in LISTED[2:12]} == {
        **{"environment": "quiz", "split": "train", "index": 0, "run": "old", "wire": "ors", "steps": 1},
        **{"return": 1.0, "finished": True, "outcome": "finished", "complete": True},
    }
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["opened"])
    assert first["opened"] <= first["closed"]
    assert [one["id"] for one in found] == sorted(one["id"] for one in found)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("--reward <0.5", [0.0, 0.0, 0.25, 0.0]),
        ("--reward >=0.5", [1.0, 1.0, 1.0, 0.5, 1.0]),
        ("--reward =1", [1.0, 1.0, 1.0, 1.0]),
        ("--reward 0.25", [0.25]),
        ("--reward null", [None, None]),
        ("--reward !=null --run old", [1.0, 0.0, 0.0, 0.25]),
        ("--run new --reward !=1", [0.5, 0.0]),
        ("--label step=1", [1.0, 0.0, 0.0, 0.25]),
        ("--label step=2", []),
        ("--index 3", [0.25, 0.0]),
        ("--outcome closed", [None, None]),
        ("--environment QUIZ --split train --limit 2", [1.0, 1.0]),
        ("--environment maze", []),
        ("--wire verl", []),
        ("--run nobody", []),
    ],
)
def test_lists_are_filtered(rows, words, expected):
    assert returns(rows("list", *words.split())) == expected


def test_a_list_for_people_has_the_newest_first_and_says_what_each_is(toolyard, path):
    header, *lines = toolyard("list", "--store", path, "--limit", 3).splitlines()
    assert header.split() == ["id", "opened", "environment", "task", "run", "steps", "return", "ended"]
    assert [line.split()[3:] for line in lines] == [
        ["quiz", "train", "6", "0", "-", "closed"],
        ["quiz", '{"n":', "77,", '"why":', '"of', "its", "client's", 'own"}', "1", "1", "finished"],
        ["quiz", "train", "5", "old", "2", "-", "closed"],
    ]


def test_several_stores_are_read_as_one(toolyard, path, tmp_path):
    with recording(tmp_path / "more.db") as player:
        player.play(*graded(0.75), index=9, run="third")
    words = ("--store", path, "--store", tmp_path / "more.db", "--json")
    found = [json.loads(line) for line in toolyard("list", *words).splitlines()]
    assert (len(found), found[-1]["return"]) == (12, 0.75)
    newest = toolyard("list", *words[:-1], "--limit", 1).splitlines()[1]
    assert "third" in newest, "the newest of all files comes first"
    shown = json.loads(toolyard("show", found[-1]["id"], *words))
    assert shown["steps"][0]["reward"] == 0.75
    assert json.loads(toolyard("show", found[0]["id"], *words))["run"] == "old"


# show


def test_an_episode_has_the_names_that_programs_read(rows):
    listed = rows("list", "--run", "new")[1]
    (shown,) = rows("show", listed["id"])
    assert list(shown)[: len(LISTED)] == LISTED
    assert (shown["task"], shown["prompt"]) == ({"n": 1}, [{"type": "text", "text": "Question 1?"}])
    assert all(list(step) == STEP for step in shown["steps"])
    say, grade, last = shown["steps"]
    assert (say["number"], say["tool"], say["arguments"], say["outcome"]) == (1, "say", {"text": "word1"}, "ok")
    assert (say["blocks"], say["reward"], say["said"]) == ([{"type": "text", "text": "word1"}], None, None)
    assert (grade["finished"], last["finished"], last["metadata"]) == (False, True, {"by": "hand"})
    assert last["ran_seconds"] > 0


def test_an_id_may_be_shortened_as_long_as_it_is_of_one_episode(toolyard, rows, path):
    ids = [one["id"] for one in rows("list")]
    assert [one["id"] for one in rows("show", ids[4][:-3])] == [ids[4]]
    said = toolyard("show", ids[4][:3], "--store", path, code=2)
    assert f"several episodes have ids that begin with '{ids[4][:3]}'" in said
    assert "there is no episode 'nothing' in" in toolyard("show", "nothing", "--store", path, code=2)


def test_a_shown_episode_reads_like_a_conversation(toolyard, rows, path):
    (one,) = rows("list", "--index", "5")
    told = toolyard("show", one["id"], "--store", path)
    assert "   | Question 5?" in told
    assert "\n1. refuse {}\n   tool_failed" in told
    assert '\n2. say {"text": "the lighthouse keeper"}\n   ok' in told
    assert "   | the lighthouse keeper\n" in told
    assert "closed, no reward" in told


def test_images_are_saved_where_that_is_asked_for(toolyard, tmp_path):
    store = tmp_path / "images.db"
    with recording(store) as player:
        player.play(("picture", {}), ("picture", {"data": "!!", "kind": "image/svg+xml"}))
    (one,) = [json.loads(line) for line in toolyard("list", "--store", store, "--json").splitlines()]
    told = toolyard("show", one["id"], "--store", store, "--images", tmp_path / "out")
    assert "   | [an image: image/png]\n   | seen?" in told
    saved = sorted((tmp_path / "out").iterdir())
    assert [file.name for file in saved] == [f"{one['id']}-1-0.png", f"{one['id']}-2-0.bin"]
    assert saved[0].read_bytes() == base64.b64decode(PNG)


def test_no_id_of_a_strangers_store_leads_out_of_the_folder(toolyard, tmp_path):
    store = tmp_path / "stranger.db"
    with recording(store) as player:
        player.play(("picture", {}))
    with sqlite3.connect(store) as connection:
        connection.execute("UPDATE episodes SET id = '../../out of it'")
    connection.close()
    toolyard("show", "../../out of it", "--store", store, "--images", tmp_path / "in" / "side")
    toolyard("export", tmp_path / "in" / "all.jsonl", "--as", "atif", "--store", store)
    assert sorted(path.name for path in tmp_path.rglob("*.png")) == ["______out_of_it-1-0.png", "______out_of_it-1.png"]
    assert all(tmp_path / "in" in path.parents for path in tmp_path.rglob("*.png"))


# stats, search, compare


def test_statistics_count_by_what_is_asked_for(rows, toolyard, path):
    by_run = {one["run"]: one for one in rows("stats", "--by", "run")}
    old = by_run["old"]
    assert (old["n"], old["tasks"], old["scored"], old["mean_return"]) == (5, 5, 4, 0.3125)
    assert (old["pass@1"], old["mean_steps"], old["outcomes"]) == (0.25, 1.2, {"finished": 4, "closed": 1})
    assert by_run["new"]["mean_return"] == 0.625
    (whole,) = rows("stats")
    assert (whole["environment"], whole["n"], whole["scored"]) == ("quiz", 11, 9)
    tasks = rows("stats", "--by", "run,task")
    assert {"run", "task", "n"} <= set(tasks[0])
    assert len(tasks) == 11
    assert toolyard("stats", "--store", path).splitlines()[0].split()[:3] == ["environment", "n", "mean"]
    assert "--by says 'colour'; it may say environment, split, task, run, wire" in toolyard(
        "stats", "--by", "colour", "--store", path, code=2
    )


def test_what_was_said_and_returned_is_found(rows, toolyard, path):
    (found,) = rows("search", "lighthouse")
    assert (found["index"], found["step"]) == (5, 2)
    assert "the lighthouse keeper" in found["excerpt"]
    assert len(rows("search", "graded")) == 13
    assert len(rows("search", "graded", "--limit", "3")) == 3
    assert rows("search", "lighthouse word1") == [], "every word has to be there"
    for odd in ('"', "AND", "a OR b", "NEAR(", "*", "col:x", "()"):
        rows("search", odd)
    assert re.match(rf"{found['id']} +2  quiz, train 5: ", toolyard("search", "keeper", "--store", path))


def test_what_is_recorded_after_a_search_is_found_too(toolyard, tmp_path):
    store = tmp_path / "more.db"
    for word in ("first", "second"):
        with recording(store) as player:
            player.play(("say", {"text": word}))
        assert word in toolyard("search", word, "--store", store)


def test_two_runs_are_compared_task_by_task(rows, toolyard, path):
    *pairs, told = rows("compare", "old", "new")
    assert [(pair["task"], pair["first"], pair["second"]) for pair in pairs] == [
        *(("train 3", 0.25, 0.0), ("train 0", 1.0, 1.0), ("train 2", 0.0, 0.5), ("train 1", 0.0, 1.0)),
    ]
    assert {name: told[name] for name in ("tasks", "better", "same", "worse", "difference")} == {
        **{"tasks": 4, "better": 2, "same": 1, "worse": 1, "difference": 0.3125}
    }
    assert told["ci95"][0] < 0.3125 < told["ci95"][1]
    assert "4 tasks: 2 better, 1 the same, 1 worse in new" in toolyard("compare", "old", "new", "--store", path)
    said = toolyard("compare", "old", "nobody", "--store", path, code=2)
    assert "the runs 'old' and 'nobody' have no scored task in common" in said


def test_differences_of_0_and_1_are_no_shares(toolyard, tmp_path):
    """A share cannot be below 0; a difference between runs can."""
    with recording(tmp_path / "x.db") as player:
        for index in range(8):
            player.play(*graded(0), index=index, run="old")
            player.play(*graded(float(index == 0)), index=index, run="new")
    told = json.loads(toolyard("compare", "old", "new", "--store", tmp_path / "x.db", "--json").splitlines()[-1])
    assert told["ci95"] == pytest.approx([0.125 - 0.29558, 0.125 + 0.29558], abs=1e-4)


# Invalid combinations.


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("list", "--store FILE is missing: a file that a server has recorded into. See toolyard episodes list --help"),
        ("", "name one of list, show, stats, search, compare, export, bundle. See toolyard episodes --help"),
        ("lst", "there is no 'lst'; did you mean 'list'? See toolyard episodes --help"),
        ("list --store PATH --reward good", "--reward is 'good'; it compares the return with a number, as '<0.5'"),
        ("list --store PATH --outcome won", "--outcome is 'won'; it must be one of finished, closed"),
        ("list --store PATH --limit 0", "--limit is 0; it must be more"),
        ("list --store PATH --label step", "--label is 'step'; it has the form NAME=VALUE"),
        ("list --store /no/such.db", "there is no file '/no/such.db'; a server that is started with --record makes"),
        (f"list --store {__file__}", "cannot be used as a store of episodes: file is not a database"),
        ("list --store /tmp", "cannot be used as a store of episodes"),
        ("show --store PATH", "ID is missing: its id, or what that begins with"),
        ("search --store PATH", "WORDS is missing: what to look for"),
        ("export --store PATH /no/such/out.jsonl", "/no/such/out.jsonl"),
        ("bundle nothing /tmp/never.html --store PATH", "there is no episode 'nothing'"),
        ("bundle --store PATH x /no/such/out.html", ""),
    ],
)
def test_wrong_usage_is_a_sentence_and_status_2(toolyard, path, words, said):
    complaint = toolyard(*words.replace("PATH", str(path)).split(), code=2)
    assert said in complaint
    assert "Traceback" not in complaint
    assert not Path("/tmp/never.html").exists()


def test_a_reader_that_has_seen_enough_is_no_error(path):
    for words in ("list --json", "stats --by task --json"):
        command = f"{TOOLYARD} episodes {words} {'--store ' + str(path)} | head -1"
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr, done.stdout.count("\n")) == (0, "", 1)
    program = (
        f"import subprocess, sys; p = subprocess.Popen([{sys.executable!r}, '-m', 'toolyard', 'episodes', 'list', "
        f"'--store', {str(path)!r}], stdout=subprocess.PIPE, stderr=subprocess.PIPE); p.stdout.close(); "
        f"print(p.stderr.read(), p.wait())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "b'' 0\n"


# Text that agents wrote.

HOSTILE = {
    "ansi": "\x1b[2J\x1b]0;owned\x07\x1b[31m red \x9b31m",
    "control": "a\rb\x08c\x00d\x7fe\x85f",
    "directions": "abc\u202edcba\u2066x\u2069 \u200b",
    "html": "</pre><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">",
    "broken": "half \ud800 of a character",
}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "hostile.db"
    with recording(path, output_bytes=8 * 2**20) as player:
        for name, text in HOSTILE.items():
            written = text.replace("\x00", "")
            player.play(("say", {"text": text}), (written[:60], {}), task={"n": text, "name": name})
        player.play(("say", {"text": "x" * 5_000_000}), task={"n": 1})
    return path


def safe(text: str) -> bool:
    return all(char.isprintable() or char in "\n\t" for char in text)


def test_what_an_agent_wrote_does_nothing_to_a_terminal(toolyard, hostile):
    words = ("--store", hostile)
    for line in toolyard("list", *words, "--json").splitlines():
        assert safe(toolyard("show", json.loads(line)["id"], *words))
    for said in (
        toolyard("list", *words),
        toolyard("stats", "--by", "task", *words),
        toolyard("search", "red", *words),
    ):
        assert safe(said)
    found, _ = [json.loads(line) for line in toolyard("search", "red", *words, "--json").splitlines()]
    assert "\\x1b[2J\\x1b]0;owned\\x07\\x1b[31m red \\x9b31m" in toolyard("show", found["id"], *words)


def test_json_gives_back_exactly_what_an_agent_wrote(toolyard, hostile):
    ids = [json.loads(line)["id"] for line in toolyard("list", "--store", hostile, "--json").splitlines()]
    shown = [json.loads(toolyard("show", one, "--store", hostile, "--json")) for one in ids]
    texts = {one["task"]["name"]: one["steps"][0]["arguments"]["text"] for one in shown if "name" in one["task"]}
    assert texts.keys() == HOSTILE.keys()
    assert {name: text for name, text in texts.items() if name != "broken"} == {
        name: text for name, text in HOSTILE.items() if name != "broken"
    }
    assert len(shown[-1]["steps"][0]["blocks"][0]["text"]) == 5_000_000


def test_hostile_episodes_are_exported_and_bundled(toolyard, hostile, tmp_path):
    ids = [json.loads(line)["id"] for line in toolyard("list", "--store", hostile, "--json").splitlines()]
    for shape in ("episodes", "steps", "messages", "atif"):
        for form in ("jsonl", "parquet"):
            toolyard("export", tmp_path / f"{shape}.{form}", "--as", shape, "--format", form, "--store", hostile)
        assert all(map(json.loads, (tmp_path / f"{shape}.jsonl").read_text("utf-8").split("\n")[:-1]))
    assert len(ids) == 6
    toolyard("bundle", *ids, tmp_path / "out.html", "--store", hostile)
    page = (tmp_path / "out.html").read_text("utf-8")
    assert "<script>" not in page
    assert "<img src=x" not in page
    assert "&lt;script&gt;" in page
    assert (tmp_path / "out.html").stat().st_size < 25_000_000
