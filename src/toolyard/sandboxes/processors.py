"""How many processors this process may use, and whether they are idle."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from toolyard.sandboxes.groups import LimitedGroup, groups_around, number, statistic

_IDLE_SHARE = 0.4
"""If processors were idle for this share of the time since the last check, there is room for more."""

_PER_TEMPLATE = 2
"""Making a sandbox for one piece of Python takes its template a third of all the processor time spent. So one template
suffices for two processors, and would slow down four."""


def templates(share: int = 1) -> int:
    """How many template processes of one profile suit one of `share` servers that divide this machine."""
    return math.ceil(usable() / _PER_TEMPLATE / share)


def usable() -> int:
    """By affinity, and by the quotas of the control groups around this process."""
    return max(1, math.ceil(min([len(allowed()), *_quotas()])))


def allowed() -> Sequence[int]:
    return sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)


def _quotas() -> Iterator[float]:
    for group in _groups():
        if (quota := quota_of(group)) is not None:
            yield quota


def quota_of(group: LimitedGroup) -> float | None:
    """How many processors the processes of a group may keep busy; None if unlimited."""
    if group.version == 1:
        quota, period = number(f"{group.path}/cpu.cfs_quota_us"), number(f"{group.path}/cpu.cfs_period_us")
        return quota / period if quota and period else None
    try:
        given, per = Path(group.path, "cpu.max").read_text().split()
    except (OSError, ValueError):
        return None
    return int(given) / int(per) if given.isdigit() else None


@functools.cache
def _groups() -> Sequence[LimitedGroup]:
    return [group for group in groups_around() if "cpu" in group.controllers]


class Idleness:
    """Says whether processors were idle since the previous check."""

    def __init__(self) -> None:
        self._before = _idle_and_all()
        self._throttled = _throttled()

    def seen(self) -> bool:
        before, self._before = self._before, _idle_and_all()
        throttled, self._throttled = self._throttled, _throttled()
        idle, whole = (now - then for now, then in zip(self._before, before, strict=True))
        return whole > 0 and idle / whole > _IDLE_SHARE and throttled == self._throttled


def _idle_and_all() -> tuple[int, int]:
    """Ticks so far of the processors that we may use; zeros where the system does not report them."""
    names = {f"cpu{one}" for one in allowed()}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines() if line.startswith("cpu")]
    except OSError:
        return 0, 0
    ours = [[*map(int, fields)] for name, *fields in lines if name in names]
    return sum(sum(fields[3:5]) for fields in ours), sum(sum(fields[:8]) for fields in ours)


def _throttled() -> int:
    """How often groups around this process were throttled."""
    return sum(statistic(f"{group.path}/cpu.stat", "nr_throttled") for group in _groups())
