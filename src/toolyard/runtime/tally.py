"""What the calls of a session came to, over whatever wire they were made: rewards, and failures that were not the
agent's. A session that has ended is remembered for a while."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from toolyard.core.output import CallResult, Reason, ToolFailure, is_retryable

Trouble: TypeAlias = Reason | Literal["setup_failed"]
_AGENTS = ("no_such_tool", "bad_arguments", "tool_failed", "episode_finished")
"""Failures that are the agent's own."""


class Tally:
    """Made with a session's first call. It takes more than a few bytes only for calls that are scored."""

    __slots__ = ("calls", "scored", "trouble")

    def __init__(self) -> None:
        self.calls = 0
        self.scored: list[tuple[int, float]] | None = None
        """The number of each call that has a reward, and that reward."""
        self.trouble: Trouble | None = None
        """The last failure that was not the agent's."""

    def add(self, result: str | CallResult, *, cancelled_by_us: bool) -> None:
        """Count a call. One that its own client cancelled is no trouble."""
        if isinstance(result, str):
            pass
        elif isinstance(result, ToolFailure):
            if result.reason not in _AGENTS and (cancelled_by_us or result.reason != "cancelled"):
                self.trouble = result.reason
        elif result.reward is not None:
            self.scored = self.scored or []
            self.scored.append((self.calls, result.reward))
        self.calls += 1

    def copy(self) -> Tally:
        """For a session that continues from here."""
        made = Tally()
        made.calls, made.trouble = self.calls, self.trouble
        made.scored = self.scored and [*self.scored]
        return made


@dataclass(frozen=True, slots=True)
class Standing:
    """What a session has come to by now, for its trainer."""

    session_id: str
    environment: str
    finished: bool
    tally: Tally
    broken: Trouble | None = None
    """What is wrong with the session itself, whatever its calls came to."""

    @property
    def trouble(self) -> Trouble | None:
        return self.tally.trouble or self.broken

    @property
    def rewards(self) -> Sequence[float | None]:
        """For each call, in the order in which they ended; None for one that was not scored."""
        rewards: list[float | None] = [None] * self.tally.calls
        for number, reward in self.tally.scored or ():
            rewards[number] = reward
        return rewards

    @property
    def reward(self) -> float | None:
        """The last."""
        scored = self.tally.scored
        return scored[-1][1] if scored else None

    @property
    def total(self) -> float | None:
        """The sum; None if no call was scored."""
        scored = self.tally.scored
        return sum(reward for _, reward in scored) if scored else None

    @property
    def retryable(self) -> bool:
        """Whether the trouble was the infrastructure's, so that the same episode may well go better."""
        trouble = self.trouble
        return trouble is not None and trouble != "setup_failed" and is_retryable(trouble)


class Ended:
    """Where sessions stood when they ended. The oldest go first, after a time or when there are too many."""

    def __init__(self, seconds: float, most: int) -> None:
        self.seconds = seconds
        self._most = most
        self._kept: OrderedDict[str, tuple[float, Standing]] = OrderedDict()

    @property
    def count(self) -> int:
        return len(self._kept)

    def keep(self, standing: Standing) -> None:
        self._kept.pop(standing.session_id, None)
        self._kept[standing.session_id] = (time.monotonic() + self.seconds, standing)
        if len(self._kept) > self._most:
            self._kept.popitem(last=False)

    def find(self, session_id: str) -> Standing | None:
        kept = self._kept.get(session_id)
        return kept[1] if kept is not None else None

    def sweep(self, now: float) -> None:
        while self._kept and next(iter(self._kept.values()))[0] <= now:
            self._kept.popitem(last=False)
