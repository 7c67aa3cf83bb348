"""Ends a run whose processes have reported nothing for long: one has stopped, and pytest-xdist would wait for ever.

The tests that are left are noted as failed, so that `python -m tests` runs them once more and names them.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from toolyard.sandboxes.process_based.launcher import tree

LONGEST = float(os.environ.get("TESTS_STAND_STILL", "300"))
"""Seconds without a report. A test fails by itself much sooner."""
NOTE = "standstill"
"""A file in pytest's cache; its being there says why tests are noted as failed."""
EXIT_CODE = 1
"""As if tests had failed."""


class Watch:
    """For the process that hands out the tests."""

    def __init__(self, cache: Path) -> None:
        self._cache = cache
        self._heard = time.monotonic()
        self._left: dict[str, bool] = {}
        """Tests that have not ended, and with False those that failed."""
        threading.Thread(target=self._watch, daemon=True).start()

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Sequence[str]) -> None:
        self._heard = time.monotonic()
        self._left = self._left or dict.fromkeys(ids, True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._heard = time.monotonic()
        if report.failed:
            self._left[report.nodeid] = False
        elif report.when == "teardown" and self._left.get(report.nodeid):
            del self._left[report.nodeid]

    def _watch(self) -> None:
        while time.monotonic() - self._heard < LONGEST:
            time.sleep(1)
        note = self._cache / "v/cache/lastfailed"
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(json.dumps(dict.fromkeys(self._left, True)))
        (self._cache / NOTE).touch()
        print(f"\nNo test has ended for {LONGEST:g} seconds; {len(self._left)} are left. This run ends.", flush=True)
        for process in tree(os.getpid())[1:]:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        os._exit(EXIT_CODE)
