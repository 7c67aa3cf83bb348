"""Agents for environments: a model, dice or your own function plays episodes; trainers get rollouts and groups."""

from __future__ import annotations

from toolyard.agents.chat import ChatAgent
from toolyard.agents.endpoint import Endpoint
from toolyard.agents.playing import Agent, AgentStopped, EndpointFailed, play
from toolyard.agents.random_agent import RandomAgent
from toolyard.agents.rollout import MadeCall, Rollout, Tokens
from toolyard.agents.rollouts import groups, rollouts
from toolyard.agents.seat import Seat

__all__ = [
    "Agent",
    "AgentStopped",
    "ChatAgent",
    "Endpoint",
    "EndpointFailed",
    "MadeCall",
    "RandomAgent",
    "Rollout",
    "Seat",
    "Tokens",
    "groups",
    "play",
    "rollouts",
]
