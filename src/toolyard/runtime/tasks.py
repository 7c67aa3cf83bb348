"""The splits and tasks of an environment. The runtime asks the author for each list once and keeps it."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from toolyard.core.environment import Environment, Split, overrides
from toolyard.core.errors import DefinitionError, NotSupported, SplitNotFound, TaskNotFound
from toolyard.core.output import JsonObject
from toolyard.placement.base import Placement, Task
from toolyard.runtime.listed import as_count, as_splits, as_tasks, check_task, copied

log = logging.getLogger("toolyard.environment")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Listed:
    tasks: Sequence[JsonObject]
    count: int
    lazy: bool
    """Whether indexing it runs the author's code, which may block."""


def _list(environment: type[Environment], split: str, listed: object) -> _Listed:
    tasks = as_tasks(environment, split, listed)
    return _Listed(tasks, len(tasks), not isinstance(tasks, list | tuple))


def _told(function: Callable[..., T], *args: Any) -> T:
    """Call it, and log what is wrong with an author's tasks: the client is told too, but the author reads the log."""
    try:
        return function(*args)
    except DefinitionError as error:
        log.warning("%s", error)
        raise


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
                    self._splits = _told(as_splits, self._env, listed)
        return self._splits

    async def all(self, split: str) -> Sequence[JsonObject]:
        """Every task of a split. Raises NotSupported if the environment only gives one task at a time."""
        listed = await self._listed(split)
        return await self._pick(split, listed, range(listed.count))

    async def count(self, split: str) -> int:
        if overrides(self._env, "num_tasks"):
            await self._check(split)
            return _told(as_count, self._env, split, await self._placement.ask(self._env.num_tasks, split))
        return (await self._listed(split)).count

    async def at(self, split: str, index: int) -> Task:
        """Task number `index`; negative numbers count from the end."""
        count = await self.count(split)
        if not -count <= index < count:
            raise TaskNotFound(f"{self._env.name()}/{split} has {count} tasks, no number {index}")
        (task,) = await self._some(split, [index % count])
        return Task(_told(copied, self._env, split, index % count, task), split, index % count)

    async def between(self, split: str, start: int | None, stop: int | None) -> Sequence[JsonObject]:
        """Tasks of a half-open range, with Python's rules for slices."""
        return await self._some(split, range(await self.count(split))[start:stop])

    async def _some(self, split: str, indexes: Iterable[int]) -> Sequence[JsonObject]:
        if overrides(self._env, "get_task"):
            return [self._checked(split, i, await self._placement.ask(self._env.get_task, split, i)) for i in indexes]
        return await self._pick(split, await self._listed(split), indexes)

    async def _pick(self, split: str, listed: _Listed, indexes: Iterable[int]) -> Sequence[JsonObject]:
        if not listed.lazy:
            return [listed.tasks[index] for index in indexes]

        def picked() -> Sequence[JsonObject]:
            return [self._checked(split, index, listed.tasks[index]) for index in indexes]

        found: Sequence[JsonObject] = await self._placement.ask(picked)
        return found

    def _checked(self, split: str, index: int, task: JsonObject) -> JsonObject:
        _told(check_task, self._env, split, index, task)
        return task

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
                    self._lists[split] = await self._placement.ask(_told, _list, self._env, split, tasks)
        return self._lists[split]

    async def _check(self, split: str) -> None:
        names = [known.name for known in await self.splits()]
        if split not in names:
            there = f"there are {', '.join(map(repr, names))}" if names else f"{self._env.name()} has none"
            raise SplitNotFound(f"no split {split[:200]!r}; {there}")
