"""Inspect's evaluation of our environments, with the model that Inspect uses in its own tests: it repeats its input."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from common import main
from inspect_ai import Task, eval
from inspect_ai.model import ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_openreward import openreward_dataset, openreward_scorer, openreward_solver
from openreward import OpenReward

os.environ["OPENREWARD_API_KEY"] = "any"


def episodes(url: str, played: list[dict[str, Any]]) -> list[dict[str, Any]]:
    client = OpenReward()
    with tempfile.TemporaryDirectory() as logs:
        return [episode(client, logs, **one) for one in played]


def episode(client: OpenReward, logs: str, env: str, index: int, calls: list[list[Any]]) -> dict[str, Any]:
    environment = client.environments.get(env)
    said = [ModelOutput.for_tool_call("mockllm/model", name, arguments) for name, arguments in calls]
    said.append(ModelOutput.from_content("mockllm/model", "That is all."))
    task = Task(
        dataset=openreward_dataset(environment, "train")[index : index + 1],
        solver=openreward_solver(environment),
        scorer=openreward_scorer(),
    )
    for output in said:
        output.usage = ModelUsage()  # counting tokens would fetch a table from the internet
    model = get_model("mockllm/model", custom_outputs=said)
    (log,) = eval(task, model=model, log_dir=logs, display="none")
    (sample,) = log.samples
    scores = [score.value for score in (sample.scores or {}).values()]
    return {
        "status": log.status,
        "prompt": sample.messages[0].text if sample.messages else "",
        "read": [read(message) for message in sample.messages if isinstance(message, ChatMessageTool)],
        "finished": sample.metadata.get("openreward_finished", False),
        "scores": scores,
        "error": sample.error.message if sample.error else None,
    }


def read(message: ChatMessageTool) -> str:
    return message.error.message if message.error else message.text


main(episodes)
