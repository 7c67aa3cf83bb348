"""One step of each training recipe. `make test-training` plays them until they have learned."""

from __future__ import annotations

import pytest

from tests.peers.recipes import Recipe

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]

LITTLE = ("--size", "small", "--seeds", "1", "--tasks", "4", "--group", "4", "--steps", "1")
NOT_RISEN = (1,)
"""How a recipe ends whose reward does not rise. One step is not enough for that."""


@pytest.mark.usefixtures("trainer")
def test_a_policy_in_pytorch_plays_a_step_over_verl_and_every_episode_is_recorded_with_run_and_labels(tmp_path):
    recipe = Recipe("python_grpo", tmp_path)
    recipe.run(*LITTLE, statuses=NOT_RISEN)
    told = recipe.told()
    for policy in ("learns", "frozen"):
        table = told["tables"][policy]["1"]
        (step,) = table["steps"]
        assert told[policy] == {"1": [step["reward"]]}
        assert (table["trajectories"], table["lost"]) == (16, 0)
        assert 0 < step["executions"] == table["executions"] <= 16
        assert 0 < table["part of time waiting for tools"] < 1
        episodes = recipe.episodes(f"python-{policy}-1")
        assert [episode.labels for episode in episodes] == [{"step": "0", "policy": policy}] * 16
        assert sum(episode.total or 0 for episode in episodes) / 16 == pytest.approx(step["reward"], abs=1e-3)
        assert {episode.wire for episode in episodes} == {"verl"}
    assert recipe.draws("curve.png")
    assert told["machine"]["torch"]


@pytest.mark.usefixtures("trainer")
def test_rates_of_learning_are_tried_one_after_the_other_and_shown_in_a_table(tmp_path):
    said = Recipe("python_grpo", tmp_path).run(*LITTLE, "--rates", "1e-3", "2e-3")
    table = said[said.rindex("    rate steps") :].splitlines()
    assert [line.split()[0] for line in table] == ["rate", "0.001", "0.002"]


@pytest.mark.usefixtures("trainer")
def test_the_whole_run_ends_in_time_and_writes_every_part(tmp_path):
    recipe = Recipe("whole_run", tmp_path)
    recipe.run(*LITTLE, "--cores", "1", "--gateways", "2", "--seconds", "60", out="run.json")
    told = recipe.told("run.json")
    assert told["seconds"] < 90
    assert told["tables"]["learns"]["1"]["trajectories"] == told["tables"]["frozen"]["1"]["trajectories"] == 16
    ways = [(row["gateways"], row["overlap"]) for row in told["waiting"]]
    assert ways == [(1, False), (1, True), (2, False), (2, True)]
    (row,) = told["executions"]
    assert (row["cores"], row["lost"]) == (1, 0)
    assert row["executions per second"] > 1


@pytest.mark.usefixtures("trainer")
def test_grpo_trainer_of_trl_plays_a_step_over_ors_and_every_episode_is_recorded_with_run_and_labels(tmp_path):
    recipe = Recipe("trl_grpo", tmp_path)
    recipe.run(
        "--seeds", "1", "--talks", "20", "--steps", "1", "--control-steps", "1", "--episodes", "8", statuses=NOT_RISEN
    )
    told = recipe.told()
    for policy in ("learns", "frozen"):
        assert len(told[policy]["1"]) == 1
        episodes = recipe.episodes(f"trl-{policy}-1")
        assert [episode.labels for episode in episodes] == [{"step": "0", "policy": policy}] * 8
        assert {episode.wire for episode in episodes} == {"ors"}
    assert recipe.draws("curve.png")
    assert told["machine"]["trl"]
