"""SandboxFusion's real client, from its package, against our endpoint."""

from __future__ import annotations

import base64

import pytest

pytestmark = pytest.mark.thorough


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_sandbox_fusions_client_can_run_code(client, yard, mode):
    seen = client("fusion", "fusion", what="tour", mode=mode, url=yard.url)
    answers = seen["answers"]
    assert {name: answer["status"] for name, answer in answers.items()} == {
        "well": "Success",
        "badly": "Failed",
        "late": "Failed",
        "compiled": "Success",
        "uncompiled": "Failed",
        "shell": "Success",
        "files": "Success",
    }
    assert seen["summaries"] == {
        "well": "Success",
        "badly": "RE",
        "late": "TLE",
        "compiled": "Success",
        "uncompiled": "CE",
        "shell": "Success",
        "files": "Success",
    }
    assert answers["well"]["run_result"]["stdout"] == "42\n"
    assert answers["badly"]["run_result"]["return_code"] == 3
    assert answers["compiled"]["run_result"]["stdout"] == "42"
    assert answers["files"]["files"] == {"out": base64.b64encode(b"atad\x00").decode()}
    assert answers["files"]["run_result"]["stderr"] == "typed\n"
    assert seen["unavailable"]["text"].startswith("Sandbox responded with error: lean is not offered here")


def test_sandbox_fusions_client_can_run_many_programs_at_once(client, yard):
    seen = client("fusion", "fusion", what="at_once", url=yard.url, count=30)
    assert seen == [f"{i * 2}\n" for i in range(30)]
