"""What an index needs from a model of the meaning of words. The core has no such model; an extra installs one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Bag: TypeAlias = Mapping[str, float]
"""The words of a text, each with its weight."""
Sums: TypeAlias = tuple[list[float], list[float]]
"""Scores, by tool and by family."""


class MeaningModel(Protocol):
    def read(self, texts: Sequence[Bag], families: Sequence[int], *, weight: float) -> Callable[[Bag], Sums]:
        """Read the texts of tools. `families` has the number of each tool's family; the numbers go from 0 without gaps.

        Return a function that compares another text with them. It scores each tool from 0 to `weight`; the score of a
        family is that of its best tool.
        """


Model = MeaningModel
"""Its name until 0.2."""
