"""Grades recorded episodes anew, without an agent and without a tool, by the environment's own `score()`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from toolyard.core.environment import Environment
from toolyard.core.errors import NotSupported
from toolyard.core.output import JsonObject
from toolyard.episodes.rows import hook_of
from toolyard.episodes.store import Episode, Step

TOTAL = "return"
"""The name of a score if score() returns one number."""


class BadScore(Exception):
    """score() returned something that is no score."""


def scorer_of(environment: type[Environment]) -> Callable[[JsonObject], Any]:
    """The environment's `score()`. Raises `NotSupported` if it has none."""
    found = hook_of(environment, "score")
    if found is None:
        raise NotSupported(
            f"{environment.__qualname__} has no score(): write `@classmethod def score(cls, episode)`, which grades "
            f"a recorded episode; or make the calls again with `toolyard replay --rewards`"
        )
    return found


def scored(
    score: Callable[[JsonObject], Any], episode: Episode, prompt: Sequence[JsonObject] | None, steps: Sequence[Step]
) -> JsonObject | None:
    """The scores by name; None if the environment gives none. Raises `BadScore`, and what the author's code raises."""
    given = score({**episode.whole(steps), "prompt": prompt})
    if given is None:
        return None
    scores = given if isinstance(given, dict) else {TOTAL: given}
    for name, value in scores.items():
        if not isinstance(name, str) or not isinstance(value, int | float) or not math.isfinite(value):
            raise BadScore(f"score() returned {value!r} as {name!r}; a score is a finite number")
    return {name: float(value) for name, value in scores.items()}
