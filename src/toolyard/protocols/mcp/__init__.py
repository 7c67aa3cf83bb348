"""The Model Context Protocol at the trainer's door: both eras, on one URL for each session."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpError, HttpOptions, Request, header_in
from toolyard.core.errors import DefinitionError, EnvironmentNotFound
from toolyard.origins import origin_of
from toolyard.protocols.mcp.core import Core, Shows
from toolyard.protocols.mcp.face import Face, answer_lost, refused
from toolyard.protocols.mcp.handshakes import ByHandshake
from toolyard.protocols.mcp.messages import INVALID_REQUEST, RpcError
from toolyard.protocols.mcp.places import InSession, Nowhere, OfAgent, Place
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.session_ids import HEADER, RESERVED

_ROOT = "/mcp"
_OF_SESSIONS = "/mcp/s/"
_TAKEN = ("s", "mcp")
"""Names that an environment cannot have: `/mcp/s/…` is for sessions, and `/mcp/…` would be the environment's own."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    agent_sees_rewards: bool
    mcp_instructions: bool


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Mcp(runtime, options)]


class ForAgents:
    """MCP at the agent's door, which hides the words of exceptions: they may contain the answer of the task.

    `own` is the prefix of its names of calls. It may make a call while fewer than `most` run in its session.
    """

    def __init__(self, runtime: Runtime, options: Options, *, own: str, most: int) -> None:
        shows = Shows(options.agent_sees_rewards, options.mcp_instructions, "none")
        self._face = Face(Core(runtime, shows, own), options)
        self._grants = runtime.grants
        self._most = most

    async def handle(self, request: Request, session: Session, token: str, *, in_crowd: bool) -> None:
        await self._face.handle(request, OfAgent(session, self._grants, token, most=self._most, in_crowd=in_crowd))

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """The gateway that had the session is gone."""
        await answer_lost(request, body, why)


class Mcp(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        shows = Shows(options.agent_sees_rewards, options.mcp_instructions, options.errors)
        self._face = Face(Core(runtime, shows), options)
        for name in _TAKEN:
            if name in runtime.environments:
                raise DefinitionError(f"an environment cannot be called {name!r}: that is a part of MCP's paths")

    @property
    def paths(self) -> Collection[str]:
        return [_ROOT, *(f"{_ROOT}/{name}" for name in self._runtime.environments)]

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        return (Match.FULL if path == _ROOT or path.startswith("/mcp/") else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        """The session that a request is for, from its URL, or else from a header."""
        path: str = scope["path"].rstrip("/")
        if path.startswith(_OF_SESSIONS):
            return path[len(_OF_SESSIONS) :]
        return header_in(scope, HEADER if path == _ROOT else b"mcp-session-id")

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        path: str = scope["path"].rstrip("/")
        if path.startswith(_OF_SESSIONS):
            sid = path[len(_OF_SESSIONS) :]
            if (other := request.header(HEADER)) and other != sid:
                raise refused(400, INVALID_REQUEST, "X-Session-ID names another session than the URL")
            await self._face.handle(request, self._in_session(sid))
        elif path != _ROOT:
            await self._by_handshake(request, path.removeprefix(_ROOT)[1:])
        elif sid := request.header(HEADER):
            await self._face.handle(request, self._in_session(sid))
        else:
            await self._face.handle(request, Nowhere(self._runtime.environment()))

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """The gateway that had the session is gone."""
        await answer_lost(request, body, why)

    def worded(self, error: HttpError) -> HttpError:
        """The error as JSON-RPC, because clients show their users nothing else."""
        if error.body is None or "jsonrpc" in error.body:
            return error
        return refused(error.status, INVALID_REQUEST, f"{error.status}: {error.body['detail']}", error.headers)

    def _in_session(self, sid: str) -> Place:
        session = self._runtime.sessions.get(sid)
        if session is None or sid.startswith(RESERVED):
            raise refused(404, INVALID_REQUEST, "Session not found")
        return InSession(session)

    async def _by_handshake(self, request: Request, name: str) -> None:
        try:
            environment = self._runtime.environment(name)
        except EnvironmentNotFound:
            there = ", ".join(map(repr, self._runtime.environments))
            message = f"no environment {name[:200]!r}; there are {there}. A session's URL is /mcp/s/{{session id}}"
            raise refused(404, INVALID_REQUEST, message) from None
        query = request.scope["query_string"].decode("latin-1")
        place = ByHandshake(
            self._runtime, environment, query, request.header(b"mcp-session-id"), origin_of(request, "mcp")
        )
        match request.scope["method"]:
            case "POST":
                await self._face.handle(request, place)
            case "DELETE":
                await self._end(request, place)
            case _:
                raise HttpError(405, None, [(b"allow", b"POST, DELETE")])

    async def _end(self, request: Request, place: ByHandshake) -> None:
        if not place.repeats:
            raise refused(400, INVALID_REQUEST, "Bad Request: Missing session ID")
        try:
            session = place.found()
        except RpcError as error:
            raise refused(error.status, error.code, error.message) from None
        await self._runtime.close(session.id)
        await request.answer(200, (), b"")
