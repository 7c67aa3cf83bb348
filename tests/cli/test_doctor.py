"""`toolyard doctor` for people: what this host can do, what it lacks, and whether a server would start."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.warm import toolyard
from toolyard.cli import doctor
from toolyard.serving import listen
from toolyard.settings import Settings
from toolyard.version import __version__

COMMAND = [sys.executable, "-m", "toolyard", "doctor"]


def examine(*words: str, files: int = 0, **variables: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "TOOLYARD_PORT": "0", **variables}
    if not files:
        return toolyard("doctor", *words, env=env)
    return subprocess.run(
        [*COMMAND, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        env=env,
    )


NOWHERE = {"TOOLYARD_SANDBOX": "docker", "PATH": "/nowhere"}
"""Without a sandbox it skips the trials of languages, which take seconds. For tests of other topics."""


@pytest.fixture(scope="module")
def usual() -> subprocess.CompletedProcess[str]:
    return examine()


@pytest.fixture(scope="module")
def bare() -> subprocess.CompletedProcess[str]:
    """On a host without any program."""
    return examine(PATH="/nowhere")


def grades(output: str) -> dict[str, list[str]]:
    """For each topic, the grades of its lines and their joined text."""
    found: dict[str, list[str]] = {}
    topic = ""
    for line in output.splitlines():
        if match := re.match(r"  (ok|no|low|FAIL) +(.*)", line):
            column = line[8:21].strip()
            topic = column or topic
            found.setdefault(topic, []).append(f"{match[1]} {line[21:]}")
        elif line.startswith(" " * 21):
            found[topic][-1] += " " + line.strip()
    return found


def test_it_looks_at_everything_that_a_server_needs_or_likes(usual):
    assert (usual.returncode, usual.stderr) == (0, "")
    assert usual.stdout.startswith(f"Toolyard {__version__} on ")
    found = grades(usual.stdout)
    topics = ["Python", "HTTP", "address", "sandboxes", "languages", "placements", "browser", "extras"]
    assert list(found) == [*topics, "open files", "processes", "memory"]
    assert found["Python"] == [f"ok {sys.version.split()[0]}, {sys.executable}"]
    assert re.fullmatch(r"ok uvicorn [\d.]+, uvloop [\d.]+, httptools [\d.]+", found["HTTP"][0])
    assert found["placements"][:2] == ["ok local", "ok process, pool"]
    assert usual.stdout.splitlines()[-1].startswith("`toolyard serve` will work here.")
    assert max(map(len, usual.stdout.splitlines())) <= 100


def test_other_programs_get_one_object_and_a_variable_that_is_no_setting_is_named():
    done = examine("--json", PATH="/nowhere", TOOLYARD_PROT="9")
    told = json.loads(done.stdout)
    assert (told["ok"], told["version"], done.returncode, done.stderr) == (True, __version__, 0, "")
    assert "Before many sessions, look at variables" in told["verdict"]
    assert told["findings"][0] == {
        "topic": "Python",
        "grade": "ok",
        "text": f"{sys.version.split()[0]}, {sys.executable}",
        "hint": "",
    }
    (variable,) = (one for one in told["findings"] if one["topic"] == "variables")
    assert variable["text"].endswith(
        "TOOLYARD_PROT is no setting of Toolyard, so it has no effect; did you mean 'TOOLYARD_PORT'?"
    )


def test_the_sandbox_that_a_server_would_use_is_said_and_what_the_others_lack(bare):
    found = grades(bare.stdout)["sandboxes"]
    assert re.match(r"ok native, isolation L3", found[0])
    assert "no podman: there is no program 'podman': install podman" in found


def test_languages_are_tried_and_those_that_are_absent_are_named(usual):
    found = grades(usual.stdout)["languages"]
    assert found[0].startswith("ok for /run_code: python, pytest, bash")
    java = [one for one in found if "java" in one]
    assert len(java) == 1
    assert java[0].startswith("ok for /run_code: " if shutil.which("javac", path="/usr/bin") else "no not installed: ")


@pytest.mark.thorough
def test_a_language_that_fails_is_named_with_its_reason():
    starved = grades(examine(TOOLYARD_SANDBOX_OUTPUT_BYTES="1").stdout)["languages"]
    said = "python3 fails even a hello-world in the sandbox: "
    assert any(one.startswith(f"no python: {said}") for one in starved)


def test_without_a_sandbox_a_server_starts_all_the_same_and_it_is_said_what_is_not_served():
    done = examine(**NOWHERE)
    assert done.returncode == 0
    first, second = grades(done.stdout)["sandboxes"]
    assert first.startswith("no none that isolates as asked for, L3-nolimit: tools that run code are not served")
    assert second == "no docker: there is no program 'docker': install docker"


def test_a_browser_that_is_not_there_is_said_with_how_to_get_it(bare):
    (found,) = grades(bare.stdout)["browser"]
    assert found == "no there is no Chromium here; on Debian: apt install chromium"


def test_a_port_in_use_is_why_a_server_would_not_start():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        done = examine(**NOWHERE, TOOLYARD_PORT=str(port))
    assert done.returncode == 1
    (found,) = grades(done.stdout)["address"]
    assert found.startswith(f"FAIL Cannot listen on 127.0.0.1 port {port}: Address already in use")
    assert done.stdout.splitlines()[-1] == "`toolyard serve` would not start here: see address."


def test_an_address_that_everybody_can_reach_needs_a_key():
    done = examine(**NOWHERE, TOOLYARD_HOST="0.0.0.0")
    assert done.returncode == 1
    assert "no key is asked for" in grades(done.stdout)["address"][0]
    assert examine(**NOWHERE, TOOLYARD_HOST="0.0.0.0", TOOLYARD_API_KEY="s3cret").returncode == 0


def test_few_open_files_are_compared_with_the_sessions_there_may_be():
    done = examine(**NOWHERE, files=400)
    assert done.returncode == 0
    (found,) = grades(done.stdout)["open files"]
    assert found.startswith("low 400 at once: enough for 200 connections, or 100 sessions with a process")
    assert "--max-sessions is 20,000" in found
    assert "-> ulimit -n " in found
    assert done.stdout.splitlines()[-1].endswith("Before many sessions, look at open files.")
    assert grades(examine(**NOWHERE, files=400, TOOLYARD_MAX_SESSIONS="300").stdout)["open files"] == ["ok 400 at once"]


@pytest.mark.thorough
def test_a_number_of_connections_that_open_files_do_not_allow_is_said():
    done = examine(**NOWHERE, files=400, TOOLYARD_MAX_SESSIONS="100", TOOLYARD_MAX_CONNECTIONS="5000")
    (found,) = grades(done.stdout)["open files"]
    assert found.startswith("low 400 at once: enough for 300 connections, or 100 sessions")
    assert "--max-connections 5,000" in found
    within = examine(**NOWHERE, files=400, TOOLYARD_MAX_SESSIONS="100", TOOLYARD_MAX_CONNECTIONS="250")
    assert grades(within.stdout)["open files"] == ["ok 400 at once"]


def test_a_setting_that_makes_no_sense_is_said_as_everywhere():
    done = examine(TOOLYARD_PORT="http")
    assert done.returncode == 2
    assert "TOOLYARD_PORT is 'http'; it must be a whole number" in done.stderr


def test_a_package_that_is_not_there_is_said_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch):
    there = doctor.installed
    monkeypatch.setattr(doctor, "installed", lambda name: None if name in ("mcp", "nbformat", "ray") else there(name))
    extras = {finding.text: finding.hint for finding in doctor.extras() if finding.grade == "no"}
    assert extras["mcp: without mcp"] == "pip install 'toolyard[mcp]'"
    assert extras["notebook: without nbformat"] == "pip install 'toolyard[notebook]'"
    for chosen, grade in (("local", "no"), ("ray", "FAIL")):
        *_, ray = doctor.placements(Settings(placement=chosen))
        assert (ray.grade, ray.hint) == (grade, "pip install 'toolyard[ray]'")


def test_the_least_of_all_limits_of_processes_counts():
    limits = dict(doctor.process_limits())
    assert limits["kernel.pid_max"] == int(Path("/proc/sys/kernel/pid_max").read_text())
    found = doctor.processes(Settings(max_sessions=min(limits.values()) + 1))
    assert found.grade == "low"
    assert f"{min(limits.values()):,} at once" in found.text
    assert doctor.processes(Settings(max_sessions=1)).grade == "ok"


def test_the_python_of_sandboxes_is_named_and_one_that_cannot_be_used_fails():
    named = next(doctor.sandboxes(Settings(sandbox_python=sys.executable)))
    assert (named.grade, named.text) == ("ok", f"Python in them: {sys.version.split()[0]}, {sys.executable}")
    (failed,) = doctor.sandboxes(Settings(sandbox_python="/nowhere/python"))
    assert (failed.grade, failed.topic) == ("FAIL", "sandboxes")
    assert "'/nowhere/python', and there is no such file" in failed.text
