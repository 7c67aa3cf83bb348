"""Servers of several gateways: one for all tests of a module, and a way to start others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gateways.several import Several


@pytest.fixture(scope="module")
def several(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Several]:
    """A server that all tests of a module share, and leave unchanged."""
    server = Several(tmp_path_factory.mktemp("yard"), "--log-level", "warning", "--ping-seconds", "0.1")
    try:
        yield server.started()
    finally:
        server.end()
    assert "Traceback" not in server.output, server.output


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Several]]:
    started: list[Several] = []

    def begin(*args: str, **more: object) -> Several:
        started.append(Several(tmp_path, *args, **more))
        return started[-1]

    yield begin
    for server in started:
        server.end()
