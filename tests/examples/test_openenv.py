"""The example for OpenEnv's client, run with that client."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.peers import venvs
from toolyard.loading import load_targets
from toolyard.testing import running

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.thorough
@pytest.mark.timeout(venvs._PIP_SECONDS)
def test_the_client_of_openenv_plays_two_tasks():
    python = venvs.interpreter(venvs.OPENENV)
    with running(load_targets([str(EXAMPLES / "arithmetic.py")]).environments) as server:
        command = [python, EXAMPLES / "openenv" / "play.py", server.url]
        done = subprocess.run(command, env=venvs.environ(), capture_output=True, text=True, timeout=120, check=False)
        assert not server.server.runtime.sessions
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "Correct. reward 1.0 done True\n"
        "2 steps\n"
        "Wrong: the answer is 206.5. reward 0.0 done True\n"
        "2 steps\n"
    )  # fmt: skip
