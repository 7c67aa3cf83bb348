"""A command of ours while it runs, as somebody sees it who has typed it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests import warm

TOOLYARD = str(Path(sys.executable).with_name("toolyard"))


class Command:
    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path | None = None) -> None:
        self.process = self._start(argv, cwd, {**os.environ, "PYTHONUNBUFFERED": "1", **env})
        self.output = ""
        """What it has said so far."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _start(self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> Any:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _read(self) -> None:
        for line in self.process.stdout:
            self.output += line

    def until(self, pattern: str, seconds: float = 30) -> re.Match[str]:
        """What it says, when it has."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if found := re.search(pattern, self.output):
                return found
            time.sleep(0.02)
        raise AssertionError(f"{pattern!r} did not come within {seconds} s in:\n{self.output}")

    def wait(self, seconds: float = 30) -> int:
        code = self.process.wait(seconds)
        self._reader.join(5)
        self.process.stdout.close()
        return code


class WarmCommand(Command):
    """The same in a fork of a process that has imported Toolyard, if it can be: it starts much sooner."""

    def _start(self, argv: Sequence[str], cwd: Path | None, env: Mapping[str, str]) -> Any:
        if warm.needs_a_new_python(env):
            return super()._start(argv, cwd, env)
        module, *words = ["toolyard", *argv[1:]] if argv[0] == TOOLYARD else argv[2:]
        hear, out = os.pipe()
        process = warm.Process(module, words, [os.open(os.devnull, os.O_RDONLY), out, out], cwd=cwd, env=env)
        process.stdout = open(hear)  # noqa: SIM115  # wait() closes it
        return process
