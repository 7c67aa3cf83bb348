"""Parts of a store for viewers: each list, plot and window, compared with reading everything."""

from __future__ import annotations

import base64
import json
import shutil
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean

import pytest

from benchmarks.large_store import LONG_RESULT, Special, fill
from tests.episodes.stores import recording
from tests.worlds import OneTask
from toolyard import ToolOutput, tool
from toolyard.core.output import JsonObject
from toolyard.episodes import lists, parts, schema
from toolyard.episodes.lists import BYS, Cursor, Order
from toolyard.episodes.schema import StoreError, connect, looking
from toolyard.episodes.store import Episode, Filter, NoEpisode, Store
from toolyard.episodes.texts import index

EPISODES, STEPS = 400, 12_000
FILTERS = [
    Filter(),
    Filter(run="grpo-18"),
    Filter(outcome="finished", reward=">=0.05,<1"),
    Filter(reward="null"),
    Filter(labels={"step": "3"}),
    Filter(like=f"{7:021x}"),
    Filter(split="train", index=10_000),
    Filter(run="nowhere"),
    Filter(labels={'a"b\\': "x"}),
]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stores") / "runs.db"


@pytest.fixture(scope="module")
def special(path: Path) -> Special:
    return fill(path, episodes=EPISODES, steps=STEPS)


@pytest.fixture
def file(path: Path, special: Special) -> Iterator[sqlite3.Connection]:
    with looking(path) as connection:
        yield connection


@pytest.fixture(scope="module")
def everything(path: Path, special: Special) -> Sequence[Episode]:
    with Store([path]) as store:
        return list(store.episodes())


def number_of(file: sqlite3.Connection, wanted: str) -> int:
    return parts.number_of(file, wanted)


def all_pages(file: sqlite3.Connection, wanted: Filter, order: Order, limit: int) -> Sequence[JsonObject]:
    found: list[JsonObject] = []
    while True:
        after = Cursor.read(found[-1]["place"]) if found else None
        page = lists.page(file, wanted, order, after=after, limit=limit)
        found += page
        if len(page) < limit:
            return found


@pytest.mark.parametrize("falling", [True, False])
@pytest.mark.parametrize("by", BYS)
def test_pages_in_any_order_have_every_episode_once(file, everything, by, falling):
    found = all_pages(file, Filter(), Order(by, falling), 37)
    assert sorted(row["id"] for row in found) == sorted(one.id for one in everything)
    values = [row["closed"] - row["opened"] if by == "duration" else row[by] for row in found]
    known = [value for value in values if value is not None]
    assert known == sorted(known, reverse=falling)
    assert values[len(known) :] == [None] * (len(values) - len(known)), "those without a value come last"


@pytest.mark.parametrize("wanted", FILTERS)
def test_a_filter_finds_what_reading_everything_finds(path, file, everything, wanted):
    where, values = wanted.where()
    numbers = {row[0] for row in file.execute(f"SELECT number FROM episodes WHERE {where}", values)}
    expected = [one for one in everything if one.number in numbers]
    found = all_pages(file, wanted, Order("return"), 50)
    assert sorted(row["id"] for row in found) == sorted(one.id for one in expected)
    assert lists.count(file, wanted) == len(expected)
    plot = lists.histogram(file, wanted)
    scored = [one.total for one in expected if one.total is not None]
    assert (plot["scored"], plot["unscored"]) == (len(scored), len(expected) - len(scored))
    assert sum(bar["n"] for bar in plot["bars"]) == len(scored)
    if scored:
        assert plot["mean"] == pytest.approx(fmean(scored))
        assert plot["bars"][0]["from"] <= min(scored)
        assert plot["bars"][-1]["to"] >= max(scored)
    runs = defaultdict(list)
    for one in expected:
        if one.total is not None:
            runs[one.run].append(one.total)
    curves = {curve["run"]: curve for curve in lists.curves(file, wanted)["runs"]}
    assert {run: curve["n"] for run, curve in curves.items()} == {run: len(of) for run, of in runs.items()}
    for run, curve in curves.items():
        assert sum(point["n"] * point["mean"] for point in curve["points"]) == pytest.approx(sum(runs[run]))


def test_a_return_is_compared_with_two_bounds(file, everything):
    found = all_pages(file, Filter(reward=">=0.05,<1"), Order(), 50)
    assert len(found) == sum(one.total is not None and 0.05 <= one.total < 1 for one in everything) > 5


def test_tasks_are_counted_with_the_worst_first(file, everything):
    returns = defaultdict(list)
    for one in everything:
        if one.total is not None:
            returns[one.split, one.index].append(one.total)
    found = lists.tasks(file, Filter(), limit=1000)
    assert {(row["split"], row["task_index"]): row["n"] for row in found} == {k: len(v) for k, v in returns.items()}
    passed = [row["passed"] for row in found]
    assert passed == sorted(passed)
    for row in found:
        assert row["passed"] == pytest.approx(fmean(one >= 1 for one in returns[row["split"], row["task_index"]]))
    assert len(lists.tasks(file, Filter(), limit=3)) == 3


def test_tasks_that_clients_brought_are_told_apart_by_what_they_are(tmp_path):
    path = tmp_path / "runs.db"
    with recording(path) as player:
        for reward, name in [(1, "a"), (0, "a"), (1, "b")]:
            player.play(("grade", {"reward": reward}), task={"n": 1, "name": name})
    with looking(path) as file:
        (worst, best) = lists.tasks(file, Filter(), limit=5)
        assert [(json.loads(row["task"])["name"], row["n"], row["passed"]) for row in (worst, best)] == [
            ("a", 2, 0.5),
            ("b", 1, 1.0),
        ]
        assert lists.count(file, Filter(like=worst["example"])) == 2
        assert len(parts.siblings(file, worst["example"])) == 1


def test_named_rewards_are_summed_as_they_come(tmp_path):
    class Quiz(OneTask):
        @tool
        async def step(self, rewards: dict) -> ToolOutput:
            """Rewards with names."""
            return ToolOutput(rewards=rewards)

        @tool
        async def odd(self) -> ToolOutput:
            """What somebody else wrote into metadata."""
            return ToolOutput(metadata={"rewards": {"a": "much", "b": [1], "c": 10**400, "d": True}})

    path = tmp_path / "runs.db"
    with recording(path, environments=[Quiz]) as player:
        player.play(
            ("step", {"rewards": {"a": 1, "b": 0.5}}), ("odd", {}), ("step", {"rewards": {"a": 0.25}}), task={"n": 1}
        )
    with looking(path) as file:
        (row,) = lists.page(file, Filter())
        assert row["rewards"] == {"a": 1.25, "b": 0.5}
        assert row["return"] == 1.75


def test_steps_come_in_windows_forward_and_back(file, special):
    long = number_of(file, special.long)
    assert [step["number"] for step in parts.steps(file, long, 5000, 4)] == [5000, 5001, 5002, 5003]
    assert [step["number"] for step in parts.steps(file, long, 5000, 3, back=True)] == [4998, 4999, 5000]
    assert parts.steps(file, long, STEPS + 1, 4) == []
    assert [step["number"] for step in parts.steps(file, long, 1, 2, back=True)] == [1]


def test_jumps_find_failures_and_rewards_in_both_directions(file, special):
    long = number_of(file, special.long)
    assert parts.jump(file, long, "failure", 0) == 9973
    assert parts.jump(file, long, "failure", 9973) is None
    assert parts.jump(file, long, "failure", 10_000, back=True) == 9973
    assert [parts.jump(file, long, "reward", start) for start in (0, 4999, 9998)] == [4999, 9998, None]
    strip = parts.strip(file, long, STEPS)
    assert [piece["first"] for piece in strip["failures"]] == [9973]
    assert sum(piece["n"] for piece in strip["rewards"]) == 2
    assert max(piece["piece"] for piece in strip["rewards"]) < strip["pieces"]


@pytest.mark.parametrize("indexed", [False, True])
def test_a_search_within_an_episode_finds_the_next_and_the_last(path, tmp_path, special, indexed):
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with looking(copy) as file:
        while indexed and not index(file, 0.01):
            continue
        long = number_of(file, special.long)

        def search(start: int, *, back: bool = False) -> int | None:
            while True:
                found, start = parts.find(file, long, "partly right", start, back=back)
                if found is not None or start == 0 or start >= STEPS:
                    return found

        assert [search(start) for start in (0, 4999, 9998)] == [4999, 9998, None]
        assert [search(start, back=True) for start in (STEPS, 9998, 4999)] == [9998, 4999, None]


def test_an_index_made_in_pieces_finds_the_same_as_one_made_at_once(path, tmp_path, special):
    found = []
    for name, seconds in (("pieces", 0.0), ("once", 1e9)):
        copy = tmp_path / f"{name}.db"
        shutil.copy(path, copy)
        with looking(copy) as file:
            turns = 1
            while not index(file, seconds):
                turns += 1
            found.append([row[0] for row in file.execute("SELECT rowid FROM words WHERE words MATCH 'river'")])
        assert (turns > 3) == (name == "pieces")
    assert found[0] == found[1]
    assert len(found[0]) > 100


def test_words_are_a_filter(path, tmp_path, special):
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    with looking(copy) as file:
        assert index(file)
        assert [row["id"] for row in lists.page(file, Filter(words="partly right"))] == [special.long]
        assert [row["id"] for row in lists.page(file, Filter(words="picture"))] == [special.images]
        assert lists.count(file, Filter(words='"OR" AND ( *')) == 0


def test_a_long_text_comes_in_parts_that_make_the_whole(file, special):
    large = number_of(file, special.large)
    (step,) = parts.steps(file, large, 1, 9)
    (block,) = step["blocks"]
    assert (len(block["text"]), block["of"]) == (parts.CUT, LONG_RESULT)
    part = parts.text(file, large, 1, "block.0", block["end"])
    assert (part.start, part.end) == (parts.CUT, parts.CUT + parts.CHUNK)
    assert sum(map(len, parts.whole(file, large, 1, "block.0"))) == LONG_RESULT


def test_parts_never_cut_a_character(tmp_path):
    text = "".join("a€😀é"[number % 4] for number in range(20_000))
    path = tmp_path / "runs.db"
    with recording(path) as player:
        player.play(("say", {"text": text}), task={"n": 1, "text": text})
    with looking(path) as file:
        (row,) = lists.page(file, Filter())
        number = number_of(file, row["id"])
        for step, name in [(1, "block.0"), (1, "argument.0"), (0, "task"), (1, "arguments")]:
            found, start = "", 0
            while True:
                part = parts.text(file, number, step, name, start, most=1001)
                found, start = found + part.text, part.end
                if part.end == part.of:
                    break
            assert "\ufffd" not in found
            assert text in (found if step and "." in name else json.dumps(json.loads(found), ensure_ascii=False))
        middle = parts.text(file, number, 1, "block.0", 2)
        assert middle.start == 4, "a part that is asked for within a character begins with the next"


def test_only_images_of_known_kinds_that_are_what_they_say_are_shown(tmp_path):
    svg = base64.b64encode(b"<svg xmlns='http://www.w3.org/2000/svg'><script>alert(1)</script></svg>").decode()
    path = tmp_path / "runs.db"
    with recording(path) as player:
        player.play(
            ("picture", {}),
            ("picture", {"data": svg, "kind": "image/svg+xml"}),
            ("picture", {"data": svg, "kind": "image/png"}),
            ("picture", {"data": "no base64!", "kind": "image/png"}),
            ("picture", {"kind": "text/html"}),
            ("picture", {"kind": "image/webp"}),
        )
    with looking(path) as file:
        number = number_of(file, lists.page(file, Filter())[0]["id"])
        kind, data = parts.picture(file, number, 1, 1)
        assert kind == "image/png"
        assert data.startswith(b"\x89PNG")
        shown = [step["blocks"][1]["shown"] for step in parts.steps(file, number, 1, 9)]
        assert shown == [True, False, True, True, False, True]
        for step, place in [(2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (1, 0), (1, 9), (99, 0)]:
            with pytest.raises(StoreError):
                parts.picture(file, number, step, place)


@pytest.mark.parametrize(
    ("step", "name"), [(1, "nothing"), (1, "block.9"), (1, "block.x"), (1, "argument.7"), (99, "said"), (1, "said")]
)
def test_a_part_that_is_not_there_is_refused_in_words(file, special, step, name):
    with pytest.raises(StoreError, match=r"step|part"):
        parts.text(file, number_of(file, special.large), step, name, 0)


def test_a_tree_of_forks_is_found_from_every_branch(file, special):
    tree = parts.family(file, special.root)
    assert [one["parent"] for one in tree] == [None, special.root, special.root, special.root]
    assert all(one["parent_step"] == 2 for one in tree[1:])
    for one in tree:
        assert {each["id"] for each in parts.family(file, one["id"])} == {each["id"] for each in tree}
    assert [one["id"] for one in parts.family(file, special.long)] == [special.long]
    assert parts.family(file, "nobody") == []


def test_two_episodes_are_compared_step_by_step(tmp_path):
    path = tmp_path / "runs.db"
    calls = [("say", {"text": f"word {number}"}) for number in range(6)]
    with recording(path) as player:
        player.play(*calls)
        player.play(*calls[:3], ("say", {"text": "else"}), *calls[4:])
        player.play(*calls[:4])
        player.play(*calls[2:])
    with looking(path) as file:
        whole, other, short, later = (
            number_of(file, row["id"]) for row in lists.page(file, Filter(), Order(falling=False))
        )
        assert parts.first_difference(file, whole, whole) == (None, None)
        assert parts.first_difference(file, whole, other) == (4, None)
        assert parts.first_difference(file, whole, other, after=4) == (None, None)
        assert parts.first_difference(file, whole, short) == (5, None)
        assert parts.first_difference(file, short, whole) == (5, None)
        assert parts.first_difference(file, later, whole, ahead=2) == (None, None)


def test_an_episode_that_is_gone_is_named(file):
    for ask in (parts.head, parts.number_of):
        with pytest.raises(NoEpisode, match="no episode 'nobody'"):
            ask(file, "nobody")


def test_a_head_has_the_beginning_of_what_is_long(file, special):
    head = parts.head(file, special.images)
    assert (head["steps"], head["index"], head["labels"]) == (8, 10_000, {"why": "images"})
    assert head["prompt"][0]["text"] == "An episode that is images."
    assert json.loads(head["task"]["text"]) == {"why": "images"}


# The file itself.


def test_a_store_of_the_first_version_gets_what_it_lacks(tmp_path):
    path = tmp_path / "runs.db"
    old = sqlite3.connect(path, isolation_level=None)
    old.execute("PRAGMA auto_vacuum = INCREMENTAL")
    old.execute("PRAGMA journal_mode = WAL")
    for statement in filter(str.strip, schema._TABLES.split(";\n")):
        old.execute(statement)
    old.execute("PRAGMA user_version = 1")
    old.execute(
        "INSERT INTO episodes (id, session, environment, task, wire, run, labels, opened, steps, finished, outcome, "
        "complete, stays, toolyard, source) "
        "VALUES ('x', 's', 'quiz', '{}', 'ors', '', '{}', 1, 3, 1, 'finished', 1, 0, '', '')"
    )
    for number, rewards in enumerate(['{"a": 1, "b": 2}', '{"a": 0.5, "c": "no"}', None, '{"a": Infinity}'], 1):
        row = (1, number, "t", "{}", None, None, "ok", "[]", 1.0, rewards, 0, None, 0, 0, 1, 0)
        old.execute(f"INSERT INTO steps VALUES ({', '.join('?' * 16)})", row)
    old.close()
    with looking(path) as file:
        assert file.execute("PRAGMA user_version").fetchone()[0] == schema.VERSION
        (row,) = lists.page(file, Filter())
        assert row["rewards"] == {"a": 1.5, "b": 2}
        assert parts.jump(file, 1, "reward", 0) == 1
    with Store([path]) as store:
        assert len(store.steps(store.find("x"))) == 4


def test_a_question_that_takes_too_long_is_given_up(path, special):
    endless = "WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(StoreError, match=r"took longer than 0.1 seconds"), looking(path, seconds=0.1) as file:
        file.execute(endless).fetchone()


def test_a_store_that_is_locked_is_said_to_be(path, tmp_path, special):
    copy = tmp_path / "copy.db"
    shutil.copy(path, copy)
    holder = connect(copy)
    holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    holder.execute("DELETE FROM scores")
    try:
        with pytest.raises(StoreError, match="locked"), looking(copy, patience=0.1) as file:
            lists.page(file, Filter())
    finally:
        holder.execute("ROLLBACK")
        holder.close()


@pytest.mark.parametrize("place", ["", "x", "1,", "1,2,3", "0x1,1", "{},1"])
def test_a_place_that_we_did_not_write_is_refused(place):
    with pytest.raises(StoreError, match="no place"):
        Cursor.read(place)
