"""Which splits and tasks an environment has. A list is asked of the author once and then kept."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from toolyard.core.environment import Environment, Split, as_split, overrides
from toolyard.core.errors import NotSupported, SplitNotFound, TaskNotFound
from toolyard.core.output import JsonObject
from toolyard.placement.base import Placement, Task


class Tasks:
    """The tasks of one environment."""

    def __init__(self, environment: type[Environment], placement: Placement) -> None:
        self._env = environment
        self._placement = placement
        self._splits: Sequence[Split] | None = None
        self._lists: dict[str, Sequence[JsonObject]] = {}
        self._asking = asyncio.Lock()

    async def splits(self) -> Sequence[Split]:
        if self._splits is None:
            async with self._asking:
                if self._splits is None:
                    listed = await self._placement.ask(self._env.list_splits)
                    self._splits = [as_split(split) for split in listed]
        return self._splits

    async def all(self, split: str) -> Sequence[JsonObject]:
        """Every task of a split; NotSupported when the environment can only be asked for one at a time."""
        await self._check(split)
        if split not in self._lists:
            async with self._asking:
                if split not in self._lists:
                    try:
                        self._lists[split] = await self._placement.ask(self._env.list_tasks, split)
                    except NotImplementedError:
                        raise NotSupported(
                            "list_tasks is not supported for this environment. Use the index-based API "
                            "(num_tasks + get_task) instead."
                        ) from None
        return self._lists[split]

    async def count(self, split: str) -> int:
        if overrides(self._env, "num_tasks"):
            await self._check(split)
            count: int = await self._placement.ask(self._env.num_tasks, split)
            return count
        return len(await self.all(split))

    async def at(self, split: str, index: int) -> Task:
        """Task number `index`; negative numbers count from the end."""
        count = await self.count(split)
        if not -count <= index < count:
            raise TaskNotFound(f"{self._env.name()}/{split} has {count} tasks, no number {index}")
        return Task(await self._get(split, index % count), split, index % count)

    async def between(self, split: str, start: int | None, stop: int | None) -> Sequence[JsonObject]:
        """Tasks of a half-open range, with Python's rules for slices."""
        chosen = range(await self.count(split))[start:stop]
        if overrides(self._env, "get_task"):
            return [await self._get(split, index) for index in chosen]
        tasks = await self.all(split)
        return [tasks[index] for index in chosen]

    async def _get(self, split: str, index: int) -> JsonObject:
        if overrides(self._env, "get_task"):
            task: Any = await self._placement.ask(self._env.get_task, split, index)
        else:
            task = (await self.all(split))[index]
        found: JsonObject = task
        return found

    async def _check(self, split: str) -> None:
        names = [known.name for known in await self.splits()]
        if split not in names:
            raise SplitNotFound(f"no split {split!r}; there are {', '.join(map(repr, names))}")
