"""How the tests run: a test that passes only when it runs again is named, and programs that tests start hear Ctrl-C."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SETTINGS = "[pytest]\nmarkers =\n  alone\n  thorough\n"
UNSTEADY = """
from pathlib import Path

def test_fails_first():
    seen = Path(__file__).with_name("seen")
    if not seen.exists():
        seen.touch()
        raise AssertionError
"""
THOROUGH = "import pytest\n\npytestmark = pytest.mark.thorough\n"
BROKEN = "def test_fails():\n    raise AssertionError\n"


def run(folder: Path, source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "pytest.ini").write_text(SETTINGS)
    (folder / "test_one.py").write_text(source)
    command = [sys.executable, "-m", "tests", *arguments, "-p", "xdist", "--rootdir", folder, folder]
    return subprocess.run(
        command,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.parametrize(("tier", "arguments", "code"), [("", [], 0), (THOROUGH, ["--thorough"], 1)], ids=["", "all"])
def test_a_test_that_passes_only_at_its_second_try_is_named_and_fails_the_thorough_tier(
    tmp_path, tier, arguments, code
):
    done = run(tmp_path, tier + UNSTEADY, *arguments)
    said = "Failed first and then passed, which is a mistake too:\n  test_one.py::test_fails_first\n"
    assert said in done.stdout, done.stdout + done.stderr
    assert done.returncode == code


def test_a_test_that_fails_twice_fails_the_run(tmp_path):
    done = run(tmp_path, BROKEN)
    assert "Failed twice:\n  test_one.py::test_fails\n" in done.stdout, done.stdout + done.stderr
    assert done.returncode == 1


def test_tests_in_the_background_of_a_script_can_interrupt_what_they_start():
    """Its shell has SIGINT ignored in all that it starts there."""
    test = "tests/cli/test_status.py::test_watching_shows_rates_since_the_last_look_until_it_is_interrupted"
    script = 'trap "" INT; exec "$0" -m pytest -q "$1"'
    done = subprocess.run(
        ["sh", "-c", script, sys.executable, test], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, "1 passed" in done.stdout) == (0, True), done.stdout + done.stderr
