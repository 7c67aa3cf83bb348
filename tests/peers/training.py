"""The training recipes, played small until they have learned: `make test-training`, some minutes on 2 cores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean

import pytest

from tests.peers.recipes import Recipe

pytestmark = pytest.mark.timeout(1800)

SEEDS = ["1", "2", "3"]
MARGIN = 0.15


@pytest.mark.usefixtures("trainer")
def test_the_reward_of_a_policy_in_pytorch_rises_over_the_frozen_one_with_each_seed(tmp_path):
    recipe = Recipe("python_grpo", tmp_path)
    follow(recipe, ["--size", "small", "--run", "here"], "here-learns-1")
    assert_risen(recipe, "here")


@pytest.mark.usefixtures("trainer")
def test_the_reward_of_a_model_that_trl_trains_rises_over_the_frozen_one_with_each_seed(tmp_path):
    recipe = Recipe("trl_grpo", tmp_path)
    follow(recipe, ["--run", "here"], "here-learns-1")
    assert_risen(recipe, "here")


def follow(recipe: Recipe, options: Sequence[str], run: str) -> None:
    """Run a recipe, and look into the store as soon as it tells of the second step: the first has to be there."""
    said: list[str] = []
    with recipe.start(*options) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if line.startswith(f"{run} step 2 "):
                assert seen_within(recipe, run, seconds=20), f"no finished episode of {run} is in the store"
                assert process.poll() is None
    assert process.returncode == 0, "".join(said)[-5000:]
    assert any(line.startswith(f"{run} step 2 ") for line in said)


def seen_within(recipe: Recipe, run: str, *, seconds: float) -> bool:
    """The recorder writes in batches, so what has just ended may take a moment."""
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        if any(episode.finished and episode.labels["step"] == "0" for episode in recipe.episodes(run)):
            return True
        time.sleep(0.1)
    return False


def assert_risen(recipe: Recipe, run: str) -> None:
    told = recipe.told()
    frozen = {seed: fmean(rewards) for seed, rewards in told["frozen"].items()}
    assert list(told["learns"]) == list(frozen) == SEEDS
    for seed, rewards in told["learns"].items():
        end = fmean(rewards[-len(rewards) // 4 :])
        assert end > max(frozen.values()) + MARGIN, f"seed {seed} ends at {end:.2f}, the frozen ones at {frozen}"
        steps = recipe.steps_of(f"{run}-learns-{seed}")
        assert set(steps) == {str(step) for step in range(len(rewards))}
        assert all(first == second for first, second in pairwise(steps.values()))
    assert recipe.draws("curve.png")
