"""OpenEnv's own clients and validator, unmodified. Numbers refer to the conformance cases."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from tests.gateways.several import COUNT, Several
from tests.peers import venvs
from tests.wires.test_openenv_cases import Played, graded
from toolyard.testing import Running, running

pytestmark = pytest.mark.thorough

KEY = "a key of the trainer's"
PATH = "/openenv/played"


@pytest.fixture(scope="module")
def world() -> Iterator[Running]:
    with running([Played]) as server:
        yield server


def validated(url: str) -> tuple[int, dict[str, Any]]:
    """The verdict of `openenv validate` on an address."""
    program = venvs.interpreter(venvs.OPENENV).with_name("openenv")
    done = subprocess.run(
        [program, "validate", "--url", url, "--json"],
        env=venvs.environ(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, json.loads(done.stdout)


def test_openenvs_validator_finds_nothing_amiss(world, client):
    """Case G1."""
    code, report = validated(f"{world.url}{PATH}")
    assert (code, report["passed"]) == (0, True), report
    assert len(report["criteria"]) == 6
    assert all(each["passed"] for each in report["criteria"])


@pytest.mark.parametrize("kind", ["generic", "generic, sync"])
def test_the_generic_client_plays_episodes_on_one_connection(world, client, kind):
    """Cases G7 to G18, and G27."""
    seen = client("openenv", "openenv_tour", kind=kind, url=f"{world.url}{PATH}")
    expect_episode(seen)
    outcome = httpx2.get(f"{world.url}/sessions/{seen['state']['session_id']}/outcome").json()
    assert (outcome["reward"], outcome["finished"]) == (1.0, True), "kept after the reset that closed it"


def expect_episode(seen: dict[str, Any]) -> None:
    assert {"note", "submit", "env_reset"} <= set(seen["shared"])
    prompt = [{"type": "text", "text": "Find train-1."}]
    assert seen["reset"]["observation"] == {"metadata": {"prompt": prompt}, "prompt": "Find train-1."}
    assert (seen["reset"]["reward"], seen["reset"]["done"]) == (None, False)
    assert seen["note"]["observation"]["result"]["data"] == "a"
    assert seen["nope"]["observation"]["error"]["error_type"] == "tool_not_found"
    assert seen["nope"]["reward"] is None
    state = seen["state"]
    assert (state["episode_id"], state["step_count"], state["index"]) == ("mine", 2, 1)
    assert (seen["submit"]["reward"], seen["submit"]["done"]) == (1.0, True)
    assert "finished" in seen["late"]["observation"]["error"]["message"]
    assert (seen["late"]["reward"], seen["late"]["done"]) == (None, True), "graded once"
    assert seen["again"]["observation"]["prompt"] == "Find train-0."
    assert seen["fresh"]["observation"]["result"]["data"] == "b", "nothing of the session before"


def test_the_client_of_tools_plays_an_episode_and_sees_no_reward(world, client):
    """Cases G24 and G27."""
    graded.clear()
    (seen,) = client("openenv", "openenv_tour", kind="tools", url=f"{world.url}{PATH}")
    assert seen["reset"]["observation"]["prompt"] == "Find train-0."
    assert {"note", "submit", "env_reset"} <= set(seen["tools"])
    assert seen["notes"] == ["a0", "a0 b"]
    assert seen["state"]["step_count"] == 2
    assert isinstance(seen["submit"], str)
    assert graded == ["gold-0"]
    assert not world.server.runtime.sessions


def test_the_client_of_tools_finds_its_session_among_several_gateways(client, tmp_path):
    """It opens the session with one connection, and attaches to it with others, which may reach other gateways."""
    several = Several(tmp_path).started()
    try:
        url = f"{several.url}/openenv/yard"
        seen = client("openenv", "openenv_tour", kind="tools", url=url, note="tell", times=4 * COUNT)
        assert [one["notes"] for one in seen] == [[f"a{number}", f"a{number} b"] for number in range(4 * COUNT)]
        assert {one["state"]["step_count"] for one in seen} == {2}
    finally:
        several.end()


def test_a_key_goes_with_the_handshake(client):
    with running([Played], api_key=KEY) as server:
        url = f"{server.url}{PATH}"
        seen = client("openenv", "openenv_tour", kind="generic", url=url, headers={"X-API-Key": KEY})
        expect_episode(seen)
        seen = client("openenv", "openenv_tour", kind="generic, sync", url=url, headers={"X-API-Key": KEY})
        expect_episode(seen)


def test_the_loop_of_verifiers_plays_an_episode_and_its_model_is_shown_no_answer(world, client):
    """Case G34."""
    lines = [
        json.dumps({"tool_name": "note", "arguments": {"text": "hm"}}),
        "```json\n"
        + json.dumps({"type": "call_tool", "tool_name": "submit", "arguments": {"answer": "gold-0"}})
        + "\n```",
    ]
    reset = {"split": "train", "index": 0}
    seen = client("verifiers", "verifiers_openenv", url=f"{world.url}{PATH}", reset=reset, lines=lines)
    assert seen["rewards"] == {"openenv_reward": 1.0}
    first, second = seen["shown"]
    assert first["observation"]["prompt"] == "Find train-0."
    assert {"note", "submit"} <= {tool["name"] for tool in first["action_schema"]["available_tools"]}
    assert second["observation"]["result"]["data"] == "hm"
    assert "gold" not in json.dumps(seen["shown"]), "the answer is in the task, and nothing of the task is shown"
    assert "hidden" not in json.dumps(seen["shown"])
