"""Programs in a process of their own, with other variables, limits or forks than the tests may have."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def in_a_process(program: str, *arguments: str, **variables: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), *arguments],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
