"""The test suites of the two packages, run against our server in place of theirs.

Nothing of theirs is kept here: their source distributions come from the package index. Only their tests that use a
server run.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess

import pytest

from tests.peers import venvs
from tests.peers.conftest import SCRIPTS

pytestmark = pytest.mark.thorough

D1 = "D-1: we list the tools marked shared=False in a session, as the documents say"
WORDS = "we refuse the same environment, in words of ours"
TAKES_APART = "removes a route from inside their server, to play an older one"

DIFFERENT = {
    "ors-sdk==0.1.0": {},
    "openreward==0.1.167": {
        "test_environment.py::test_session_list_tools_returns_task_tools": D1,
        "test_messages.py::test_server_rejects_env_without_prompt_surface": WORDS,
        "test_messages.py::test_old_server_falls_back_to_prompt": TAKES_APART,
        "test_score_group.py::test_old_server_raises_unsupported": TAKES_APART,
    },
}
OFFLINE = ["test_nonexistent_environment", "test_missing_api_key"]
"""These two use the vendor's own site."""


@pytest.mark.parametrize(("package", "least"), [("ors-sdk==0.1.0", 17), ("openreward==0.1.167", 119)])
def test_a_packages_own_tests_pass_with_our_server(served_python, sources, tmp_path, package, least):
    tests = tmp_path / "tests"
    shutil.copytree(sources(package) / "tests", tests)
    (tests / "pytest.ini").write_text("[pytest]\n")  # otherwise pytest reads settings of the folders above
    about_servers = [path for path in sorted(tests.glob("test_*.py")) if "Server(" in path.read_text()]
    give_free_ports(about_servers)
    results = tmp_path / "results.json"
    done = subprocess.run(
        [served_python, "-m", "pytest", "-p", "as_reference", "-o", "asyncio_mode=auto", *about_servers],
        cwd=tests,
        env=venvs.environ(
            PYTHONPATH=f"{venvs.PROJECT / 'src'}:{SCRIPTS}", SUITE_RESULTS=str(results), SUITE_WITHOUT=" ".join(OFFLINE)
        ),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert results.exists(), done.stdout[-3000:] + done.stderr[-3000:]
    outcomes = json.loads(results.read_text())
    failed = {name for name, outcome in outcomes.items() if outcome == "failed"}
    assert failed == DIFFERENT[package].keys(), done.stdout[-8000:]
    assert len(outcomes) - len(failed) >= least


def give_free_ports(files):
    """Their tests start servers on fixed ports, which may be taken here."""
    for path in files:
        text = path.read_text()
        for port in set(re.findall(r"\b80[89]\d\b", text)):
            text = re.sub(rf"\b{port}\b", str(free_port()), text)
        path.write_text(text)


def free_port():
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return opened.getsockname()[1]
