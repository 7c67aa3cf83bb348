"""A server that can open no more files says so on `/health`, and accepts sessions again when there is room."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
import pytest

from tests.command import TOOLYARD, Command
from tests.sandboxes.test_capacity import own_group
from tests.wires.wire import H

WORLD = """
import os, threading
from toolyard import Environment, tool

class Greedy(Environment):
    taken = []
    ends = threading.Event()

    @classmethod
    def list_splits(cls): return ["train"]
    @classmethod
    def list_tasks(cls, split): return [{}]
    def get_prompt(self): return "Go."

    @tool
    async def take_files(self, leave: int) -> int:
        try:
            while True:
                self.taken.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for fd in self.taken[len(self.taken) - leave:]:
                os.close(fd)
            del self.taken[len(self.taken) - leave:]
        return len(self.taken)

    @tool
    async def give_back(self) -> int:
        while self.taken:
            os.close(self.taken.pop())
        self.ends.set()
        return 0

    @tool
    async def take_threads(self) -> int:
        count = 0
        try:
            while True:
                threading.Thread(target=self.ends.wait, daemon=True).start()
                count += 1
        except RuntimeError:
            return count
"""


@contextmanager
def serving(tmp_path: Path, *before: str) -> Iterator[tuple[Command, str]]:
    """A separate server, started by a shell that first runs `before`."""
    (tmp_path / "greedy.py").write_text(WORLD)
    line = "; ".join([*before, f"exec {TOOLYARD} serve greedy.py --port 0 --sweep-seconds 0.1"])
    command = Command(["/bin/sh", "-c", line], env={}, cwd=tmp_path)
    try:
        yield command, command.until(r"http://127\.0\.0\.1:\d+")[0]
    finally:
        command.process.terminate()
        command.wait()


def health_within(url: str, status: int, seconds: float = 10) -> dict[str, object]:
    """The answer to a probe that connects for each request, once it has this status."""
    end = time.monotonic() + seconds
    while True:
        try:
            answer = httpx2.get(f"{url}/health", trust_env=False)
            if answer.status_code == status:
                told: dict[str, object] = answer.json()
                return told
        except httpx2.HTTPError:
            assert time.monotonic() < end, "nobody answers"
        assert time.monotonic() < end, f"it is not {status}"
        time.sleep(0.05)


@pytest.mark.parametrize("leave", [0, 10])
def test_a_server_that_can_open_no_file_is_not_ready_and_says_why_until_it_can(tmp_path, leave):
    with serving(tmp_path, "ulimit -n 512") as (command, url), httpx2.Client(base_url=url, trust_env=False) as client:
        client.post("/create", headers=H("s"), json={"task_spec": {}}).raise_for_status()

        def call(name: str, **arguments: int) -> None:
            body = {"name": name, "input": arguments}
            assert "event: end" in client.post("/greedy/call", headers=H("s"), json=body).text

        assert health_within(url, 200) == {"status": "ok"}
        call("take_files", leave=leave)
        told = health_within(url, 503)
        assert told["status"] == "unavailable"
        (reason,) = told["reasons"]
        assert reason.endswith(" more files can be opened, of 512 in all (ulimit -n)")
        assert int(reason.split()[0]) <= leave + 4
        assert "toolyard_ready 0" in client.get("/metrics").text
        command.until(r"not ready for new sessions: \d+ more files can be opened, of 512")
        call("give_back")
        assert health_within(url, 200) == {"status": "ok"}
        command.until("ready for new sessions again")


def test_a_server_that_can_start_no_thread_is_not_ready_and_says_why_until_it_can(tmp_path):
    with (
        own_group("pids") as group,
        serving(tmp_path, f"echo 64 > {group}/pids.max; echo $$ > {group}/cgroup.procs") as (_, url),
        httpx2.Client(base_url=url, trust_env=False) as client,
    ):
        client.post("/create", headers=H("s"), json={"task_spec": {}}).raise_for_status()
        assert health_within(url, 200) == {"status": "ok"}
        body = {"name": "take_threads", "input": {}}
        assert "event: end" in client.post("/greedy/call", headers=H("s"), json=body).text
        told = health_within(url, 503)
        assert told["status"] == "unavailable"
        assert "0 more processes and threads can be started, of 64 in all (pids.max)" in told["reasons"]
        assert group not in str(told)
        client.post("/greedy/call", headers=H("s"), json={"name": "give_back", "input": {}})
        assert health_within(url, 200) == {"status": "ok"}
