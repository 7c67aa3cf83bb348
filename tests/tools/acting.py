"""A trainer, and an ORS client, for tests on a server with tools."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from tests.wires.wire import Wire


class Seen(NamedTuple):
    observation: Any
    done: bool
    valid: bool

    @property
    def text(self) -> str:
        return self.observation if isinstance(self.observation, str) else self.observation["obs"]

    def why_lost(self) -> str:
        """What the infrastructure did. The agent is not blamed for it, and gets no invented reward."""
        assert (self.done, self.valid) == (True, False)
        assert (self.observation["reason"], self.observation["retryable"]) == ("lost", True)
        assert self.observation["reward"] is None
        error: str = self.observation["error"]
        return error


class Trainer(Wire):
    """verl-tool's client, one action at a time."""

    async def act(self, text: str, trajectory: str | None = None, **extra: Any) -> Seen:
        body = {"trajectory_ids": [trajectory or uuid.uuid4().hex], "actions": [text], "extra_fields": [extra]}
        response = await self.post("/get_observation", json=body)
        assert response.status_code == 200, response.text
        answer = response.json()
        return Seen(answer["observations"][0], answer["dones"][0], answer["valids"][0])

    async def finish(self, trajectory: str) -> None:
        body = {"trajectory_ids": [trajectory], "actions": [""], "finish": [True], "is_last_step": [True]}
        assert (await self.post("/get_observation", json=body)).json()["observations"] == [""]

    @asynccontextmanager
    async def session(self, **task_spec: Any) -> AsyncIterator[str]:
        """An ORS session with the same tools."""
        sid = await self.open(env_name="toolbox", task_spec=task_spec)
        try:
            yield sid
        finally:
            await self.end(sid)
