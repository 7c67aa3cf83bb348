"""The pulse of a server: every second, what was called and how that went, for the last five minutes.

It reads the counters that the metrics keep, so that no call becomes dearer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from toolyard.protocols.metrics import SECONDS, Counts, Metrics
from toolyard.runtime.runtime import Runtime

KEPT = 300
"""Samples."""
_MOST_CALLS = 0.95
_OFTEN = 0.9
"""Seconds between two samples, at least."""


@dataclass(slots=True)
class Sample:
    """What happened until `second`, on one gateway or on all of them."""

    second: int
    """Since 1970."""
    seconds: float
    """How long it took."""
    sessions: int
    opened: int
    setups_failed: int
    outcomes: dict[str, int]
    """Calls by outcome."""
    ran: list[int]
    """Calls by the time that they ran, in the buckets of the metrics."""
    ran_seconds: float
    late: float
    """How late the event loop was, at worst."""

    def add(self, other: Self) -> None:
        """Add what another gateway has counted in the same second."""
        self.sessions += other.sessions
        self.opened += other.opened
        self.setups_failed += other.setups_failed
        self.ran_seconds += other.ran_seconds
        self.late = max(self.late, other.late)
        self.ran = [mine + theirs for mine, theirs in zip(self.ran, other.ran, strict=True)]
        for outcome, count in other.outcomes.items():
            self.outcomes[outcome] = self.outcomes.get(outcome, 0) + count

    def as_json(self) -> dict[str, object]:
        count = sum(self.ran)
        return {
            "second": self.second,
            "calls": sum(self.outcomes.values()) / self.seconds,
            "sessions": self.sessions,
            "opened": self.opened / self.seconds,
            "failures": {kind: count / self.seconds for kind, count in failures(self.outcomes).items()},
            "mean": self.ran_seconds / count if count else None,
            "slow": slow(self.ran),
        }


_WHOSE = {
    **dict.fromkeys(("no_such_tool", "bad_arguments", "tool_failed", "episode_finished"), "agent"),
    "tool_raised": "author",
    **dict.fromkeys(("timed_out", "lost", "overloaded", "cancelled"), "server"),
}


def failures(outcomes: Mapping[str, int]) -> dict[str, int]:
    """By whose failure it was: the agent's, the author's or the server's."""
    found = {"agent": 0, "author": 0, "server": 0}
    for outcome, count in outcomes.items():
        if outcome in _WHOSE:
            found[_WHOSE[outcome]] += count
    return found


def slow(buckets: Sequence[int]) -> float | None:
    """The time that 95 % of the calls ran at most, about: the metrics only know buckets."""
    left = sum(buckets) * _MOST_CALLS
    if not left:
        return None
    lower = 0.0
    for upper, count in zip(SECONDS, buckets, strict=False):
        if count >= left:
            return lower + (upper - lower) * left / count
        left -= count
        lower = upper
    return lower


@dataclass(slots=True)
class _Total:
    """What the counters were at the last sample."""

    opened: int = 0
    setups_failed: int = 0
    ran_seconds: float = 0.0
    outcomes: dict[str, int] = field(default_factory=dict)
    ran: list[int] = field(default_factory=lambda: [0] * (len(SECONDS) + 1))

    @classmethod
    def of(cls, counted: Mapping[str, Counts]) -> Self:
        total = cls()
        for counts in counted.values():
            total.opened += counts.sessions_opened
            total.setups_failed += counts.session_setups_failed
            total.ran_seconds += counts.ran.sum
            total.ran = [one + more for one, more in zip(total.ran, counts.ran.counts, strict=True)]
            for outcome, count in counts.outcomes.items():
                total.outcomes[outcome] = total.outcomes.get(outcome, 0) + count
        return total


class Pulse:
    def __init__(self, runtime: Runtime, metrics: Metrics) -> None:
        self.samples: deque[Sample] = deque(maxlen=KEPT)
        self._runtime = runtime
        self._metrics = metrics
        self._total = _Total()
        self._at = time.monotonic()
        self._late = 0.0
        runtime.journal.swept.append(self._tick)

    @property
    def calls(self) -> Mapping[str, int]:
        """By environment: how many calls have ended since the server started."""
        return {name: sum(counts.outcomes.values()) for name, counts in self._metrics.counted.items()}

    def _tick(self, late: float) -> None:
        now = time.monotonic()
        self._late = max(self._late, late)
        if now - self._at < _OFTEN:
            return
        before, total = self._total, _Total.of(self._metrics.counted)
        self.samples.append(
            Sample(
                second=int(time.time()),
                seconds=now - self._at,
                sessions=len(self._runtime.sessions),
                opened=total.opened - before.opened,
                setups_failed=total.setups_failed - before.setups_failed,
                outcomes={
                    outcome: more
                    for outcome, count in total.outcomes.items()
                    if (more := count - before.outcomes.get(outcome, 0))
                },
                ran=[count - old for count, old in zip(total.ran, before.ran, strict=True)],
                ran_seconds=total.ran_seconds - before.ran_seconds,
                late=self._late,
            )
        )
        self._total, self._at, self._late = total, now, 0.0

    def after(self, second: int) -> list[Sample]:
        return [sample for sample in self.samples if sample.second > second]


def joined(parts: Sequence[Sequence[Sample]]) -> list[Sample]:
    """The samples of several gateways, added up by second."""
    if len(parts) == 1:
        return list(parts[0])
    found: dict[int, Sample] = {}
    for samples in parts:
        for sample in samples:
            if (known := found.get(sample.second)) is None:
                found[sample.second] = replace(sample, outcomes=dict(sample.outcomes))
            else:
                known.add(sample)
    return [found[second] for second in sorted(found)][-KEPT:]
