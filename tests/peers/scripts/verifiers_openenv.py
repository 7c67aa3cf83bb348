"""The loop of verifiers' tasks of OpenEnv. A script replaces its model: it answers by its prompt."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from common import main
from verifiers.v1.agent import Segment
from verifiers.v1.tasksets.openenv.taskset import OpenEnvConfig, OpenEnvEnv, OpenEnvEnvConfig, OpenEnvTaskset
from verifiers.v1.types import AssistantMessage


class Scripted:
    """An agent with scripted lines, one for each turn. It keeps its prompts and its rewards."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = iter(lines)
        self.shown: list[Any] = []
        self.rewards: dict[str, float] = {}
        self.stopped: str | None = None

    @property
    def player(self) -> Scripted:
        """The only role of the environment."""
        return self

    @property
    def trace(self) -> Scripted:
        return self

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[Scripted]:
        assert task.data.prompt is None
        yield self

    async def turn(self, shown: str) -> Segment:
        self.shown.append(json.loads(shown))
        return Segment([AssistantMessage(content=next(self.lines))])

    def stop(self, why: str) -> None:
        self.stopped = why

    def record_reward(self, name: str, reward: float) -> None:
        self.rewards[name] = reward


async def play(url: str, reset: dict[str, Any], lines: list[str]) -> dict[str, Any]:
    config = OpenEnvConfig(id="openenv", base_url=url, resets=[reset])
    environment = OpenEnvEnv(OpenEnvEnvConfig(taskset=config))
    (task,) = OpenEnvTaskset(config).load()
    player = Scripted(lines)
    await environment.run(task, player)
    return {"shown": player.shown, "rewards": player.rewards, "stopped": player.stopped}


def run(**arguments: Any) -> dict[str, Any]:
    return asyncio.run(play(**arguments))


if __name__ == "__main__":
    main(run)
