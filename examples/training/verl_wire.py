"""The requests of verl-tool's agent loop: a batch of actions to `/get_observation`, and what came of each."""

import re
import uuid
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import httpx2

AT_ONCE = 8
"""Requests under way."""
SECONDS = 300


@dataclass(frozen=True)
class Observation:
    text: str
    reward: float | None
    done: bool
    lost: bool
    """The infrastructure failed. That is no reward of 0, and nothing to learn from."""


class VerlWire:
    """Send each batch in a thread of its own, so that the trainer works on while tools run."""

    def __init__(self, url: str) -> None:
        self.client = httpx2.Client(base_url=url, timeout=SECONDS)
        self.threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="verl-wire")

    def close(self) -> None:
        self.threads.shutdown()
        self.client.close()

    def act(
        self, ids: Sequence[str], actions: Sequence[str], extra_fields: Sequence[Mapping[str, Any]] | None = None
    ) -> "Future[list[Observation]]":
        """One action of each trajectory. The first of a trajectory says in its extra fields what it is about."""
        body: dict[str, Any] = {"trajectory_ids": list(ids), "actions": list(actions)}
        if extra_fields is not None:
            body["extra_fields"] = list(extra_fields)
        return self.threads.submit(self._post, body)

    def finish(self, ids: Sequence[str]) -> "Future[list[Observation]]":
        """End these trajectories. No action is carried out."""
        many = len(ids)
        return self.threads.submit(
            self._post, {"trajectory_ids": list(ids), "actions": [""] * many, "finish": [True] * many}
        )

    def _post(self, body: Mapping[str, Any]) -> list[Observation]:
        if not body["trajectory_ids"]:
            return []
        answer = self.client.post("/get_observation", json=body).raise_for_status().json()
        return [observed(*one) for one in zip(answer["observations"], answer["dones"], strict=True)]


def observed(observation: Any, done: bool) -> Observation:
    """An observation is a text, or an object with the text and more."""
    told: dict[str, Any] = {"obs": observation} if isinstance(observation, str) else observation
    lost = told.get("reason") is not None
    if "error" in told and not lost:
        raise ValueError(f"the server cannot use this request: {told['error']}")
    text = re.sub(r"</?result>", "", told["obs"]).strip()
    return Observation(text, told.get("reward"), bool(done), lost)


def new_ids(count: int) -> list[str]:
    return [uuid.uuid4().hex for _ in range(count)]
