"""Means with their intervals, and pass@k. Attempts are grouped by task; those without a score do not count."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

_FEW_TASKS = 200
"""With fewer tasks, returns of 0 and 1 get the exact interval of a share: that of 0 of 20 is no point."""
_LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Summary:
    """The scored attempts of some tasks. `by_task` has the returns of each task."""

    by_task: Sequence[Sequence[float]]

    @property
    def scored(self) -> int:
        return sum(map(len, self.by_task))

    @property
    def mean(self) -> float | None:
        """The mean over tasks of the mean of each."""
        means = self._means
        return fmean(means) if means else None

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval of the mean; None for less than two tasks."""
        means = self._means
        if not means:
            return None
        if len(means) < _FEW_TASKS and set(means) <= {0.0, 1.0}:
            return share_interval(int(sum(means)), len(means))
        return mean_interval(means)

    def pass_at(self, k: int, least: float = 1.0) -> float | None:
        """An unbiased estimate of the chance that at least one of k attempts passes; None if no task has k attempts."""
        return self._over_tasks(k, least, lambda n, c: 1.0 - _choose(n - c, k) / _choose(n, k))

    def pass_all(self, k: int, least: float = 1.0) -> float | None:
        """The chance that all of k attempts pass."""
        return self._over_tasks(k, least, lambda n, c: _choose(c, k) / _choose(n, k))

    def too_few(self, k: int) -> int:
        """How many tasks were scored less often than k times."""
        return sum(len(returns) < k for returns in self.by_task)

    @property
    def _means(self) -> Sequence[float]:
        return [fmean(returns) for returns in self.by_task if returns]

    def _over_tasks(self, k: int, least: float, chance: Callable[[int, int], float]) -> float | None:
        chances = [
            chance(len(returns), sum(one >= least for one in returns)) for returns in self.by_task if len(returns) >= k
        ]
        return fmean(chances) if chances else None


def _choose(n: int, k: int) -> float:
    return float(math.comb(n, k)) if n >= k else 0.0


def mean_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Student's interval of a mean; None for less than two values."""
    if len(values) < 2:
        return None
    middle, half = fmean(values), t_quantile(len(values) - 1) * stdev(values) / math.sqrt(len(values))
    return middle - half, middle + half


def share_interval(passed: int, n: int) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share."""
    tail = (1 - _LEVEL) / 2
    low = 0.0 if passed == 0 else _solve(lambda p: beta_share(passed, n - passed + 1, p), tail)
    high = 1.0 if passed == n else _solve(lambda p: beta_share(passed + 1, n - passed, p), 1 - tail)
    return low, high


def t_quantile(freedom: int) -> float:
    """The half-width of a mean's interval, in standard errors."""
    tail = 1 - _LEVEL
    share = _solve(lambda x: beta_share(freedom / 2, 0.5, x), tail)
    return math.sqrt(freedom * (1 - share) / share)


def beta_share(a: float, b: float, x: float) -> float:
    """The regularised incomplete beta function, by its continued fraction."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    tiny = 1e-300
    c, d = 1.0, 1 / _away_from_zero(1 - (a + b) * x / (a + 1), tiny)
    value = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / _away_from_zero(1 + step * d, tiny)
            c = _away_from_zero(1 + step / c, tiny)
            value *= d * c
        if abs(d * c - 1) < 1e-14:
            break
    return value


def _away_from_zero(value: float, tiny: float) -> float:
    return value if abs(value) > tiny else tiny


def _solve(rising: Callable[[float], float], wanted: float) -> float:
    """Find where a rising function on 0 to 1 has a value."""
    low, high = 0.0, 1.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return (low + high) / 2
