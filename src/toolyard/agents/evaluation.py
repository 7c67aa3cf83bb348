"""`Evaluation`: makes one agent's attempts at some tasks at once, keeps each as it ends, and sums up."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean
from typing import Any

from toolyard.agents.attempts import Attempt, Planned
from toolyard.agents.playing import Agent, play
from toolyard.agents.rollout import Rollout, Tokens
from toolyard.client import AsyncSession
from toolyard.core.as_they_end import as_they_end
from toolyard.episodes.statistics import Summary

_SLACK = 1e-9
"""Ten rewards of 0.1 add up to a little less than 1, and count as 1."""
_FAILED_BY = ("infrastructure", "endpoint", "agent")


@dataclass(frozen=True, slots=True)
class About:
    """Identifies an evaluation: an interrupted one continues only with the same values."""

    model: str
    environment: str
    split: str
    run: str


@dataclass
class Evaluation:
    about: About
    planned: Sequence[Planned]
    pass_at: float = 1.0
    made: dict[str, Attempt] = field(default_factory=dict)
    """By id; the last one, if an attempt was repeated."""
    earlier: Tokens = field(default_factory=Tokens)
    """The tokens of attempts that were repeated since."""
    began: float = field(default_factory=time.monotonic)

    def take(self, attempt: Attempt) -> None:
        if (before := self.made.get(attempt.id)) is not None:
            self.earlier.add(before.tokens)
        self.made[attempt.id] = attempt

    @property
    def left(self) -> Sequence[Planned]:
        return [one for one in self.planned if one.id not in self.made or not self.made[one.id].counts]

    async def run(
        self,
        opening: Callable[[Planned], AsyncSession],
        agent: Agent,
        *,
        concurrency: int,
        seconds: float | None,
        keep: Callable[[Attempt], None],
    ) -> None:
        """Make all remaining attempts, and keep each when it ends. If cancelled, it leaves the rest for later."""

        def over(attempt: Planned, rollout: Rollout) -> None:
            found = Attempt.of(attempt, rollout)
            self.take(found)
            keep(found)

        ending = as_they_end(
            (
                play(opening(one), agent, one.of.task, name=one.id, seconds=seconds, over=partial(over, one))
                for one in self.left
            ),
            concurrency,
        )
        async with contextlib.aclosing(ending):
            async for _ in ending:
                pass

    # The results.

    @property
    def attempts(self) -> Sequence[Attempt]:
        """The finished attempts, in planned order."""
        return [self.made[one.id] for one in self.planned if one.id in self.made]

    @property
    def summary(self) -> Summary:
        returns: dict[str, list[float]] = defaultdict(list)
        for one in self.planned:
            found = returns[one.of.key]
            attempt = self.made.get(one.id)
            if attempt is not None and attempt.total is not None:
                found.append(attempt.total)
        return Summary(list(returns.values()))

    @property
    def rewards(self) -> Mapping[str, float]:
        """The mean of each named reward over the scored attempts; a missing name counts as 0."""
        scored = [attempt.rewards for attempt in self.attempts if attempt.total is not None]
        names = dict.fromkeys(name for rewards in scored for name in rewards)
        return {name: fmean(rewards.get(name, 0.0) for rewards in scored) for name in names}

    @property
    def tokens(self) -> Tokens:
        return added(self.earlier, *(attempt.tokens for attempt in self.made.values()))

    @property
    def repeat(self) -> int:
        return max((one.number for one in self.planned), default=0) + 1

    def as_json(self) -> dict[str, Any]:
        attempts, summary = self.attempts, self.summary
        scored = [attempt for attempt in attempts if attempt.total is not None]
        blamed = Counter(attempt.failed_by for attempt in attempts)
        interval, least = summary.interval, self.pass_at - _SLACK
        return {
            "model": self.about.model,
            "environment": self.about.environment,
            "split": self.about.split,
            "tasks": len({one.of.key for one in self.planned}),
            "repeat": self.repeat,
            "n": len(attempts),
            "scored": len(scored),
            "unscored": len(attempts) - len(scored),
            "mean_return": summary.mean,
            "ci95": None if interval is None else list(interval),
            "pass@1": summary.pass_at(1, least),
            "pass@k": summary.pass_at(self.repeat, least),
            "pass^k": summary.pass_all(self.repeat, least),
            "mean_turns": fmean(attempt.turns for attempt in scored) if scored else None,
            "tokens": self.tokens.as_json(),
            "failures": {name: blamed[name] for name in _FAILED_BY},
            **({"rewards": self.rewards} if self.rewards else {}),
            "episodes": [attempt.as_json() for attempt in attempts],
        }


def added(*parts: Tokens) -> Tokens:
    whole = Tokens()
    for part in parts:
        whole.add(part)
    return whole


@dataclass(frozen=True, slots=True)
class Prices:
    """Prices of a million tokens, in any currency."""

    prompt: float = 0.0
    completion: float = 0.0

    def of(self, tokens: Tokens) -> float:
        return (tokens.prompt * self.prompt + tokens.completion * self.completion) / 1e6


def errors_of(attempts: Iterable[Attempt]) -> Sequence[tuple[str, int]]:
    """The errors and their counts, the most frequent first."""
    return Counter(attempt.error for attempt in attempts if attempt.error).most_common()
