"""Broken connections and clients that vanish: how the SDKs react, and what the server does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests import worlds as math_world
from tests.peers import venvs
from tests.peers.conftest import PEERS, SCRIPTS
from tests.peers.proxy import cutting
from tests.peers.worlds import OnceEnv, answer_to, ran
from tests.worlds import MathEnv
from toolyard.testing import running

pytestmark = pytest.mark.thorough

both = pytest.mark.parametrize("sdk", ["ors", "openreward"])

SETUP_SECONDS = 33
"""Longer than the 30 seconds of silence after which both clients drop a connection and retry."""


def cut_from_key(body):
    """Keys are `sdk tool offset`: cut the first answer to such a call after that many bytes."""
    *_, offset = body["input"]["key"].split()
    if offset == "whole" or body["input"]["key"] in cut_from_key.seen:
        return None
    cut_from_key.seen.add(body["input"]["key"])
    return int(offset)


cut_from_key.seen = set()


def offsets_of(answer: bytes) -> tuple[int, list[int]]:
    """The end of the event that names the call, and offsets to cut at: before, all through it, and after."""
    start = answer.index(b"event: task_id")
    named = answer.index(b"\n\n", start) + 2
    assert len(answer) > named + 4096, "the result takes more than one piece"
    head = range(1, start, 7)
    event = range(start, named + 40, 2)
    result = range(named + 40, len(answer), (len(answer) - named - 40) // 25)
    return named, [*head, *event, named, *result, len(answer) - 1]


@both
@pytest.mark.parametrize("tool", ["at_once", "in_a_while"])
def test_a_stream_that_breaks_at_any_byte_still_brings_the_result(client, sdk, tool):
    """And once the client has read the id of its call, the tool runs exactly once.

    Before that, both SDKs retry without an id, and the server cannot recognise the same call.
    """
    cut_from_key.seen.clear()
    with running([OnceEnv]) as server, cutting(server.url, cut_from_key) as proxy:
        arguments = {"sdk": sdk, "url": proxy.url, "name": "onceenv"}
        whole = {"tool": tool, "input": {"key": f"{sdk} {tool} whole"}}
        (uncut,) = client(sdk, "calls", **arguments, calls=[whole])
        assert uncut["text"] == answer_to(f"{sdk} {tool} whole")
        named, offsets = offsets_of(proxy.answers[0])
        keys = {offset: f"{sdk} {tool} {offset}" for offset in offsets}
        calls = [{"tool": tool, "input": {"key": key}} for key in keys.values()]
        results = client(sdk, "calls", **arguments, calls=calls, at_once=40)

    assert cut_from_key.seen == set(keys.values()), "every connection was cut"
    for (offset, key), result in zip(keys.items(), results, strict=True):
        assert result.get("text") == answer_to(key), f"cut at {offset}: {result}"
        if offset >= named:
            assert ran[key] == 1, f"cut at {offset}, {offset - named} after the id, the tool ran {ran[key]} times"
        else:
            assert ran[key] in (1, 2)
    assert len([offset for offset in keys if offset >= named]) > 40


def test_a_call_made_while_setup_takes_long_runs_once(client):
    """Case 61, with both clients at the same time."""
    with running([MathEnv]) as server, ThreadPoolExecutor(2) as both_at_once:

        def call(sdk):
            calls = [
                {
                    "task": {"q": sdk, "setup_seconds": SETUP_SECONDS},
                    "tool": "slow",
                    "input": {"seconds": 0, "key": f"during setup {sdk}"},
                }
            ]
            return client(sdk, "calls", sdk=sdk, url=server.url, name="mathenv", calls=calls)

        began = time.monotonic()
        results = list(both_at_once.map(call, ["ors", "openreward"]))
        assert time.monotonic() - began > SETUP_SECONDS
    assert [result["text"] for (result,) in results] == ["slept 0.0", "slept 0.0"]
    assert [math_world.ran[f"during setup {sdk}"] for sdk in ("ors", "openreward")] == [1, 1]


@both
@pytest.mark.usefixtures("client")
def test_the_session_of_a_killed_client_is_closed_after_idle_seconds(sdk):
    key = f"killed {sdk}"
    call = {"task": {"q": key}, "tool": "slow", "input": {"seconds": 3, "key": key}}
    with running([MathEnv], idle_seconds=1.5, sweep_seconds=0.1) as server:
        arguments = {"sdk": sdk, "url": server.url, "name": "mathenv", "calls": [call]}
        killed = subprocess.Popen(
            [venvs.interpreter(PEERS[sdk]), SCRIPTS / "calls.py", json.dumps(arguments)],
            env=venvs.environ(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        until(lambda: math_world.ran[key] == 1)
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        died = time.monotonic()
        (session,) = server.server.runtime.sessions.values()
        assert session.running == 1, "the call outlives the client"
        until(lambda: key in math_world.torn_down)
        assert time.monotonic() - died > 1.5
        assert not server.server.runtime.sessions
        assert math_world.ran[key] == 1


def until(condition, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)
