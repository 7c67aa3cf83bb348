"""A process of tests that stops does not keep the others waiting for ever, and no test is lost."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.__main__ import passed

CONFTEST = """
from pathlib import Path
from tests.standstill import Watch

def pytest_configure(config):
    if config.getoption("numprocesses", None):
        config.pluginmanager.register(Watch(Path(config.cache._cachedir)))
"""
STOPS = """
import os, signal
from pathlib import Path

def test_before():
    assert True

def test_that_stops_its_process():
    mark = Path(__file__).with_name("stopped")
    if not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGSTOP)

def test_after():
    Path(__file__).with_name("after").touch()
"""


@pytest.mark.parametrize("strict", [True, False])
def test_a_run_that_stands_still_ends_and_plays_the_tests_that_are_left(strict, tmp_path: Path, monkeypatch, capfd):
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_stops.py").write_text(STOPS)
    (tmp_path / "test_goes_on.py").write_text("def test_it():\n    assert True\n")
    monkeypatch.setenv("TESTS_STAND_STILL", "15")
    began = time.monotonic()
    assert passed(str(tmp_path), once=["-n", "2", "--dist", "loadfile"], strict=strict) is not strict
    assert time.monotonic() - began < 120
    assert (tmp_path / "after").exists()
    said = capfd.readouterr().out
    assert "No test has ended for 15 seconds; 2 are left" in said
    first_and_then = said[said.index("Failed first and then passed") :]
    assert "test_stops.py::test_that_stops_its_process" in first_and_then
    assert "test_before" not in first_and_then
    assert "test_it" not in first_and_then
