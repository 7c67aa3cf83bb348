"""Runs inside a sandbox, as the text of `python3 -I -B -c`: one file of tests under pytest, with results as JSON lines.

It writes the first line before it loads any code under test. That code shares this process and could forge all later
lines: the host checks them against the twins.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

_TEXT_MOST = 4000


class Reporter:
    """A pytest plugin that sends each test's outcome. The workspace joins sys.path after all of pytest is loaded."""

    def __init__(self, send: Callable[[Mapping[str, Any]], None], path: Sequence[str]) -> None:
        self._send = send
        self._path = path
        self._cases: dict[str, tuple[str, str]] = {}
        self._failed: dict[str, str] = {}
        self._passed: set[str] = set()

    def pytest_load_initial_conftests(self) -> None:
        """Put the workspace after the standard library, so that its files cannot replace parts of that, and before
        installed packages: the code under test may be a newer copy of one."""
        installed = [at for at, path in enumerate(sys.path) if path.endswith("-packages")]
        at = installed[0] if installed else len(sys.path)
        sys.path[at:at] = [path for path in self._path if path not in sys.path]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self._send({"broken": report.longreprtext[-_TEXT_MOST:]})

    def pytest_collection_finish(self, session: Any) -> None:
        for item in session.items:
            name = getattr(item, "originalname", None) or item.name
            base = item.nodeid.removesuffix(item.name) + name
            indices = getattr(getattr(item, "callspec", None), "indices", {})
            self._cases[item.nodeid] = base, ",".join(f"{name}={indices[name]}" for name in sorted(indices))

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self._failed.setdefault(report.nodeid, report.longreprtext[-_TEXT_MOST:])
        elif report.when == "call" and report.passed and not hasattr(report, "wasxfail"):
            self._passed.add(report.nodeid)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        base, case = self._cases[nodeid]
        told = {"base": base, "case": case, "id": nodeid}
        if nodeid in self._failed:
            self._send({**told, "outcome": "failed", "text": self._failed[nodeid]})
        elif nodeid in self._passed:
            self._send({**told, "outcome": "passed", "text": ""})
        else:
            self._send({**told, "outcome": "skipped", "text": "it was skipped"})


def main() -> None:
    told = json.load(sys.stdin)
    out = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)

    def send(message: Mapping[str, Any]) -> None:
        data = json.dumps(message).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]

    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    try:
        import pytest  # noqa: PLC0415  # the host reports a missing pytest
    except ImportError as error:
        send({"lacks": str(error)})
        return
    send({"ready": pytest.__version__})
    here = os.getcwd()
    sys.argv = ["pytest"]
    reporter = Reporter(send, [os.path.normpath(os.path.join(here, path)) for path in told["path"]])
    code = pytest.main(["--rootdir", here, *told["arguments"]], plugins=[reporter])
    send({"end": int(code)})
    os._exit(0)  # skip exit handlers


if __name__ == "__main__":
    main()
