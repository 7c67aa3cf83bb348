"""One look at a server: its metrics, read back from Prometheus' text format."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_LINE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class ServerLook:
    """A server's metrics at one moment."""

    url: str
    at: float
    health: Mapping[str, Any]
    samples: Sequence[Sample]

    def of(self, name: str, **labels: str) -> Iterator[Sample]:
        return (sample for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items())

    def sum(self, name: str, **labels: str) -> float:
        return sum(sample.value for sample in self.of(name, **labels))

    def info(self, name: str) -> Mapping[str, str]:
        return next((sample.labels for sample in self.of(name)), {})

    def by(self, label: str, name: str, **labels: str) -> dict[str, int]:
        """The sums for each value of a label, without zeros, the largest first."""
        counted: Counter[str] = Counter()
        for sample in self.of(name, **labels):
            counted[sample.labels[label]] += int(sample.value)
        return {key: count for key, count in counted.most_common() if count}

    def within(self, share: float, name: str, **labels: str) -> float | None:
        """The least bound of a histogram's buckets within which this share of it is; None if it is empty."""
        buckets: Counter[float] = Counter()
        for sample in self.of(f"{name}_bucket", **labels):
            buckets[float(sample.labels["le"])] += int(sample.value)
        total = self.sum(f"{name}_count", **labels)
        return (
            min((bound for bound, count in buckets.items() if count >= share * total), default=None) if total else None
        )

    @property
    def environments(self) -> Sequence[str]:
        return sorted({sample.labels["environment"] for sample in self.of("toolyard_sessions_opened_total")})

    @property
    def gateways(self) -> int:
        """How many processes are behind this address; a single one has no number."""
        return len(list(self.of("toolyard_ready")))

    @property
    def uptime(self) -> float:
        return time.time() - min(
            (sample.value for sample in self.of("process_start_time_seconds")), default=time.time()
        )

    @property
    def ready(self) -> bool:
        return bool(self.sum("toolyard_ready"))


def read(text: str) -> Iterator[Sample]:
    """Read Prometheus' text format, as the server writes it."""
    for line in text.split("\n"):
        if not line.startswith("#") and (found := _LINE.fullmatch(line)):
            name, labels, value = found.groups()
            yield Sample(name, {key: plain(text) for key, text in _LABEL.findall(labels or "")}, float(value))


def plain(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
