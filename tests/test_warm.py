"""A command in a fork of a process that has imported Toolyard is like one that was started."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm

TINY = """
from toolyard import Environment, tool

class Tiny(Environment):
    @tool
    def look(self) -> str:
        "Look."
        return "seen"
"""


@pytest.mark.parametrize(
    "words",
    [["check", "tiny.py"], ["status"]],  # they read a file of their directory, and a variable
    ids=lambda words: words[0],
)
def test_it_says_and_returns_what_a_new_process_does(tmp_path: Path, words: list[str]):
    (tmp_path / "tiny.py").write_text(TINY)
    env = {**os.environ, "TOOLYARD_PORT": "9"}
    command = [sys.executable, "-m", "toolyard", *words]
    anew = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=60, check=False)
    forked = warm.toolyard(*words, cwd=tmp_path, env=env)
    assert (forked.returncode, forked.stdout, forked.stderr) == (anew.returncode, anew.stdout, anew.stderr)
    assert forked.returncode != 0


def test_it_is_no_child_of_the_tests_and_ends_by_the_signal_that_it_is_sent():
    with open(os.devnull) as null:
        silent = [os.dup(null.fileno()) for _ in range(3)]
    hear, hold = os.pipe()
    os.close(silent[0])
    process = warm.Process("toolyard", ["sandbox", "shell"], [hear, *silent[1:]], cwd=None, env=os.environ)
    assert process.poll() is None
    with pytest.raises(ChildProcessError):
        os.waitpid(process.pid, os.WNOHANG)
    process.kill()
    assert process.wait(30) == -9
    os.close(hold)


def test_variables_that_only_a_new_python_reads_are_refused():
    with pytest.raises(AssertionError):
        warm.toolyard("--version", env={**os.environ, "PYTHONHASHSEED": "1"})
