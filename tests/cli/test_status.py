"""`toolyard status` for people: a page, JSON, rates, and its errors."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from tests.tiers import thorough
from tests.warm import toolyard
from tests.worlds import MathEnv, OtherEnv
from toolyard.cli._look import read
from toolyard.cli.status import bound, long_time
from toolyard.client import Client, ToolCallFailed
from toolyard.testing import Running, running
from toolyard.version import __version__

COMMAND = [sys.executable, "-m", "toolyard", "status"]


def environ(**variables: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "TOOLYARD_API_KEY"}, **variables}


def status(*args: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return toolyard("status", *args, env=environ(**variables))


def words(text: str) -> str:
    return " ".join(text.split())


@pytest.fixture
def busy() -> Iterator[Running]:
    """A server with a session in each of two environments, and calls in one of them."""
    with (
        running([MathEnv, OtherEnv], api_key="k", sweep_seconds=0.02) as server,
        Client(server.url, api_key="k") as client,
        client.environment("mathenv").session(task={"q": "1"}) as session,
        client.environment("otherenv").session(task={"q": "2"}),
    ):
        for _ in range(3):
            session.call_tool("noparam", {})
        with pytest.raises(ToolCallFailed):
            session.call_tool("boom", {})
        yield server


def test_the_page_says_what_a_server_is_and_does(busy):
    done = status(busy.url, "--api-key", "k")
    assert (done.returncode, done.stderr) == (0, "")
    said = words(done.stdout)
    assert said.startswith(f"Toolyard {__version__} at {busy.url} is ready; it has been up for ")
    assert "sessions 2 of 20,000 open (2 ready) 2 opened and 0 closed since it started" in said
    assert "calls 0 running, 0 waiting 4 answered (3 ok, 1 tool_raised)" in said
    assert "placement local process" in said
    rows = {row.split()[0]: row.split()[1:6] for row in done.stdout.splitlines() if re.match(r"  \w+env ", row)}
    assert rows == {"mathenv": ["1", "0", "0", "4", "1"], "otherenv": ["1", "0", "0", "0", "0"]}


def test_the_columns_stand_under_their_names(busy):
    lines = status(busy.url, "--api-key", "k").stdout.splitlines()
    (at,) = (number for number, line in enumerate(lines) if line.startswith("  environment"))
    ends = [found.end() for found in re.finditer(r"sessions|running|waiting|calls|not ok", lines[at])]
    for row in lines[at + 1 : at + 3]:
        assert all(row[end - 1] != " " for end in ends)
        assert all(row[end] == " " for end in ends)


def test_the_key_comes_from_its_variable_too(busy):
    assert status(busy.url, TOOLYARD_API_KEY="k").returncode == 0


@pytest.mark.parametrize(
    ("args", "said"), [([], "it asks for a key"), (["--api-key", "x"], "it does not take this key")]
)
def test_without_the_key_it_says_how_to_give_one(busy, args, said):
    done = status(busy.url, *args)
    assert done.returncode == 2
    assert said in words(done.stderr)
    assert "--api-key or TOOLYARD_API_KEY" in words(done.stderr)


def test_the_same_as_json(busy):
    told = json.loads(status(busy.url, "--api-key", "k", "--json").stdout)
    assert (told["url"], told["ready"], told["version"]) == (busy.url, True, __version__)
    assert (told["placement"], told["processes"], told["sandbox"]) == ("local", 0, None)
    assert told["environments"]["mathenv"] == {
        "sessions": {"ready": 1},
        "opened": 1,
        "closed": {},
        "calls_now": {},
        "calls": {"ok": 3, "tool_raised": 1},
    }
    assert told["memory_bytes"] > 2**20


def test_watching_shows_rates_since_the_last_look_until_it_is_interrupted(busy):
    with subprocess.Popen(
        [*COMMAND, busy.url, "--api-key", "k", "--watch", "0.2"], stdout=subprocess.PIPE, text=True, env=environ()
    ) as watching:
        lines = iter(watching.stdout.readline, "")
        assert next(line for line in lines if "answered" in line).split()[0] == "4"
        with Client(busy.url, api_key="k") as client, client.environment("mathenv").session(task={}) as session:
            for _ in range(10):
                session.call_tool("noparam", {})
            rates = (re.match(r"  per second +([\d.]+) calls, ([\d.]+) sessions", line) for line in lines)
            seen = next(rate for rate in rates if rate and float(rate[1]) > 0)
        assert float(seen[1]) <= 50 * 1.5
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()
        assert watching.wait(20) == 130


def test_a_server_that_takes_nobody_is_exit_code_1_and_says_why():
    with running([MathEnv], max_sessions=1) as server, Client(server.url) as client:
        assert status(server.url).returncode == 0
        with client.environment("mathenv").session(task={}):
            done = status(server.url)
            told = json.loads(status(server.url, "--json").stdout)
    assert done.returncode == 1
    assert " is full; it has been up for" in done.stdout.splitlines()[0]
    assert done.stdout.splitlines()[1] == "  all 1 sessions of this server are in use"
    assert (told["ready"], told["reasons"]) == (False, ["all 1 sessions of this server are in use"])


@pytest.mark.parametrize("protocol", ["verl", "toolserver"])
def test_it_works_with_a_server_of_any_protocol(protocol):
    with running([MathEnv], protocol=(protocol,)) as server:
        done = status(server.url)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mathenv" in done.stdout


def test_when_nobody_answers_it_says_so():
    with socket.socket() as held:  # no other process can take the port, and nothing listens on it
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        done = status(f"http://127.0.0.1:{port}")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"there is no answer from http://127.0.0.1:{port}" in words(done.stderr)
    assert "To start a server: toolyard serve" in words(done.stderr)


class Stranger(BaseHTTPRequestHandler):
    """A different kind of server, with a page for every path."""

    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"<html>hello</html>")

    def log_message(self, format, *args):
        """Be quiet."""


def test_another_server_is_not_taken_for_one_of_ours():
    with HTTPServer(("127.0.0.1", 0), Stranger) as stranger:
        threading.Thread(target=stranger.serve_forever, daemon=True).start()
        done = status(f"http://127.0.0.1:{stranger.server_port}")
        stranger.shutdown()
    assert done.returncode == 3
    assert "is no Toolyard server: it answers 200 to /toolyard/metrics, and no metrics" in words(done.stderr)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["127.0.0.1:8080"], "is no address of a server; one looks like http://127.0.0.1:8080"),
        thorough((["ftp://127.0.0.1"], "is no address of a server")),
        thorough((["http://127.0.0.1:1", "--watch", "0"], "--watch is 0; it must be more than 0")),
    ],
)
def test_words_that_make_no_sense_are_explained(args, said):
    done = status(*args)
    assert done.returncode == 2
    assert said in words(done.stderr)


def test_samples_are_read_as_they_were_written():
    text = '# HELP a A.\na{b="c \\"d\\" \\\\ e\\nf",g="h"} 2.5\nx_total 3\n'
    one, two = read(text)
    assert (one.name, one.labels, one.value) == ("a", {"b": 'c "d" \\ e\nf', "g": "h"}, 2.5)
    assert (two.name, two.labels, two.value) == ("x_total", {}, 3)


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.4, "0 s"), (75, "1 min 15 s"), (3700, "1 h 1 min"), (90_000 + 3600 * 2, "1 d 3 h")]
)
def test_long_times_are_said_in_two_units(seconds, said):
    assert long_time(seconds) == said


@pytest.mark.parametrize(("seconds", "said"), [(None, "-"), (0.005, "5 ms"), (60, "60 s"), (float("inf"), "> 1 h")])
def test_bounds_are_said_in_the_unit_that_fits(seconds, said):
    assert bound(seconds) == said
