"""`Rollout`: what an agent did in one session, its rewards, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Self, TypeAlias

from toolyard.client import SessionOutcome
from toolyard.core.output import Block, JsonObject, ToolOutput

Outcome: TypeAlias = Literal[
    "finished",  # a tool ended the episode
    # what the agent did
    "stopped_early",  # the agent returned before the episode was over
    "no_tool_call",
    "max_turns",
    "max_tokens",
    "time_limit",
    "length",  # the endpoint cut an answer off
    "context_too_long",
    "agent_raised",
    # failures of others: no return
    "endpoint_failed",
    "infrastructure_failed",
]
FailedBy: TypeAlias = Literal["agent", "endpoint", "infrastructure"]


@dataclass(slots=True)
class Tokens:
    """The endpoint's counts."""

    prompt: int = 0
    completion: int = 0
    cached: int = 0
    """Cached tokens of the prompt."""
    reasoning: int = 0
    """Reasoning tokens of the completion."""

    def add(self, more: Tokens) -> None:
        self.prompt += more.prompt
        self.completion += more.completion
        self.cached += more.cached
        self.reasoning += more.reasoning

    def as_json(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def of(cls, said: JsonObject) -> Self:
        return cls(**{name: int(said.get(name) or 0) for name in ("prompt", "completion", "cached", "reasoning")})


@dataclass(frozen=True, slots=True)
class MadeCall:
    """A tool call, with its output or the failure that the agent read."""

    tool: str
    arguments: JsonObject
    output: ToolOutput | None
    failure: str = ""
    """The reason, such as `bad_arguments`."""
    message: str = ""
    """What the agent read instead of an output."""

    @property
    def reward(self) -> float | None:
        return self.output.reward if self.output is not None else None


@dataclass(slots=True)
class Rollout:
    """One episode, for trainers. It grows while the agent plays."""

    name: str
    """The caller's own name for it."""
    session: str = ""
    """The server's id of the session."""
    group: int = 0
    """Rollouts with the same number continue from the same beginning."""
    prompt: list[Block] = field(default_factory=list)
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The conversation with the model, in the form of the Chat Completions API; empty if the agent is no model."""
    calls: list[MadeCall] = field(default_factory=list)
    turns: int = 0
    """How many answers the model gave; without a model, how many calls."""
    tokens: Tokens = field(default_factory=Tokens)
    finished: bool = False
    outcome: Outcome = "stopped_early"
    error: str = ""
    """The exception, if the outcome is a failure."""
    seconds: float = 0.0
    elsewhere: SessionOutcome | None = None
    """The server's count, if the agent made calls through a URL of its own."""

    @property
    def failed_by(self) -> FailedBy | None:
        """Who failed, if the episode did not reach its end."""
        match self.outcome:
            case "finished":
                return None
            case "endpoint_failed":
                return "endpoint"
            case "infrastructure_failed":
                return "infrastructure"
            case _:
                return "agent"

    @property
    def rewards(self) -> list[float | None]:
        """The reward of each call; None without a score."""
        if self.elsewhere is not None:
            return [*self.elsewhere.rewards]
        return [call.reward for call in self.calls]

    @property
    def named(self) -> dict[str, float]:
        """The sum of the rewards of each name."""
        sums: dict[str, float] = {}
        for call in self.calls:
            for name, reward in ((call.output.rewards if call.output is not None else None) or {}).items():
                sums[name] = sums.get(name, 0.0) + reward
        return sums

    @property
    def total(self) -> float | None:
        """The return: the sum of the rewards, or None if there is none.

        There is none if the endpoint, the infrastructure or the agent's own code failed, or if the episode finished
        without a reward. An agent that gives up gets what it has earned so far, maybe 0.
        """
        if self.outcome in ("endpoint_failed", "infrastructure_failed", "agent_raised"):
            return None
        given = [reward for reward in self.rewards if reward is not None]
        return float(sum(given)) if given or self.outcome != "finished" else None
