"""A fork of a session with built-in tools copies its sandbox: variables, files, and the toolsets' state."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from toolyard import Client
from toolyard.client.errors import RequestRefused
from toolyard.testing import Running, running
from toolyard.tools.workspace import Workspace


@pytest.fixture(scope="module", params=["local", "pool"])
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running([Workspace], placement=request.param, pool_processes=1) as server:
        yield server


def test_notebook_and_files_go_on_in_each_fork_by_themselves(served):
    with Client(served.url) as client, client.environments.get("workspace").session({}) as session:
        session.call_tool("write_to_file", {"filepath": "notes.txt", "content": "first"})
        session.call_tool("execute_cell", {"code": "x = 1"})
        forks = session.fork(2)
        for n, fork in enumerate(forks, start=1):
            fork.call_tool("execute_cell", {"code": f"x += {n}"})
            fork.call_tool("write_to_file", {"filepath": "notes.txt", "content": f"fork {n}"})
        for n, fork in enumerate(forks, start=1):
            with fork:
                assert fork.call_tool("execute_cell", {"code": "x"}).text == f"cell_index: 2\n{1 + n}"
                notes = fork.call_tool("read_from_file", {"filepath": "notes.txt"}).text
                assert notes == f"    1: first\n    2: fork {n}\n"
        assert session.call_tool("execute_cell", {"code": "x"}).text == "cell_index: 1\n1"
        assert session.call_tool("read_from_file", {"filepath": "notes.txt"}).text == "    1: first\n"


def test_a_fork_before_anything_was_done_has_a_sandbox_of_its_own(served):
    with Client(served.url) as client, client.environments.get("workspace").session({}) as session:
        (fork,) = session.fork()
        with fork:
            fork.call_tool("write_to_file", {"filepath": "mine", "content": "x"})
        with pytest.raises(Exception, match="not found in workspace"):
            session.call_tool("read_from_file", {"filepath": "mine"})


def test_a_session_with_a_thread_in_its_notebook_says_why_it_cannot_be_forked(served):
    with Client(served.url) as client, client.environments.get("workspace").session({}) as session:
        code = "import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()"
        session.call_tool("execute_cell", {"code": code})
        with pytest.raises(RequestRefused, match="1 threads are running in the interpreter"):
            session.fork()
        assert session.call_tool("execute_cell", {"code": "1 + 1"}).text == "cell_index: 1\n2"
