"""The benchmark of MCP measures what it claims, against the real servers of the SDK and of FastMCP."""

from __future__ import annotations

import pytest

from benchmarks.mcp import OWN, beside_ors, beside_peers, conditions, measure
from benchmarks.report import table

pytestmark = [pytest.mark.thorough, pytest.mark.usefixtures("client")]  # the fixture makes the peers beforehand


ERAS = ("2025-11-25", "2026-07-28")


def test_a_call_takes_a_fraction_of_what_it_takes_the_sdk_and_fastmcp():
    done = measure(1, 0.3)
    (turns,) = done
    assert turns.keys() == {"ors", *OWN, *(f"{peer} {era}" for peer in ("mcp", "fastmcp") for era in ERAS)}
    for era in ERAS:
        for peer in ("mcp", "fastmcp"):
            assert turns[f"{peer} {era}"].cpu > 2 * turns[f"ours {era}"].cpu
    printed = table(("peer", "toolyard"), beside_peers(done)) + table(("here", "ORS call"), beside_ors(done))
    assert printed.count("µs") == 2 * (4 + len(OWN))
    assert "mcp 2.3.0" in conditions("make bench-mcp", done)
