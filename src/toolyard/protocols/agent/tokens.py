"""The trainer's side of the agent's door: `/{env}/agent` hands out tokens of a session, and takes them back."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import AGENTS, HttpError, Request, decode, header_in, unprocessable, wrong_method
from toolyard.core.errors import (
    DefinitionError,
    EnvironmentNotFound,
    SessionNotFound,
    SplitNotFound,
    TaskNotFound,
    ToolyardError,
    TooManyGrants,
)
from toolyard.gate import without_port
from toolyard.protocols.agent.answers import NOT_KEPT
from toolyard.protocols.agent.door import MCP, AgentDoor
from toolyard.protocols.agent.options import Options
from toolyard.runtime.grants import new_token
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.session_ids import HEADER, session_id

B = TypeVar("B", bound=BaseModel)

_OWN = AGENTS.strip("/")
"""The name of the endpoint; no environment can have it."""
_EVERYWHERE = ("", "0.0.0.0", "::")
"""Hosts that mean every address of a machine, and so say nothing to an agent."""
_HOST = re.compile(r"([\w.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]+)?", re.ASCII)


class Wanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    expires_in: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Unwanted(BaseModel):
    model_config = ConfigDict(extra="forbid")

    token: str | None = None


class Tokens(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        if _OWN in runtime.environments:
            raise DefinitionError(f"an environment cannot be called {_OWN!r}: agents' paths begin with it")
        self.door = AgentDoor(runtime, options)
        """The door that the tokens open."""
        self.port: int | None = None
        """The agents' own port, if there is one."""
        self.paths: Collection[str] = [f"/{name}/{_OWN}" for name in runtime.environments]
        self._runtime = runtime
        self._options = options

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"].rstrip("/").lower() in self.paths else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        return header_in(scope, HEADER)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        endpoint = {"POST": self.give, "DELETE": self.revoke}.get(scope["method"])
        if endpoint is None:
            raise wrong_method("POST, DELETE")
        try:
            await endpoint(request)
        except ToolyardError as error:
            raise _as_http(error) from error

    async def give(self, request: Request) -> None:
        wanted = parse(Wanted, await request.body())
        most = self._options.agent_token_seconds
        if wanted.expires_in is not None and wanted.expires_in > most:
            raise HttpError(422, f"expires_in is {wanted.expires_in:g}; the server allows at most {most:g} seconds")
        session = await self._session(request)
        beginning = self._beginning(request)
        token = self._runtime.owners.draw(new_token)  # it leads to this gateway, which has the session
        seconds = wanted.expires_in or most
        self._runtime.grants.give(session, token, seconds)
        session.touch()
        url = f"{beginning}{AGENTS}{token}/{MCP}"
        await request.answer_json({"token": token, "url": url, "expires_in": seconds}, headers=NOT_KEPT)

    async def revoke(self, request: Request) -> None:
        unwanted = parse(Unwanted, await request.body())
        session = await self._session(request)
        await request.answer_json({"revoked": self._runtime.grants.revoke(session, unwanted.token)}, headers=NOT_KEPT)

    async def _session(self, request: Request) -> Session:
        sid = session_id(request)
        name = request.scope["path"].strip("/").partition("/")[0]
        return await self._runtime.decide(self._runtime.session(sid), name)

    def _beginning(self, request: Request) -> str:
        """The base of the URL: from the operator, else the agents' port, else the address by which the trainer came."""
        options = self._options
        if options.agent_url:
            return options.agent_url.rstrip("/")
        reached = self._reached(request)
        scheme = request.scope["scheme"]
        if self.port is None:
            return f"{scheme}://{reached}"
        host = options.agent_host or options.host
        name = without_port(reached) if host in _EVERYWHERE else f"[{host}]" if ":" in host else host
        return f"http://{name}:{self.port}"

    def _reached(self, request: Request) -> str:
        host = request.header(b"host")
        if _HOST.fullmatch(host):
            return host
        address, port = request.scope["server"] or ("127.0.0.1", None)
        shown = f"[{address}]" if ":" in address else address
        return shown if port is None else f"{shown}:{port}"


def parse(model: type[B], body: bytes) -> B:
    try:
        return model.model_validate(decode(body) if body else {})
    except ValidationError as error:
        raise unprocessable(error) from None


def _as_http(error: ToolyardError) -> HttpError:
    match error:
        case SessionNotFound() | EnvironmentNotFound():
            return HttpError(404, str(error))
        case SplitNotFound() | TaskNotFound():
            return HttpError(400, str(error))
        case TooManyGrants():
            return HttpError(409, str(error))
        case _:
            return HttpError(500, str(error))
