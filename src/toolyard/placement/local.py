"""Environments in this process: coroutines on the loop, plain functions in threads."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

from pydantic import ValidationError

from toolyard.core.environment import (
    Environment,
    Toolset,
    build_toolset,
    is_built_by_us,
    lists_task_tools,
    overrides,
    toolset_tears_down,
)
from toolyard.core.errors import (
    BrowserError,
    DefinitionError,
    NotSupported,
    SandboxError,
    ServiceUnavailable,
    ToolError,
    ToolsetUnavailable,
    ToolyardError,
    WorkspaceError,
    describe,
)
from toolyard.core.hooks import without_super
from toolyard.core.messages import GroupCandidate, GroupScore, Message, flatten
from toolyard.core.mistakes import no_such_tool, of_pydantic, wrong_arguments
from toolyard.core.output import (
    AskAgain,
    Blocks,
    JsonObject,
    Reply,
    ToolFailure,
    ToolOutput,
    as_blocks,
    as_output,
    as_reply,
    has_image,
)
from toolyard.core.reading import tools_of
from toolyard.core.schema import fit
from toolyard.core.services import Blame, blame_of, is_shortage
from toolyard.core.tool import ListToolsOutput, Tool, ToolSpec
from toolyard.core.workspace import Workspace
from toolyard.placement.base import SessionSpec, Strategy, list_session_tools
from toolyard.placement.threads import Threads

log = logging.getLogger("toolyard.environment")

T = TypeVar("T")

_DISCARD_SECONDS = 10.0
"""How long `stop` waits for teardowns that run without a caller."""
_SET_BY_US = ("task_spec", "secrets")
"""What the constructor of `Environment` sets."""


class LocalPlacement:
    processes = 0
    is_here = True
    problem = ""

    def __init__(self, threads: int) -> None:
        self._most_threads = threads
        self._threads = Threads(threads)
        self._discarding: set[asyncio.Task[None]] = set()

    def prepare(self) -> None:
        """There is nothing to prepare."""

    async def place(self, spec: SessionSpec) -> LocalEnvironment:
        made, task, secrets = spec.environment, spec.task.spec, spec.secrets
        if overrides(made, "__init__"):
            build = partial(_construct, made, task, secrets)
            env = await self.construct(build, lambda env: LocalEnvironment(env, self).teardown())
        else:  # the constructor of Environment itself only stores two values, which is not worth a thread
            env = made(task, secrets)
        placed = LocalEnvironment(env, self)
        if spec.toolset is not None:
            try:
                await placed.prefer(spec.toolset)
            except Exception:
                await placed.teardown()
                raise
            except asyncio.CancelledError:  # the caller has given up, and would not wait for the teardown either
                self._discard(placed.teardown())
                raise
        return placed

    async def construct(self, build: Callable[[], T], tear_down: Callable[[T], Coroutine[Any, Any, None]]) -> T:
        """Call a constructor in a thread, which cannot be stopped. If it returns after the caller gave up, tear its
        instance down."""
        loop = asyncio.get_running_loop()
        made: list[T] = []
        given_up = False

        def discard() -> None:
            while made:  # the thread and the caller may both ask for this
                self._discard(tear_down(made.pop()))

        def construct() -> None:
            made.append(build())
            if given_up:
                loop.call_soon_threadsafe(discard)

        try:
            await self._threads.run(construct)
            return made.pop()
        except BaseException:
            given_up = True
            discard()
            raise

    def _discard(self, teardown: Coroutine[Any, Any, None]) -> None:
        """Run a teardown for which no caller waits."""
        discarding = asyncio.ensure_future(teardown)
        self._discarding.add(discarding)
        discarding.add_done_callback(self._discarded)

    def _discarded(self, discarding: asyncio.Task[None]) -> None:
        self._discarding.discard(discarding)
        if not discarding.cancelled() and (error := discarding.exception()) is not None:  # the author's teardown()
            log.error("teardown() raised %s", describe(error), exc_info=error)

    async def ask(self, hook: Callable[..., Any], *args: object, always: bool = False) -> Any:
        if inspect.iscoroutinefunction(hook):
            return await contained(hook(*args))
        return await self.plain(partial(hook, *args) if args else hook, always=always)

    async def plain(self, function: Callable[[], Any], *, always: bool = False) -> Any:
        """Run a plain function in a thread. If it returns an awaitable, await that here."""
        answer = await self._threads.run(function, always=always)
        return await contained(answer) if inspect.isawaitable(answer) else answer

    async def stop(self) -> None:
        if self._discarding:
            _, late = await asyncio.wait(self._discarding, timeout=_DISCARD_SECONDS)
            for discarding in late:
                log.error("teardown() took over %g s and was given up", _DISCARD_SECONDS)
                discarding.cancel()
        self.close()

    @property
    def hung(self) -> int:
        """How many plain functions still run although their callers gave up."""
        return self._threads.hung

    def close(self) -> None:
        """Let the threads end. Later calls get new threads."""
        self._threads.close()
        self._threads = Threads(self._most_threads)


def _construct(made: type[Environment], task: JsonObject, secrets: Mapping[str, str]) -> Environment:
    """Call the author's constructor, and check that it called ours."""
    try:
        env = made(task_spec=task, secrets=secrets)
    except AttributeError as error:
        if error.name in _SET_BY_US and type(error.obj) is made:
            raise DefinitionError(without_super(made)) from error
        raise
    if not all(hasattr(env, name) for name in _SET_BY_US):
        raise DefinitionError(without_super(made))
    return env


async def contained(work: Awaitable[T]) -> T:
    """Await the author's coroutine. Turn an exception that would end the server, or that looks like our own
    cancelling, into a usual one."""
    try:
        return await work
    except Exception:
        raise
    except BaseException as error:
        raise outside(error) from error


def outside(error: BaseException) -> Exception:
    """An `Exception` for what the author's code raised instead, such as SystemExit. Raise it if we cancelled."""
    if not isinstance(error, asyncio.CancelledError):
        return RuntimeError(describe(error))
    current = asyncio.current_task()
    if current is not None and current.cancelling():
        raise error
    return RuntimeError("something that it waited for was cancelled")


@functools.cache
def _tools_by_name(toolset: type) -> Mapping[str, Tool]:
    return {tool.name: tool for tool in tools_of(toolset)}


def tools_with(environment: type[Environment], toolset: type | None) -> Mapping[str, Tool]:
    """The tools of an environment and of the toolset that a client asked for, which wins where names are equal."""
    tools = environment._definition.tools
    return tools if toolset is None else {**tools, **_tools_by_name(toolset)}


class LocalEnvironment:
    holds = False
    lost = ""
    __slots__ = ("_env", "_instances", "_place", "tools")

    def __init__(self, env: Environment, place: LocalPlacement) -> None:
        self._env = env
        self._place = place
        definition = type(env)._definition
        self.tools: Mapping[str, Tool] = definition.tools
        self._instances: dict[type, object] = {}
        if not definition.sets_up:  # else a toolset may need something that setup() makes, such as a sandbox
            for toolset in type(env).toolsets:
                self._instances[toolset] = build_toolset(toolset, env)

    @property
    def environment(self) -> Environment:
        return self._env

    def move_to(self, place: LocalPlacement) -> None:
        self._place = place

    async def prefer(self, toolset: type) -> None:
        """Let the tools of a toolset replace those of the environment with the same names."""
        try:
            self._instances[toolset] = await self._built(toolset)
        except Exception as error:  # the author's toolset, which may need what this environment does not have
            if isinstance(error, ValueError):
                raise ToolsetUnavailable(str(error)) from error
            raise
        self.tools = tools_with(type(self._env), toolset)

    async def setup(self) -> None:
        if overrides(type(self._env), "setup"):
            await self._place.ask(self._env.setup)
        for toolset in type(self._env).toolsets:
            self._instances[toolset] = await self._built(toolset)

    async def _built(self, toolset: type) -> object:
        """An instance of a toolset. Our constructors never block; an author's may, and runs in a thread."""
        if is_built_by_us(toolset):
            return build_toolset(toolset, self._env)
        return await self._place.construct(partial(build_toolset, toolset, self._env), self._tear_down_toolset)

    async def _tear_down_toolset(self, instance: object) -> None:
        if isinstance(instance, Toolset) and toolset_tears_down(type(instance)):
            await self._place.ask(instance.teardown, always=True)

    async def teardown(self) -> None:
        """Tear down the environment, then its toolsets. Each runs even if the one before has failed."""
        async with AsyncExitStack() as last_first:
            for toolset, instance in self._instances.items():
                if isinstance(instance, Toolset) and toolset_tears_down(toolset):
                    last_first.push_async_callback(self._place.ask, instance.teardown, always=True)
            if overrides(type(self._env), "teardown"):
                last_first.push_async_callback(self._place.ask, self._env.teardown, always=True)

    async def prompt(self) -> Blocks:
        if overrides(type(self._env), "get_prompt"):
            prompt = await self._place.ask(self._env.get_prompt)
            return as_blocks(prompt) if not has_image(prompt) else await self._drawn(as_blocks, prompt)
        return flatten(await self._place.ask(self._env.get_messages))

    async def messages(self) -> Sequence[Message]:
        if overrides(type(self._env), "get_messages"):
            answer: Sequence[Message] = await self._place.ask(self._env.get_messages)
            return answer
        return [Message(role="user", blocks=await self.prompt())]

    async def list_tools(self) -> ListToolsOutput:
        own = [spec for _, spec in await self._dynamic()]
        return await list_session_tools(type(self._env), self.tools, self._place, own)

    async def has_tool(self, name: str) -> bool:
        return name in self.tools or await self._find_dynamic(name) is not None

    async def call(self, tool: str, arguments: JsonObject, given: JsonObject) -> Reply:
        found = self.tools.get(tool)
        try:
            if found is None:
                return await self._call_dynamic(tool, arguments)
            if not found.is_async:
                reply: Reply = await self._place.plain(partial(self._call_plain, found, arguments, given))
                return reply
            returned = self._called(found, arguments, given)
            if not isinstance(returned, ToolFailure):
                returned = await returned
            if isinstance(returned, (str, ToolOutput, ToolFailure, AskAgain)):
                return returned
            return await self._drawn(as_output, returned) if has_image(returned) else as_output(returned)
        except BaseException as error:  # the author's tool: any exception of it is the result of the call
            return failure(tool, error)

    def _call_plain(self, tool: Tool, arguments: JsonObject, given: JsonObject) -> Reply | Awaitable[Reply]:
        """Runs in a thread, with all conversions: validators may take as long as the tool itself."""
        returned = self._called(tool, arguments, given)
        if isinstance(returned, (str, ToolFailure)):
            return returned
        return _converted(returned) if inspect.isawaitable(returned) else as_reply(returned)

    def _called(self, tool: Tool, arguments: JsonObject, given: JsonObject) -> Any:
        """Call the author's method. Return its result, or an awaitable of it, or the failure of the validation."""
        env = self._env
        owner = self._instances.get(tool.owner, env) if self._instances else env
        try:
            positional, named = tool.fit(arguments, given, env.task_spec if tool.given else {})
        except ValidationError as error:
            return wrong_arguments(tool.name, tool.spec.input_schema, arguments, of_pydantic(error, arguments))
        return tool.method_of(owner)(*positional, **named)

    async def score_group(self, candidates: Sequence[GroupCandidate]) -> Sequence[GroupScore]:
        if not overrides(type(self._env), "score_group"):
            raise NotSupported(f"Environment {type(self._env).name()!r} does not implement score_group")
        try:
            answer = await self._place.ask(self._env.score_group, list(candidates))
        except Exception as error:  # the author's
            if blame_of(error) is None or isinstance(error, ToolyardError):
                raise
            raise ServiceUnavailable(f"score_group() asked a service that failed: {_briefly(error)}") from error
        scores = [score if isinstance(score, GroupScore) else GroupScore(reward=float(score)) for score in answer]
        if (wrong := next((score.reward for score in scores if not math.isfinite(score.reward)), None)) is not None:
            raise ValueError(f"score_group returned a reward of {wrong}: a reward is a finite number")
        if len(scores) != len(candidates):
            raise ValueError(f"score_group returned {len(scores)} scores for {len(candidates)} candidates")
        return scores

    async def workspace(self) -> Workspace:
        found: Workspace = await self._place.ask(self._env.workspace)
        return found

    async def fork(self, specs: Sequence[SessionSpec]) -> tuple[Sequence[LocalEnvironment], Strategy]:
        if not overrides(type(self._env), "fork"):
            raise NotSupported(f"{type(self._env).name()} has no fork(), and its sessions have no process of their own")
        made: list[LocalEnvironment] = []
        try:
            for _ in specs:
                made.append(LocalEnvironment(await self._place.ask(self._env.fork), self._place))
                await self._fork_toolsets(made[-1])
        except BaseException:
            await asyncio.gather(*(one.teardown() for one in made), return_exceptions=True)  # the author's, of each
            raise
        return made, "hook"

    async def _fork_toolsets(self, made: LocalEnvironment) -> None:
        made.tools = self.tools
        for toolset, instance in self._instances.items():
            if isinstance(instance, Toolset):
                made._instances[toolset] = await self._place.ask(instance.fork, made._env)
            else:  # a toolset of ORS, which has no fork()
                made._instances[toolset] = await made._built(toolset)

    async def _dynamic(self) -> Sequence[tuple[Any, ToolSpec]]:
        """The tools that only this session has, each with the object that runs it."""
        found: list[tuple[Any, ToolSpec]] = []
        owners: list[Any] = [self._env, *self._instances.values()]
        for owner in owners:
            if lists_task_tools(type(owner)):
                listed: ListToolsOutput = await self._place.ask(owner.list_task_tools)
                found += [(owner, spec) for spec in listed.tools]
        return found

    async def _find_dynamic(self, name: str) -> tuple[Any, ToolSpec] | None:
        if (hidden := type(self._env)._definition.catalogue.get(name)) is not None:
            owner, spec = hidden
            return self._instances.get(owner, self._env), spec
        return next(((owner, spec) for owner, spec in await self._dynamic() if spec.name == name), None)

    async def _call_dynamic(self, name: str, arguments: JsonObject) -> Reply:
        found = await self._find_dynamic(name)
        if found is None or (found[0] is self._env and not overrides(type(self._env), "call_task_tool")):
            listed = [tool.name for tool in self.tools.values() if not tool.terminal]
            own = [spec.name for _, spec in await self._dynamic() if spec.name != name]
            return no_such_tool(name, dict.fromkeys([*listed, *own]), type(self._env)._definition.catalogue)
        owner, spec = found
        fitted, mistakes = fit(arguments, spec.input_schema)
        if mistakes:
            return wrong_arguments(name, spec.input_schema, arguments, mistakes)
        returned = await self._place.ask(owner.call_task_tool, name, fitted)
        return as_reply(returned) if not has_image(returned) else await self._drawn(as_output, returned)

    async def _drawn(self, make: Callable[[object], T], returned: object) -> T:
        """Make blocks of what an author returned, in a thread, because encoding an image takes time."""
        made: T = await self._place.plain(partial(make, returned))
        return made


async def _converted(returned: Awaitable[object]) -> Reply:
    return as_reply(await returned)


def failure(tool: str, error: BaseException) -> ToolFailure:
    """The result of a tool that raised. Raises `error` again if we cancelled the call."""
    if isinstance(error, ToolError | WorkspaceError):  # the agent should read that a path does not exist
        return ToolFailure(
            "tool_failed", f"Tool {tool!r} failed: {error}", getattr(error, "detail", None) or str(error)
        )
    if isinstance(error, SandboxError | BrowserError | ServiceUnavailable):  # its own message says enough
        log.warning("tool %r could not be run: %s", tool, error)
        return ToolFailure("lost", f"Tool {tool!r} could not be run: {error}")
    if isinstance(error, BaseExceptionGroup):
        _forget_cancelling()
    if (reason := blame_of(error)) is not None:  # a service that the author's tool uses
        return _unanswered(tool, reason, error)
    if isinstance(error, Exception):
        return raised(tool, error)
    usual = outside(error)
    usual.__cause__ = error
    return raised(tool, usual)


def _unanswered(tool: str, reason: Blame, error: BaseException) -> ToolFailure:
    what = "a service that it asks failed" if reason == "lost" else "it gave up waiting"
    if is_shortage(error):
        what = "the server ran short of something"
    log.warning("tool %r could not be run: %s: %s", tool, what, describe(error), exc_info=error)
    return ToolFailure(reason, f"Tool {tool!r} could not be run: {what}: {_briefly(error)}")


def _forget_cancelling() -> None:
    """Before Python 3.13 a TaskGroup may leave its task marked as cancelled, and our caller runs in the same task."""
    current = asyncio.current_task() if asyncio._get_running_loop() is not None else None
    if sys.version_info < (3, 13) and current is not None and current.cancelling():
        current.uncancel()


def _briefly(error: BaseException) -> str:
    """One line about the error. Of a group, the first exception is enough."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return describe(error) if str(error) else type(error).__name__


def raised(tool: str, error: BaseException) -> ToolFailure:
    log.warning("tool %r raised %s", tool, describe(error), exc_info=error)
    return ToolFailure("tool_raised", str(error) or type(error).__name__)
