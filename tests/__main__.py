"""The whole suite, as `make test` runs it: `python -m tests`. To run a part of it, use pytest.

Most tests wait for something, so a few more run at once than there are processors, file by file. Those that say how
long something may take at most are marked `alone`, and run afterwards, when the machine has nothing else to do.

So do the few that have failed: a machine that was too busy for them is told apart from a mistake by running them once
more, by themselves. What fails twice has failed, and what failed once is named, for it should not have.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests.browser.site import chromium
from tests.sandboxes.backends import bubblewrap

AT_ONCE = (os.cpu_count() or 1) + 1
FEW = 5
"""Tests that failed. With more, it is not the machine."""
FAILED = 1
"""What pytest exits with if tests have failed, and nothing else went wrong."""


def pytest(cache: Path, *arguments: str) -> int:
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *sys.argv[1:], *arguments]
    return subprocess.run(command, check=False).returncode


def passed(*arguments: str) -> bool:
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory)
        code = pytest(cache, *arguments)
        failures = failed(cache) if code == FAILED else []
        if not 0 < len(failures) <= FEW:
            return code == 0
        print("\nFailed, and run again by themselves:", *failures, sep="\n  ", flush=True)
        if pytest(cache, "--last-failed") != 0:
            return False
        print("\nPassed in the end, and should have at first:", *failures, sep="\n  ", flush=True)
        return True


def failed(cache: Path) -> Sequence[str]:
    return sorted(json.loads((cache / "v/cache/lastfailed").read_text()))


def prepare() -> None:
    """Install what is missing before the first test starts, so that no test's time limit is about that."""
    for needed in (bubblewrap, chromium):
        try:
            needed()
        except (AssertionError, subprocess.SubprocessError) as problem:  # who needs it will fail, and say so
            print(problem, flush=True)


def main() -> int:
    prepare()
    together = passed("-m", "not alone", "-n", str(AT_ONCE), "--dist", "loadfile", "--no-loadscope-reorder")
    alone = passed("-m", "alone")
    return 0 if together and alone else 1


if __name__ == "__main__":
    sys.exit(main())
