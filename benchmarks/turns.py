"""Servers that take turns under the same load. Only ratios within one round count: a neighbour slows all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from typing import TypeVar

from benchmarks.report import Row

T = TypeVar("T")

_WARMING_SECONDS = 0.3


def in_turns(
    names: Sequence[str], turn: Callable[[str, float], T], *, count: int, seconds: float
) -> Sequence[Mapping[str, T]]:
    """So many rounds, forwards in one and backwards in the next, after a short one that does not count."""
    for name in names:
        turn(name, _WARMING_SECONDS)
    done = []
    for number in range(count):
        order = names if number % 2 == 0 else names[::-1]
        done.append({name: turn(name, seconds) for name in order})
    return done


def row(
    what: str, pairs: Sequence[tuple[float, float]], show: Callable[[float], str], word: str, target: str = ""
) -> Row:
    """The reference's figure and ours, in each round."""
    reference, own = (median(figures) for figures in zip(*pairs, strict=True))
    ratio = median(reference / own for reference, own in pairs)
    return Row(what, show(reference), show(own), f"{ratio:.1f}x {word}", target)
