"""The peers' interpreters, and a way to run a client script with one of them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.peers import npm, venvs, worlds
from tests.worlds import MathEnv, OtherEnv
from toolyard.testing import Running, running

SCRIPTS = Path(__file__).parent / "scripts"
SUITES = ("ors-sdk==0.1.0", "openreward==0.1.167")
PEERS = {
    "ors": venvs.ORS,
    "openreward": venvs.OPENREWARD,
    "trl": venvs.OPENREWARD,
    "inspect": venvs.OPENREWARD,
    "fusion": venvs.FUSION,
    "mcp-1": venvs.MCP_1,
    "mcp-2": venvs.MCP_2,
    "openenv": venvs.OPENENV,
    "verifiers": venvs.VERIFIERS,
    "harbor": venvs.HARBOR,
    "mcp-fast": venvs.MCP_FAST,
}


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make what is missing before the first test starts, so that no test's time limit covers pip."""
    if session.config.option.collectonly:
        return
    wanted = {name for item in session.items for name in getattr(item, "fixturenames", ())}
    if "client" in wanted:
        venvs.prepare(PEERS.values())
    if "sources" in wanted:
        venvs.prepare([venvs.SERVED], SUITES)
    if "trainer" in wanted:
        venvs.prepare([venvs.TRAINING])
    if "node_modules" in wanted:
        with suppress(venvs.PeerError):  # the tests that need it say so
            npm.installed(npm.MCP)


@pytest.fixture(scope="session")
def client() -> Callable[..., Any]:
    """Run a client script to its end: `client("ors", "tour", url=…)` returns its result."""

    def run(peer: str, script: str, *, seconds: float = 120, **arguments: object) -> Any:
        python = venvs.interpreter(PEERS[peer])
        done = subprocess.run(
            [python, SCRIPTS / f"{script}.py", json.dumps(arguments)],
            env=venvs.environ(**_addresses(arguments)),
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert done.returncode == 0, f"{script} failed with {peer}:\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
        return json.loads(done.stdout.splitlines()[-1])

    return run


def _addresses(arguments: dict[str, Any]) -> dict[str, str]:
    """openreward's client derives other host names from the given one; for another server it needs these."""
    return {"OPENREWARD_SESSION_URL": arguments["url"], "OPENREWARD_API_URL": arguments["url"]}


@pytest.fixture(scope="session")
def served_python() -> Path:
    return venvs.interpreter(venvs.SERVED)


@pytest.fixture(scope="session")
def trainer() -> Path:
    """The Python that has PyTorch and TRL."""
    return venvs.interpreter(venvs.TRAINING)


@pytest.fixture(scope="session")
def sources() -> Callable[[str], Path]:
    return venvs.sources


@pytest.fixture(scope="session")
def node_modules() -> Callable[[], Path]:
    """Finds the folder of npm packages; tests that need them are skipped where they are not available."""

    def found() -> Path:
        try:
            return npm.installed(npm.MCP)
        except venvs.PeerError as error:
            pytest.skip(str(error))

    return found


@pytest.fixture(scope="module")
def yard() -> Iterator[Running]:
    """A server with everything that the clients use."""
    environments = [MathEnv, OtherEnv, worlds.ChatEnv, worlds.CountEnv, worlds.TextEnv, worlds.OnceEnv]
    with running(environments, toolsets=[worlds.codex], protocol=("verl", "fusion", "ors")) as server:
        yield server
