"""A pytest plugin: a package's own tests use our server in place of theirs.

It runs only tests that use a server, and writes their outcomes to the file that SUITE_RESULTS names.
"""

from __future__ import annotations

import inspect
import json
import os
from pathlib import Path
from typing import Any

import openreward.environments.server
import ors.server
import pytest

import toolyard
from toolyard.settings import Settings

_RANK = {"passed": 0, "skipped": 1, "failed": 2}

outcomes: dict[str, str] = {}


class Server:
    """Their constructor, our application."""

    def __init__(self, environments: list[type], return_errors: Any = "exception") -> None:
        settings = Settings(errors=return_errors, starting_seconds=openreward.environments.server._SETUP_WAIT_TIMEOUT_S)
        self.app = toolyard.Server(environments, settings=settings).app


for module in (ors, ors.server, openreward.environments, openreward.environments.server):
    module.Server = Server  # type: ignore[attr-defined]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    unwanted = os.environ["SUITE_WITHOUT"].split()
    kept = [item for item in items if _about_a_server(item) and item.name not in unwanted]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """The worst of set-up, call and tear-down counts."""
    name = report.nodeid.rpartition("/")[2]
    outcomes[name] = max(outcomes.get(name, "passed"), report.outcome, key=_RANK.__getitem__)


def pytest_sessionfinish() -> None:
    Path(os.environ["SUITE_RESULTS"]).write_text(json.dumps(outcomes))


def _about_a_server(item: Any) -> bool:
    return bool({"server", "old_server"} & {*item.fixturenames}) or "erver(" in inspect.getsource(item.function)
