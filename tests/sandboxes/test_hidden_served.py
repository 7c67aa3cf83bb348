"""An environment installed where its sandboxes see everything: its agent finds nothing of it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command import TOOLYARD, Command
from tests.sandboxes.authored import SECRET, Venv, package
from tests.sandboxes.backends import others
from toolyard import Client, Environment
from toolyard.client import Session
from toolyard.core.errors import SandboxUnavailable
from toolyard.testing import running

NAME = "acme_served"


@pytest.fixture(scope="module")
def venv(tmp_path_factory: pytest.TempPathFactory) -> Venv:
    made = Venv.make(tmp_path_factory.mktemp("agents").resolve() / "venv")
    package(made.site, NAME)
    package(made.site, "acme_unserved")
    return made


@pytest.fixture(scope="module")
def served(venv: Venv) -> Iterator[type[Environment]]:
    sys.path.insert(0, str(venv.site))
    yield importlib.import_module(f"{NAME}.env").Served
    sys.path.remove(str(venv.site))


def words(session: Session, tool: str, **arguments: str) -> str:
    return "\n".join(block.text for block in session.call_tool(tool, arguments).blocks)


def check(session: Session) -> None:
    """Look for the answers, as an agent would."""
    named = words(session, "bash", command=f"find / -name '{NAME}*' -not -path '/proc/*' 2>/dev/null; true").split()
    paths = [path for path in named if path.startswith("/")]
    assert {Path(path).name for path in paths} == {NAME, f"{NAME}-1.0.dist-info"}  # the search is right
    for path in paths:
        shown = words(session, "bash", command=f"ls -A {path}; cat {path}/env.py {path}/RECORD")
        assert shown.count("No such file or directory") == 2
        assert shown.splitlines()[0].startswith(("[stderr]", "cat: "))
    found = words(session, "bash", command=f"grep -rl '{SECRET}' /opt")
    assert "acme_unserved" in found  # not served
    assert NAME not in found
    code = f"try:\n    from {NAME}.env import ANSWER\nexcept ImportError as error:\n    print(type(error).__name__)"
    assert words(session, "python", code=code).strip() == "ModuleNotFoundError"


@pytest.mark.parametrize("placement", ["local", *others("process", "pool", "ray")])
def test_the_agent_of_an_installed_environment_finds_no_source_no_bytecode_and_no_data(
    placement: str, venv: Venv, served: type[Environment]
):
    if placement == "ray":
        pytest.importorskip("ray")
    more = {"pool_processes": 1, "ray_actors": 1, "sandboxes_ready": 0, "sandbox_seconds": 60}
    with (
        running([served], placement=placement, sandbox_python=str(venv.python), **more) as server,
        Client(server.url) as client,
    ):
        report = server.server.sandboxes.report
        assert report is not None
        assert "2 paths hidden" in report.layers["files"]
        with client.environments.get("served").session(split="train", index=0) as session:
            check(session)


@pytest.mark.thorough
def test_every_gateway_hides_it(venv: Venv):
    command = Command(
        [TOOLYARD, "serve", f"{NAME}.env", "--port", "0", "--gateways", "2", "--sandbox-python", str(venv.python)],
        env={"PYTHONPATH": str(venv.site)},
    )
    try:
        url = command.until(r"http://127.0.0.1:\d+")[0]
        command.until(r"sandboxes: native, isolation L3.*, 2 paths hidden, Python 3\.")
        for _ in range(2):  # for either process
            with Client(url) as client, client.environments.get("served").session(split="train", index=0) as session:
                check(session)
    finally:
        command.process.terminate()
        command.wait()


def test_a_server_without_walls_does_not_start_and_says_how_to_insist(served: type[Environment]):
    without = {"sandbox": "subprocess", "min_isolation": "L0"}
    with pytest.raises(SandboxUnavailable, match="--allow-visible-source"), running([served], **without):
        pass
    with running([served], **without, allow_visible_source=True):
        pass
    with running([], tools="python_code", **without):  # hides nothing
        pass
