"""A trajectory is a session: its first action opens it. It is closed when the trainer ends it, or when it is idle."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.core.actions import actions_of
from toolyard.core.environment import Environment
from toolyard.core.errors import (
    Overloaded,
    SandboxError,
    ServiceUnavailable,
    SessionClosed,
    SessionExists,
    SessionFailed,
    SessionNotFound,
    ToolyardError,
    describe,
)
from toolyard.core.forms import Form
from toolyard.core.output import JsonObject, Returned, TextBlock
from toolyard.origins import found_in
from toolyard.placement.base import Origin, SessionSpec, Task
from toolyard.protocols.verl.batches import Item
from toolyard.protocols.verl.observations import FINISHED, Observation, Observed, Result, lost, observe, refused
from toolyard.runtime.call import Call
from toolyard.runtime.eager import BREATH, breathe, eagerly
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.session_ids import TRAJECTORY
from toolyard.tools.environment import ToolsEnvironment

log = logging.getLogger("toolyard.verl")

_ORIGIN = Origin("verl")
_PREFIX = TRAJECTORY
"""Trainers choose the names of their trajectories. The prefix keeps other clients from hitting one by chance."""


@dataclass(slots=True)
class Started:
    """An action whose call has started, and may be done already."""

    session: Session
    form: Form
    call: Call[Returned]


class Trajectories:
    def __init__(self, runtime: Runtime, *, done_if_invalid: bool, explain_invalid: bool) -> None:
        self._runtime = runtime
        self._done_if_invalid = done_if_invalid
        self._explain_invalid = explain_invalid
        served = list(runtime.environments.values())
        self._actions = {environment: actions_of(environment) for environment in served}
        self._opens_at_once = all(map(runtime.opens_at_once, served))
        self._default = next((env for env in served if issubclass(env, ToolsEnvironment)), served[0])

    @property
    def open(self) -> int:
        """How many trajectories are open."""
        return sum(session_id.startswith(_PREFIX) for session_id in self._runtime.sessions)

    async def act(self, items: Sequence[Item]) -> list[Result]:
        """Act for all trajectories at once. Several items of one trajectory run one after the other."""
        of_each: dict[str, list[int]] = {}
        for i, item in enumerate(items):
            of_each.setdefault(item[0], []).append(i)
        if len(of_each) == len(items):
            return await self._act(items)
        results: dict[int, Result] = {}

        async def one_by_one(places: Sequence[int]) -> None:
            for i in places:
                (results[i],) = await self._act([items[i]])

        await asyncio.gather(*map(one_by_one, of_each.values()))
        return [results[i] for i in range(len(items))]

    async def _act(self, items: Sequence[Item]) -> list[Result]:
        """Open missing trajectories, start the calls, write their results, close trajectories that are over."""
        problems = await self._open_missing(items)
        started: list[Result | Started | asyncio.Task[Result]] = []
        until = time.monotonic() + BREATH
        for item in items:
            started.append((problems and problems.get(item[0])) or self._start(item))
            if time.monotonic() > until:
                until = await breathe()
        results: list[Result] = []
        for item, one in zip(items, started, strict=True):
            if isinstance(one, Started):
                if not one.call.done:
                    await one.call.wait()
                results.append(_tell(item, one))
            else:
                results.append(await one if isinstance(one, asyncio.Task) else one)
        await self._close(items)
        return results

    async def _open_missing(self, items: Sequence[Item]) -> Mapping[str, Observed]:
        """Open the trajectories that begin here. Return the observations of those that cannot be opened."""
        sessions = self._runtime.sessions
        problems: dict[str, Observed] = {}
        missing: dict[str, dict[str, Any]] = {}
        for trajectory, _, extra, finish, _ in items:
            if not finish and _PREFIX + trajectory not in sessions:
                missing[trajectory] = extra
        if not missing:
            return problems
        unopened = set(missing)  # cheaper than to ask each task whether it is done
        opening: list[asyncio.Task[None]] = []
        until = time.monotonic() + BREATH
        for trajectory, extra in missing.items():
            work = self._open(trajectory, extra, unopened, problems)
            if self._opens_at_once and "split" not in extra:
                await work
            else:
                opening.append(eagerly(work))
            if time.monotonic() > until:
                until = await breathe()
        if unopened:
            await asyncio.wait(opening)
        return problems

    async def _open(
        self, trajectory: str, extra: JsonObject, unopened: set[str], problems: dict[str, Observed]
    ) -> None:
        try:
            named = extra.get("environment") or extra.get("env_name")
            environment = self._runtime.environment(named) if isinstance(named, str) else self._default
            is_said = "task_spec" in extra or "split" in extra
            task = await self._task(environment, extra) if is_said else Task({**extra})
            origin = found_in(extra, _ORIGIN)
            await self._runtime.open(SessionSpec(_PREFIX + trajectory, environment, task, origin=origin))
        except SessionExists:  # another request was faster
            pass
        except ToolyardError as error:
            problems[trajectory] = _refused(trajectory, error)
        except Exception as error:  # the author's constructor
            problems[trajectory] = _refused(trajectory, SessionFailed(describe(error)))
        finally:
            unopened.discard(trajectory)

    def _start(self, item: Item) -> Result | Started | asyncio.Task[Result]:
        trajectory, text, extra, finish, last = item
        if finish:
            return FINISHED
        try:
            session = self._runtime.sessions.get(_PREFIX + trajectory)
            if session is None:  # closed meanwhile, by another request or as idle
                raise SessionNotFound("Active environment not found")
            environment = session.spec.environment
            action = self._actions[environment].read(text)
            if action is None:
                if not text and not issubclass(environment, ToolsEnvironment):
                    return eagerly(self._prompt(trajectory, session))
                return Observed(self._no_tool(environment), self._done_if_invalid, valid=False)
            tool, arguments, form, wants_given = action
            given = {**extra, "trajectory_id": trajectory, "is_last_step": last} if wants_given else {}
            return Started(session, form, session.start(tool, arguments, given=given, said=text, kept=False))
        except Exception as error:  # ours: other trajectories go on
            return _refused(trajectory, error)

    async def _prompt(self, trajectory: str, session: Session) -> Result:
        """Answer an empty text, which is no action, with the prompt of the task."""
        try:
            blocks = await session.prompt()
        except Exception as error:  # ours, or the author's get_prompt(): other trajectories go on
            return _refused(trajectory, error)
        text = "\n".join(block.text for block in blocks if isinstance(block, TextBlock))
        return Observed(text, done=False, valid=False)

    def _no_tool(self, environment: type[Environment]) -> Observation:
        if not self._explain_invalid:
            return ""
        tools = [f"• {tool.name}: {tool.spec.description}" for tool in environment._definition.tools.values()]
        return {
            "obs": "",
            "invalid_reason": "No valid tool found for action",
            "available_tools": "\n".join(["Available tools:", *tools]),
        }

    async def _close(self, items: Sequence[Item]) -> None:
        ending: list[asyncio.Task[None]] = []
        until = time.monotonic() + BREATH
        for trajectory, _, _, finish, last in items:
            if finish or last:
                if (closing := self._runtime.close_soon(_PREFIX + trajectory)) is not None:
                    ending.append(closing)
                if time.monotonic() > until:
                    until = await breathe()
        if ending:
            await asyncio.wait(ending)

    async def _task(self, environment: type[Environment], extra: JsonObject) -> Task:
        """The task of a trajectory, from the trainer's extra fields."""
        match extra:
            case {"task_spec": dict(spec)}:
                return Task(spec)
            case {"split": str(split), "index": int(index)} if not issubclass(environment, ToolsEnvironment):
                return await self._runtime.tasks(environment).at(split, index)
            case _:
                return Task({**extra})


def _tell(item: Item, started: Started) -> Result:
    """Write the result of an action, as its form does after the text."""
    trajectory, text, extra, _, _ = item
    returned, form = started.call.result, started.form
    try:
        if isinstance(returned, str):
            return form.answer(text, returned)
        sent_images = "images" in extra or "images" in started.session.spec.task.spec
        return observe(returned, form, text, with_images=sent_images)
    except Exception as error:  # the author's form
        return _refused(trajectory, error)


def _refused(trajectory: str, error: Exception) -> Observed:
    if isinstance(error, ToolyardError):
        log.warning("trajectory %s: %s", trajectory, error)
        match error:
            case Overloaded():
                return lost(str(error), "overloaded")
            case ServiceUnavailable() | SandboxError() | SessionClosed() | SessionNotFound():
                return lost(str(error))
            case _:
                return refused(str(error))
    log.error("trajectory %s", trajectory, exc_info=error)
    return refused(describe(error))
