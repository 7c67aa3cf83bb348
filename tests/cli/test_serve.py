"""`toolyard serve` for people: the banner, the answers, and its errors."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.command import TOOLYARD, Command, WarmCommand
from tests.tiers import first, thorough
from toolyard.protocols import PROTOCOLS

GOOD = """
    from toolyard import Environment, tool

    class Tiny(Environment):
        @classmethod
        def list_splits(cls): return ["train"]
        @classmethod
        def list_tasks(cls, split): return [{"q": "VERSION"}]
        def get_prompt(self): return self.task_spec["q"]
        def teardown(self): print("torn down", flush=True)
        @tool
        def look(self) -> str:
            "Look."
            return "seen"
"""


@pytest.fixture
def toolyard(tmp_path: Path) -> Iterator:
    started: list[Command] = []

    def start(*args: str, **env: str) -> Command:
        kind = Command if "--reload" in args else WarmCommand  # it starts itself again
        started.append(kind([TOOLYARD, *args], cwd=tmp_path, env=env))
        return started[-1]

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.process.pid, signal.SIGKILL)  # with --reload there are two
        process.wait()


def write(folder: Path, name: str, text: str = GOOD, **changes: str) -> Path:
    path = folder / name
    text = textwrap.dedent(text)
    for old, new in changes.items():
        text = text.replace(old, new)
    path.write_text(text)
    return path


def url_of(process: Command) -> str:
    return process.until(r"http://127\.0\.0\.1:\d+").group()


def snippet_of(process: Command) -> str:
    return textwrap.dedent(process.output[process.output.index("  from toolyard import Client") :].split("\n\nStop")[0])


def run(snippet: str) -> str:
    return subprocess.run([sys.executable, "-c", snippet], check=True, capture_output=True, text=True).stdout


def test_without_a_target_the_examples_are_served_and_the_banner_tells_what_to_try(toolyard):
    process = toolyard("serve", "--port", "0")
    url = url_of(process)
    process.until("Stop with Ctrl-C")
    names = httpx2.get(f"{url}/list_environments").json()
    assert len(names) >= 4
    for name in names:
        assert name in process.output
    curl = process.until(r"curl (\S+)").group(1)
    assert httpx2.get(curl).status_code == 200
    assert len(run(snippet_of(process))) > 20


def test_without_a_target_the_workspace_is_there_too_for_clients_of_the_toolserver(toolyard):
    url = url_of(toolyard("serve", "--port", "0"))
    with httpx2.Client(base_url=url, timeout=60) as client:
        assert client.post("/get_cookie").json()["message"] == "add cookie"
        names = client.post("/get_available_tools", json={}).json()["available_tools"]
        assert {"FileSystemEnv_read_from_file", "PythonNotebook_execute_cell", "Arithmetic_submit"} <= set(names)
        body = {"tool_name": "calculator", "arguments": {"expression": "6*7"}}
        assert client.post("/execute_tool", json=body).json() == 42


def test_where_nothing_isolates_the_examples_are_served_and_the_workspace_is_not(toolyard):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    process = toolyard("serve", "--port", str(port), "--min-isolation", "L4")
    url = url_of(process)
    assert "The workspace is not served: nothing here isolates programs as well as L4 asks for." in process.output
    names = httpx2.get(f"{url}/list_environments").json()
    assert "arithmetic" in names
    assert "workspace" not in names


@pytest.mark.parametrize("host", ["0.0.0.0", thorough("::")])
def test_what_the_banner_tells_to_try_works_whatever_the_host_the_key_and_the_splits(toolyard, tmp_path, host):
    write(tmp_path, "tiny.py", GOOD.replace('"train"', '"dev"'))
    process = toolyard("serve", "tiny.py", "--port", "0", "--host", host, "--api-key", "s3cret")
    process.until("Stop with Ctrl-C")
    address = "127.0.0.1" if host == "0.0.0.0" else "[::1]"
    name, url = process.until(rf'curl -H "([A-Za-z-]+): …" (http://{re.escape(address)}:\d+/\S+)').groups()
    assert httpx2.get(url).status_code == 401
    assert httpx2.get(url, headers={name: "s3cret"}).status_code == 200
    assert "every other address of this machine" in process.output
    assert f"http://{host}" not in process.output
    assert "s3cret" not in process.output
    assert run(snippet_of(process).replace("…", "s3cret")) == "VERSION\n['look']\n"


@pytest.mark.parametrize("target", ["tiny.py", "tiny:Tiny", thorough("tiny.py:Tiny"), thorough("tiny")])
def test_a_target_is_a_file_or_a_module_with_or_without_a_class(toolyard, tmp_path, target):
    write(tmp_path, "tiny.py")
    url = url_of(toolyard("serve", target, "--port", "0"))
    assert httpx2.get(f"{url}/list_environments").json() == ["tiny"]


def test_settings_come_from_flags_then_variables(toolyard, tmp_path):
    write(tmp_path, "tiny.py")
    process = toolyard("serve", "tiny.py", "--api-key", "flag", TOOLYARD_PORT="0", TOOLYARD_API_KEY="variable")
    url = url_of(process)
    assert httpx2.get(f"{url}/list_environments").status_code == 401
    assert httpx2.get(f"{url}/list_environments", headers={"X-API-Key": "flag"}).status_code == 200
    assert httpx2.get(f"{url}/list_environments", headers={"Authorization": "Bearer flag"}).status_code == 200
    assert httpx2.get(f"{url}/health").status_code == 200


def test_stopping_it_tears_sessions_down(toolyard, tmp_path):
    write(tmp_path, "tiny.py")
    process = toolyard("serve", "tiny.py", "--port", "0")
    url = url_of(process)
    created = httpx2.post(f"{url}/create", headers={"X-Session-ID": "s"}, json={"split": "train", "index": 0})
    assert created.status_code == 200
    process.process.send_signal(signal.SIGTERM)
    process.wait()
    assert "torn down" in process.output
    assert "Traceback" not in process.output


def test_interrupting_it_twice_stops_calls_but_still_tears_sessions_down(toolyard, tmp_path):
    write(tmp_path, "tiny.py", GOOD.replace('return "seen"', "import time; time.sleep(60)"))
    process = toolyard("serve", "tiny.py", "--port", "0")
    url = url_of(process)
    headers = {"X-Session-ID": "s"}
    httpx2.post(f"{url}/create", headers=headers, json={"split": "train", "index": 0})
    with httpx2.stream("POST", f"{url}/tiny/call", headers=headers, json={"name": "look", "input": {}}) as stream:
        lines = stream.iter_lines()
        assert next(lines) == "event: task_id"
        process.process.send_signal(signal.SIGINT)
        process.until("stopping: 1 call running, 1 session open")
        process.until(r"waiting up to 30 s for calls to end \(--drain-seconds\); a second Ctrl-C stops them at once")
        process.process.send_signal(signal.SIGINT)
        process.until("stopping 1 call; sessions are still torn down")
        assert "event: error" in list(lines)
    process.wait()
    assert "torn down" in process.output
    assert "Traceback" not in process.output


@pytest.mark.parametrize("seconds", [0.02, 0.05, 0.08])
def test_an_interrupt_while_it_stops_leaves_no_traceback(toolyard, tmp_path, seconds):
    write(tmp_path, "tiny.py")
    process = toolyard("serve", "tiny.py", "--port", "0")
    url_of(process)
    process.process.send_signal(signal.SIGINT)
    process.until("stopping: 0 calls running, 0 sessions open")
    time.sleep(seconds)  # no event tells when uvicorn begins to stop, which takes it a tenth of a second
    process.process.send_signal(signal.SIGINT)
    process.wait()
    assert "Traceback" not in process.output


def test_log_lines_can_be_json(toolyard, tmp_path):
    write(tmp_path, "tiny.py")
    process = toolyard("serve", "tiny.py", "--port", "0", "--log-format", "json")
    httpx2.get(f"{url_of(process)}/health")
    process.process.send_signal(signal.SIGINT)
    process.wait()
    assert '"level": "info", "logger": "toolyard.server"' in process.output
    for line in process.output.splitlines():
        assert json.loads(line)["level"] == "info", "there is no banner for people"
    (serving,) = (line for line in map(json.loads, process.output.splitlines()) if "url" in line)
    assert serving["message"] == "serving tiny"


def test_with_reload_a_changed_file_is_served_and_a_broken_one_is_survived(toolyard, tmp_path):
    file = write(tmp_path, "tiny.py", VERSION="first")
    process = toolyard("serve", "tiny.py", "--port", "0", "--reload")
    url_of(process)

    def task() -> str:
        with contextlib.suppress(httpx2.HTTPError):
            url = re.findall(r"http://127\.0\.0\.1:\d+", process.output)[-1]
            answer = httpx2.post(f"{url}/tiny/task", json={"split": "train", "index": 0})
            return answer.json()["task"]["q"]
        return ""

    def becomes(word: str) -> None:
        end = time.monotonic() + 30
        while task() != word:
            assert time.monotonic() < end, process.output
            time.sleep(0.1)

    becomes("first")
    write(tmp_path, "tiny.py", "class Broken(")
    process.until("could not be loaded: line 1: SyntaxError")
    write(tmp_path, file.name, VERSION="third")
    becomes("third")
    write(tmp_path, file.name, GOOD.replace("@tool", ""))
    process.until("Tiny has no tool: decorate a method with @tool")
    write(tmp_path, file.name, VERSION="fifth")
    becomes("fifth")
    os.killpg(process.process.pid, signal.SIGINT)  # as a terminal sends Ctrl-C: to both processes
    process.wait()
    assert process.output.splitlines()[-1] == "toolyard serve: stopped"
    assert "KeyboardInterrupt" not in process.output
    assert "Traceback" not in process.output


def test_a_file_named_like_a_standard_module_is_served_and_replaces_nothing(toolyard, tmp_path):
    write(tmp_path, "random.py", GOOD.replace('return "seen"', "import random; return str(random.randint(3, 3))"))
    url = url_of(toolyard("serve", "random.py", "--port", "0"))
    assert httpx2.get(f"{url}/list_environments").json() == ["tiny"]


@pytest.mark.parametrize(
    ("name", "text", "said"),
    first(
        [
            ("none.py", None, "there is no file none.py here"),
            ("empty.py", "x = 1\n", "there is no environment in it. Write a class that extends toolyard.Environment"),
            ("broken.py", "import nothing_like_this\n", "broken.py could not be loaded: line 1: ModuleNotFoundError"),
            ("exits.py", "raise SystemExit(3)\n", "exits.py could not be loaded: line 1: SystemExit: 3"),
            ("tiny.py:Missing", None, "there is no 'Missing' in it; what could be served there: Tiny"),
            ("tiny.py:Environment", None, "Environment is neither an Environment nor a Toolset"),
            (
                "hint.py",
                GOOD.replace("def look(self)", "def look(self, x)"),
                "Tiny.look: parameter 'x' needs a type hint",
            ),
            ("notool.py", GOOD.replace("@tool", ""), "Tiny has no tool: decorate a method with @tool"),
            ("ping.py", GOOD.replace("Tiny", "Ping"), "an environment cannot be called 'ping'"),
            ("name.py", GOOD + '        @classmethod\n        def name(cls): return "a/b"\n', "Tiny is called 'a/b'"),
            ("no.such.module", None, "there is no module 'no.such.module'"),
        ]
    ),
)
def test_what_is_wrong_with_a_target_is_said_in_one_paragraph(toolyard, tmp_path, name, text, said):
    write(tmp_path, "tiny.py")
    if text is not None:
        write(tmp_path, name, text)
    process = toolyard("serve", name, "--port", "0")
    assert process.wait() == 2
    assert said in " ".join(process.output.split())
    assert "Traceback" not in process.output


@pytest.mark.parametrize(
    ("args", "variables", "said"),
    first(
        [
            (["--host", "0.0.0.0"], {}, "no key is asked for. Set --api-key"),
            (
                ["--sandbox-network", "host"],
                {},
                "programs in sandboxes reach this server, and no key is asked for. Set --api",
            ),
            (["--protocol", "smtp"], {}, f"there is no protocol 'smtp'; there are {', '.join(PROTOCOLS)}"),
            ([], {"TOOLYARD_PORT": "http"}, "TOOLYARD_PORT is 'http'; it must be a whole number"),
            (["--port", "70000"], {}, "port is 70000; it must be from 0 to 65535"),
            (["--idle-seconds", "-1"], {}, "idle_seconds is -1.0; it cannot be negative"),
            (["--sweep-seconds", "0"], {}, "sweep_seconds is 0.0; it must be more than 0"),
            (["--call-seconds", "nan"], {}, "call_seconds is nan; it must be a finite number"),
            (["--host", "192.0.2.1", "--api-key", "k"], {}, "cannot listen on 192.0.2.1 port"),
        ]
    ),
)
def test_what_is_wrong_with_a_setting_is_said_in_one_paragraph(toolyard, tmp_path, args, variables, said):
    write(tmp_path, "tiny.py")
    process = toolyard("serve", "tiny.py", "--port", "0", *args, **variables)
    if variables:
        process = toolyard("serve", "tiny.py", **variables)
    assert process.wait() == 2
    assert said in " ".join(process.output.split())


@pytest.mark.parametrize("insisting", [["--api-key", "k"], ["--allow-anonymous"]])
def test_the_log_says_that_sandboxes_with_the_hosts_network_have_no_wall_there(toolyard, insisting):
    process = toolyard("serve", "--tools", "python_code", "--port", "0", "--sandbox-network", "host", *insisting)
    url_of(process)
    assert "; network: none, all that this host reaches; " in process.output
    assert "network namespace" not in process.output


@pytest.mark.parametrize("gateways", ["1", "2"])
def test_the_banner_names_the_port_for_agents_which_has_nothing_else(toolyard, tmp_path, gateways):
    write(tmp_path, "tiny.py")
    flags = ["--agent-port", "0", "--agent-host", "0.0.0.0", "--gateways", gateways]
    process = toolyard("serve", "tiny.py", "--port", "0", *flags)
    process.until("Stop with Ctrl-C")
    url = process.until(r"agents: (http://127\.0\.0\.1:\d+), which has /agent/ and nothing else")[1]
    assert httpx2.get(f"{url}/health").status_code == 404
    assert httpx2.get(f"{url_of(process)}/health").status_code == 200
    process.process.send_signal(signal.SIGTERM)
    assert process.wait() in (0, -signal.SIGTERM)
    assert "Traceback" not in process.output


def test_a_port_for_agents_that_is_in_use_is_said_so(toolyard, tmp_path):
    write(tmp_path, "tiny.py")
    port = url_of(toolyard("serve", "tiny.py", "--port", "0")).rpartition(":")[2]
    second = toolyard("serve", "tiny.py", "--port", "0", "--agent-port", port)
    assert second.wait() == 2
    said = " ".join(second.output.split())
    assert f"cannot listen on 127.0.0.1 port {port}" in said
    assert "Choose another with --agent-port or TOOLYARD_AGENT_PORT; --agent-port 0 takes any free one" in said


def test_a_port_in_use_is_said_so(toolyard, tmp_path):
    write(tmp_path, "tiny.py")
    port = url_of(toolyard("serve", "tiny.py", "--port", "0")).rpartition(":")[2]
    second = toolyard("serve", "tiny.py", "--port", port)
    assert second.wait() == 2
    assert (
        f"toolyard serve: cannot listen on 127.0.0.1 port {port}: Address already in use. Is another server using it? "
        f"Choose another with --port or TOOLYARD_PORT; --port 0 takes any free one"
    ) in " ".join(second.output.split())
