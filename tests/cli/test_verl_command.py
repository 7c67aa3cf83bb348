"""`python -m toolyard.verl` for a user who typed `python -m verl_tool.servers.serve` before."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.command import WarmCommand
from tests.tiers import first, thorough
from toolyard.tools import TOOLS
from toolyard.verl import HELP, UNUSED, FlagError, Flags, read_flags, settings_of

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - __main__ - (INFO|WARNING|ERROR) - (.*)")
FILE = Path(__file__).parents[1] / "adapters" / "written_for_verl_tool.py"


class VerlCommand(WarmCommand):
    def __init__(self, *args: str, **env: str) -> None:
        super().__init__([sys.executable, "-m", "toolyard.verl", *args], env=env)

    @property
    def url(self) -> str:
        return self.until(r"Uvicorn running on (http://\S+) \(Press CTRL\+C to quit\)")[1]

    @property
    def lines(self) -> list[str]:
        """The banner, without times and levels."""
        return [found[2] for line in self.output.splitlines() if (found := LINE.fullmatch(line))]

    def act(self, text: str, trajectory: str = "a", **more: Any) -> tuple[Any, bool, bool]:
        body = {"trajectory_ids": [trajectory], "actions": [text], **more}
        answer = httpx2.post(f"{self.url}/get_observation", json=body, timeout=30, trust_env=False).json()
        return answer["observations"][0], answer["dones"][0], answer["valids"][0]

    def get(self, path: str) -> Any:
        return httpx2.get(self.url + path, trust_env=False).json()

    def end(self, sign: int = signal.SIGINT) -> int:
        self.process.send_signal(sign)
        return self.wait()


@pytest.fixture
def command() -> Iterator[Callable[..., VerlCommand]]:
    started: list[VerlCommand] = []

    def start(*args: str, **env: str) -> VerlCommand:
        started.append(VerlCommand(*args, **env))
        return started[-1]

    yield start
    for one in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(one.process.pid, signal.SIGKILL)
        one.wait()
        one.process.stdout.close()


def test_102_the_documented_command_starts_and_prints_the_documented_banner(command):
    server = command("--host", "localhost", "--port", "0", "--tool_type", "python_code,base", "--workers_per_tool", "4")
    port = server.url.rpartition(":")[2]
    assert server.lines[:4] == [
        "Initializing tools: ('python_code', 'base')",
        "Initialized tool: python_code",
        "Initialized tool: base",
        "Available Tools:",
    ]
    active = ("python_code", "base", "finish")
    assert set(server.lines[4:-2]) == {
        f"  - {name}: {'active 🟢' if name in active else 'inactive ⚪'}" for name in TOOLS
    }
    assert "  - text_browser: inactive ⚪" in server.lines
    assert server.lines[-2:] == [
        f"Starting async server on localhost:{port}",
        "Server configured for up to 1024 concurrent requests",
    ]
    assert re.search(r"^INFO:     Started server process \[\d+\]$", server.output, re.MULTILINE)
    assert re.search(r"^INFO:     Application startup complete\.$", server.output, re.MULTILINE)


def test_it_answers_at_the_root_and_only_this_protocol(command):
    server = command("--port=0", "--tool_type=python_code")
    assert server.act("<python>print(6 * 7)</python>") == ("\n<result>\n42\n</result>\n", False, True)
    assert "Execution blocked" in server.act("<python>import socket</python>")[0], "the word lists are on"
    health = server.get("/health")
    assert (health["status"], health["tools"]) == ("healthy", ["python_code", "finish"])
    assert server.get("/metrics")["config"] == {"max_concurrent": 1024, "timeout": None, "hashing_enabled": True}
    assert httpx2.get(f"{server.url}/list_environments", trust_env=False).status_code == 404


@pytest.mark.parametrize("sign", [signal.SIGINT, thorough(signal.SIGTERM)])
def test_it_stops_when_told_to_and_leaves_no_process(command, sign):
    server = command("--port", "0", "--tool_type", "python_code")
    server.act("<python>print(1)</python>")
    assert server.end(sign) in (130, -signal.SIGTERM)
    assert "Finished server process" in server.output
    assert "Traceback" not in server.output
    with pytest.raises(ProcessLookupError):
        os.killpg(server.process.pid, 0)


def test_without_a_host_only_this_machine_reaches_it_and_with_one_it_is_said(command):
    server = command("--port", "0", "--tool_type", "base")
    assert server.url.startswith("http://127.0.0.1:")
    assert "WARNING" not in server.output
    wide = command("--host", "0.0.0.0", "--port", "0", "--tool_type", "base")
    assert wide.url.startswith("http://0.0.0.0:")
    assert "WARNING - 0.0.0.0 can be reached from other machines, and no key is asked for" in wide.output


def test_a_trainer_may_name_files_below_the_directories_of_the_command_line(command, tmp_path):
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
        sqlite3.connect(tmp_path / name / "x.sqlite").close()
    server = command(
        *("--port", "0", "--tool_type", "sql"), *("--data_dir", str(tmp_path / "a"), f"--data-dir={tmp_path / 'b'}")
    )

    def asked(folder: str) -> str:
        named = [{"db_path": str(tmp_path / folder / "x.sqlite")}]
        return server.act("<sql>SELECT 5</sql>", extra_fields=named)[0]["obs"]

    assert ["\n 5\n" in asked(folder) for folder in "abc"] == [True, True, False]
    assert "named with --data-dir" in asked("c")


def test_directories_are_read_as_python_fire_would():
    for written in (["--data_dir=/a,/b"], ["--data-dir", "['/a', '/b']"], ["--data_dir", "/a", "--data_dir", "/b"]):
        assert read_flags(written)[0].data_dir == ("/a", "/b")


def test_a_tool_that_cannot_be_used_is_left_out_and_the_server_starts(command):
    server = command("--port", "0", "--tool_type", "nope,google_search,base", SERPER_API_KEY="")
    assert server.act("x", "t7") == ("Base observation for t7 in turn 0", True, True)
    assert "ERROR - Failed to initialize tool nope: there is no tool 'nope'; there are " in server.output
    assert "ERROR - Failed to initialize tool google_search: " in server.output
    assert "  - google_search: inactive ⚪" in server.lines
    assert server.get("/health")["tools"] == ["base", "finish"]


def test_a_text_that_calls_no_tool_is_told_why_and_which_tools_there_are_unless_a_variable_says_no(
    command, monkeypatch
):
    observation, done, valid = command("--port", "0", "--tool_type", "python_code").act("plain text")
    assert (done, valid) == (False, False)
    assert [*observation] == ["obs", "invalid_reason", "available_tools"]
    assert observation["invalid_reason"] == "No valid tool found for action"
    assert observation["available_tools"].startswith("Available tools:\n• python_code: ")
    monkeypatch.setenv("TOOLYARD_VERL_EXPLAIN_INVALID", "no")
    assert command("--port", "0", "--tool_type", "python_code").act("plain text") == ("", False, False)


@pytest.mark.parametrize("tools", ["nope", "finish"])
def test_with_no_tool_left_it_starts_and_every_text_is_invalid(command, tools):
    server = command("--port", "0", "--tool_type", tools, "--done_if_invalid", "--request_timeout", "5")
    observation, done, valid = server.act("<python>print(1)</python>")
    assert (observation["obs"], done, valid) == ("", True, False)
    assert server.act("", finish=[True]) == ("", True, True)
    assert server.get("/health")["tools"] == ["finish"]
    assert server.get("/metrics")["config"]["timeout"] == 5


def test_a_file_of_tools_written_for_verl_tool_is_served_by_its_path(command):
    server = command("--port", "0", "--tool_type", f"base,{FILE}")
    health = server.get("/health")["tools"]
    assert health == ["base", "double", "judge", "slow_search", "batch", "awaited", "witness", "finish"]
    assert "  - double: active 🟢" in server.lines
    other = command("--port", "0", "--tool_type", f"{FILE}:DoubleTool,base")
    assert other.act("<double>2</double>") == ("\n<twice>4</twice> turn 1", False, True)


def test_flags_without_a_meaning_here_are_accepted_and_named_once(command):
    server = command(
        "--port", "0", "--use_ray", "--nouse_tqdm", "--uvi_workers", "4", "--log_directory=x", "--slient", "True"
    )
    assert server.url
    named = "These flags are accepted and have no meaning here: use_ray, use_tqdm, uvi_workers, log_directory, slient"
    assert server.lines[0] == named


@pytest.mark.parametrize(
    ("args", "said"),
    first(
        [
            (["--tool_typ", "base"], "there is no flag --tool_typ; did you mean --tool_type"),
            (
                ["--quiet"],
                "there is no flag --quiet; there are --data_dir, --done_if_invalid, --enable_hashing, --host",
            ),
            (["base"], "what is 'base'? Write --flag value; several tools are one value: --tool_type a,b"),
            (["--port", "http"], "--port is 'http'; it must be a whole number"),
            (["--port", "70000"], "port is 70000; it must be from 0 to 65535"),
            (["--request_timeout", "soon"], "--request_timeout is 'soon'; it must be a number"),
            (["--done_if_invalid", "perhaps"], "--done_if_invalid is 'perhaps'; it must be True or False"),
            (["--log_level", "loud"], "--log_level is 'loud'; it must be one of debug, info"),
            (["--tool_type", "()"], "--tool_type is '()'; it must be names of tools, separated by commas"),
            (["--host", "192.0.2.1", "--port", "0"], "cannot listen on 192.0.2.1 port 0"),
        ]
    ),
)
def test_what_is_wrong_is_said_in_one_paragraph(command, args, said):
    wrong = command(*args)
    assert wrong.wait() == 2
    assert said in " ".join(wrong.output.split())
    assert "Traceback" not in wrong.output


def test_programs_that_reach_the_server_need_a_key_or_somebody_who_insists(command):
    refused = command("--port", "0", "--tool_type", "python_code", TOOLYARD_SANDBOX_NETWORK="host")
    assert refused.wait() == 2
    assert "programs in sandboxes reach this server, and no key is asked for" in " ".join(refused.output.split())
    more = {"TOOLYARD_SANDBOX_NETWORK": "host", "TOOLYARD_ALLOW_ANONYMOUS": "1"}
    insisted = command("--port", "0", "--tool_type", "python_code", **more)
    assert insisted.url
    assert "network: none, all that this host reaches" in insisted.output


def test_help_names_every_flag(command):
    asked = command("--help")
    assert asked.wait() == 0
    for flag in (*HELP, *UNUSED):
        assert flag in asked.output


# Spellings of flags.


@pytest.mark.parametrize(
    "argv",
    [
        ["--tool_type", "a,b"],
        ["--tool_type=a,b"],
        ["--tool-type", "('a','b')"],
        ["--tool_type", "('a', 'b',)"],
        ["--tool_type", '["a", "b"]'],
        ["-tool_type", "a, b"],
        ["--tool_type", "'a','b'"],
    ],
)
def test_a_list_of_tools_may_be_written_in_any_way_that_python_fire_takes(argv):
    flags, unused = read_flags(argv)
    assert (flags.tool_type, unused) == (("a", "b"), [])


@pytest.mark.parametrize(
    ("argv", "value"),
    [
        (["--done_if_invalid"], True),
        (["--done_if_invalid", "True"], True),
        (["--done_if_invalid=true"], True),
        (["--done-if-invalid", "1"], True),
        (["--nodone_if_invalid"], False),
        (["--no-done-if-invalid"], False),
        (["--done_if_invalid", "False"], False),
        (["--done_if_invalid", "--port", "1"], True),
        ([], None),
    ],
)
def test_a_flag_without_a_value_is_true_and_with_no_before_it_false(argv, value):
    assert read_flags(argv)[0].done_if_invalid is value


def test_none_is_as_if_the_flag_had_not_been_given():
    assert read_flags(["--request_timeout", "None", "--port=None"])[0] == Flags()


def test_a_number_may_be_negative_and_is_then_refused_as_a_setting():
    flags, _ = read_flags(["--request_timeout", "-1"])
    assert flags.request_timeout == -1


def test_flags_become_settings():
    flags, _ = read_flags(
        ["--max_concurrent_requests", "8", "--request_timeout", "2.5", "--noenable_hashing", "--done_if_invalid"]
    )
    settings = settings_of(flags)
    assert (settings.host, settings.port, settings.protocol) == ("127.0.0.1", 5000, ("verl",))
    assert (settings.max_concurrent_calls, settings.threads) == (8, 512)
    assert (settings.verl_request_seconds, settings.verl_repeat_seconds) == (2.5, 0)
    assert settings.verl_done_if_invalid is True
    usual = settings_of(Flags())
    assert (usual.max_concurrent_calls, usual.threads, usual.verl_repeat_seconds) == (1024, 4096, 30)
    assert settings_of(Flags(thread_pool_size=3, workers_per_tool=5)).threads == 5


def test_an_unknown_flag_names_those_that_look_like_it():
    with pytest.raises(FlagError, match=r"there is no flag --worker_per_tool; did you mean --workers_per_tool"):
        read_flags(["--worker_per_tool", "4"])
