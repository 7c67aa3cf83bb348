"""A sandbox without room is nobody's fault: the client may try again later."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator

import httpx2
import pytest

from toolyard import Client
from toolyard.loading import WORKSPACE, load_targets
from toolyard.testing import running
from toolyard.tools.bash_terminal import BashTerminal
from toolyard.tools.environment import toolbox


@pytest.fixture
def few_files() -> Iterator[None]:
    """This process, and so the server in it, may open fewer files than thirty sandboxes need."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 150, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("few_files")
def test_a_fork_that_has_no_room_is_answered_503_and_leaves_the_session_as_it_was():
    with (
        running([toolbox([BashTerminal])]) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        assert "7" in session.call_tool("bash_terminal", {"command": "x=7; echo $x"}).text
        answer = httpx2.post(
            f"{server.url}/toolbox/fork",
            headers={"X-Session-ID": session.sid},
            json={"count": 60},
            timeout=60,
        )
        assert answer.status_code == 503, answer.text
        assert answer.headers["retry-after"] == "5"
        assert "ulimit -n" in answer.json()["error"]
        assert "7" in session.call_tool("bash_terminal", {"command": "echo $x"}).text


@pytest.mark.usefixtures("few_files")
def test_a_node_that_has_no_room_is_answered_503_with_the_time_to_wait():
    workspace = load_targets([WORKSPACE]).environments
    with running(workspace) as server, httpx2.Client(base_url=server.url, timeout=60) as client:
        for _ in range(40):
            client.cookies.clear()
            node = client.post("/get_cookie")
            if node.is_error:
                break
        assert node.status_code == 503, node.text
        assert node.headers["retry-after"] == "5"
        assert "ulimit -n" in node.text
