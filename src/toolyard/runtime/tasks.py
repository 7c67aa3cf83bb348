"""The splits and tasks of an environment. The runtime asks the author for each list once and keeps it."""

from __future__ import annotations

import asyncio
import copy
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from toolyard.core.environment import Environment, Split, as_split, overrides
from toolyard.core.errors import NotSupported, SplitNotFound, TaskNotFound
from toolyard.core.output import JsonObject
from toolyard.placement.base import Placement, Task


@dataclass(frozen=True, slots=True)
class _Listed:
    tasks: Sequence[JsonObject]
    count: int
    lazy: bool
    """Whether indexing it runs the author's code, which may block."""


def _list(tasks: Sequence[JsonObject]) -> _Listed:
    return _Listed(tasks, len(tasks), not isinstance(tasks, list | tuple))


class Tasks:
    """The tasks of one environment."""

    def __init__(self, environment: type[Environment], placement: Placement) -> None:
        self._env = environment
        self._placement = placement
        self._splits: Sequence[Split] | None = None
        self._lists: dict[str, _Listed] = {}
        self._asking: defaultdict[str | None, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By split, so that concurrent requests fetch a list once. None is for the list of splits."""

    async def splits(self) -> Sequence[Split]:
        if self._splits is None:
            async with self._asking[None]:
                if self._splits is None:
                    listed = await self._placement.ask(self._env.list_splits)
                    self._splits = [as_split(split) for split in listed]
        return self._splits

    async def all(self, split: str) -> Sequence[JsonObject]:
        """Every task of a split. Raises NotSupported if the environment only gives one task at a time."""
        listed = await self._listed(split)
        return await self._pick(listed, range(listed.count))

    async def count(self, split: str) -> int:
        if overrides(self._env, "num_tasks"):
            await self._check(split)
            count: int = await self._placement.ask(self._env.num_tasks, split)
            return count
        return (await self._listed(split)).count

    async def at(self, split: str, index: int) -> Task:
        """Task number `index`; negative numbers count from the end."""
        count = await self.count(split)
        if not -count <= index < count:
            raise TaskNotFound(f"{self._env.name()}/{split} has {count} tasks, no number {index}")
        (task,) = await self._some(split, [index % count])
        # A copy: what a session does to its task must not reach the list that all sessions share.
        return Task(copy.deepcopy(task), split, index % count)

    async def between(self, split: str, start: int | None, stop: int | None) -> Sequence[JsonObject]:
        """Tasks of a half-open range, with Python's rules for slices."""
        return await self._some(split, range(await self.count(split))[start:stop])

    async def _some(self, split: str, indexes: Iterable[int]) -> Sequence[JsonObject]:
        if overrides(self._env, "get_task"):
            return [await self._placement.ask(self._env.get_task, split, index) for index in indexes]
        return await self._pick(await self._listed(split), indexes)

    async def _pick(self, listed: _Listed, indexes: Iterable[int]) -> Sequence[JsonObject]:
        def picked() -> Sequence[JsonObject]:
            return [listed.tasks[index] for index in indexes]

        found: Sequence[JsonObject] = await self._placement.ask(picked) if listed.lazy else picked()
        return found

    async def _listed(self, split: str) -> _Listed:
        await self._check(split)
        if split not in self._lists:
            async with self._asking[split]:
                if split not in self._lists:
                    try:
                        tasks = await self._placement.ask(self._env.list_tasks, split)
                    except NotImplementedError:
                        raise NotSupported(
                            "list_tasks is not supported for this environment. Use the index-based API "
                            "(num_tasks + get_task) instead."
                        ) from None
                    self._lists[split] = await self._placement.ask(_list, tasks)
        return self._lists[split]

    async def _check(self, split: str) -> None:
        names = [known.name for known in await self.splits()]
        if split not in names:
            raise SplitNotFound(f"no split {split[:200]!r}; there are {', '.join(map(repr, names))}")
