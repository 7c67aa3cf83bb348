"""The whole suite, in two halves at once: `python -m tests`, which is what `make test` does.

Most tests wait for something, and so do most sandboxes; side by side they take little more than half as long. What the
first half says is shown as it comes, the second half's when both have ended. Those that say how long something may take
at most are marked `alone`, and run when the machine has nothing else to do. To run a part of it, use pytest.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import IO, Any

APART = ["tests/sandboxes", "tests/tools", "tests/browser"]
"""As long as all the others together."""


def start(arguments: Sequence[str], output: IO[Any] | None = None) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *sys.argv[1:], *arguments]
    return subprocess.Popen(command, stdout=output, stderr=output)


def main() -> int:
    with tempfile.TemporaryFile() as kept:
        sandboxes = start(["-m", "not alone", *APART], kept)
        others = start(["-m", "not alone", *(f"--ignore={path}" for path in APART)])
        try:
            codes = [others.wait(), sandboxes.wait()]
        except KeyboardInterrupt:  # which both halves have been told of, too
            codes = [others.wait(), sandboxes.wait()]
        kept.seek(0)
        print(kept.read().decode(errors="replace"), flush=True)
    return max(*codes, start(["-m", "alone"]).wait())


if __name__ == "__main__":
    sys.exit(main())
