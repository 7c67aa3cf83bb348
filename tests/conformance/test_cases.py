"""Our server passes every conformance case, and every case fails a server with one fault."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
import pytest

from tests.conformance.mcp_mutations import MCP
from tests.conformance.mutant import Mutant, Mutation, all_of, at, mutating, status
from tests.conformance.openenv_mutations import OPENENV
from tests.conformance.ors_mutations import ORS
from tests.conformance.toolserver_mutations import TOOLSERVER
from tests.conformance.verl_mutations import VERL
from tests.wires.mcp_wire import DOORS, Played, TrainersDoor
from tests.worlds import MathEnv, OtherEnv
from toolyard.testing import Running, running
from toolyard.testing.conformance import KITS, Result, Target, conform, detect
from toolyard.tools.workspace import Workspace

MUTATIONS: Mapping[str, Mapping[str, Mutation]] = {
    "ors": ORS,
    "verl": VERL,
    "toolserver": TOOLSERVER,
    "mcp": MCP,
    "openenv": OPENENV,
}
KEY = "the key"

LONG = {"tool": "big", "arguments": {"n": 5000, "fill": " a"}}
CALLED: Mapping[str, Mapping[str, Any]] = {
    "ors": {},
    "mcp": {},
    "openenv": {},
    "verl": {"environment": "mathenv", "split": "train", "tool": "noparam"},
    "toolserver": {"tool": "FileSystemEnv_print_filesys_struture"},
}
"""The arguments that describe our servers to the cases."""
OTHERWISE: Mapping[str, Mapping[str, Any]] = {"E49": LONG, "E52": LONG, "F49": {"api_key": KEY}}
"""Cases that need other arguments."""


@pytest.fixture(scope="module")
def math() -> Iterator[Running]:
    with running([MathEnv, OtherEnv], ping_seconds=0.2) as server:
        yield server


@pytest.fixture(scope="module")
def played() -> Iterator[Running]:
    with running([Played], ping_seconds=0.2) as server:
        yield server


@pytest.fixture(scope="module")
def locked() -> Iterator[Running]:
    with running([MathEnv], api_key=KEY) as server:
        yield server


@pytest.fixture(scope="module")
def nodes() -> Iterator[Running]:
    with running([Workspace], toolserver_wait_seconds=20) as server:
        yield server


@pytest.fixture(scope="module")
def mutant() -> Iterator[Mutant]:
    with mutating() as proxy:
        yield proxy


@pytest.fixture
def upstream(request: pytest.FixtureRequest, mutant: Mutant) -> Any:
    """Put the proxy in front of the server for a case; returns the address to test."""

    def put(protocol: str, number: str) -> str:
        name = {"mcp": "played", "toolserver": "nodes"}.get(protocol, "math")
        server: Running = request.getfixturevalue("locked" if number == "F49" else name)
        mutant.upstream, mutant.mutation = server.url, None
        return mutant.url + path_of(server, protocol, number)

    return put


def path_of(server: Running, protocol: str, number: str) -> str:
    if protocol != "mcp" or number == "F49":
        return ""
    if number == "F10":
        return "/mcp/played?split=train&index=1"
    _, path = asyncio.run(TrainersDoor().open(server.url, "played", {"name": "gold"}))
    return path


def try_one(url: str, protocol: str, number: str) -> Result:
    target = Target(url, **OTHERWISE.get(number, CALLED[protocol]))
    (result,) = asyncio.run(conform(target, [KITS[protocol]], only=[number]))
    return result


@pytest.mark.parametrize("way", ["trainer", "agent", "handshake", "nowhere"])
def test_our_server_passes_every_case_of_mcp_wherever_it_speaks_it(played, way):
    doors = {door.name: door for door in DOORS}
    path = {"handshake": "/mcp/played?split=train&index=1", "nowhere": "/mcp"}.get(way, "")
    if way in doors:
        _, path = asyncio.run(doors[way]().open(played.url, "played", {"name": "gold"}))
    before = set(played.server.runtime.sessions)
    results = asyncio.run(conform(Target(f"{played.url}{path}"), [KITS["mcp"]]))
    assert set(played.server.runtime.sessions) == before, "it ends every session that it opens"
    assert [one for one in results if one.verdict == "fail"] == []
    assert len([one for one in results if one.verdict == "pass"]) > len(results) / 3


def test_a_node_without_a_manager_is_tried_without_a_cookie(mutant, nodes):
    node = httpx2.post(f"{nodes.url}/get_cookie").cookies["node_id"]
    mutant.upstream, mutant.added = nodes.url, {"Cookie": f"node_id={node}"}
    mutant.mutation = all_of(at("/get_cookie", status(404)), at("/alive", status(404)))
    try:
        target = Target(mutant.url, **CALLED["toolserver"])
        assert [kit.protocol for kit in asyncio.run(detect(target, [KITS["toolserver"]]))] == ["toolserver"]
        results = asyncio.run(conform(target, [KITS["toolserver"]]))
    finally:
        mutant.added = {}
    assert [one for one in results if one.verdict == "fail"] == []
    skipped = {one.case.number for one in results if one.verdict == "skip"}
    assert skipped == {"E105", "E106", "E107", "E108", "E109", "E133", "E136"}


ALL = [(protocol, case.number) for protocol, kit in KITS.items() for case in kit.cases]


@pytest.mark.parametrize(("protocol", "number"), ALL, ids=[f"{protocol}-{number}" for protocol, number in ALL])
def test_a_server_that_breaks_one_rule_fails_its_case_and_ours_does_not(mutant, upstream, protocol, number):
    url = upstream(protocol, number)
    assert (sound := try_one(url, protocol, number)).verdict == "pass", sound
    url = upstream(protocol, number)
    mutant.mutation = MUTATIONS[protocol][number]
    broken = try_one(url, protocol, number)
    assert broken.verdict == "fail", broken
    assert broken.why
