"""SIGTERM to a server with sessions in processes: calls end well, no new session opens, no process is left."""

from __future__ import annotations

import signal
import threading
import time
from pathlib import Path

import httpx2
import pytest

from tests.cli.test_serve import toolyard, url_of, write
from toolyard.client import Client, InfrastructureError

__all__ = ["toolyard"]  # a fixture

WAITING = """
    import os, time
    from toolyard import Environment, tool

    class Waiting(Environment):
        @classmethod
        def list_splits(cls): return ["train"]
        @classmethod
        def list_tasks(cls, split): return [{}]
        def get_prompt(self): return "Wait."
        def teardown(self): open(f"torn-down-{os.getpid()}", "w").close()
        @tool
        def wait(self) -> str:
            "Wait until somebody writes the file `go`."
            open("began", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.01)
            return f"went on in {os.getpid()}"
        @tool
        def where(self) -> int:
            "In which process this is."
            return os.getpid()
"""


def children(pid: int) -> set[int]:
    """All descendants of a process."""
    try:
        direct = {
            int(child) for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()
        }
    except OSError:  # it has ended
        return set()
    return direct.union(*map(children, direct))


def is_there(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


class Caller(threading.Thread):
    """Waits in a call while the server gets SIGTERM."""

    def __init__(self, session) -> None:
        super().__init__(daemon=True)
        self.session = session
        self.answer = ""
        self.failure: Exception | None = None

    def run(self) -> None:
        try:
            self.answer = self.session.call_tool("wait", {}).text
        except InfrastructureError as error:
            self.failure = error


@pytest.mark.parametrize("placement", ["process", "pool"])
def test_a_call_ends_well_while_nobody_new_is_taken_and_nothing_is_left(toolyard, tmp_path, placement):
    write(tmp_path, "waiting.py", WAITING)
    process = toolyard("serve", "waiting.py", "--port", "0", "--placement", placement, "--drain-seconds", "30")
    url = url_of(process)
    with Client(url, patience=0.5) as client:
        waiting = client.environment("waiting")
        session, idle = waiting.session(task={}), waiting.session(task={})
        with session, idle:
            where = {int(each.call_tool("where", {}).text) for each in (session, idle)}
            assert process.process.pid not in where
            calling = Caller(session)
            calling.start()
            until((tmp_path / "began").exists)
            processes = children(process.process.pid)
            assert where < processes, "and their template"
            process.process.send_signal(signal.SIGTERM)
            process.until("stopping: 1 call running, 2 sessions open")
            until(lambda: httpx2.get(f"{url}/health").status_code == 503)
            health = httpx2.get(f"{url}/health").json()
            assert health == {"status": "draining", "reasons": ["the server is shutting down"]}
            refused = httpx2.post(f"{url}/create", headers={"X-Session-ID": "new"}, json={"task_spec": {}})
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            assert calling.is_alive()
            (tmp_path / "go").touch()
            calling.join(20)
            assert calling.answer.removeprefix("went on in ") in map(str, where)
            assert process.wait() == -signal.SIGTERM, "as who was asked to end, and did"
    assert "Traceback" not in process.output
    assert len(list(tmp_path.glob("torn-down-*"))) == len(where)
    until(lambda: not any(map(is_there, processes)))


def test_a_call_that_does_not_end_in_time_is_told_so_and_its_process_is_gone(toolyard, tmp_path):
    write(tmp_path, "waiting.py", WAITING)
    process = toolyard("serve", "waiting.py", "--port", "0", "--placement", "process", "--drain-seconds", "0.2")
    with Client(url_of(process), patience=0.5) as client, client.environment("waiting").session(task={}) as session:
        calling = Caller(session)
        calling.start()
        until((tmp_path / "began").exists)
        processes = children(process.process.pid)
        process.process.send_signal(signal.SIGTERM)
        calling.join(20)
        assert calling.failure is not None
        assert "session ended before the call did" in str(calling.failure)
        process.wait()
    until(lambda: not any(map(is_there, processes)))
