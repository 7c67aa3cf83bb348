"""Episodes counted by environment, task or run, and two runs compared task by task."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, TypeAlias

from toolyard.core.output import JsonObject
from toolyard.episodes.statistics import Summary, mean_interval
from toolyard.episodes.store import Episode

BY = ("environment", "split", "task", "run", "wire")
Key: TypeAlias = tuple[Any, ...]


def task_of(episode: Episode) -> str:
    """The identity of a task: its content, since lists of tasks change."""
    return f"{episode.environment} {json.dumps(episode.task, sort_keys=True)}"


def shown_task(episode: Episode) -> str:
    """A short name of a task."""
    if episode.split is not None:
        return f"{episode.split} {episode.index}"
    text = json.dumps(episode.task, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


@dataclass
class Group:
    """Episodes to count together."""

    outcomes: Counter[str] = field(default_factory=Counter)
    steps: int = 0
    returns: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    tasks: set[str] = field(default_factory=set)

    def add(self, episode: Episode) -> None:
        self.outcomes[episode.outcome] += 1
        self.steps += episode.steps
        task = task_of(episode)
        self.tasks.add(task)
        if episode.total is not None:
            self.returns[task].append(episode.total)

    def as_json(self) -> dict[str, Any]:
        n = self.outcomes.total()
        summary = Summary(list(self.returns.values()))
        most = max(map(len, self.returns.values()), default=0)
        return {
            "n": n,
            "tasks": len(self.tasks),
            "scored": summary.scored,
            "mean_return": summary.mean,
            "ci95": summary.interval,
            "pass@1": summary.pass_at(1),
            f"pass@{most}" if most > 1 else "pass@k": summary.pass_at(most) if most > 1 else None,
            "mean_steps": self.steps / n if n else None,
            "outcomes": dict(self.outcomes),
        }


def grouped(episodes: Iterable[Episode], by: Sequence[str]) -> Iterator[tuple[Mapping[str, str], Group]]:
    groups: dict[Key, Group] = {}
    names: dict[Key, Mapping[str, str]] = {}
    for episode in episodes:
        key = tuple(task_of(episode) if name == "task" else getattr(episode, name) for name in by)
        if key not in groups:
            groups[key] = Group()
            names[key] = {name: shown_task(episode) if name == "task" else getattr(episode, name) for name in by}
        groups[key].add(episode)
    for key, group in groups.items():
        yield names[key], group


@dataclass(frozen=True, slots=True)
class Pair:
    """One task in two runs."""

    task: str
    first: float
    second: float


def compared(first: Iterable[Episode], second: Iterable[Episode]) -> tuple[Sequence[Pair], JsonObject]:
    """The tasks that both runs scored, and how the second differs from the first."""
    means, names = _means(first), {}
    pairs: list[Pair] = []
    others = _means(second)
    for task in means.keys() & others.keys():
        names[task] = means[task][0]
        pairs.append(Pair(means[task][0], means[task][1], others[task][1]))
    pairs.sort(key=lambda pair: (pair.second - pair.first, pair.task))
    differences = [pair.second - pair.first for pair in pairs]
    return pairs, {
        "tasks": len(pairs),
        "only_first": len(means.keys() - others.keys()),
        "only_second": len(others.keys() - means.keys()),
        "better": sum(pair.second > pair.first for pair in pairs),
        "worse": sum(pair.second < pair.first for pair in pairs),
        "same": sum(pair.second == pair.first for pair in pairs),
        "difference": fmean(differences) if differences else None,
        "ci95": mean_interval(differences),
    }


def _means(episodes: Iterable[Episode]) -> Mapping[str, tuple[str, float]]:
    returns: dict[str, list[float]] = defaultdict(list)
    names: dict[str, str] = {}
    for episode in episodes:
        if episode.total is not None:
            task = task_of(episode)
            returns[task].append(episode.total)
            names[task] = shown_task(episode)
    return {task: (names[task], fmean(found)) for task, found in returns.items()}
