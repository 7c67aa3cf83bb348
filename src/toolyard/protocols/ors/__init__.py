"""The Open Reward Standard: JSON for everything, server-sent events for a tool call. Both SDKs' dialects at once."""

from __future__ import annotations

import asyncio
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeAlias
from urllib.parse import quote

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import Disconnected, HttpError, HttpOptions, Request, Verbosity, explain, header_in, wrong_method
from toolyard.core.environment import Environment, overrides
from toolyard.core.errors import (
    CallConflict,
    CallNotFound,
    CannotFork,
    DefinitionError,
    EnvironmentNotFound,
    NoRoom,
    NotSupported,
    Overloaded,
    SessionClosed,
    SessionExists,
    SessionFailed,
    SessionNotFound,
    SplitNotFound,
    TaskNotFound,
    ToolsetUnavailable,
    ToolyardError,
    WorkspaceError,
)
from toolyard.core.messages import GroupScore
from toolyard.core.output import CallResult, Returned, ToolFailure
from toolyard.core.search import search
from toolyard.origins import origin_of, said_in
from toolyard.placement.base import Placed, SessionSpec, Task, list_tools
from toolyard.protocols.ors import bodies, events
from toolyard.readiness import health
from toolyard.runtime.call import Call
from toolyard.runtime.grants import hide_tokens
from toolyard.runtime.lifecycle import State
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.session_ids import HEADER, session_id
from toolyard.version import __version__

log = logging.getLogger("toolyard.ors")

Endpoint: TypeAlias = Callable[[Request, str], Awaitable[None]]
"""Answers a request. The second argument is the environment's name in the path, empty for root endpoints."""

Write: TypeAlias = Callable[[Request, Any], bytes]
"""Writes the result of a call as the last events of the answer to this request."""

Options = HttpOptions


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Ors(runtime, options)]


class Ors(BaseRoute):
    """Takes every path that no other protocol takes: an ORS client drops any base path."""

    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._root: dict[str, tuple[str, Endpoint]] = {
            "health": ("GET", self.health),
            "list_environments": ("GET", self.list_environments),
            "version": ("GET", self.version),
            "create_session": ("POST", self.create_session),
            "create": ("POST", self.create),
            "ping": ("POST", self.ping),
            "delete": ("POST", self.delete),
            "delete_session": ("POST", self.delete),
        }
        self._scoped: dict[str, tuple[str, Endpoint]] = {
            "call": ("POST", self.call),
            "prompt": ("GET", self.prompt),
            "messages": ("GET", self.messages),
            "tools": ("GET", self.tools),
            "search_tools": ("POST", self.search_tools),
            "task_tools": ("GET", self.task_tools),
            "splits": ("GET", self.splits),
            "tasks": ("POST", self.tasks),
            "num_tasks": ("POST", self.num_tasks),
            "task": ("POST", self.task),
            "get_task": ("POST", self.task),
            "task_range": ("POST", self.task_range),
            "get_task_range": ("POST", self.task_range),
            "score_group": ("POST", self.score_group),
            "fork": ("POST", self.fork),
            "download_files": ("POST", self.download_files),
            "upload_files": ("POST", self.upload_files),
        }
        self._paths: dict[str, tuple[str, Endpoint, str]] = {
            **{f"/{name}": (*found, "") for name, found in self._root.items()},
            **{f"/{env}/{name}": (*found, env) for env in runtime.environments for name, found in self._scoped.items()},
        }
        """The endpoint of each path as clients usually write it, with the environment's name."""
        for name in runtime.environments:
            if name in self._root or name in self._scoped:
                raise DefinitionError(f"an environment cannot be called {name!r}: that is a path of ORS itself")

    # From a path to an endpoint.

    @property
    def paths(self) -> Collection[str]:
        return self._paths

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return Match.FULL, {}

    def session_of(self, scope: Scope) -> str:
        """The session that a request names, under the client's id; empty if it names none."""
        return header_in(scope, HEADER)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        try:
            endpoint, env = self._find(request)
            await endpoint(request, env)
        except (HttpError, Disconnected):
            raise
        except ToolyardError as error:
            raise as_http(error, self._options.errors) from error
        except Exception as error:
            log.exception("%s %s", scope["method"], hide_tokens(scope["path"]))
            if request.started:
                raise
            raise HttpError(500, explain(error, self._options.errors)) from error

    def _find(self, request: Request) -> tuple[Endpoint, str]:
        path: str = request.scope["path"]
        if (known := self._paths.get(path)) is not None:
            method, endpoint, env = known
            return self._checked(request, method, endpoint), env
        if "//" in path:
            path = re.sub("/+", "/", path)
        if path != "/" and path.endswith("/"):
            raise self._redirect(request, path.rstrip("/"), 307)
        first, _, rest = path[1:].partition("/")
        if rest:
            self._runtime.environment(first)
            if found := self._scoped.get(rest):
                return self._checked(request, *found), first
        elif found := self._root.get(first):
            return self._checked(request, *found), ""
        elif first in self._scoped:
            raise self._redirect(request, f"/{self._default(request)}/{first}", 308)
        raise HttpError(404, "Not Found")

    def _checked(self, request: Request, method: str, endpoint: Endpoint) -> Endpoint:
        if request.scope["method"] != method:
            raise wrong_method(method)
        return endpoint

    def _redirect(self, request: Request, path: str, status: int) -> HttpError:
        query = request.scope["query_string"]
        location = quote(path).encode() + (b"?" + query if query else b"")
        return HttpError(status, None, [(b"location", location)])

    def _default(self, request: Request) -> str:
        """The environment that a path without a name means: the deployment's, if it is served here, else the first."""
        deployment = request.header(b"x-deployment").rpartition("/")[2].lower()
        return deployment if deployment in self._runtime.environments else next(iter(self._runtime.environments))

    # What the server has.

    async def health(self, request: Request, _: str) -> None:
        status, body = health(self._runtime)
        await request.answer_json(body, status)

    async def version(self, request: Request, _: str) -> None:
        await request.answer_json({"version": __version__, "build_sha": None})

    async def list_environments(self, request: Request, _: str) -> None:
        await request.answer_json(list(self._runtime.environments))

    async def tools(self, request: Request, env: str) -> None:
        listed = await list_tools(self._runtime.environment(env), self._runtime.placement)
        await request.answer_json(listed.model_dump())

    async def search_tools(self, request: Request, env: str) -> None:
        """Toolyard's extension of ORS: the tools that fit a question, including those that are not listed."""
        body = bodies.parse(bodies.Search, await request.body())
        found = await asyncio.to_thread(search, self._runtime.environment(env), body.question, body.top_k)
        await request.answer_json({"tools": [spec.model_dump() for spec in found]})

    async def splits(self, request: Request, env: str) -> None:
        splits = await self._runtime.tasks(self._runtime.environment(env)).splits()
        await request.answer_json([vars(split) for split in splits])

    async def tasks(self, request: Request, env: str) -> None:
        body = bodies.parse(bodies.SplitName, await request.body())
        tasks = await self._runtime.tasks(self._runtime.environment(env)).all(body.split)
        await request.answer_json({"tasks": tasks, "env_name": env})

    async def num_tasks(self, request: Request, env: str) -> None:
        body = bodies.parse(bodies.SplitName, await request.body())
        count = await self._runtime.tasks(self._runtime.environment(env)).count(body.split)
        await request.answer_json({"num_tasks": count})

    async def task(self, request: Request, env: str) -> None:
        body = bodies.parse(bodies.TaskAt, await request.body())
        task = await self._runtime.tasks(self._runtime.environment(env)).at(body.split, body.index)
        await request.answer_json({"task": task.spec, "env_name": env})

    async def task_range(self, request: Request, env: str) -> None:
        body = bodies.parse(bodies.TaskRange, await request.body())
        tasks = await self._runtime.tasks(self._runtime.environment(env)).between(body.split, body.start, body.stop)
        await request.answer_json({"tasks": tasks, "env_name": env})

    # Sessions.

    async def create_session(self, request: Request, _: str) -> None:
        """Only hand out an id: as an event, as the SDKs want it, or as JSON, as the documents do."""
        sid = self._runtime.owners.draw(new_id)
        if "text/event-stream" in request.header(b"accept"):
            end = b'event: end\ndata: {"sid":"%b"}\n\n' % sid.encode()
            await request.answer(200, events.HEADERS, events.named(sid) + end)
        else:
            await request.answer_json({"sid": sid})

    async def create(self, request: Request, _: str) -> None:
        sid = session_id(request)
        body = bodies.parse(bodies.Create, await request.body())
        secrets = {**bodies.parse_secrets(request.header(b"x-secrets")), **(body.secrets or {})}
        if sid in self._runtime.sessions:
            raise SessionExists("Session already exists")
        toolset = self._runtime.toolset(body.toolset_name) if body.toolset_name is not None else None
        environment, task, named = await self._resolve(request, body)
        await self._runtime.open(
            SessionSpec(sid, environment, task, secrets, toolset, origin_of(request, "ors")),
            provisional=not named and task.index is not None and len(self._runtime.environments) > 1,
        )
        await request.answer_json({"sid": sid})

    async def _resolve(self, request: Request, body: bodies.Create) -> tuple[type[Environment], Task, bool]:
        """The environment and task of a new session, and whether the client named the environment."""
        deployment = self._default(request)
        named = body.env_name is not None or deployment != next(iter(self._runtime.environments))
        environment = self._runtime.environment(body.env_name or deployment)
        if body.task_spec is not None:
            return environment, Task(body.task_spec), named
        assert body.split is not None
        assert body.index is not None
        try:
            return environment, await self._runtime.tasks(environment).at(body.split, body.index), named
        except (SplitNotFound, TaskNotFound):
            if named:
                raise
            for other in self._runtime.environments.values():  # the client may mean another one, which has such a task
                try:
                    return other, await self._runtime.tasks(other).at(body.split, body.index), named
                except (SplitNotFound, TaskNotFound, NotSupported):
                    continue
            raise

    async def ping(self, request: Request, _: str) -> None:
        self._runtime.session(session_id(request)).touch()
        await request.answer_json({"status": "ok"})

    async def delete(self, request: Request, _: str) -> None:
        sid = session_id(request)
        await self._runtime.close(sid)
        await request.answer_json({"sid": sid})

    # In a session.

    async def prompt(self, request: Request, env: str) -> None:
        await self._ready(request, env)
        blocks = await self._runtime.session(session_id(request)).prompt()
        await request.answer_json([vars(block) for block in blocks])

    async def messages(self, request: Request, env: str) -> None:
        messages = await (await self._ready(request, env)).messages()
        await request.answer_json([message.model_dump() for message in messages])

    async def task_tools(self, request: Request, env: str) -> None:
        session = await self._session(session_id(request), env)
        listed = await session.tools_before_setup()
        if listed is None:
            listed = await (await self._ready(request, env)).list_tools()
        await request.answer_json(listed.model_dump())

    async def call(self, request: Request, env: str) -> None:
        sid = session_id(request)
        body = bodies.parse(bodies.ToolCall, await request.body())
        session = await self._session(sid, env)
        if session.state is State.FAILED:
            await session.ready()  # raises what setup() raised
        try:
            said = said_in(request) if self._runtime.journal.recorder is not None else ""
            call = session.start(body.name, body.input, call_id=body.task_id, said=said)
        except (CallNotFound, CallConflict) as error:
            await request.answer(200, events.HEADERS, events.error(str(error)))
            return
        await self._follow(request, call, result)

    async def fork(self, request: Request, env: str) -> None:
        """Toolyard's extension of ORS: open more sessions that continue from this one."""
        session = await self._session(session_id(request), env)
        body = bodies.parse(bodies.Fork, await request.body() or b"{}")
        family = session.id.partition(".")[0]  # by which a balancer finds that they are on the same server
        ids = [self._runtime.owners.draw(lambda: f"{family}.{new_id()}") for _ in range(body.count)]
        strategy = await self._runtime.fork(session, ids)
        if request.is_gone():  # no other client knows their ids
            await asyncio.gather(*map(self._runtime.close, ids))
            raise Disconnected
        await request.answer_json({"sids": ids, "strategy": strategy})

    async def download_files(self, request: Request, env: str) -> None:
        """Our extension of ORS: a file or a folder of the session's workspace, as a tar archive."""
        body = bodies.parse(bodies.FilesAt, await request.body() or b"{}")
        workspace = await (await self._ready(request, env)).workspace()
        data = await workspace.pack(body.path)
        await request.answer(200, [(b"content-type", b"application/x-tar")], data)

    async def upload_files(self, request: Request, env: str) -> None:
        """Our extension of ORS: unpack a tar archive into a folder of the session's workspace."""
        sid = session_id(request)
        body = bodies.parse(bodies.Archive, await request.body())
        workspace = await (await self._ready(request, env)).workspace()
        (await self._session(sid, env)).cannot_be_repeated()
        await workspace.unpack(body.archive, body.path)
        await request.answer_json({})

    async def score_group(self, request: Request, env: str) -> None:
        sid = session_id(request)
        body = bodies.parse(bodies.ScoreGroup, await request.body())
        session = await self._session(sid, env)
        if not overrides(session.spec.environment, "score_group"):
            raise HttpError(404, f"Environment {env!r} does not implement score_group")
        try:
            call = session.score_group(body.candidates, body.task_id)
        except (CallNotFound, CallConflict) as error:
            await request.answer(200, events.HEADERS, events.error(str(error)))
            return
        await self._follow(request, call, scores)

    async def _follow(self, request: Request, call: Call[Any], write: Write) -> None:
        """Send the id of the call and its result: in one answer if the call is done, else as a stream with pings."""
        if call.done:
            await request.answer(200, events.HEADERS, events.named(call.id) + write(request, call.result))
            return
        await request.start(events.HEADERS)
        await request.write(events.named(call.id))
        while not await call.wait(self._options.ping_seconds):
            await request.write(b": ping - %d\n\n" % time.time())
        await request.write(write(request, call.result), last=True)

    async def _ready(self, request: Request, env: str) -> Placed:
        """The session's environment, once it is set up. If that takes longer than `starting_seconds`, answer 503."""
        session = await self._session(session_id(request), env)
        if not self._options.starting_seconds or session.state is not State.STARTING:
            return await session.ready()
        try:
            async with asyncio.timeout(self._options.starting_seconds):
                return await session.ready()
        except TimeoutError:
            headers = [(b"x-backend-state", b"starting"), (b"retry-after", b"2")]
            raise HttpError(503, "Environment still starting.", headers) from None

    async def _session(self, sid: str, env: str) -> Session:
        """Find the session. If its client opened it without naming an environment, the first path that names one
        decides."""
        session = self._runtime.session(sid)
        return await self._runtime.decide(session, env) if session.provisional else session


def new_id() -> str:
    return str(uuid.uuid4())


def result(request: Request, outcome: Returned) -> bytes:
    """Write the result of a tool call. The dialects differ only in failures and in outputs of images alone."""
    if isinstance(outcome, str):
        return events.text(outcome)
    differs = isinstance(outcome, ToolFailure) or events.only_images(outcome)
    return events.for_openreward(outcome) if differs and speaks_openreward(request) else events.result(outcome)


def scores(_: Request, outcome: CallResult | Sequence[GroupScore]) -> bytes:
    return events.scores(outcome)


def speaks_openreward(request: Request) -> bool:
    """Whether the client is OpenReward's: by its user agent or, behind a proxy, by a header that only it sends."""
    return request.header(b"user-agent").startswith("openreward") or bool(request.header(b"x-deployment"))


def as_http(error: ToolyardError, verbosity: Verbosity) -> HttpError:
    """The status and words that ORS clients expect. Where our own words say more, they are the hint."""
    match error:
        case SplitNotFound():
            return HttpError(400, "Invalid split", hint=str(error))
        case TaskNotFound():
            return HttpError(400, "Invalid index", hint=str(error))
        case ToolsetUnavailable() | SessionExists():
            return HttpError(400, str(error))
        case EnvironmentNotFound() | SessionNotFound():
            return HttpError(404, str(error))
        case SessionClosed():
            return HttpError(410, str(error))
        case Overloaded() | NoRoom():
            return HttpError(503, str(error), [(b"retry-after", b"%d" % error.retry_after)])
        case NotSupported() | WorkspaceError():
            return HttpError(400, str(error))
        case CannotFork():
            return HttpError(409, str(error))
        case SessionFailed() | DefinitionError() if verbosity == "none":
            return HttpError(500, explain(error, verbosity))
        case _:
            return HttpError(500, str(error))
