"""An episode through TRL's bound tools in which the agent makes a mistake and corrects it."""

from __future__ import annotations

from typing import Any

from common import main
from trl.experimental.openreward import OpenRewardSpec


def mistakes(url: str) -> dict[str, Any]:
    env = OpenRewardSpec(url, num_tasks=1).environment_factory()
    env.reset(task_index=0)
    read = [env.enter(code="99"), env.draw(), env.enter(code="1234")]
    seen = {"read": read, "rewards": env.rewards, "reward": env.reward, "finished": env.finished}
    env._close()
    return seen


main(mistakes)
