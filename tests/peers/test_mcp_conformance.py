"""The conformance suites of MCP, for both eras. The baseline lists what they expect and this server lacks."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.peers import npm, venvs
from tests.peers.conforming import Conforming
from toolyard.testing import running

pytestmark = pytest.mark.thorough

BASELINE = Path(__file__).with_name("conformance-baseline.yml")


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """A server on which the suites find what they expect, in an open session and in those that they open."""
    with running([Conforming], ping_seconds=0.1) as server:
        made = httpx2.post(f"{server.url}/create", headers={"X-Session-ID": "open"}, json={"task_spec": {}})
        assert made.status_code == 200
        yield server.url.replace("127.0.0.1", "localhost")


@pytest.mark.parametrize(
    ("package", "options", "path", "count"),
    [
        ("@modelcontextprotocol/conformance", ["--suite", "active"], "/mcp/conforming", 30),
        ("conformance-alpha", ["--suite", "all", "--spec-version", "2025-11-25"], "/mcp/conforming", 33),
        ("conformance-alpha", ["--suite", "all", "--spec-version", "2026-07-28"], "/mcp/s/open", 40),
    ],
)
def test_only_what_the_baseline_names_fails(url, node_modules, package, options, path, count):  # noqa: PLR0917
    """Case F54."""
    suite = node_modules() / "node_modules" / package / "dist" / "index.js"
    command = [npm.node(npm.MCP), suite, "server", "--url", url + path, *options, "--expected-failures", BASELINE]
    done = subprocess.run(command, env=venvs.environ(), capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    assert done.stdout.count("=== Running scenario: ") == count


def test_every_line_of_the_baseline_has_a_reason():
    lines = [line for line in BASELINE.read_text().splitlines() if line.startswith("  - ")]
    assert len(lines) > 20
    assert all(line.partition("  # ")[2] for line in lines)
