"""Careless operators and hostile agents against a store: calls go on, and nothing incomplete passes as whole."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import time
from pathlib import Path

import pytest

from tests.command import TOOLYARD, Command
from tests.episodes.stores import Quiz, graded, recording
from tests.gateways.several import WORLD
from tests.wires.wire import Wire, until
from toolyard.cli import main
from toolyard.episodes import schema, writer
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import Episode, Store
from toolyard.testing import running

pytestmark = pytest.mark.anyio


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def episodes(path: Path) -> list[Episode]:
    try:
        with Store([path]) as store:
            return list(store.episodes())
    except StoreError:  # it does not exist yet
        return []


def taken_away(path: Path) -> None:
    for file in path.parent.glob(f"{path.name}*"):
        file.unlink()


async def test_a_store_that_is_deleted_while_it_is_in_use_is_begun_again(path, caplog):
    with running([Quiz], record=str(path)) as server:
        async with Wire(server.url) as wire:
            over, going = await wire.open(), await wire.open()
            await wire.call(going, "say", {"text": "before"}, env="quiz")
            await wire.end(over)
            await until(lambda: [one.complete for one in episodes(path)] == [True, False])
            taken_away(path)
            later = await wire.open(task_spec={"n": 2})
            for sid in (going, later):
                assert (await wire.call(sid, "say", {"text": "after"}, env="quiz")).text == "after"
                await wire.end(sid)
            await until(lambda: [one.complete for one in episodes(path)] == [True])
            assert "toolyard_episodes_left_out_total 1" in (await wire.get("/metrics")).text
    (kept,) = episodes(path)
    assert (kept.task, kept.steps, kept.complete) == ({"n": 2}, 1, True)
    assert "runs.db was deleted or replaced while it was in use; the server makes it anew" in caplog.text


async def test_a_folder_that_is_gone_for_a_while_delays_no_call_and_is_said_once(tmp_path, caplog):
    path = tmp_path / "folder" / "runs.db"
    path.parent.mkdir()
    with running([Quiz], record=str(path)) as server:
        async with Wire(server.url) as wire:
            shutil.rmtree(path.parent)
            for _ in range(3):
                sid = await wire.open()
                assert (await wire.call(sid, "say", {"text": "a"}, env="quiz")).text == "a"
                await wire.end(sid)
                await until(lambda: server.server.recorder.waiting == 0)
            await until(lambda: server.server.recorder.left_out == 3)
            path.parent.mkdir()
            await wire.end(await wire.open(task_spec={"n": 9}))
    assert [(one.task, one.complete) for one in episodes(path)] == [({"n": 9}, True)]
    assert caplog.text.count("runs.db is gone, and cannot be made again") == 1


async def test_a_server_ends_soon_though_its_store_is_locked(path, monkeypatch):
    monkeypatch.setattr(schema, "_BUSY_MS", 1000)
    monkeypatch.setattr(writer, "_BATCH_MOST", 2)
    with running([Quiz], record=str(path)) as server:
        async with Wire(server.url) as wire:
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            sid = await wire.open()
            for _ in range(60):
                await wire.call(sid, "say", {"text": "a"}, env="quiz")
        began = time.monotonic()
    assert time.monotonic() - began < 10, "30 batches of which each waits for a second"
    other.close()
    assert server.server.recorder.left_out == 1
    assert episodes(path) == []


async def test_an_episode_whose_beginning_was_not_written_changes_no_other(path):
    with running([Quiz], record=str(path)) as server:
        recorder = server.server.recorder
        other = sqlite3.connect(path, isolation_level=None)
        other.execute(
            "CREATE TRIGGER no BEFORE INSERT ON steps WHEN NEW.tool = 'refuse' BEGIN SELECT RAISE(ABORT, 'no'); END"
        )
        async with Wire(server.url) as wire:
            other.execute("BEGIN IMMEDIATE")  # so that all of this goes into one batch
            lost = await wire.open()
            await wire.call(lost, "refuse", env="quiz")
            other.execute("COMMIT")
            other.close()
            await until(lambda: recorder.left_out == 1)
            kept = await wire.open(task_spec={"n": 5})
            await until(lambda: [one.outcome for one in episodes(path)] == ["open"])
            await wire.end(lost)
            await until(lambda: recorder.waiting == 0)
            await wire.call(kept, "say", {"text": "a"}, env="quiz")
            await until(lambda: episodes(path)[0].steps == 1)
            assert [(one.task, one.outcome, one.closed) for one in episodes(path)] == [({"n": 5}, "open", None)]
            await wire.end(kept)
    assert [one.complete for one in episodes(path)] == [True]


async def test_two_servers_may_record_into_one_file(path):
    with recording(path) as one, recording(path) as another:
        for number in range(10):
            one.play(*graded(1), task={"n": number})
            another.play(*graded(0, 1), task={"n": number})
    found = episodes(path)
    assert sorted((one.task["n"], one.steps) for one in found) == [(n, s) for n in range(10) for s in (1, 2)]
    assert all(one.complete for one in found)


def test_an_episode_that_cannot_be_written_down_takes_no_other_with_it(path, caplog):
    class Odd(Quiz):
        @classmethod
        def name(cls):
            return "quiz"

        @staticmethod
        def redact(step):
            return {**step, **step["arguments"]} if step["tool"] == "say" else step

    odd = [{"said": 5}, {"blocks": [5]}, {"blocks": [{}]}, {"metadata": "x" * 10}, {"blocks": 7}]
    with recording(path, environments=[Odd]) as player:
        for number, rubbish in enumerate(odd):
            player.play(("say", {"text": "a", **rubbish}), *graded(1), task={"n": number})
            player.play(*graded(1), task={"n": "good"})
    found = episodes(path)
    assert sum(one.complete for one in found if one.task["n"] == "good") == len(odd)
    for one in found:
        with Store([path]) as store:
            assert not one.complete or len(store.steps(one)) == one.steps


def test_what_was_dropped_is_not_found_and_its_words_take_no_room(path, monkeypatch, capsys):
    monkeypatch.setattr(writer, "_TRIM_EVERY", 1)

    def found(word: str) -> int:
        assert main(["episodes", "search", word, "--store", str(path), "--limit", "5"]) == 0
        return len(capsys.readouterr().out.splitlines())

    for part in range(4):
        with recording(path, record_bytes=500_000) as player:
            for number in range(40):
                text = " ".join(os.urandom(4).hex() for _ in range(600))
                player.play(("say", {"text": f"common part{part} {text}"}), task={"n": number})
                time.sleep(0.005)
        assert found("common") == 5
        assert found(f"part{part}") == 5
    assert found("part0") == 0
    kept = episodes(path)
    assert 5 < len(kept) < 120
    connection = schema.connect(path)
    assert connection.execute("SELECT max(number) FROM episodes").fetchone() == (160,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert path.stat().st_size < 1_500_000


@pytest.mark.thorough
@pytest.mark.parametrize("after", [0.3, 0.7, 1.3])
async def test_a_store_whose_server_was_killed_under_load_is_in_order(path, tmp_path, after):
    command = [TOOLYARD, "serve", str(WORLD), "--port", "0", "--record", str(path)]
    process = Command(command, env={"YARD": str(tmp_path)})
    try:
        url = process.until(r"http://127\.0\.0\.1:\d+").group()
        over: list[int] = []
        async with Wire(url) as wire:
            end = time.monotonic() + after
            while time.monotonic() < end:
                sid = await wire.open(task_spec={"n": len(over)})
                for text in "abc":
                    await wire.call(sid, "tell", {"text": text}, env="yard")
                await wire.end(sid)
                over.append(len(over))
    finally:
        process.process.send_signal(signal.SIGKILL)
        process.wait()
    found = episodes(path)
    connection = schema.connect(path)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
    assert found
    assert [one.task["n"] for one in found] == over[: len(found)], "those that are missing are the last"
    for one in found:
        with Store([path]) as store:
            steps = store.steps(one)
        assert len(steps) == one.steps
        assert not one.complete or [step.text for step in steps] == ["a", "a b", "a b c"]
