"""Run one tier of the tests, as `make test` and `make test-all` do: `python -m tests [--thorough]`.

Other arguments go to pytest. To run a few tests, use pytest itself.

Most tests wait for something, so two more run at once than there are processors. A test that bounds how long
something may take is marked `alone` and runs after the others, when the machine has nothing else to do.

If at most five tests fail, they run once more by themselves, and the runner names those that pass then. Such a test is
a mistake too, the test's or ours: a busy machine only shows it. The thorough tier fails then, unless it is told to be
`--lenient`. The same holds for the tests that are left, however many, where a run stands still.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from tests import standstill
from tests.browser.site import chromium
from tests.sandboxes.backends import bubblewrap

AT_ONCE = (os.cpu_count() or 1) + 2
FEW = 5
"""Run at most this many failed tests again. If more fail, the machine is not the reason."""
FAILED = 1
"""The exit code with which pytest says that tests failed and nothing else went wrong."""
NONE_SELECTED = 5


def passed(*arguments: str, once: Sequence[str], strict: bool) -> bool:
    """Run pytest, and then once more for the few tests that failed, without the arguments in `once`."""
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory)
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        run = partial(subprocess.run, env=variables, check=False)  # each process would compile all tests again
        code = run([*command, *once, "--durations=20", "--durations-min=1"]).returncode
        failures = failed(cache) if code == FAILED else []
        stood_still = (cache / standstill.NOTE).exists()
        if not failures or (len(failures) > FEW and not stood_still):
            return code in (0, NONE_SELECTED)
        how = "Left or failed" if stood_still else "Failed"
        print(f"\n{how}, and run again by themselves:", *failures, sep="\n  ", flush=True)
        run([*command, "--last-failed"])
        return settled(failures, failed(cache), strict=strict)


def settled(first: Sequence[str], again: Sequence[str], *, strict: bool) -> bool:
    """Name the tests that failed once, and those that failed twice."""
    unsteady = [name for name in first if name not in again]
    if unsteady:
        print("\nFailed first and then passed, which is a mistake too:", *unsteady, sep="\n  ", flush=True)
    if again:
        print("\nFailed twice:", *again, sep="\n  ", flush=True)
    return not again and not (strict and unsteady)


def failed(cache: Path) -> Sequence[str]:
    """The failed tests that pytest noted; none if it did not live to note them."""
    noted = cache / "v/cache/lastfailed"
    return sorted(json.loads(noted.read_text())) if noted.exists() else []


def prepare() -> None:
    """Install what is missing before the first test starts, so that no test's time limit is about that."""
    for needed in (bubblewrap, chromium):
        try:
            needed()
        except (AssertionError, subprocess.SubprocessError) as problem:  # the tests that need it will fail and say so
            print(problem, flush=True)


def options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests", description=__doc__.partition("\n")[0])
    parser.add_argument("--thorough", action="store_true", help="run the tests that `make test` leaves out")
    parser.add_argument("--lenient", action="store_true", help="name tests that fail first and then pass, and go on")
    return parser


def main() -> int:
    chosen, arguments = options().parse_known_args()
    strict = chosen.thorough and not chosen.lenient
    prepare()
    tier = "thorough" if chosen.thorough else "not thorough"
    unneeded = () if chosen.thorough else ("-p", "no:schemathesis")  # its fuzzing is thorough, and it is slow to import
    arguments = [*unneeded, *arguments]
    at_once = ("-n", str(AT_ONCE), "--dist", "loadfile", "--no-loadscope-reorder")
    together = passed(*arguments, once=["-m", f"{tier} and not alone", *at_once], strict=strict)
    alone = passed(*arguments, once=["-m", f"{tier} and alone"], strict=strict)
    return 0 if together and alone else 1


if __name__ == "__main__":
    sys.exit(main())
