"""The wheel, built and installed elsewhere: it has all files, and every command works without the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.command import Command
from tests.peers import venvs

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
INSTALLED = venvs.Peer("wheel", [*venvs.requirements("eval", "mcp", "search")], constraints=ROOT / "constraints.txt")
SUMS = """\
    from toolyard import Environment, ToolOutput, tool

    class Sums(Environment):
        @classmethod
        def list_splits(cls): return ["train"]
        @classmethod
        def list_tasks(cls, split): return [{"a": n} for n in range(3)]
        def get_prompt(self): return "add one"
        @tool
        def submit(self, answer: int) -> ToolOutput:
            return ToolOutput(reward=float(answer == self.task_spec["a"] + 1), finished=True)
        @classmethod
        def score(cls, episode): return 0.5
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, timeout=170)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bin_folder(wheel) -> Path:
    """The folder of its commands, in a virtual environment without access to the checkout."""
    python = venvs.interpreter(INSTALLED)
    install = [python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel]
    venvs.run([*install])
    return python.parent


@pytest.fixture
def toolyard(bin_folder, tmp_path) -> Callable[..., str]:
    """Run a command to its end; returns its output."""
    (tmp_path / "sums.py").write_text(textwrap.dedent(SUMS))

    def run(*words: str, code: int = 0) -> str:
        done = subprocess.run(
            [bin_folder / "toolyard", *words], cwd=tmp_path, env=venvs.environ(), capture_output=True, text=True,
            timeout=120, check=False,
        )  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


@pytest.fixture
def served(bin_folder, tmp_path, toolyard) -> Iterator[str]:
    command = [str(bin_folder / "toolyard"), "serve", "sums.py", "--port", "0", "--record", "runs.db"]
    process = Command(command, env=venvs.environ(), cwd=tmp_path)
    yield process.until(r"http://127\.0\.0\.1:\d+")[0]
    process.process.terminate()
    process.wait()


def test_it_holds_the_package_its_type_marker_and_the_examples_and_nothing_that_was_built(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "src/toolyard", "examples"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    wanted = {name.removeprefix("src/") if name.startswith("src/") else f"toolyard/{name}" for name in tracked}
    assert "toolyard/py.typed" in wanted
    assert "toolyard/examples/maze.py" in wanted
    assert wanted - names == set()
    assert {name for name in names if "__pycache__" in name or name.endswith((".db", ".pyc"))} == set()


def test_the_server_and_the_commands_that_ask_one_work(toolyard, served):
    assert "sums" in toolyard("call", served)
    assert "submit" in toolyard("call", served, "sums")
    assert "reward 1" in toolyard("call", served, "sums", "submit", "answer=1")
    assert "sums" in toolyard("status", served)
    assert "ORS" in toolyard("conform", served, "--protocol", "ors").upper()


def test_the_examples_are_served_from_the_wheel(bin_folder, tmp_path):
    process = Command([str(bin_folder / "toolyard"), "serve", "--port", "0"], env=venvs.environ(), cwd=tmp_path)
    process.until(r"maze +move, look_at_map")
    process.process.terminate()
    process.wait()


def test_the_commands_that_run_an_environment_work_and_keep_what_happened(toolyard):
    assert "Sums holds together" in toolyard("check", "sums.py", "--seconds", "5")
    assert "random" in toolyard("eval", "sums.py", "--agent", "random", "--record", "runs.db")
    assert "sums" in toolyard("episodes", "list", "--store", "runs.db")
    assert "same" in toolyard("replay", "sums.py", "--store", "runs.db")
    assert "0.5" in toolyard("rescore", "sums.py", "--store", "runs.db")


def test_the_commands_about_this_host_and_a_new_environment_work(toolyard):
    assert "isolation" in toolyard("sandbox", "report")
    assert "Python" in toolyard("doctor")
    toolyard("new", "fresh")
    assert "Fresh holds together" in toolyard("check", "fresh.py", "--seconds", "5")


def test_the_mcp_command_and_the_retriever_start(toolyard, bin_folder, tmp_path):
    greeting = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    asked = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": greeting})
    done = subprocess.run(
        [bin_folder / "toolyard", "mcp", "sums.py"],
        input=asked + "\n", cwd=tmp_path, env=venvs.environ(), capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert json.loads(done.stdout)["result"]["protocolVersion"] == "2025-06-18"
    (tmp_path / "facts.jsonl").write_text('{"id": "1", "contents": "Ants\\nAnts are small."}\n')
    command = [str(bin_folder / "toolyard"), "retriever", "facts.jsonl", "--port", "0"]
    process = Command(command, env=venvs.environ(), cwd=tmp_path)
    process.until(r"http://127\.0\.0\.1:\d+")
    process.process.terminate()
    process.wait()


def test_its_types_reach_a_type_checker_of_a_user(bin_folder, tmp_path):
    (tmp_path / "mine.py").write_text("from toolyard import Client\n\nreveal_type(Client('http://x').environments)\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--python-executable", bin_folder / "python", "mine.py"],
        cwd=tmp_path, env={**os.environ, "MYPYPATH": ""}, capture_output=True, text=True, check=False, timeout=150,
    )  # fmt: skip
    assert "Any" not in done.stdout.partition("Revealed type is")[2].splitlines()[0], done.stdout
    assert "missing library stubs" not in done.stdout
