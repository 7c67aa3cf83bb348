"""What the recipe for slime in OpenReward's cookbook requests of a server, with a model that repeats its input.

The recipe is no package and needs GPUs, so this rewrites its loop: rows of a dataset made from the tasks, tools before
the prompt, tool calls as text between tags, errors of calls as text for the model, rewards added up.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from common import main
from openreward import AsyncOpenReward
from openreward.api.environments.client import Task
from openreward.api.environments.types import ToolCallError


async def rows(client: AsyncOpenReward, name: str) -> list[dict[str, Any]]:
    """A dataset that the trainer writes to a file and reads back: only JSON survives."""
    environment = client.environments.get(name)
    tasks = await environment.list_tasks("train")
    return [
        {
            "deployment": environment.deployment_name,
            "server_name": task.server_name,
            "environment_name": task.environment_name,
            "namespace": getattr(task, "namespace", None),
            "task_spec": json.loads(json.dumps(task.task_spec)),
        }
        for task in tasks
    ]


async def rollout(client: AsyncOpenReward, row: dict[str, Any], said: list[str], nonterminal: float) -> dict[str, Any]:
    environment = client.environments.get(row["deployment"])
    task = Task(row["server_name"], row["environment_name"], row["task_spec"], row["namespace"])
    seen: dict[str, Any] = {"read": [], "rewards": [], "failed": 0, "stop": "max_turns"}
    try:
        async with environment.session(task, secrets=None) as session:
            seen["tools"] = [spec.name for spec in await session.list_tools()]
            seen["prompt"] = "".join(block.text for block in await session.get_prompt() if block.type == "text")
            for text in said:
                if await turn(session, text, seen):
                    seen["stop"] = "reached_terminal_state"
                    break
    except Exception as error:  # the recipe ends the rollout on any error
        seen["stop"] = f"error: {type(error).__name__}"
    ended = seen["stop"] == "reached_terminal_state"
    seen["reward"] = sum(seen["rewards"]) + (0 if ended else nonterminal)
    return seen


async def turn(session: Any, text: str, seen: dict[str, Any]) -> bool:
    """One message of the model, and whether the episode is over."""
    _, opened, call = text.partition("<tool_call>")
    if not opened:
        seen["read"].append("no tool call")
        return False
    asked = json.loads(call.partition("</tool_call>")[0])
    try:
        output = await session.call_tool(asked["name"], asked["arguments"])
    except ToolCallError as error:
        seen["failed"] += 1
        seen["read"].append(f"Error: {error}")
        return False
    seen["read"].append("".join(block.text for block in output.blocks if block.type == "text"))
    if output.reward is not None:
        seen["rewards"].append(output.reward)
    return bool(output.finished)


async def all_of(played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    client = AsyncOpenReward(api_key="any")
    datasets = {name: await rows(client, name) for name in {one["env"] for one in played}}
    rollouts = [rollout(client, datasets[one["env"]][one["index"]], one["said"], -1.0) for one in played]
    return await asyncio.gather(*rollouts)


def rollouts(url: str, played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return asyncio.run(all_of(played))


main(rollouts)
