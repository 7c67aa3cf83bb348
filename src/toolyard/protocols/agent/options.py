"""The options of the agent's door. `settings.py` explains each."""

from __future__ import annotations

from dataclasses import dataclass

from toolyard.asgi import HttpOptions


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    host: str
    agent_host: str
    agent_url: str
    agent_token_seconds: float
    agent_sees_rewards: bool
