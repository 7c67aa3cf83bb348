"""`toolyard conform` for people: a line for each case, the expectation where one failed, exit codes."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.conformance.mutant import Mutant, at, drop, mutating
from tests.warm import toolyard
from tests.worlds import MathEnv, OtherEnv
from toolyard.cli import main
from toolyard.testing import Running, running
from toolyard.testing.conformance import KITS

_MOST_REQUESTS = 500


def conform(*args: str) -> subprocess.CompletedProcess[str]:
    return toolyard("conform", *args, timeout=120)


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([MathEnv, OtherEnv]) as server:
        yield server


@pytest.fixture
def mutant(server: Running) -> Iterator[Mutant]:
    with mutating() as proxy:
        proxy.upstream = server.url
        yield proxy


def test_a_sound_server_passes_and_each_case_has_its_line(server):
    done = conform(server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{server.url} speaks ors, verl, toolserver, mcp, openenv\n" in done.stdout
    assert "  pass  ors        E12   POST /{env}/task with index -1\n" in done.stdout
    assert "FAIL" not in done.stdout
    for protocol in ("ors", "verl", "toolserver", "mcp", "openenv"):
        assert f"{protocol}: " in done.stdout
        for case in KITS[protocol].cases:
            assert f"{protocol:10} {case.number:5} " in done.stdout


def test_a_case_that_fails_says_what_was_expected_and_what_came_and_whether_that_is_known(mutant):
    mutant.mutation = at("/task", drop("env_name"))
    done = conform(mutant.url, "--protocol", "ors", "--only", "E12", "--only", "E1")
    assert done.returncode == 1
    said = words(done.stdout)
    assert "pass ors E1 GET /health" in said
    assert "FAIL ors E12 POST /{env}/task with index -1 (known difference D-8)" in said
    assert "expected: the last task, the same as its number gives, and env_name beside it" in said
    assert 'came: POST /mathenv/task {"split": "train", "index": -1} → 200 {"task": {"q": "4", "a": "4"}}' in said
    assert "ors: 1 passed, 1 failed, 0 skipped" in said


def test_other_programs_get_one_object(mutant):
    mutant.mutation = at("/health", drop("status"))
    done = conform(mutant.url, "--json", "--only", "E1", "--only", "E49", "--only", "E2")
    assert done.returncode == 1
    told = json.loads(done.stdout)
    assert (told["url"], told["protocols"]) == (mutant.url, ["ors"])
    assert told["counts"] == {"pass": 1, "fail": 1, "skip": 1}
    first, second, third = told["cases"]
    assert first == {
        "protocol": "ors",
        "number": "E1",
        "title": "GET /health",
        "expected": '200, the body exactly {"status": "ok"}; only "isolation" may stand beside it',
        "difference": "",
        "verdict": "fail",
        "why": "GET /health → 200 {}",
    }
    assert (second["number"], second["verdict"]) == ("E2", "pass")
    assert (third["verdict"], "name one whose result does not" in third["why"]) == ("skip", True)


def test_a_call_that_succeeds_can_be_given(server):
    call = ("--tool", "big", "--arguments", '{"n": 5000}')
    done = conform(server.url, "--protocol", "ors", "--only", "E49", *call)
    assert "ors: 1 passed, 0 failed, 0 skipped" in done.stdout


def test_it_asks_little_and_leaves_nothing_open(server, mutant):
    assert conform(mutant.url).returncode == 0
    assert mutant.exchanges < _MOST_REQUESTS
    assert not server.server.runtime.sessions


def test_the_cases_are_listed_without_a_server():
    done = conform("--list", "--protocol", "verl", "--protocol", "mcp")
    assert done.returncode == 0
    listed = [line for line in done.stdout.splitlines() if line[2:3] != " "]
    assert len(listed) == len(KITS["verl"].cases) + len(KITS["mcp"].cases)


def test_a_key_is_asked_for_and_taken():
    with running([MathEnv], api_key="k") as server:
        done = conform(server.url)
        assert done.returncode == 2
        assert "asks for a key" in done.stderr
        done = conform(server.url, "--api-key", "wrong")
        assert "does not take this key" in done.stderr
        done = conform(server.url, "--api-key", "k")
        assert done.returncode == 0
        assert "pass  mcp        F49" in done.stdout


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "say which server"),
        (["http://127.0.0.1:1"], "there is no answer from http://127.0.0.1:1"),
        (["127.0.0.1:8080"], "is no address of a server"),
        (["http://h", "--only", "E999"], "'E999' is no case of ors, verl, toolserver, mcp, openenv"),
        (["http://h", "--only", "F1", "--protocol", "ors"], "'F1' is no case of ors"),
        (["http://h", "--arguments", "{}"], "--arguments needs --tool"),
        (["http://h", "--tool", "t", "--arguments", "[1]"], "--arguments must be a JSON object"),
        (["http://h", "--tool", "t", "--arguments", "{"], "is not JSON"),
        (["http://h", "--timeout", "0"], "it must be more than 0"),
    ],
)
def test_what_makes_no_sense_is_2_and_says_why(args, said, capsys):
    assert main(["conform", *args]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert said in words(told.err)


class Stranger(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    do_POST = do_GET

    def log_message(self, format: str, *args: object) -> None:
        """Be quiet."""


def test_a_server_that_speaks_something_else_is_told_apart():
    stranger = HTTPServer(("127.0.0.1", 0), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    try:
        done = conform(f"http://127.0.0.1:{stranger.server_port}")
    finally:
        stranger.shutdown()
        stranger.server_close()
    assert done.returncode == 2
    assert "speaks none of ors, verl, toolserver, mcp, openenv" in words(done.stderr)
