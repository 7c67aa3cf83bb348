"""`SessionOutcome`: the rewards and failures of a session, over any wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from toolyard.core.output import JsonObject


@dataclass(frozen=True, slots=True)
class SessionOutcome:
    sid: str
    environment: str
    rewards: Sequence[float | None]
    """One for each call, in the order in which they ended; None without a reward."""
    reward: float | None
    """The last reward."""
    total: float | None
    """The sum of the rewards, the episode's return; None if there is none."""
    finished: bool
    calls: int
    failure: str | None
    """Why a call or the session failed, unless the agent caused it."""
    retryable: bool
    """Whether the infrastructure failed, so that a repetition may succeed."""

    @classmethod
    def of(cls, said: JsonObject) -> Self:
        failure = said["failure"] or {"reason": None, "retryable": False}
        return cls(
            sid=said["sid"],
            environment=said["env"],
            rewards=said["rewards"],
            reward=said["reward"],
            total=said["return"],
            finished=said["finished"],
            calls=said["calls"],
            failure=failure["reason"],
            retryable=failure["retryable"],
        )
