"""Repeats the calls of an episode in a fresh session of its task, and compares the results."""

from __future__ import annotations

import asyncio
import difflib
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal, TypeAlias

from toolyard.core.as_they_end import as_they_end
from toolyard.core.encoding import encode
from toolyard.core.environment import Environment
from toolyard.core.errors import RequestError, ToolyardError, describe
from toolyard.core.output import JsonObject, Returned, ToolFailure, ToolOutput, as_output, is_retryable
from toolyard.episodes.rows import ASK_AGAIN, plain
from toolyard.episodes.store import Episode, Step, Store
from toolyard.placement.base import Origin, SessionSpec, Task
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session

Verdict: TypeAlias = Literal["same", "differs", "cannot"]

_ORIGIN = Origin("replay")
_AT_ONCE = 200
"""Steps that are read at once."""
_DIFF_MOST = 40
"""The most lines of a difference to show."""


class Cannot(Exception):
    """An episode cannot be replayed. `step` names the step that prevents it; 0 if none does."""

    def __init__(self, why: str, step: int = 0) -> None:
        super().__init__(why)
        self.step = step


@dataclass(frozen=True, slots=True)
class Replayed:
    id: str
    result: Verdict
    old_return: float | None
    new_return: float | None = None
    step: int | None = None
    difference: str | None = None
    """What differs in that step, or why the episode cannot be replayed."""

    def as_json(self) -> JsonObject:
        names = ("id", "result", "step", "difference", "old_return", "new_return")
        return {name: getattr(self, name) for name in names}


@dataclass(frozen=True, slots=True)
class Repetition:
    """A call to repeat. Its result is that of `expected`, a later step if the client had to ask again for it."""

    first: Step
    expected: Step


class Replay:
    def __init__(self, runtime: Runtime, store: Store, *, rewards_only: bool = False) -> None:
        self._runtime = runtime
        self._store = store
        self._rewards_only = rewards_only

    async def all(self, episodes: Iterator[Episode], at_once: int) -> AsyncIterator[Replayed]:
        """Replay episodes, `at_once` at a time. Yields them as they end."""
        async with aclosing(as_they_end(map(self.one, episodes), at_once)) as ending:
            async for replayed in ending:
                yield replayed

    async def one(self, episode: Episode) -> Replayed:
        try:
            if not episode.complete:
                raise Cannot("it is not complete: it goes on, or the server could not keep all of it")
            before, own = self._before(episode), repetitions_of(self._store.steps(episode))
            session = await self._open(episode, f"replay-{uuid.uuid4()}", _ORIGIN)
            try:
                return await self._play(episode, session, before, own)
            finally:
                await self._runtime.close(session.id)
        except Cannot as error:
            return Replayed(episode.id, "cannot", episode.total, step=error.step or None, difference=str(error))

    def _before(self, episode: Episode) -> Sequence[Repetition]:
        """The earlier calls of the episodes that it was forked from."""
        if episode.parent is None:
            return ()
        try:
            parent = self._store.find(episode.parent)
        except ToolyardError as error:
            raise Cannot(f"it continues another episode, and {error}") from None
        steps = [step for step in self._store.steps(parent) if step.number <= (episode.parent_step or 0)]
        return [*self._before(parent), *repetitions_of(steps)]

    async def until(
        self,
        episode: Episode,
        last: int,
        *,
        session_id: str,
        origin: Origin,
        on_open: Callable[[Session], object],
        on_step: Callable[[int], Awaitable[None]],
    ) -> tuple[Session, tuple[int, str] | None]:
        """Make the calls of an episode again up to a step, and leave the session open. Also return the first step
        that came back otherwise than recorded, and how. Memory does not grow with the number of steps.

        Raises `Cannot`. Then, and when the caller is cancelled, the session is closed.
        """
        session = await self._open(episode, session_id, origin)
        try:
            on_open(session)
            for one in self._before(episode):
                await self._repeat(session, one.first)
            first: tuple[int, str] | None = None
            seen = 0
            while seen < last:
                steps = await asyncio.to_thread(self._store.some_steps, episode, seen + 1, min(last - seen, _AT_ONCE))
                if not steps or steps[-1].number != seen + len(steps):
                    raise Cannot("it is not complete: not every step before is in the store", seen + 1)
                for one in repetitions_of(steps):
                    returned = await self._repeat(session, one.first)
                    if first is None and (found := difference(one.expected, returned, rewards_only=False)):
                        first = one.expected.number, found
                    await on_step(one.expected.number)
                seen += len(steps)
        except BaseException:
            await self._runtime.close(session.id)
            raise
        return session, first

    async def _open(self, episode: Episode, session_id: str, origin: Origin) -> Session:
        try:
            environment = self._runtime.environment(episode.environment)
            spec = SessionSpec(session_id, environment, await self._task(episode, environment), origin=origin)
            session = await self._runtime.open(spec)
        except RequestError as error:
            raise Cannot(str(error)) from None
        except Exception as error:  # the runtime's, or the author's constructor
            raise Cannot(f"its session cannot be opened: {describe(error)}") from error
        try:
            await session.ready()
        except Exception as error:  # the author's setup()
            await self._runtime.close(session.id)
            raise Cannot(f"its session cannot be set up: {describe(error)}") from error
        return session

    async def _task(self, episode: Episode, environment: type[Environment]) -> Task:
        """The task in the list, if it is still the same; else the recorded one."""
        if episode.split is not None and episode.index is not None:
            try:
                listed = await self._runtime.tasks(environment).at(episode.split, episode.index)
            except RequestError:
                listed = None
            if listed is not None and encode(listed.spec) == encode(episode.task):
                return listed
        return Task({**episode.task}, episode.split, episode.index)

    async def _play(
        self, episode: Episode, session: Session, before: Sequence[Repetition], own: Sequence[Repetition]
    ) -> Replayed:
        for one in before:
            await self._repeat(session, one.first)
        total: float | None = None
        first: tuple[int, str] | None = None
        for one in own:
            returned = await self._repeat(session, one.first)
            reward = None if isinstance(returned, ToolFailure) else as_output(returned).reward
            if reward is not None:
                total = (total or 0.0) + reward
            if first is None and (found := difference(one.expected, returned, rewards_only=self._rewards_only)):
                first = one.expected.number, found
        if first is None:
            return Replayed(episode.id, "same", episode.total, total)
        return Replayed(episode.id, "differs", episode.total, total, *first)

    async def _repeat(self, session: Session, step: Step) -> Returned:
        returned = await session.start(step.tool, {**step.arguments}, given=step.given).finished()
        if isinstance(returned, ToolFailure) and is_retryable(returned.reason):
            raise Cannot(f"the call could not be made again: {returned.message}", step.number)
        return returned


def repetitions_of(steps: Sequence[Step]) -> Sequence[Repetition]:
    """The calls to repeat. Raises `Cannot` for one that cannot be repeated."""
    repetitions: list[Repetition] = []
    asked: Step | None = None
    for step in steps:
        _check_step(step)
        if asked is not None and step.tool == (asked.metadata or {}).get(ASK_AGAIN):
            if ASK_AGAIN not in (step.metadata or {}):
                repetitions.append(Repetition(asked, step))
                asked = None
        elif ASK_AGAIN in (step.metadata or {}):
            asked = step
        else:
            repetitions.append(Repetition(step, step))
    if asked is not None:
        raise Cannot("its client did not come back for the result", asked.number)
    return repetitions


def _check_step(step: Step) -> None:
    if step.altered:
        raise Cannot("something in the call was not recorded: a secret, or what its author leaves out", step.number)
    if step.outcome in ("lost", "overloaded", "cancelled", "timed_out"):
        raise Cannot(f"the call came to an end that was not its own: {step.outcome}", step.number)
    if "cut_from" in (step.metadata or {}):
        raise Cannot("its result was too large, and is recorded in part", step.number)


def difference(step: Step, returned: Returned, *, rewards_only: bool) -> str:
    """How the result differs from the recorded step, in words; empty if it does not."""
    failure = returned if isinstance(returned, ToolFailure) else None
    output = ToolOutput() if isinstance(returned, ToolFailure) else as_output(returned)
    if step.reward != output.reward:
        return f"reward was {step.reward}, is {output.reward}"
    if (step.rewards or None) != (output.rewards or None):
        return f"rewards were {step.rewards}, are {output.rewards}"
    if rewards_only:
        return ""
    outcome = "ok" if failure is None else failure.reason
    if step.outcome != outcome:
        return f"outcome was {step.outcome}, is {outcome}"
    finished = output.finished if failure is None else failure.finished
    if step.finished != finished:
        return f"finished was {step.finished}, is {finished}"
    blocks = [plain(block) for block in as_output(failure.message if failure else output).blocks]
    return "" if encode(blocks) == encode(list(step.blocks)) else _diff(step.blocks, blocks)


def _diff(old: Sequence[JsonObject], new: Sequence[JsonObject]) -> str:
    lines = list(difflib.unified_diff(_lines(old), _lines(new), "recorded", "replayed", lineterm="", n=1))
    more = [f"… {len(lines) - _DIFF_MOST} more lines"] if len(lines) > _DIFF_MOST else []
    return "\n".join([*lines[:_DIFF_MOST], *more]) or "the blocks differ in their details"


def _lines(blocks: Sequence[JsonObject]) -> list[str]:
    return [
        line
        for block in blocks
        for line in (block["text"].splitlines() if block["type"] == "text" else [f"[image {hash(block['data'])}]"])
    ]
