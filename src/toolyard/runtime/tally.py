"""The results of a session's calls, over any wire: rewards, and failures that were not the agent's. Sessions that ended
are remembered for a while."""

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
    """Made with a session's first call. It grows only with calls that have a reward."""

    __slots__ = ("calls", "scored", "trouble")

    def __init__(self) -> None:
        self.calls = 0
        self.scored: list[tuple[int, float]] | None = None
        """The number of each call that has a reward, and that reward."""
        self.trouble: Trouble | None = None
        """The last failure that was not the agent's."""

    def add(self, result: str | CallResult, *, cancelled_by_us: bool) -> None:
        """Count a call. A call that its own client cancelled is no trouble."""
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
        """A copy for a fork of the session."""
        made = Tally()
        made.calls, made.trouble = self.calls, self.trouble
        made.scored = self.scored and [*self.scored]
        return made


@dataclass(frozen=True, slots=True)
class Standing:
    """A session's results so far, for its trainer."""

    session_id: str
    environment: str
    finished: bool
    tally: Tally
    broken: Trouble | None = None
    """What is wrong with the session itself, apart from its calls."""

    @property
    def trouble(self) -> Trouble | None:
        return self.tally.trouble or self.broken

    @property
    def rewards(self) -> Sequence[float | None]:
        """One for each call, in the order in which they ended; None without a reward."""
        rewards: list[float | None] = [None] * self.tally.calls
        for number, reward in self.tally.scored or ():
            rewards[number] = reward
        return rewards

    @property
    def reward(self) -> float | None:
        """The last reward."""
        scored = self.tally.scored
        return scored[-1][1] if scored else None

    @property
    def total(self) -> float | None:
        """The sum of the rewards; None if there is none."""
        scored = self.tally.scored
        return sum(reward for _, reward in scored) if scored else None

    @property
    def retryable(self) -> bool:
        """Whether the infrastructure failed, so that a repetition may succeed."""
        trouble = self.trouble
        return trouble is not None and trouble != "setup_failed" and is_retryable(trouble)


class Ended:
    """The results of sessions that ended. The oldest are dropped first, after a time or when there are too many."""

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
