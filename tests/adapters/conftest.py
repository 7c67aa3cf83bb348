"""Servers whose environments were written for other packages, in an interpreter that has those packages."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.peers import venvs

HERE = Path(__file__).parent


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the interpreter before the first test starts, so that no test's time limit is about pip."""
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "served_python" in wanted and not session.config.option.collectonly:
        venvs.prepare([venvs.SERVED])


@pytest.fixture(scope="session")
def served_python() -> Path:
    return venvs.interpreter(venvs.SERVED)


@pytest.fixture(scope="module")
def ors_url(served_python: Path) -> Iterator[str]:
    with serving(served_python, "written_for_ors.py") as url:
        yield url


@pytest.fixture(scope="module")
def openreward_url(served_python: Path) -> Iterator[str]:
    with serving(served_python, "written_for_openreward.py") as url:
        yield url


@contextmanager
def serving(python: Path, file: str) -> Iterator[str]:
    """`toolyard serve FILE` as its user would type it, until the test is over."""
    server = subprocess.Popen(
        [python, "-m", "toolyard", "serve", HERE / file, "--port", "0", "--log-level", "error"],
        env=venvs.environ(PYTHONPATH=str(venvs.PROJECT / "src")),
        stdout=subprocess.PIPE,
        text=True,
    )
    assert server.stdout is not None
    try:
        banner = next(line for line in server.stdout if " on http://" in line)
        found = re.search(r"http://\S+", banner)
        assert found
        yield found[0]
    finally:
        server.send_signal(signal.SIGINT)
        server.stdout.close()
        assert server.wait(30) == 130, "interrupted, it stops by itself"
