"""A host that lacks something skips what needs it, and the rest of the suite is told as usual."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CONFTEST = Path(__file__).with_name("conftest.py")


def test_a_test_that_is_skipped_in_another_process_breaks_nothing(tmp_path):
    (tmp_path / "pytest.ini").write_text("[pytest]\n")  # or pytest looks for settings in the folders above
    (tmp_path / "test_one.py").write_text('import pytest\n\n\ndef test_one():\n    pytest.skip("not here: \\ud83d")\n')
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-n",
        "1",
        "-ra",
        "--rootdir",
        str(tmp_path),
        "--confcutdir",
        str(tmp_path),
    ]
    plugins = ["-p", "xdist", "-p", "tests.conftest", "-o", "addopts="]
    ran = subprocess.run(
        [*command, *plugins, str(tmp_path)],
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        cwd=CONFTEST.parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 skipped" in ran.stdout, ran.stdout + ran.stderr
    assert ran.returncode == 0
