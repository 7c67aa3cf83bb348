"""A failed `/fork` gets an answer with the cause, and the session goes on unchanged."""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Iterator

import httpx2
import pytest

from tests.forks import refusing
from tests.placement.worlds import Counting
from toolyard import Client, Environment, tool
from toolyard.testing import Running, running
from toolyard.tools.bash_terminal import BashTerminal
from toolyard.tools.environment import toolbox

MIB = 2**20


def fork(server: Running, env: str, sid: str, count: int = 2, timeout: float = 60) -> httpx2.Response:
    return httpx2.post(
        f"{server.url}/{env}/fork", headers={"X-Session-ID": sid}, json={"count": count}, timeout=timeout
    )


@pytest.mark.parametrize("placement", ["local", "process"])
def test_files_too_large_for_a_copy_are_a_conflict_at_once_and_cost_the_session_nothing(placement):
    with (
        running([toolbox([BashTerminal])], placement=placement, sandbox_memory_bytes=96 * MIB) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        session.call_tool("bash_terminal", {"command": "kept=7; mkdir sub; cd sub; head -c 60M /dev/zero > large"})
        began = time.monotonic()
        answer = fork(server, "toolbox", session.sid)
        assert answer.status_code == 409, answer.text
        assert "the copy of its files takes 60 MiB of memory" in answer.json()["error"]
        assert time.monotonic() - began < 15
        told = session.call_tool("bash_terminal", {"command": "echo $kept; ls; rm large"}).text
        assert told.startswith("user@bash-session:~/sub$ echo $kept; ls; rm large\n7\nlarge"), told
        answer = fork(server, "toolbox", session.sid)
        assert answer.status_code == 200, answer.text


class Hooked(Environment):
    """Its fork() does what the test sets."""

    torn_down = 0
    forks: Iterator[object] = iter(())

    @classmethod
    def name(cls) -> str:
        return "hooked"

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return ""

    async def setup(self):
        self.kept = 0

    @tool
    def add(self) -> str:
        """Count."""
        self.kept += 1
        return str(self.kept)

    async def fork(self):
        match next(Hooked.forks):
            case Exception() as error:
                raise error
            case float() as seconds:
                await asyncio.sleep(seconds)
        made = Hooked(self.task_spec, self.secrets)
        made.kept = self.kept
        return made

    async def teardown(self):
        Hooked.torn_down += 1
        if self.task_spec.get("bad"):
            raise ValueError("bad teardown")


@pytest.mark.parametrize("spec", [{}, {"bad": True}], ids=["", "a teardown that raises"])
def test_the_third_of_three_that_an_author_cannot_make_takes_the_others_with_it(spec):
    Hooked.forks, Hooked.torn_down = iter([None, None, ValueError("no third"), None]), 0
    with (
        running([Hooked]) as server,
        Client(server.url) as client,
        client.environment("hooked").session(spec) as session,
    ):
        assert session.call_tool("add").text == "1"
        answer = fork(server, "hooked", session.sid, count=3)
        assert answer.status_code == 500
        assert "no third" in answer.text
        assert Hooked.torn_down == 2
        assert session.call_tool("add").text == "2"
        (branch,) = session.fork()
        with branch:
            assert branch.call_tool("add").text == "3"


def test_forks_that_nobody_waits_for_are_closed():
    Hooked.forks, Hooked.torn_down = itertools.chain([0.5, 0.1], itertools.repeat(None)), 0
    with (
        running([Hooked]) as server,
        Client(server.url) as client,
        client.environment("hooked").session({}) as session,
    ):
        assert session.call_tool("add").text == "1"
        with pytest.raises(httpx2.TimeoutException):
            fork(server, "hooked", session.sid, timeout=0.2)
        until = time.monotonic() + 20
        while Hooked.torn_down < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert Hooked.torn_down == 2
        assert session.call_tool("add").text == "2"
        assert fork(server, "hooked", session.sid).status_code == 200


def test_a_process_that_the_system_does_not_give_is_answered_503(monkeypatch):
    monkeypatch.setattr(os, "fork", refusing(range(4, 5)))  # a guard, a template, a worker, and the fork's
    with (
        running([Counting], placement="process") as server,
        Client(server.url) as client,
        client.environment("counting").session({}) as session,
    ):
        assert session.call_tool("add").text == "1"
        answer = fork(server, "counting", session.sid, count=1)
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"] == "5"
        assert session.call_tool("add").text == "2"
        with session.fork()[0] as branch:
            assert branch.call_tool("add").text == "3"
