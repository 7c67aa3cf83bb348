"""/health and isolation: it reports nothing where none is in use, so that every ORS client finds what it expects."""

from __future__ import annotations

import httpx2
import pytest

from tests.sandboxes.worlds import Declared, Runner
from toolyard.client import Client
from toolyard.testing import Running, running


def health(server: Running) -> httpx2.Response:
    return httpx2.get(f"{server.url}/health")


def test_without_a_sandbox_it_is_the_answer_of_ors_to_the_letter(served: Running):
    assert health(served).content == b'{"status":"ok"}'


def test_with_one_it_says_what_isolates_and_how_well():
    with running([Declared]) as server:
        answer = health(server)
        assert answer.status_code == 200
        report = server.server.sandboxes.report
        assert answer.json() == {
            "status": "ok",
            "isolation": {
                "backend": "native",
                "level": report.level,
                "layers": report.layers,
                "missing": [one.feature for one in report.missing],
            },
        }
        assert report.level.startswith("L3")
        assert {"files", "network", "processes", "memory", "system calls"} <= report.layers.keys()


def test_one_that_was_started_later_is_told_from_then_on():
    with running([Runner]) as server, Client(server.url) as client:
        assert health(server).json() == {"status": "ok"}
        with client.environment("runner").session(split="train", index=0) as session:
            level = session.call_tool("python", {"code": "1"}).metadata["isolation"]
        assert health(server).json()["isolation"]["level"] == level


@pytest.mark.parametrize("needed", ["reason", "fix"])
def test_why_something_is_missing_is_not_told_to_everybody(needed: str):
    with running(
        [Declared], sandbox="subprocess", min_isolation="L0", allow_visible_source=True, api_key="k"
    ) as server:
        answer = health(server)
        (missing,) = server.server.sandboxes.report.missing
        assert answer.json()["isolation"]["missing"] == [missing.feature]
        assert getattr(missing, needed) not in answer.text
