"""Our conformance cases against the reference servers: their known deviations fail there by name.

verl-tool's server and XAgent's ToolServer are not installable packages, so they are not among them.
"""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any

import pytest

from tests.peers import venvs
from tests.peers.conftest import PEERS, SCRIPTS
from toolyard.testing.conformance import KITS, Target, conform, detect

pytestmark = pytest.mark.thorough

LONG = {"tool": "big", "arguments": {"n": 3000, "fill": " a"}}
ADD = {"tool": "add", "arguments": {"a": 1, "b": 2}}
SHARED = {"E14": "D-7", "E19": "", "E20": "D-2", "E58": "D-3", "E60": "D-17"}
"""Deviations of both reference servers of ORS. Only one of the clients uses the path of E19."""
NO_KEY = {"F49"}
HANDS_ONLY = {case.number for case in KITS["mcp"].cases if case.number.endswith("m")} | {f"F{n}" for n in range(15, 26)}


@contextmanager
def serving(peer: str, script: str, **arguments: Any) -> Iterator[str]:
    """A server of a peer's own package, on a free port."""
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [venvs.interpreter(PEERS[peer]), SCRIPTS / f"{script}.py", json.dumps({"port": port, **arguments})],
        env=venvs.environ(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port)).close()
            return
        except ConnectionRefusedError:
            time.sleep(0.05)
    raise AssertionError(f"it did not start: {process.args!r}")


def tried(url: str, protocol: str, **told: Any) -> tuple[Mapping[str, str], set[str]]:
    """The numbers that failed, each with its known deviation, and those that were skipped."""
    results = asyncio.run(conform(Target(url, **told), [KITS[protocol]]))
    failed = {one.case.number: one.case.difference for one in results if one.verdict == "fail"}
    return failed, {one.case.number for one in results if one.verdict == "skip"}


def spoken(url: str) -> list[str]:
    return [kit.protocol for kit in asyncio.run(detect(Target(url), list(KITS.values())))]


@pytest.mark.parametrize(
    ("peer", "package", "own"),
    [
        ("ors", "ors", {"E12": "D-8", "E15": "D-8", "E62": "D-12"}),
        ("openreward", "openreward.environments", {"E27": "D-11"}),
    ],
)
def test_the_known_differences_of_the_reference_servers_of_ors_fail_by_name(client, peer, package, own):
    with serving(peer, "serve_ors", package=package) as url:
        assert spoken(url) == ["ors"]
        assert tried(url, "ors") == ({**SHARED, **own}, {"E49", "E52"})
        failed, _ = tried(url, "ors", **LONG)
        assert failed["E52"] == "D-4"
        assert "E49" not in failed
        failed, _ = tried(url, "ors", tool="hidden")
        assert failed["E38"] == "D-1"


@pytest.mark.parametrize("as_json", [False, True])
def test_the_low_level_server_of_the_mcp_package_passes_every_case(client, as_json):
    with serving("mcp-2", "serve_mcp", kind="lowlevel", json=as_json) as url:
        assert spoken(url) == ["mcp"]
        nothing_there = {"F45h", "F45m", "F46h", "F46m"}
        assert tried(f"{url}/mcp", "mcp", **ADD) == ({}, nothing_there | NO_KEY)


def test_what_fastmcp_4_does_otherwise_is_known(client):
    """It does not check Host, reports an unknown tool as a result, and ignores a cursor."""
    with serving("mcp-2", "serve_mcp", kind="fastmcp") as url:
        failed, skipped = tried(f"{url}/mcp", "mcp")
        assert failed.keys() == {"F28", "F35h", "F35m", "F44h", "F44m"}
        assert skipped == NO_KEY


def test_what_fastmcp_3_does_otherwise_is_known(client):
    """The same, and other error codes; it requires both types in Accept, and knows handshakes only."""
    with serving("mcp-1", "serve_mcp", kind="fastmcp") as url:
        failed, skipped = tried(f"{url}/mcp", "mcp")
        assert failed.keys() == {"F7h", "F26", "F28", "F35h", "F44h", "F45h", "F46h"}
        assert skipped == NO_KEY | HANDS_ONLY | {"F6m"}


def test_what_openenvs_own_server_does_otherwise_is_known(client):
    """It steps before a reset and without a session, and closes on a message that is not an object."""
    with serving("openenv", "serve_openenv") as url:
        assert spoken(url) == ["openenv"]
        failed, skipped = tried(url, "openenv")
        assert failed.keys() == {"G17", "G19b", "G29b"}
        assert skipped == {"G18", "G28"}, "it ends no episode, and has no tasks"
