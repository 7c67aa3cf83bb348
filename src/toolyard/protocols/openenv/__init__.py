"""OpenEnv under `/openenv/{environment}`: a WebSocket on which a client resets and steps, and its HTTP routes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from typing import Protocol, TypeAlias
from urllib.parse import parse_qs

from pydantic import ValidationError
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpError, HttpOptions, Request, decode, wrong_method
from toolyard.core.environment import Environment
from toolyard.core.errors import DefinitionError, EnvironmentNotFound
from toolyard.origins import origin_of
from toolyard.protocols.openenv import about, observations, rpc
from toolyard.protocols.openenv.messages import Preview, Trouble
from toolyard.protocols.openenv.seats import Seat, Seats, full, is_full
from toolyard.protocols.openenv.sockets import Play, Socket
from toolyard.readiness import health
from toolyard.runtime.runtime import Runtime

ROOT = "/openenv/"

Options = HttpOptions
Endpoint: TypeAlias = Callable[[Request, type[Environment]], Awaitable[None]]

_TASK_API = frozenset({"splits", "tasks", "num_tasks", "task", "task_range"})
_SOCKETS = ("ws", "mcp")
_STATUS = {"CAPACITY_REACHED": 503, "VALIDATION_ERROR": 422}


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [OpenEnv(runtime, options)]


class AnswersTasks(Protocol):
    """Answers requests for splits and tasks, the same on both wires."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


class OpenEnv(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        if "openenv" in runtime.environments:
            raise DefinitionError("an environment cannot be called 'openenv': that is a part of OpenEnv's paths")
        self._runtime = runtime
        self._options = options
        self._seats = Seats(runtime, options.errors)
        self._rpc = rpc.Rpc(runtime, self._seats)
        self.tasks: AnswersTasks | None = None
        self._endpoints: dict[str, tuple[str, Endpoint]] = {
            "health": ("GET", self.health),
            "metadata": ("GET", self.metadata),
            "schema": ("GET", self.schema),
            "openapi.json": ("GET", self.openapi),
            "state": ("GET", self.state),
            "list_environments": ("GET", self.list_environments),
            "reset": ("POST", self.reset),
            "step": ("POST", self.step),
            "mcp": ("POST", self.mcp),
        }

    # From a path to an endpoint.

    @property
    def paths(self) -> Collection[str]:
        return [f"{ROOT}{env}/{name}" for env in self._runtime.environments for name in self._endpoints]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"].startswith(ROOT) else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        environment, rest = self._find(scope["path"])
        if (found := self._endpoints.get(rest)) is not None:
            method, endpoint = found
            if scope["method"] != method:
                raise wrong_method(method)
            await endpoint(request, environment)
        elif rest in _SOCKETS:
            raise HttpError(426, "this path speaks WebSocket", [(b"upgrade", b"websocket")])
        elif self.tasks is not None and rest.rpartition("/")[2] in _TASK_API and rest.count("/") == 1:
            path = f"/{rest}"
            await self.tasks.handle({**scope, "path": path, "raw_path": path.encode()}, receive, send)
        else:
            raise HttpError(404, "Not Found")

    def _find(self, path: str) -> tuple[type[Environment], str]:
        """The environment, and the rest of the path behind it."""
        name, _, rest = path[len(ROOT) :].partition("/")
        try:
            return self._runtime.environment(name), rest.rstrip("/")
        except EnvironmentNotFound as error:
            raise HttpError(404, str(error)) from None

    # Sessions that another gateway may have.

    def says_in_body(self, scope: Scope) -> bool:
        path: str = scope["path"]
        return scope["method"] == "POST" and path.rstrip("/").endswith("/mcp")

    def session_in(self, body: bytes) -> str:
        try:
            return rpc.seat_named_in(rpc.parsed(body))
        except ValueError:
            return ""

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """The gateway that had the session is gone."""
        trouble = Trouble("EXECUTION_ERROR", why, reason="lost", retryable=True)
        await request.answer_json(rpc.unavailable(rpc.id_of(rpc.parsed(body)), trouble))

    # WebSockets.

    def is_socket(self, path: str) -> bool:
        try:
            return path.startswith(ROOT) and self._find(path)[1] in _SOCKETS
        except HttpError:
            return False

    def session_of_socket(self, query: bytes) -> str:
        return parse_qs(query.decode("latin-1")).get("session_id", [""])[-1]

    async def handle_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        environment, rest = self._find(scope["path"])
        socket = Socket(receive, send)
        try:
            seat, stays = self._seat(environment, self.session_of_socket(scope["query_string"]))
            seat.origin = origin_of(Request(scope, receive, send, self._options), "openenv")
        except Trouble as trouble:
            await socket.refuse(trouble)
            return
        seat.attached = True
        play = Play(seat, self._runtime, self._rpc)
        try:
            await socket.accept()
            waits = await socket.converse(play.answer if rest == "ws" else play.answer_rpc)
        finally:
            seat.attached = False
            if not stays:
                await seat.end()
            elif seat.closing:
                await self._seats.drop(seat)
        if waits:  # for its end, and so for that of its session
            await socket.close()

    def _seat(self, environment: type[Environment], wanted: str) -> tuple[Seat, bool]:
        """The seat of a new socket, and whether it stays when the socket is gone."""
        if not wanted:
            if is_full(self._runtime):
                raise full(self._runtime)
            return self._seats.new(environment), False
        if (seat := self._seats.find(wanted, environment)) is None:
            raise Trouble("SESSION_ERROR", f"there is no session {wanted[:200]!r}")
        if seat.attached:
            raise Trouble("SESSION_ERROR", f"another WebSocket uses the session {wanted[:200]!r}")
        return seat, True

    # Endpoints.

    async def health(self, request: Request, _: type[Environment]) -> None:
        status, body = health(self._runtime)
        await request.answer_json({**body, "status": "healthy" if status == 200 else body["status"]}, status)

    async def metadata(self, request: Request, environment: type[Environment]) -> None:
        await request.answer_json(about.metadata(environment))

    async def schema(self, request: Request, _: type[Environment]) -> None:
        await request.answer_json(about.schema())

    async def openapi(self, request: Request, environment: type[Environment]) -> None:
        await request.answer_json(about.openapi(environment))

    async def list_environments(self, request: Request, environment: type[Environment]) -> None:
        await request.answer_json([environment.name()])

    async def state(self, request: Request, environment: type[Environment]) -> None:
        """The state without an episode: over HTTP there is none."""
        await request.answer_json(self._seats.new(environment).state)

    async def reset(self, request: Request, environment: type[Environment]) -> None:
        """Show the first observation of a task, and close its session at once."""
        body = await request.body()
        try:
            wanted = Preview.model_validate(decode(body) if body else {})
        except ValidationError as error:
            raise HttpError(422, error.errors(include_url=False, include_context=False, include_input=False)) from None
        seat = self._seats.new(environment)
        try:
            prompt = await seat.reset(wanted)
        except Trouble as trouble:
            status = _STATUS.get(str(trouble.data["code"]), 500 if "reason" in trouble.data else 400)
            raise HttpError(status, trouble.data["message"]) from trouble
        finally:
            await seat.leave()
        await request.answer_json(observations.of_reset(prompt))

    async def step(self, request: Request, environment: type[Environment]) -> None:
        await request.body()
        path = f"{ROOT}{environment.name().lower()}/ws"
        raise HttpError(409, f"over HTTP there is no episode to take a step in: play on the WebSocket at {path}")

    async def mcp(self, request: Request, environment: type[Environment]) -> None:
        try:
            body = rpc.parsed(await request.body())
        except ValueError:
            await request.answer_json(rpc.parse_error())
            return
        await request.answer_json(await self._rpc.answer(body, environment))
