"""The real clients of MCP, unmodified, play an episode. Numbers refer to the conformance cases."""

from __future__ import annotations

import asyncio
import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.peers import npm, venvs
from tests.peers.conftest import SCRIPTS
from tests.wires.mcp_wire import HANDSHAKE, MODERN, AgentsDoor, Played, TrainersDoor
from toolyard.testing import Running, running

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played], ping_seconds=0.2) as server:
        yield server


@pytest.fixture
def tour(world: Running, client: Callable[..., Any], node_modules: Callable[[], Path]) -> Callable[..., Any]:
    """Play an episode with a client: what it saw, and the outcome for the trainer."""

    def tour(peer: str, kind: str, mode: str, door: type[TrainersDoor]) -> tuple[dict[str, Any], dict[str, Any]]:
        sid, path = asyncio.run(door().open(world.url, "played", {"name": "gold"}))
        urls = {"url": f"{world.url}{path}", "by_handshake": f"{world.url}/mcp/played?split=train&index=1"}
        if peer == "npm":
            seen = typescript(node_modules(), **urls)
        else:
            seen = client(peer, "mcp_tour", kind=kind, mode=mode, **urls)
        return seen, httpx2.get(f"{world.url}/sessions/{sid}/outcome").json()

    return tour


def typescript(folder: Path, **arguments: str) -> Any:
    script = folder / "mcp_tour.mjs"  # beside the packages
    script.write_text((SCRIPTS / "mcp_tour.mjs").read_text())
    command = [npm.node(npm.MCP), script, json.dumps(arguments)]
    done = subprocess.run(command, env=venvs.environ(), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize(
    ("peer", "kind", "mode", "version", "door"),
    [
        ("mcp-2", "sdk2", "auto", MODERN, TrainersDoor),
        ("mcp-2", "sdk2", "legacy", HANDSHAKE, TrainersDoor),
        ("mcp-2", "sdk2", "auto", MODERN, AgentsDoor),
        ("mcp-2", "sdk2", "legacy", HANDSHAKE, AgentsDoor),
        ("mcp-2", "fastmcp", "auto", MODERN, TrainersDoor),
        ("mcp-2", "fastmcp", "legacy", HANDSHAKE, TrainersDoor),
        ("mcp-1", "sdk1", "", HANDSHAKE, TrainersDoor),
        ("mcp-1", "fastmcp", "", HANDSHAKE, TrainersDoor),
        ("mcp-1", "fastmcp", "", HANDSHAKE, AgentsDoor),
        ("npm", "typescript", "", HANDSHAKE, TrainersDoor),
        ("npm", "typescript", "", HANDSHAKE, AgentsDoor),
    ],
    ids=lambda value: value.name if isinstance(value, type) else value or "-",
)
def test_a_real_client_plays_an_episode(tour, peer, kind, mode, version, door):  # noqa: PLR0917
    """Cases F13, F14, F40, F43 and F55: all of them work without a stream, and go on after losses."""
    seen, outcome = tour(peer, kind, mode, door)
    if seen["version"] is not None:  # without a handshake FastMCP reports none
        assert seen["version"] == version
    if kind != "fastmcp":
        assert (seen["instructions"], seen["prompt"]) == ("Find gold.", ["text"])
    assert {"add", "hidden", "guess"} <= set(seen["tools"])
    assert seen["add"] == ok("3")
    assert seen["look"] == ok("before", "image", "after")
    assert seen["fail"] == {"error": True, "texts": ["Tool 'fail' failed: not today"]}
    assert (seen["wrong"]["error"], "'b'" in seen["wrong"]["texts"][0]) == (True, True)
    assert (seen["boom"]["code"], seen["nope"]["code"], seen["lose"]["code"]) == (-32603, -32602, -32000)
    assert seen["lose"]["data"]["reason"] == "lost"
    assert seen["again"] == ok("4"), "the connection survived"
    assert seen["large"] == ok(2_000_000)
    assert seen["rest"] == ok("0.7 s")
    assert len(seen["steps"]) > 1
    assert seen["steps"] == sorted(set(seen["steps"]))
    assert seen["guess"] == ok("7!")
    assert (seen["late"]["error"], "finished" in seen["late"]["texts"][0]) == (True, True)
    assert seen["notes"] == [ok("a"), ok("a b")], "one session for each handshake, also of a client that tried without"
    assert (outcome["reward"], outcome["return"], outcome["finished"], outcome["calls"]) == (1.0, 1.0, True, 12)
    assert outcome["failure"] == {"reason": "lost", "retryable": True}


def ok(*texts: object) -> dict[str, Any]:
    return {"error": False, "texts": list(texts)}
