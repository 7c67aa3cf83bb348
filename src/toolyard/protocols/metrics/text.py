"""Writes Prometheus' text format, version 0.0.4."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels: TypeAlias = Mapping[str, str]
Sample: TypeAlias = tuple[str, Labels, float]
"""The suffix after the family's name, the labels, and the value."""


class Histogram:
    """Counts values by bucket. `samples` adds them up, because a bucket of Prometheus includes all smaller ones."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def add_least(self, count: int, total: float) -> None:
        """Add so many values of the first bucket, with this sum."""
        self._counts[0] += count
        self._sum += total

    @property
    def counts(self) -> Sequence[int]:
        """How many values are in each bucket; the last has no upper bound."""
        return self._counts

    @property
    def sum(self) -> float:
        return self._sum

    def samples(self, labels: Labels) -> Iterator[Sample]:
        total = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            yield "_bucket", {**labels, "le": bound}, total
        yield "_sum", labels, self._sum
        yield "_count", labels, total


def family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> Iterator[str]:
    yield f"# HELP {name} {about}\n# TYPE {name} {kind}\n"
    for suffix, labels, value in samples:
        yield f"{name}{suffix}{braces(labels)} {value:.16g}\n"


def braces(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in labels.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def one(value: float, labels: Labels = {}) -> Sequence[Sample]:
    return [("", labels, value)]


def by_environment(values: Mapping[str, float]) -> Iterator[Sample]:
    for name, value in values.items():
        yield "", {"environment": name}, value


def labelled(label: str, values: Iterable[tuple[str, str, float]]) -> Iterator[Sample]:
    for environment, other, value in values:
        yield "", {"environment": environment, label: other}, value


def triples(counted: Mapping[tuple[str, str], float]) -> Iterator[tuple[str, str, float]]:
    return ((*key, value) for key, value in counted.items())
