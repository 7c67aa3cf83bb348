"""Checks exported episodes with their readers: Harbor's models of trajectories, and OpenAI's of messages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from common import main
from harbor.models.trajectories import Trajectory
from harbor.utils.trajectory_validator import TrajectoryValidator
from openai.types.chat import ChatCompletionMessageParam
from pydantic import TypeAdapter


def read(url: str, atif: str, messages: str) -> dict[str, Any]:
    seen: dict[str, Any] = {"errors": [], "trajectories": [], "roles": []}
    for number, line in enumerate(lines(atif)):
        one = Path(atif).with_name(f"{number}.json")
        one.write_text(line, "utf-8")
        validator = TrajectoryValidator()
        validator.validate(one)
        seen["errors"] += validator.errors
        trajectory = Trajectory.model_validate_json(line)
        seen["trajectories"].append([trajectory.agent.name, len(trajectory.steps), trajectory.has_multimodal_content()])
    adapter = TypeAdapter(list[ChatCompletionMessageParam])
    for line in lines(messages):
        conversation = json.loads(line)["messages"]
        adapter.validate_python(conversation)
        seen["roles"].append(" ".join(message["role"] for message in conversation))
    return seen


def lines(path: str) -> list[str]:
    return Path(path).read_text("utf-8").split("\n")[:-1]


main(read)
