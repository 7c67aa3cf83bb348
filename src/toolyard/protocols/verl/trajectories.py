"""A trajectory is a session: opened by its first action, closed when the trainer says that it is over, or when idle."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence

from toolyard.core.actions import Action, actions_of
from toolyard.core.environment import Environment
from toolyard.core.errors import SessionExists, SessionFailed, ToolyardError, describe
from toolyard.core.output import JsonObject, Returned, TextBlock, ToolFailure, ToolOutput, as_output
from toolyard.placement.base import SessionSpec, Task
from toolyard.placement.steps import Later, all_of
from toolyard.protocols.verl.batches import Item
from toolyard.protocols.verl.observations import FINISHED, Observation, Observed, observe, refused
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import PlainCall, Session
from toolyard.tools.environment import ToolsEnvironment

log = logging.getLogger("toolyard.verl")

_PREFIX = "verl:"
"""Trainers number their trajectories as they like; other clients of the server must not meet them by chance."""


class Trajectories:
    def __init__(self, runtime: Runtime, *, done_if_invalid: bool, explain_invalid: bool) -> None:
        self._runtime = runtime
        self._done_if_invalid = done_if_invalid
        self._explain_invalid = explain_invalid
        served = list(runtime.environments.values())
        self._actions = {environment: actions_of(environment) for environment in served}
        tools = [tool for environment in served for tool in environment._definition.tools.values()]
        self._has_plain = not all(tool.is_async for tool in tools)
        self._default = next((env for env in served if issubclass(env, ToolsEnvironment)), served[0])

    @property
    def open(self) -> int:
        """How many there are now."""
        return sum(session_id.startswith(_PREFIX) for session_id in self._runtime.sessions)

    async def act(self, items: Sequence[Item]) -> list[Observed]:
        """Everything at once, but the actions of one trajectory in their order."""
        if len(items) == 1:
            begun = self._begin(items[0])
            return [begun if isinstance(begun, Observed) else await begun]
        if len({item.trajectory for item in items}) == len(items):
            if self._has_plain:
                return await self._act_in_threads(items)
            return await all_of(items, self._begin)
        trajectories: dict[str, list[int]] = {}
        for i, item in enumerate(items):
            trajectories.setdefault(item.trajectory, []).append(i)
        observed: dict[int, Observed] = {}

        async def follow(places: Sequence[int]) -> None:
            for i in places:
                begun = self._begin(items[i])
                observed[i] = begun if isinstance(begun, Observed) else await begun

        await asyncio.gather(*map(follow, trajectories.values()))
        return [observed[i] for i in range(len(items))]

    async def _act_in_threads(self, items: Sequence[Item]) -> list[Observed]:
        """Hand all plain functions to the threads at once, and take care of the other items meanwhile."""
        plain: dict[int, tuple[PlainCall, Action]] = {}
        for i, item in enumerate(items):
            if (found := self._plain(item)) is not None:
                plain[i] = found
        if not plain:
            return await all_of(items, self._begin)
        others = [i for i in range(len(items)) if i not in plain]
        told, observed = await asyncio.gather(
            self._runtime.run_plain([call for call, _ in plain.values()]),
            all_of([items[i] for i in others], self._begin),
        )
        whole = dict(zip(others, observed, strict=True))
        for (i, (call, action)), returned in zip(plain.items(), told, strict=True):
            whole[i] = self._observe(call.session, items[i], action, returned)
        return [whole[i] for i in range(len(items))]

    def _plain(self, item: Item) -> tuple[PlainCall, Action] | None:
        """The call of an item, if it is a plain function that may begin."""
        session = self._runtime.sessions.get(_PREFIX + item.trajectory)
        if session is None or item.finish or item.last:
            return None
        action = self._actions[session.spec.environment].read(item.text)
        if action is None:
            return None
        call = session.plain(action.tool, action.arguments, self._given(session, item, action))
        return None if call is None else (call, action)

    def _begin(self, item: Item) -> Later[Observed]:
        """The usual case on the spot: a tool that never waits, in a session that is there and stays."""
        session = self._runtime.sessions.get(_PREFIX + item.trajectory)
        if session is None or item.finish or item.last:
            return self._guarded(item, self._open_and_close(item))
        try:
            begun = self._perform(session, item)
        except Exception as error:  # ours: other trajectories go on
            return _refused(item, error)
        return begun if isinstance(begun, Observed) else self._guarded(item, begun)

    async def _guarded(self, item: Item, work: Awaitable[Observed]) -> Observed:
        """Whatever goes wrong is the answer to this one action."""
        try:
            return await work
        except Exception as error:  # ours, or an environment's constructor: other trajectories go on
            return _refused(item, error)

    async def _open_and_close(self, item: Item) -> Observed:
        session_id = _PREFIX + item.trajectory
        if item.finish:
            await self._runtime.close(session_id)
            return FINISHED
        session = self._runtime.sessions.get(session_id) or await self._open(session_id, item.extra)
        begun = self._perform(session, item)
        observed = begun if isinstance(begun, Observed) else await begun
        if item.last:
            await self._runtime.close(session_id)
        return observed

    def _perform(self, session: Session, item: Item) -> Later[Observed]:
        environment = session.spec.environment
        action = self._actions[environment].read(item.text)
        if action is None:
            if not item.text and not issubclass(environment, ToolsEnvironment):
                return self._prompt(session)
            return Observed(self._no_tool(environment), self._done_if_invalid, valid=False)
        begun = session.begin(action.tool, action.arguments, self._given(session, item, action))
        if isinstance(begun, str):
            return Observed(action.form.answer(item.text, begun), False, True)
        if isinstance(begun, ToolOutput | ToolFailure):
            return self._observe(session, item, action, begun)
        return self._rest(session, item, action, begun)

    def _given(self, session: Session, item: Item, action: Action) -> JsonObject:
        """What the trainer says with the call, if the tool wants to know."""
        tool = session.spec.environment._definition.tools.get(action.tool)
        if tool is None or not tool.given:
            return {}
        return {**item.extra, "trajectory_id": item.trajectory, "is_last_step": item.last}

    async def _rest(self, session: Session, item: Item, action: Action, begun: Awaitable[Returned]) -> Observed:
        return self._observe(session, item, action, await begun)

    def _observe(self, session: Session, item: Item, action: Action, returned: Returned) -> Observed:
        result = as_output(returned) if isinstance(returned, str) else returned
        sent_images = "images" in item.extra or "images" in session.spec.task.spec
        return observe(result, action.form, item.text, with_images=sent_images)

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
                return environment, Task(extra)


def _refused(item: Item, error: Exception) -> Observed:
    if isinstance(error, ToolyardError):
        log.warning("trajectory %s: %s", item.trajectory, error)
        return refused(str(error))
    log.error("trajectory %s", item.trajectory, exc_info=error)
    return refused(describe(error))
