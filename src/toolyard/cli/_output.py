"""What every command writes: a problem in one paragraph, and nothing to a reader that has gone."""

from __future__ import annotations

import os
import sys
import textwrap


def complain(problem: str, code: int = 2) -> int:
    """Write the problem for the person at the terminal. Return the exit code."""
    print(textwrap.fill(problem, 100, break_on_hyphens=False), file=sys.stderr)
    return code


def forget_stdout() -> None:
    """Write to nowhere from now on: Python would complain at its end about what it could not write."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
