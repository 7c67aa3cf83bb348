"""What a server records of its sessions: all calls and results, over every wire, and no secret."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import stat
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.command import TOOLYARD, Command, WarmCommand
from tests.gateways.several import WORLD
from tests.wires.dialects import DIALECTS, Came, Dialect
from tests.wires.openenv_wire import Player
from tests.wires.verl_wire import Steps, Trainer, call, gate
from tests.wires.wire import H, Wire, until
from toolyard import ImageBlock, TextBlock, ToolOutput, tool
from toolyard.episodes import recorder, writer
from toolyard.episodes.schema import StoreError, connect
from toolyard.episodes.store import ALL, Episode, Filter, Step, Store
from toolyard.testing import running

pytestmark = pytest.mark.anyio


class Recorded(Steps):
    """Tools with every kind of outcome."""

    latch_finished = True

    @tool
    async def note(self, text: str) -> str:
        """Write something down."""
        self.notes.append(text)
        return " ".join(self.notes)

    @tool
    async def picture(self) -> ToolOutput:
        """A picture, words and a reward."""
        blocks = [TextBlock(text="seen", detail={"at": 1}), ImageBlock(data="aGk=" * 100, mimeType="image/png")]
        return ToolOutput(blocks=blocks, reward=0.5, metadata={"n": 1, "rewards": {"style": 0.5}})

    @tool
    async def long(self, size: int) -> str:
        """Much text."""
        return "é" * size

    @tool
    async def whisper(self, word: str) -> str:
        """Say a secret of the session."""
        return f"{word}: {self.secrets.get('token')}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "runs.db"


def read(path: Path, wanted: Filter = ALL) -> list[tuple[Episode, Sequence[Step]]]:
    with Store([path]) as store:
        return [(episode, store.steps(episode)) for episode in store.episodes(wanted)]


async def play(session: Dialect) -> list[tuple[str, dict[str, object], Came]]:
    """Calls of every kind, and what the client saw of each."""
    seen = []
    for name, arguments in [
        ("note", {"text": "é 漢字 \u2028"}),
        ("note", {"text": "x" * 10_000}),
        ("note", {}),
        ("nope", {"a": 1}),
        ("fail", {}),
        ("boom", {}),
        ("lose", {}),
        ("guess", {"number": 6, "last": False}),
        ("guess", {"number": 7}),
        ("note", {"text": "after the end"}),
    ]:
        seen.append((name, arguments, await session.call(name, **arguments)))
    return seen


# What it contains.


@pytest.mark.parametrize("dialect", DIALECTS, ids=lambda dialect: dialect.name)
async def test_what_the_store_gives_back_is_what_the_client_saw(dialect, path):
    with running([Recorded], record=str(path)) as server:
        async with dialect(server.url) as session:
            await session.open("recorded", {"name": "gold"})
            seen = await play(session)
            await session.close()
    ((episode, steps),) = read(path)
    assert (episode.environment, episode.task, episode.finished, episode.outcome) == (
        *("recorded", {"name": "gold"}),
        *(True, "finished"),
    )
    assert (episode.complete, episode.total, episode.wire) == (
        True,
        1.0,
        "ors" if dialect.name == "mcp" else dialect.name,
    )
    names_any = dialect.name not in ("verl", "toolserver")
    if not names_any:  # an unknown tool is never called
        seen = [one for one in seen if one[0] != "nope"]
    assert [(step.tool, step.arguments) for step in steps] == [(name, arguments) for name, arguments, _ in seen]
    assert [step.number for step in steps] == list(range(1, len(seen) + 1))
    for step, (_, _, came) in zip(steps, seen, strict=True):
        assert (step.outcome == "ok") == (came.kind == "ok")
        assert step.reward == came.reward
        if came.kind == "ok":
            assert (step.text, step.finished) == (came.text, came.finished)
        else:
            assert step.text in came.text or came.text in step.text or not session.tells_exceptions
    assert [step.outcome for step in steps if step.outcome != "ok"] == [
        *("bad_arguments", *(["no_such_tool"] if names_any else []), "tool_failed", "tool_raised", "lost"),
        "episode_finished",
    ]


async def test_what_the_model_wrote_is_kept_where_the_wire_has_it(path):
    with running([Recorded], record=str(path)) as server:
        async with Trainer(server.url) as trainer:
            text = f"I think.\n{call('note', text='a')}"
            await trainer.act("t-1", text, {"environment": "recorded", "run": "r7", "labels": {"step": 3}})
            await trainer.finish("t-1")
    ((episode, (step,)),) = read(path)
    assert (step.said, step.arguments) == (text, {"text": "a"})
    assert (episode.run, episode.labels, episode.session) == ("r7", {"step": "3"}, "verl:t-1")


async def test_blocks_details_images_and_long_texts_come_back_as_they_were(path):
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url) as wire:
            for _ in range(3):
                sid = await wire.open()
                await wire.get("/recorded/prompt", headers=H(sid))
                told = await wire.call(sid, "picture", env="recorded")
                large = await wire.call(sid, "long", {"size": 100_000}, env="recorded")
                await wire.end(sid)
    for episode, (picture, long) in read(path):
        assert list(picture.blocks) == [
            {"type": "text", "text": "seen", "detail": {"at": 1}},
            {"type": "image", "data": "aGk=" * 100, "mimeType": "image/png"},
        ]
        assert (picture.metadata, picture.rewards, picture.reward) == (told.output["metadata"], {"style": 0.5}, 0.5)
        assert long.text == large.text == "é" * 100_000
        with Store([path]) as store:
            assert store.prompt(episode) == [{"type": "text", "text": "This is nothing."}]
    connection = connect(path)
    assert connection.execute("SELECT count(*) FROM blobs").fetchone() == (2,), "each is stored once"
    connection.close()
    assert path.stat().st_size < 600_000


@pytest.mark.parametrize("wire", ["ors", "toolserver", "mcp", "openenv", "agent"])
async def test_runs_and_labels_come_with_the_request_that_opens_a_session(wire, path):
    headers = {"X-Toolyard-Run": "run 1", "X-Toolyard-Labels": '{"step": 12}'}
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url, headers=headers) as client:
            match wire:
                case "ors":
                    await client.open()
                case "toolserver":
                    await client.post("/get_cookies", json={"environment": "recorded"})
                case "mcp":
                    body = {
                        "protocolVersion": "2025-11-25",
                        "capabilities": {},
                        "clientInfo": {"name": "c", "version": "1"},
                    }
                    message = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": body}
                    accept = {"Accept": "application/json, text/event-stream"}
                    assert (await client.post("/mcp/recorded", json=message, headers=accept)).status_code == 200
                case "openenv":
                    async with Player(server.url, "/openenv/recorded/ws", headers) as player:
                        await player.reset()
                case "agent":
                    sid = await client.open()
                    token = (await client.post("/recorded/agent", headers=H(sid), json={})).json()["url"]
                    told = await client.post(
                        token.replace("/mcp", "/call"), json={"name": "note", "input": {"text": "a"}}
                    )
                    assert told.json()["ok"]
    ((episode, _),) = read(path, Filter(run="run 1", labels={"step": "12"}))
    assert (episode.run, episode.labels) == ("run 1", {"step": "12"})


async def test_labels_that_are_none_are_refused(path):
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url) as wire:
            for labels in ("{", "[1]", '"x"'):
                headers = {**H("s"), "X-Toolyard-Labels": labels}
                answer = await wire.post("/create", headers=headers, json={"task_spec": {}})
                assert (answer.status_code, "X-Toolyard-Labels is a JSON object" in answer.text) == (400, True)


async def test_a_fork_names_the_step_from_which_it_continues(path):
    class Forked(Recorded):
        replayable = True

    with running([Forked], record=str(path)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            await wire.call(sid, "note", {"text": "a"}, env="forked")
            await wire.call(sid, "note", {"text": "b"}, env="forked")
            (other,) = (await wire.post("/forked/fork", headers=H(sid), json={})).json()["sids"]
            await wire.call(other, "note", {"text": "c"}, env="forked")
            for each in (sid, other):
                await wire.end(each)
    (parent, first), (fork, second) = read(path)
    assert (fork.parent, fork.parent_step, parent.parent) == (parent.id, 2, None)
    assert [step.text for step in (*first, *second)] == ["a", "a b", "a b c"]


async def test_how_an_episode_ended_is_said(path):
    gate.opened.clear()
    with running([Recorded], record=str(path), idle_seconds=0.3, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            for name in ("closed", "lost", "idle", "failed"):
                spec = {"name": name, "setup_boom": name == "failed"}
                sid = await wire.open(task_spec=spec)
                if name == "lost":
                    await wire.call(sid, "lose", env="recorded")
                if name != "idle":
                    await wire.post("/delete", headers=H(sid))
            await until(lambda: not server.server.runtime.sessions)
            await wire.open(task_spec={"name": "open"})
            await until(lambda: len(read(path)) == 5)
            assert read(path)[-1][0].outcome == "open"
            assert not read(path)[-1][0].complete
    found = {episode.task["name"]: (episode.outcome, episode.complete) for episode, _ in read(path)}
    assert found == {
        "closed": ("closed", True),
        "lost": ("lost", True),
        "idle": ("idle", True),
        "failed": ("closed", True),
        "open": ("closed", True),
    }


async def test_a_call_that_the_end_of_its_session_stops_is_recorded_too(path):
    gate.opened.clear()
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            waiting = asyncio.ensure_future(wire.call(sid, "wait", {"key": "recorded"}, env="recorded"))
            await until(lambda: gate.came["recorded"])
            await wire.end(sid)
            await waiting
    ((episode, (step,)),) = read(path)
    assert (step.outcome, episode.complete, episode.steps) == ("cancelled", True, 1)


# What it never contains.


async def test_secrets_are_nowhere_in_the_file_and_the_step_says_that_something_is_missing(path):
    secret = 'p"s3cret\u00e9'
    with running([Recorded], record=str(path), api_key="the-servers-key") as server:
        async with Wire(server.url, headers={"X-API-Key": "the-servers-key", "X-Other": "a-header"}) as wire:
            sid = await wire.open(task_spec={}, secrets={"token": secret})
            told = await wire.call(sid, "whisper", {"word": f"it is {secret}"}, env="recorded")
            assert secret in told.text
            await wire.end(sid)
    ((_, (step,)),) = read(path)
    assert (step.arguments, step.text) == ({"word": "it is [secret]"}, "it is [secret]: [secret]")
    assert step.altered
    stored = b"".join(file.read_bytes() for file in path.parent.iterdir())
    for word in (secret, json.dumps(secret)[1:-1], "s3cret", "the-servers-key", "a-header"):
        assert word.encode() not in stored


async def test_an_author_may_leave_out_more(path):
    class Shy(Recorded):
        @staticmethod
        def redact(step):
            if step["tool"] == "boom":
                raise ValueError("redact broke")
            return {**step, "arguments": {}, "blocks": [{"type": "text", "text": "left out"}]}

    with running([Shy], record=str(path)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            await wire.call(sid, "note", {"text": "private"}, env="shy")
            await wire.call(sid, "boom", env="shy")
            await wire.end(sid)
    ((_, (note, boom)),) = read(path)
    assert (note.arguments, note.text, note.altered) == ({}, "left out", True)
    assert (boom.arguments, boom.text, boom.altered) == ({}, "", True)
    assert b"private" not in path.read_bytes()


async def test_a_tool_may_be_called_redact_and_another_score(path):
    class Named(Recorded):
        @tool
        async def redact(self) -> str:
            """A tool."""
            return "done"

        @tool
        async def score(self) -> str:
            """Another."""
            return "done"

    with running([Named], record=str(path)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            await wire.call(sid, "redact", env="named")
            await wire.end(sid)
    ((_, (step,)),) = read(path)
    assert (step.text, step.altered) == ("done", False)


async def test_only_a_part_of_the_sessions_is_kept_if_that_is_wanted(path):
    with running([Recorded], record=str(path), record_fraction=0.2) as server:
        async with Wire(server.url) as wire:
            for _ in range(200):
                await wire.end(await wire.open())
    assert 5 < len(read(path)) < 90
    assert all(episode.complete for episode, _ in read(path))


# When something goes wrong.


async def test_after_the_server_was_killed_all_that_was_written_is_there(path, tmp_path):
    process = Command(
        [TOOLYARD, "serve", str(WORLD), "--port", "0", "--record", str(path)], env={"YARD": str(tmp_path)}
    )
    try:
        url = process.until(r"http://127\.0\.0\.1:\d+").group()
        async with Wire(url) as wire:
            over, going = await wire.open(), await wire.open()
            for sid in (over, going):
                await wire.call(sid, "tell", {"text": "a"}, env="yard")
            await wire.end(over)
            await until(lambda: path.exists() and [len(steps) for _, steps in read(path)] == [1, 1])
            await until(lambda: read(path)[0][0].complete)
    finally:
        process.process.kill()
        process.wait()
    (over_, _), (going_, steps) = read(path)
    assert (over_.complete, over_.outcome) == (True, "closed")
    assert (going_.complete, going_.outcome, going_.closed, [step.text for step in steps]) == (
        False,
        "open",
        None,
        ["a"],
    )


async def test_when_the_writer_cannot_keep_up_whole_episodes_are_left_out_and_calls_go_on(path, monkeypatch, caplog):
    monkeypatch.setattr(writer, "_EVENTS_MOST", 20)
    monkeypatch.setattr(writer, "_PAUSE", 0.5)
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url) as wire:
            for _ in range(20):
                sid = await wire.open()
                for _ in range(3):
                    assert (await wire.call(sid, "note", {"text": "a"}, env="recorded")).text
                await wire.end(sid)
            metrics = (await wire.get("/metrics")).text
        assert server.server.recorder is not None
        left_out = server.server.recorder.left_out
    kept = read(path)
    assert left_out >= 20 - len(kept) > 0
    assert f"toolyard_episodes_left_out_total {left_out}" in metrics
    assert "cannot keep up" in caplog.text
    for episode, steps in kept:
        assert not episode.complete or len(steps) == 3


async def test_a_store_that_is_locked_for_a_while_delays_no_call(path):
    with running([Recorded], record=str(path)) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            other = sqlite3.connect(path, isolation_level=None)
            other.execute("BEGIN IMMEDIATE")
            began = time.monotonic()
            for _ in range(50):
                await wire.call(sid, "note", {"text": "a"}, env="recorded")
            await asyncio.sleep(0.3)
            assert time.monotonic() - began < 10
            assert not read(path)
            other.execute("COMMIT")
            other.close()
            await wire.end(sid)
    ((episode, steps),) = read(path)
    assert (len(steps), episode.complete) == (50, True)


async def test_a_disk_that_is_full_loses_the_record_and_no_call(path, tmp_path):
    """A limit on file sizes stands for a full disk."""
    command = f"ulimit -f 512; exec {TOOLYARD} serve {WORLD} --port 0 --record {path}"
    process = Command(["bash", "-c", command], env={"YARD": str(tmp_path)})
    try:
        url = process.until(r"http://127\.0\.0\.1:\d+").group()
        async with Wire(url) as wire:
            first, large = await wire.open(), await wire.open()
            await wire.call(first, "tell", {"text": "a"}, env="yard")
            await wire.end(first)
            await until(lambda: [episode.complete for episode, _ in read(path)] == [True, False])
            told = await wire.call(large, "large", {"size": 3_000_000}, env="yard")
            assert len(told.text) == 3_000_000
            process.until("1 episodes cannot be kept")
            assert len((await wire.call(large, "tell", {"text": "b"}, env="yard")).text) == 1
            await wire.end(large)
            assert "toolyard_episodes_left_out_total 1" in (await wire.get("/metrics")).text
    finally:
        process.process.terminate()
        process.wait()
    assert [(episode.complete, len(steps)) for episode, steps in read(path)] == [(True, 1), (False, 0)]


async def test_the_oldest_go_when_the_file_is_too_large_but_not_those_of_an_evaluation(path, monkeypatch):
    monkeypatch.setattr(writer, "_TRIM_EVERY", 1)
    with running([Recorded], record=str(path), record_bytes=400_000) as server:
        async with Wire(server.url) as wire:
            headers = {**H("kept"), "X-Toolyard-Labels": '{"eval": "1"}'}
            await wire.post("/create", headers=headers, json={"task_spec": {"name": "kept"}})
            await wire.end("kept")
            for number in range(60):
                sid = await wire.open(task_spec={"name": str(number)})
                await wire.call(sid, "note", {"text": f"{number} " + os.urandom(10_000).hex()}, env="recorded")
                await wire.end(sid)
                if number % 10 == 0:
                    await asyncio.sleep(0.25)
    names = [episode.task["name"] for episode, _ in read(path)]
    assert names[0] == "kept"
    assert names[-1] == "59"
    assert 3 < len(names) < 40
    assert names[1:] == [str(number) for number in range(60 - len(names) + 1, 60)]


async def test_several_gateways_write_one_file(path, tmp_path):
    flags = ["--port", "0", "--gateways", "8", "--record", str(path)]
    process = WarmCommand([TOOLYARD, "serve", str(WORLD), *flags], env={"YARD": str(tmp_path)})
    try:
        process.until("Stop with Ctrl-C")
        url = process.until(r"http://127\.0\.0\.1:\d+").group()

        async def one(number: int) -> None:
            async with Wire(url) as wire:
                sid = (await wire.post("/create_session")).json()["sid"]
                await wire.open(sid, task_spec={"n": number})
                for text in "abc":
                    await wire.call(sid, "tell", {"text": text}, env="yard")
                await wire.end(sid)

        for start in range(0, 120, 24):
            await asyncio.gather(*map(one, range(start, start + 24)))
    finally:
        process.process.terminate()
        process.wait()
    found = read(path)
    assert sorted(episode.task["n"] for episode, _ in found) == list(range(120))
    assert all(episode.complete and [step.text for step in steps] == ["a", "a b", "a b c"] for episode, steps in found)


def test_a_file_that_is_no_store_is_left_as_it_is(tmp_path):
    text = tmp_path / "notes.txt"
    text.write_text("not a database, but long enough to be looked at as one " * 50)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE mine (a)")
    newer = tmp_path / "newer.db"
    connect(newer, create=True).close()
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 99")
    for file, why in [(text, "not a database"), (other, "another program"), (newer, "newer Toolyard")]:
        before = file.read_bytes()
        with pytest.raises(StoreError, match=why), running([Recorded], record=str(file)):
            pass
        assert file.read_bytes() == before
    with (
        pytest.raises(StoreError, match="No such file"),
        running([Recorded], record="/no/x.db"),
    ):
        pass


def test_nobody_else_may_read_the_file(path):
    with running([Recorded], record=str(path)):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_ids_sort_by_time():
    first = recorder.new_id()
    time.sleep(0.002)
    assert first < recorder.new_id()
