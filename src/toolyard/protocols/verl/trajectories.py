"""A trajectory is a session: opened by its first action, closed when the trainer says that it is over, or when idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Coroutine, Mapping, Sequence
from typing import TypeVar

from toolyard.core.actions import actions_of
from toolyard.core.environment import Environment
from toolyard.core.errors import ServiceUnavailable, SessionExists, SessionFailed, ToolyardError, describe
from toolyard.core.forms import Form
from toolyard.core.output import JsonObject, Returned, TextBlock
from toolyard.placement.base import SessionSpec, Task
from toolyard.placement.steps import Later, all_of, at_once
from toolyard.protocols.verl.batches import Batch, Item
from toolyard.protocols.verl.observations import FINISHED, Observation, Observed, Told, lost, observe, refused
from toolyard.runtime.names import TRAJECTORY
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.runtime.together import Wanted
from toolyard.tools.environment import ToolsEnvironment

log = logging.getLogger("toolyard.verl")

T = TypeVar("T")

_MANY = 256
"""Items that are acted on at a time."""
_NO_TIME = 0.002
"""Seconds in which so many are done, if they do next to nothing."""
_PREFIX = TRAJECTORY
"""Trainers number their trajectories as they like; other clients of the server must not meet them by chance."""


class Trajectories:
    def __init__(self, runtime: Runtime, *, done_if_invalid: bool, explain_invalid: bool) -> None:
        self._runtime = runtime
        self._done_if_invalid = done_if_invalid
        self._explain_invalid = explain_invalid
        served = list(runtime.environments.values())
        self._actions = {environment: actions_of(environment) for environment in served}
        self._default = next((env for env in served if issubclass(env, ToolsEnvironment)), served[0])

    @property
    def open(self) -> int:
        """How many there are now."""
        return sum(session_id.startswith(_PREFIX) for session_id in self._runtime.sessions)

    async def act(self, batch: Batch) -> list[Told]:
        """Everything at once, but the actions of one trajectory in their order."""
        if batch.size == 1 and not self._runtime.has_plain:
            return [await self._do(batch.first())]
        if len(set(batch.trajectories)) < batch.size:
            return await self._act_in_order(batch.items())
        if batch.size <= _MANY:
            return await self._act_together(batch.items())
        parts = await (self._act_in_threads(batch) if self._runtime.has_plain else self._act_in_parts(batch))
        return [one for part in parts for one in part]

    async def _act_in_order(self, items: Sequence[Item]) -> list[Told]:
        """Some trajectories have several actions."""
        trajectories: dict[str, list[int]] = {}
        for i, (trajectory, *_) in enumerate(items):
            trajectories.setdefault(trajectory, []).append(i)
        told: dict[int, Told] = {}

        async def follow(places: Sequence[int]) -> None:
            for i in places:
                told[i] = await self._do(items[i])

        await asyncio.gather(*map(follow, trajectories.values()))
        return [told[i] for i in range(len(items))]

    async def _act_in_parts(self, batch: Batch) -> list[list[Told]]:
        """What is needed for a part of them stays in the processor's caches until it is over."""

        def begin(start: int) -> Later[list[Told]]:
            return at_once(self._act_together(batch.part(start, start + _MANY)))

        return await all_of(range(0, batch.size, _MANY), begin, portion=1)

    async def _act_in_threads(self, batch: Batch) -> list[list[Told]]:
        """Plain functions go to the threads many at a time; all of them at once as soon as they take their time.

        Those that take none come back while what they need is still in the processor's caches.
        """
        acting: list[asyncio.Task[list[Told]]] = []
        async with asyncio.TaskGroup() as group:
            for start in range(0, batch.size, _MANY):
                acting.append(group.create_task(self._act_together(batch.part(start, start + _MANY))))
                await asyncio.wait(acting, timeout=_NO_TIME)
        return [acted.result() for acted in acting]

    async def _act_together(self, items: Sequence[Item]) -> list[Told]:
        """Make all calls, and take care of the other items meanwhile."""
        told: dict[int, Told] = {**await self._open_missing(items)} if self._runtime.has_plain else {}
        wanted, forms, left = self._calls_in(items)
        if not left:
            return await self._make(items, wanted, forms)
        calls = [i for i in range(len(items)) if i not in left]
        others = [i for i in left if i not in told]
        made, done = await asyncio.gather(
            self._make([items[i] for i in calls], wanted, forms), self._act_on([items[i] for i in others])
        )
        told.update(zip(calls, made, strict=True))
        told.update(zip(others, done, strict=True))
        return [told[i] for i in range(len(items))]

    async def _act_on(self, items: Sequence[Item]) -> list[Told]:
        return await all_of(items, self._begin)

    def _calls_in(self, items: Sequence[Item]) -> tuple[list[Wanted], list[Form], dict[int, None]]:
        """What is to be called, and how the results are to be written; and the places of items that are left out: those
        without a call, and those that open or close a session."""
        sessions, actions = self._runtime.sessions, self._actions
        wanted: list[Wanted] = []
        forms: list[Form] = []
        left: dict[int, None] = {}
        for i, (trajectory, text, extra, finish, last) in enumerate(items):
            session = sessions.get(_PREFIX + trajectory)
            if session is None or finish or last or (action := actions[session.spec.environment].read(text)) is None:
                left[i] = None
                continue
            tool, arguments, form, wants_given = action
            if wants_given:  # in place: nobody else has these extra fields
                extra["trajectory_id"], extra["is_last_step"] = trajectory, False
            wanted.append((session, tool, arguments, extra if wants_given else {}))
            forms.append(form)
        return wanted, forms, left

    async def _make(self, items: Sequence[Item], wanted: Sequence[Wanted], forms: Sequence[Form]) -> list[Told]:
        returned = await self._runtime.call_all(wanted)
        told: list[Told] = []
        for item, form, call, one in zip(items, forms, wanted, returned, strict=True):
            try:
                told.append(form.answer(item[1], one) if type(one) is str else _tell(call[0], item, form, one))
            except Exception as error:  # the author's form
                told.append(_refused(item[0], error))
        return told

    async def _open_missing(self, items: Sequence[Item]) -> Mapping[int, Observed]:
        """Open the trajectories that begin here and will go on. What is told of those that cannot be opened."""
        sessions = self._runtime.sessions
        places = [
            i
            for i, (trajectory, _, _, finish, last) in enumerate(items)
            if _PREFIX + trajectory not in sessions and not finish and not last
        ]
        if not places:
            return {}
        opened = await all_of([items[i] for i in places], self._begin_to_open)
        return {i: one for i, one in zip(places, opened, strict=True) if isinstance(one, Observed)}

    def _begin_to_open(self, item: Item) -> Later[Session | Observed]:
        trajectory, _, extra, _, _ = item
        return at_once(_guarded(trajectory, self._open(_PREFIX + trajectory, extra)))

    async def _do(self, item: Item) -> Told:
        begun = self._begin(item)
        return begun if type(begun) is str or not isinstance(begun, Coroutine) else await begun

    def _begin(self, item: Item) -> Later[Told]:
        """The usual case on the spot: a tool that never waits, in a session that is there and stays."""
        trajectory, _, _, finish, last = item
        session = self._runtime.sessions.get(_PREFIX + trajectory)
        if session is None or finish or last:
            return _guarded(trajectory, self._open_and_close(item))
        try:
            begun = self._perform(session, item)
        except Exception as error:  # ours: other trajectories go on
            return _refused(trajectory, error)
        return begun if isinstance(begun, (str, Observed)) else _guarded(trajectory, begun)

    async def _open_and_close(self, item: Item) -> Told:
        trajectory, _, extra, finish, last = item
        session_id = _PREFIX + trajectory
        if finish:
            await self._runtime.close(session_id)
            return FINISHED
        session = self._runtime.sessions.get(session_id) or await self._open(session_id, extra)
        begun = self._perform(session, item)
        told = await begun if isinstance(begun, Coroutine) else begun
        if last:
            await self._runtime.close(session_id)
        return told

    def _perform(self, session: Session, item: Item) -> Later[Told]:
        trajectory, text, extra, _, last = item
        environment = session.spec.environment
        action = self._actions[environment].read(text)
        if action is None:
            if not text and not issubclass(environment, ToolsEnvironment):
                return self._prompt(session)
            return Observed(self._no_tool(environment), self._done_if_invalid, valid=False)
        tool, arguments, form, wants_given = action
        given = {**extra, "trajectory_id": trajectory, "is_last_step": last} if wants_given else {}
        begun = session.begin(tool, arguments, given)
        if type(begun) is str:
            return form.answer(text, begun)
        if isinstance(begun, Coroutine):
            return _rest(session, item, form, begun)
        return _tell(session, item, form, begun)

    async def _prompt(self, session: Session) -> Observed:
        """An empty text is no action: whoever has nothing to say is shown the task."""
        blocks = await (await session.ready()).prompt()
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

    async def _open(self, session_id: str, extra: JsonObject) -> Session:
        environment, task = await self._task(extra)
        try:
            return await self._runtime.open(SessionSpec(session_id, environment, task))
        except SessionExists:  # another request was faster
            return self._runtime.session(session_id)
        except ToolyardError:
            raise
        except Exception as error:  # the environment's constructor
            raise SessionFailed(describe(error)) from error

    async def _task(self, extra: JsonObject) -> tuple[type[Environment], Task]:
        """What the trainer's extra fields say that the trajectory is about."""
        named = extra.get("environment") or extra.get("env_name")
        environment = self._runtime.environment(named) if isinstance(named, str) else self._default
        match extra:
            case {"task_spec": dict(spec)}:
                return environment, Task(spec)
            case {"split": str(split), "index": int(index)} if not issubclass(environment, ToolsEnvironment):
                return environment, await self._runtime.tasks(environment).at(split, index)
            case _:
                return environment, Task({**extra})


async def _rest(session: Session, item: Item, form: Form, begun: Awaitable[Returned]) -> Told:
    return _tell(session, item, form, await begun)


def _tell(session: Session, item: Item, form: Form, returned: Returned | Exception) -> Told:
    """What came of an action, written after its text."""
    trajectory, text, extra, _, _ = item
    if isinstance(returned, str):
        return form.answer(text, returned)
    if isinstance(returned, Exception):
        return _refused(trajectory, returned)
    sent_images = "images" in extra or "images" in session.spec.task.spec
    return observe(returned, form, text, with_images=sent_images)


async def _guarded(trajectory: str, work: Awaitable[T]) -> T | Observed:
    """Whatever goes wrong is the answer to this one action."""
    try:
        return await work
    except Exception as error:  # ours, or an environment's constructor: other trajectories go on
        return _refused(trajectory, error)


def _refused(trajectory: str, error: Exception) -> Observed:
    if isinstance(error, ToolyardError):
        log.warning("trajectory %s: %s", trajectory, error)
        return lost(str(error)) if isinstance(error, ServiceUnavailable) else refused(str(error))
    log.error("trajectory %s", trajectory, exc_info=error)
    return refused(describe(error))
