"""Thousands of random programs with random limits, in sandboxes that random events hit.

Each gets a true answer, and nothing is left of any of them. `fuzzing.py` plays, `programs.py` knows what is true. To
repeat what failed, or to play longer:

    TOOLYARD_FUZZ_SEED=… TOOLYARD_FUZZ_SECONDS=600 pytest tests/sandboxes/test_fuzz.py
    python -m tests.sandboxes.fuzzing --seed … --scenario … --times 100
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import pytest

from tests.sandboxes import hostile

pytestmark = pytest.mark.thorough

EXECUTIONS: Mapping[hostile.Mode, int] = {"root": 1400, "rootless": 500}
STRANGER = 0x6E00_0000 + os.getpid()
"""A unique user, for the run without root."""
LONGEST_SECONDS = 400.0
"""The time limit, on a machine that is busy with other work."""

USUAL_SEED = "yard"
"""The same programs each time, though not the same timing; for others, set a seed or a time."""
SECONDS = float(os.environ.get("TOOLYARD_FUZZ_SECONDS", "0"))


def play(mode: hostile.Mode, seed: str) -> dict[str, Any]:
    """The report of a process of that user."""
    stranger = mode == "rootless" and os.geteuid() == 0
    user: dict[str, Any] = {"user": STRANGER, "group": STRANGER, "extra_groups": []} if stranger else {}
    executions = max(EXECUTIONS.values()) if hostile.modes() == (mode,) else EXECUTIONS[mode]
    command = ["-m", "tests.sandboxes.fuzzing", "--seed", seed, "--executions", str(executions)]
    packages = [path for path in sys.path if path.endswith("-packages")]
    process = subprocess.run(
        [hostile.rootless_python() if stranger else sys.executable, *command, "--seconds", str(SECONDS)],
        env={
            "PATH": os.defpath,
            "PYTHONPATH": os.pathsep.join([str(hostile.ROOT), f"{hostile.ROOT}/src", *packages]),
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        cwd="/",
        capture_output=True,
        text=True,
        timeout=SECONDS + LONGEST_SECONDS,
        check=False,
        **user,
    )
    assert process.returncode == 0, process.stderr[-4000:]
    return json.loads(process.stdout)


@pytest.mark.timeout(SECONDS + LONGEST_SECONDS + 30)
@pytest.mark.parametrize("mode", hostile.modes())
def test_every_random_program_gets_a_true_answer_and_nothing_is_left(mode: hostile.Mode) -> None:
    seed = os.environ.get("TOOLYARD_FUZZ_SEED") or (secrets.token_hex(4) if SECONDS else USUAL_SEED)
    print(f"seed {seed}")
    told = play(mode, seed)
    problems = told.pop("problems")
    print(told)
    assert not problems, "\n\n".join([f"seed {seed}", *problems])
    counts = told["counts"]
    ends = ["ended", "wall", "cpu", "output", "file_size", *(["memory"] if mode == "root" else [])]
    seen = {end: sum(counts.get(f"{way}: {end}", 0) for way in ("run", "exec", "shell")) for end in ends}
    assert all(seen.values()), f"not everything was tried: {seen}"
    happened = ["given up", "forks", "closed", "lost", "agents killed"]
    if mode == "root":  # plays long enough for these
        happened += ["templates killed", "brokers killed"]
    assert all(counts.get(what) for what in happened), f"not everything happened: {counts}"
