"""TRL's side of a training run without the model: a dataset, rollouts through bound tools, rewards."""

from __future__ import annotations

import inspect
import sys
from typing import Any

from common import main
from trl.experimental.openreward import OpenRewardSpec


def rollouts(url: str, num_tasks: int) -> dict[str, Any]:
    spec = OpenRewardSpec(url, num_tasks=num_tasks)
    dataset = spec.train_dataset
    make = spec.environment_factory
    environments = [make() for _ in range(num_tasks)]
    prompts = [env.reset(task_index=row["task_index"]) for env, row in zip(environments, dataset, strict=True)]
    answers = []
    for index, env in enumerate(environments):
        added = env.add(number=index)
        env.add(number=10)
        # The last one never finishes: its reward is that of the last step.
        answers.append([added, env.finish() if index < num_tasks - 1 else ""])
    first = environments[0]
    again = {"refused": first.add(number=1), "reset": first.reset(task_index=3), "reward": first.reward}
    unknown = first.add(number="not a number")
    rewards = spec.reward_funcs(environments=environments, prompts=None)
    for env in environments:
        env._close()
    return {
        "columns": dataset.column_names,
        "rows": [dict(row) for row in dataset],
        "prompts": prompts,
        "answers": answers,
        "steps": [env.rewards for env in environments],
        "metadata": environments[1].metadata,
        "finished": [env.finished for env in environments],
        "rewards": rewards,
        "again": again,
        "unknown": unknown,
        "signature": str(inspect.signature(type(first).add)),
        "doc": type(first).add.__doc__,
        "heavy": sorted({name.partition(".")[0] for name in sys.modules} & {"torch", "transformers", "accelerate"}),
        "indices": OpenRewardSpec(url, indices=[4, 2]).train_dataset["start"][:],
        "whole": len(OpenRewardSpec(url).train_dataset),
    }


main(rollouts)
