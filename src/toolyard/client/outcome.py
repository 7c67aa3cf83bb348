"""`SessionOutcome`: what a session came to, whoever played it and over whatever wire."""

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
    """For each call, in the order in which they ended; None for one that was not scored."""
    reward: float | None
    """The last one that there is."""
    total: float | None
    """Their sum, the episode's return; None if no call was scored."""
    finished: bool
    calls: int
    failure: str | None
    """Why a call or the session failed, if that was not the agent's doing."""
    retryable: bool
    """Whether that was the infrastructure's failure, so that the same episode may well go better."""

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
