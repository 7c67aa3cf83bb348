"""`toolyard mcp`: one session, for a host that talks over standard streams. Numbers refer to the cases."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from tests.command import TOOLYARD
from tests.warm import toolyard
from tests.wires.mcp_wire import INITIALIZE, META, MODERN, Played
from tests.wires.wire import H, strict_json
from toolyard.testing import running

NOISY = str(Path(__file__).with_name("noisy.py"))


class Host:
    """A program that starts ours, as an editor does."""

    def __init__(self, folder: Path, *args: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [TOOLYARD, "mcp", *args],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "YARD": str(folder)},
        )
        self.said = b""
        """From standard error."""
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    def _listen(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said += line

    def write(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def send(self, method: str, params: Any = None, **more: Any) -> None:
        body = {"jsonrpc": "2.0", "method": method, **more} | ({} if params is None else {"params": params})
        self.write(json.dumps(body).encode())

    def read(self) -> dict[str, Any]:
        """One message: every line must be one."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line.endswith(b"\n"), self.said.decode()
        message: dict[str, Any] = strict_json(line)
        assert message["jsonrpc"] == "2.0"
        return message

    def ask(self, method: str, params: Any = None, id: Any = 1) -> dict[str, Any]:
        self.send(method, params, id=id)
        answer = self.read()
        assert answer["id"] == id
        return answer

    def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return self.ask("tools/call", {"name": name, "arguments": arguments})

    def modern(self, method: str, params: dict[str, Any] = {}, id: Any = 1) -> dict[str, Any]:
        return self.ask(method, {**params, "_meta": META}, id)

    def notes(self) -> list[str]:
        notes = self.folder / "notes"
        return notes.read_text().split() if notes.exists() else []

    def end(self) -> int:
        """Close its input, and wait."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        code = self.process.wait(20)
        self._listening.join(10)
        assert self.process.stdout.read() == b"", "nothing came after the last answer"
        return code

    def clean(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._listening.join(10)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def begin(*args: str) -> Host:
        hosts.append(Host(tmp_path, *args))
        return hosts[-1]

    yield begin
    for host in hosts:
        host.clean()


def text(answer: dict[str, Any]) -> str:
    return "".join(block["text"] for block in answer["result"]["content"])


def test_a_host_plays_an_episode_that_begins_with_its_first_question_for_tools(start):
    host = start(NOISY, "--split", "hard", "--index", "1")  # F53
    assert host.ask("initialize", INITIALIZE, "a")["result"]["serverInfo"]["name"] == "Noisy"
    host.send("notifications/initialized")
    assert host.ask("ping")["result"] == {}
    assert host.notes() == [], "hosts initialize and throw away"
    assert {tool["name"] for tool in host.ask("tools/list")["result"]["tools"]} == {"shout", "tell", "rest", "end"}
    assert host.notes() == ["made"]
    assert host.ask("prompts/get", {"name": "task"})["result"]["messages"][0]["content"]["text"] == "Do what is hard 1."
    assert text(host.call("tell", text="a")) == "a"
    assert text(host.call("tell", text="é\u2028")) == "a é\u2028"
    assert host.call("end")["result"]["isError"] is False
    assert host.call("tell", text="b")["result"]["isError"] is True
    assert host.notes() == ["made"]
    assert host.end() == 0
    assert host.notes() == ["made", "ended"]


def test_what_an_environment_prints_goes_to_standard_error_and_what_it_reads_is_empty(start):
    host = start(NOISY)  # F53
    assert text(host.call("shout", text="x")) == "x"
    assert text(host.call("shout", text="y")) == "y"
    assert host.end() == 0
    for way in (b"loaded", b"print x", b"write x", b"system x", b"stdout x"):
        assert way in host.said


@pytest.mark.thorough
def test_a_line_that_is_no_message_is_passed_over(start):
    host = start(NOISY)  # F53
    for line in (b"garbage", b"", b"[]", b"\xff\xfe", b'{"jsonrpc": "2.0", "id": 1, "result": {}}', b"x" * 17_000_000):
        host.write(line)
    assert host.ask("ping", id=2)["result"] == {}
    host.write(b'{"jsonrpc": "2.0", "id": 3, "method": 1}')
    assert host.read()["error"]["code"] == -32600
    assert host.ask("no/such", id=4)["error"]["code"] == -32601
    assert host.end() == 0
    assert b"a line of more than 16777216 bytes" in host.said


def test_a_host_that_begins_without_a_handshake_cannot_shake_hands_later(start):
    host = start(NOISY)  # F53
    assert host.modern("server/discover")["result"]["supportedVersions"] == [MODERN]
    assert text(host.modern("tools/call", {"name": "tell", "arguments": {"text": "a"}})) == "a"
    error = host.ask("initialize", INITIALIZE, id=9)["error"]
    assert error["code"] == -32022
    assert error["data"] == {"supported": [MODERN], "requested": "2025-11-25"}
    assert host.ask("tools/list")["error"]["code"] == -32602, "it lacks what every request says here"
    assert host.modern("tools/call", {"name": " é ", "arguments": {}})["error"]["code"] == -32602
    assert host.end() == 0


def test_a_host_that_has_shaken_hands_stays_with_it(start):
    host = start(NOISY)  # F53
    host.ask("initialize", INITIALIZE)
    assert host.modern("tools/list")["error"]["code"] == -32600
    assert host.ask("tools/list")["result"]["tools"]
    assert host.end() == 0


@pytest.mark.thorough
@pytest.mark.parametrize("meta", [{}, META], ids=["handshake", "modern"])
def test_progress_comes_while_a_call_runs_and_a_call_can_be_cancelled(start, meta):
    host = start(NOISY, "--ping-seconds", "0.1")
    params = {"name": "rest", "arguments": {"seconds": 60}, "_meta": {**meta, "progressToken": "p"}}
    host.send("tools/call", params, id=1)
    steps = [host.read()["params"]["progress"] for _ in range(3)]
    assert steps == sorted(set(steps))
    assert text(_beside(host, meta)) == "a"
    host.send("notifications/cancelled", {"requestId": 1})
    while (last := host.read()).get("method") == "notifications/progress":
        continue
    assert (last["id"], last["error"]["code"]) == (1, -32800)
    assert host.end() == 0


@pytest.mark.thorough
def test_any_number_of_calls_that_run_leaves_room_for_what_cancels_them(start):
    host = start(NOISY, "--ping-seconds", "0.1")
    assert text(host.call("tell", text="a")) == "a"
    rest = {"name": "rest", "arguments": {"seconds": 600}}
    for n in range(120):
        host.send("tools/call", rest, id=n)
    host.send("tools/call", {**rest, "_meta": {"progressToken": 0}}, id="last")
    assert host.read()["method"] == "notifications/progress"
    host.send("notifications/cancelled", {"requestId": "last"})
    while (last := host.read()).get("method") == "notifications/progress":
        continue
    assert (last["id"], last["error"]["code"]) == ("last", -32800)
    assert host.end() == 0
    assert b"not yet answered are given up: 120" in host.said


def test_a_request_can_be_cancelled_while_the_session_opens(start, tmp_path):
    host = start(NOISY, "--split", "slow")
    host.send("tools/call", {"name": "tell", "arguments": {"text": "a"}}, id=1)
    host.send("tools/list", id=2)
    deadline = time.monotonic() + 20
    while "making" not in host.notes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    host.send("notifications/cancelled", {"requestId": 1})
    answer = host.read()
    assert (answer["id"], answer["error"]["code"]) == (1, -32800)
    (tmp_path / "go").touch()
    assert host.read()["id"] == 2, "and the other request goes on"
    assert text(host.call("tell", text="b")) == "b", "the call that was cancelled never ran"
    assert host.end() == 0


def _beside(host: Host, meta: dict[str, Any]) -> dict[str, Any]:
    """The answer to a call made while another runs."""
    host.send("tools/call", {"name": "tell", "arguments": {"text": "a"}, "_meta": meta}, id=2)
    while (answer := host.read()).get("id") != 2:
        assert answer["method"] == "notifications/progress"
    return answer


@pytest.mark.thorough
def test_the_end_of_the_host_ends_what_runs(start):
    host = start(NOISY)
    host.send("tools/call", {"name": "rest", "arguments": {"seconds": 600}}, id=1)
    deadline = time.monotonic() + 20
    while "resting" not in host.notes():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    assert host.end() == 0
    assert host.notes() == ["made", "resting", "ended"]


def test_requests_through_a_pipe_are_answered_though_their_writer_is_gone(tmp_path):
    listing = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
    piped = f"{json.dumps(begin)}\r\n{json.dumps(listing)}"  # like `echo` on Windows, and without a final line end
    done = subprocess.run(
        [TOOLYARD, "mcp", NOISY],
        input=piped.encode(),
        env={**os.environ, "YARD": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0
    answers = [strict_json(line) for line in done.stdout.splitlines()]
    assert {answer["id"] for answer in answers} == {1, 2}
    assert all("result" in answer for answer in answers), answers


@pytest.mark.thorough
def test_of_several_environments_the_first_is_played_and_the_others_are_named(start, tmp_path):
    source = Path(NOISY).read_text()
    two = tmp_path / "two.py"
    two.write_text(source + "\n\nclass Other(Noisy):\n    pass\n")
    host = start(str(two))
    assert host.ask("initialize", INITIALIZE)["result"]["serverInfo"]["name"] == "Noisy"
    assert host.end() == 0
    assert b"serving noisy, the first; name another as file.py:Class: other" in host.said
    host = start(f"{two}:Other")
    assert host.ask("initialize", INITIALIZE)["result"]["serverInfo"]["name"] == "Other"
    assert host.end() == 0
    assert b"the first" not in host.said


@pytest.mark.thorough
def test_a_signal_ends_it_as_the_host_does(start):
    host = start(NOISY)
    assert text(host.call("tell", text="a")) == "a"
    host.process.terminate()
    assert host.process.wait(20) == 0
    assert host.notes() == ["made", "ended"]


@pytest.mark.thorough
def test_a_task_that_is_not_there_is_an_error_that_says_what_is(start):
    host = start(NOISY, "--split", "esay")
    assert host.ask("initialize", INITIALIZE)["result"]
    error = host.ask("tools/list")["error"]
    assert (error["code"], error["data"]["reason"]) == (-32000, "failed")
    assert "there are 'easy', 'hard'" in error["message"]
    assert host.end() == 0


# A bridge.


def test_a_bridge_plays_a_session_of_a_running_server_which_goes_on_after_it(start):
    with running([Played], api_key="k", ping_seconds=0.1) as server:
        sid = f"s {uuid.uuid4()}?/x"
        headers = {"X-API-Key": "k", **H(sid)}
        created = httpx2.post(f"{server.url}/create", headers=headers, json={"task_spec": {"name": "gold"}})
        assert created.status_code == 200
        host = start("--url", server.url, "--session", sid, "--api-key", "k")
        assert host.ask("initialize", INITIALIZE)["result"]["instructions"] == "Find gold."
        assert text(host.call("note", text="a")) == "a"
        params = {"name": "rest", "arguments": {"seconds": 0.5}, "_meta": {"progressToken": 5}}
        host.send("tools/call", params, id=3)
        assert host.read()["method"] == "notifications/progress"
        while (answer := host.read()).get("id") != 3:
            continue
        assert text(answer) == "0.5 s"
        assert host.end() == 0
        outcome = httpx2.get(f"{server.url}/sessions/{quote(sid, safe='')}/outcome", headers=headers).json()
        assert outcome["calls"] == 2
        httpx2.post(f"{server.url}/delete", headers=headers)
        host = start("--url", server.url, "--session", sid, "--api-key", "k")
        assert host.modern("tools/list")["error"] == {"code": -32600, "message": "Session not found"}
        assert host.end() == 0
        host = start("--url", server.url, "--session", sid)
        assert "401" in host.ask("tools/list")["error"]["message"]
    assert host.ask("tools/list")["error"]["code"] == -32000, "there is no server any more"
    assert host.end() == 0


def test_a_bridge_takes_the_url_of_an_agent_as_it_is(start):
    with running([Played], api_key="k") as server:
        headers = {"X-API-Key": "k", **H("s")}
        httpx2.post(f"{server.url}/create", headers=headers, json={"task_spec": {"name": "gold"}})
        given = httpx2.post(f"{server.url}/played/agent", headers=headers).json()
        host = start("--url", given["url"])
        assert host.ask("initialize", INITIALIZE)["result"]["instructions"] == "Find gold."
        assert text(host.call("note", text="a")) == "a"
        httpx2.request("DELETE", f"{server.url}/played/agent", headers=headers)
        assert "token is not valid" in host.ask("tools/list")["error"]["message"]
        assert host.end() == 0
        assert given["token"].encode() not in host.said


@pytest.mark.parametrize(
    "args",
    [
        [],
        ["--url", "http://127.0.0.1:1"],
        ["--url", "http://127.0.0.1:1/agent/agt-x/mcp", "--session", "s"],
        ["--url", "http://127.0.0.1:1", "--session", ""],
        ["--session", "s", NOISY],
        [NOISY, "--url", "http://x", "--session", "s"],
    ],
)
def test_a_command_that_makes_no_sense_says_so(args):
    done = toolyard("mcp", *args)
    assert done.returncode == 2
    assert "name a target" in done.stderr
    assert done.stdout == ""
