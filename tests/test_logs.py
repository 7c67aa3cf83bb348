"""What the server logs: sessions, on level debug their calls, and nothing of what clients send."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.wires.verl_wire import Steps, Trainer, call
from tests.wires.wire import Wire, until
from tests.worlds import MathEnv, OtherEnv
from toolyard.logs import JsonLines, TextLines
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@contextmanager
def lines(level: int, formatter: logging.Formatter | None = None) -> Iterator[list[str]]:
    """What is logged meanwhile, as JSON."""
    written: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: written.append((formatter or JsonLines()).format(record))
    logger = logging.getLogger("toolyard")
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield written
    finally:
        logger.setLevel(before)
        logger.removeHandler(handler)


def about(written: list[str], sid: str) -> list[dict]:
    return [line for line in map(json.loads, written) if line.get("session") == sid]


async def use(server: Running) -> str:
    async with Wire(server.url, headers={"X-API-Key": "the-key"}) as wire:
        sid = await wire.open(secrets={"token": "the-secret"}, task_spec={"q": "the-task"})
        await wire.call(sid, "secret", {"answer": "the-argument"})
        await wire.call(sid, "boom")
        await wire.end(sid)
        cookie = (await wire.post("/get_cookie")).cookies["node_id"]
        await wire.post("/close_session", headers={"Cookie": f"node_id={cookie}"})
        return f"{sid} {cookie}"


async def test_at_info_only_a_session_that_its_client_did_not_close_is_a_line():
    with lines(logging.INFO) as written, running([MathEnv], api_key="the-key", idle_seconds=0.2) as server:
        assert server.server.runtime.journal.started == [], "what is not shown is not listened to"
        sid = (await use(server)).split()[0]
        async with Wire(server.url, headers={"X-API-Key": "the-key"}) as wire:
            forgotten = await wire.open()
            await until(lambda: forgotten not in server.server.runtime.sessions)
    assert about(written, sid) == []
    (closed,) = about(written, forgotten)
    assert closed.items() >= {"environment": "mathenv", "reason": "idle", "level": "info"}.items()
    assert closed["seconds"] > 0
    assert closed["time"].endswith("Z")


async def test_at_debug_each_call_of_a_batch_is_a_line_too():
    with lines(logging.DEBUG) as written, running([Steps]) as server:
        async with Trainer(server.url) as trainer:
            for _ in range(2):  # the first opens the sessions
                await trainer.batch(["a", "b"], [call("given")] * 2)
    for name in ("verl:a", "verl:b"):
        called = [line for line in about(written, name) if "outcome" in line]
        assert [(line["tool"], line["outcome"]) for line in called] == [("given", "ok")] * 2
        assert all(0 <= line["run_seconds"] < 5 for line in called)


async def test_at_debug_each_call_has_its_outcome_and_times():
    with lines(logging.DEBUG) as written, running([MathEnv], api_key="the-key") as server:
        sid = (await use(server)).split()[0]
    answered = [line for line in about(written, sid) if "outcome" in line]
    assert [(line["tool"], line["outcome"], line["level"]) for line in answered] == [
        ("secret", "ok", "debug"),
        ("boom", "tool_raised", "debug"),
    ]
    assert all(line["run_seconds"] > 0 <= line["queue_seconds"] for line in answered)
    words = [line["message"].partition(": ")[2].split()[0] for line in about(written, sid)]
    assert (words[0], words[-1]) == ("opened", "closed")


async def test_what_clients_send_is_in_no_line():
    with lines(logging.DEBUG) as written, running([MathEnv, OtherEnv], api_key="the-key") as server:
        _, cookie = (await use(server)).split()
    text = "\n".join(written)
    assert "closed" in text
    for kept in ("the-key", "the-secret", "the-task", "the-argument", cookie):
        assert kept not in text


async def test_a_tool_that_there_is_not_cannot_fake_a_line_nor_fill_the_log():
    with lines(logging.DEBUG) as written, running([MathEnv]) as server:
        async with Wire(server.url) as wire:
            await wire.call(await wire.open(), "x\nfaked: " + "y" * 10_000)
    assert any("faked" in line for line in written)
    assert all(len(line) < 1000 and "\n" not in json.loads(line)["message"] for line in written)


async def test_a_server_that_ended_listens_no_more():
    with lines(logging.DEBUG), running([MathEnv]) as server:
        journal = server.server.runtime.journal
        listening = len(journal.closed)
    assert (listening, len(journal.closed), journal.started) == (2, 1, [])


EVIL = "a\n12:00:00 INFO    toolyard: all is well\x1b[2J\x9b2J\u2028\u202e\x00"


async def test_what_a_client_calls_its_trajectory_begins_no_line_of_its_own_and_drives_no_terminal():
    with lines(logging.DEBUG, TextLines("%(levelname)s %(message)s")) as written, running([Steps]) as server:
        async with Trainer(server.url) as trainer:
            await trainer.act(EVIL, "<note>x</note>")
            await trainer.act(EVIL, "<note>x</note>", {"environment": EVIL})
            await trainer.finish(EVIL)
    about_it = [line for line in written if "all is well" in line]
    assert about_it
    assert all(line.isprintable() for line in about_it)
    assert any(r"verl:a\n12:00:00" in line and r"\x1b[2J\x9b2J\u2028\u202e\x00" in line for line in about_it)


def test_a_traceback_keeps_its_lines_and_nothing_else_that_cannot_be_seen():
    try:
        raise ValueError("\x1b[31mred")
    except ValueError:
        record = logging.makeLogRecord({"msg": "two\nlines", "exc_info": sys.exc_info()})
    first, *_, last = TextLines("%(message)s").format(record).split("\n")
    assert (first, last) == (r"two\nlines", r"ValueError: \x1b[31mred")
    assert json.loads(JsonLines().format(record))["message"] == "two\nlines"
