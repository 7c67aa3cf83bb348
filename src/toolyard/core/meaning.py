"""What an index asks of a model that knows what words mean. There is none in the core: it is what an extra brings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

Bag: TypeAlias = Mapping[str, float]
"""The words of a text, and what each of them counts for."""
Sums: TypeAlias = tuple[list[float], list[float]]
"""What something counts for, by tool and by family."""


class MeaningModel(Protocol):
    def read(self, texts: Sequence[Bag], families: Sequence[int], *, weight: float) -> Callable[[Bag], Sums]:
        """Read the texts of tools. `families` has the number of each one's, from 0 on; none is left out.

        What comes back compares another text with them: how much it is like each, from 0 to `weight`, and how much like
        the one of each family that it is most like.
        """


Model = MeaningModel
"""Its name until 0.2."""
