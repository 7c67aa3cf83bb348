"""The agent that is told a URL: it plays, and only its trainer hears of the reward."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "examples" / "agent" / "trainer.py"


@pytest.mark.timeout(120)
def test_the_agent_plays_and_the_trainer_reads_what_came_of_it():
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "agent: submit 4898: Correct.\n"
        "agent: once more: episode_finished\n"
        "trainer: reward 1.0, finished True, 2 calls\n"
        "agent: submit 0: Wrong: the answer is 206.5.\n"
        "agent: once more: episode_finished\n"
        "trainer: reward 0.0, finished True, 2 calls\n"
    )
