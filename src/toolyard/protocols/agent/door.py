"""The agent's side: `/agent/{token}/…` lists the tools of one session, calls them, and reads its prompt.

It takes each path literally, without normalising it, and reads no header and no query. It answers everything but these
exact paths with a valid token as if it did not exist.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import AGENTS, Disconnected, HttpError, Request, decode
from toolyard.core.errors import CallNotFound, GrantNotFound, ToolyardError
from toolyard.placement.base import Placed
from toolyard.protocols.agent import answers
from toolyard.protocols.agent.options import Options
from toolyard.runtime.call import Call
from toolyard.runtime.lifecycle import State
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session

log = logging.getLogger("toolyard.agent")

MOST = 64
"""The most requests of one session's agents at once, and the most running calls in it before one more."""
_MOST_OF_MCP = 2 * MOST
"""The most requests of MCP clients at once. The door refuses those beyond `MOST` in MCP's words, under their ids: some
clients give up a connection for any other refusal. It still accepts requests that cancel a call."""
MCP = "mcp"
"""The endpoint for MCP."""
_LARGE = 64 * 1024
"""A body of more bytes than this is read in a thread, so that no other request waits for it."""
_SAID_MOST = 2000
"""The most characters about what is wrong with a body."""
OWN = "agent:"
"""The prefix of an agent's names of calls, so that it cannot reach a trainer's calls in the same session."""


class Asked(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1, max_length=512)]
    input: dict[str, Any] = {}
    call_id: Annotated[str, Field(min_length=1, max_length=256)] | None = None


class Visit(NamedTuple):
    """A request with a valid token."""

    request: Request
    session: Session
    token: str
    in_crowd: bool
    """Whether the session has so many requests that this one can only be refused."""


T = TypeVar("T")


class McpFace(Protocol):
    """Answers requests over MCP."""

    async def handle(self, request: Request, session: Session, token: str, *, in_crowd: bool) -> None: ...
    async def answer_lost(self, request: Request, body: bytes, why: str) -> None: ...


Endpoint: TypeAlias = Callable[[Visit], Awaitable[None]]


class AgentDoor(BaseRoute):
    paths: Collection[str] = ()

    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._endpoints: dict[str, tuple[str, Endpoint]] = {
            "prompt": ("GET", self.prompt),
            "tools": ("GET", self.tools),
            "call": ("POST", self.call),
            MCP: ("", self.mcp),
        }
        self.face: McpFace | None = None

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"].startswith(AGENTS) else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        """The token itself: it was drawn so that it leads to the gateway that has its session."""
        token: str = scope["path"][len(AGENTS) :].partition("/")[0]
        return token

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        token, _, name = scope["path"][len(AGENTS) :].partition("/")
        try:
            with self._admitted(request, token, most=_MOST_OF_MCP if name == MCP else MOST) as visit:
                method, endpoint = self._endpoint(name)
                if method and scope["method"] != method:
                    message = f"this path takes {method}"
                    raise answers.Refusal(405, "bad_method", message, headers=[(b"allow", method.encode())])
                await endpoint(visit)
        except answers.Refusal as refusal:
            raise (refusal.as_rpc() if name == MCP else refusal) from None
        except Disconnected:
            raise
        except HttpError as error:
            raise (self._too_large(error).as_rpc() if name == MCP and error.status == 413 else error) from None
        except ToolyardError as error:
            raise answers.refusal(error) from error

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """The token cannot be checked any more, so every token gets this answer."""
        if self.face is None or not request.scope["path"].endswith(f"/{MCP}"):
            raise answers.lost()
        await self.face.answer_lost(request, body, why)

    def _endpoint(self, name: str) -> tuple[str, Endpoint]:
        try:
            return self._endpoints[name]
        except KeyError:
            raise answers.unknown() from None

    @contextmanager
    def _admitted(self, request: Request, token: str, most: int) -> Iterator[Visit]:
        """Count the request among those of its session, which keeps the session in use."""
        try:
            granted = self._runtime.grants.find(token)
        except GrantNotFound:
            raise answers.unknown() from None
        if granted.requests >= most:
            raise answers.busy(MOST)
        visit = Visit(request, granted.session, token, granted.requests >= MOST)
        granted.requests += 1
        granted.session.touch()
        try:
            yield visit
        finally:
            granted.requests -= 1

    # What an agent can do.

    async def mcp(self, visit: Visit) -> None:
        if self.face is None:
            raise answers.unknown()
        await self.face.handle(visit.request, visit.session, visit.token, in_crowd=visit.in_crowd)

    async def prompt(self, visit: Visit) -> None:
        await self._ready(visit)
        blocks = await self._asked(visit, "the prompt", visit.session.prompt())
        await visit.request.answer_json(answers.shown(blocks), headers=answers.NOT_KEPT)

    async def tools(self, visit: Visit) -> None:
        listed = await self._asked(visit, "the list of tools", visit.session.tools_before_setup())
        if listed is None:
            placed = await self._ready(visit)
            listed = await self._asked(visit, "the list of tools", placed.list_tools())
        await visit.request.answer_json(answers.described(listed.tools), headers=answers.NOT_KEPT)

    async def call(self, visit: Visit) -> None:
        call = self._start(visit.session, await self._read(visit.request))
        if not call.done:
            await while_there(visit.request, call.ended())
        answer = answers.told(call.result)
        if self._options.agent_sees_rewards:
            answer = answers.with_reward(answer, call.result)
        await visit.request.answer_json(answer, headers=answers.NOT_KEPT)

    # Steps.

    def _start(self, session: Session, asked: Asked) -> Call[Any]:
        """Start the call, or find the one that began under the same id."""
        if asked.call_id is None:
            if session.running >= MOST:
                raise answers.busy(MOST)
            return session.start(asked.name, asked.input, kept=False)  # no client can come back for it
        call_id = OWN + asked.call_id
        if session.running >= MOST and not _has(session, call_id):
            raise answers.busy(MOST)
        return session.start(asked.name, asked.input, call_id=call_id)

    async def _read(self, request: Request) -> Asked:
        try:
            body = await request.body()
        except HttpError as error:
            raise self._too_large(error) from error
        return await asyncio.to_thread(parse, body) if len(body) > _LARGE else parse(body)

    def _too_large(self, error: HttpError) -> answers.Refusal:
        return answers.Refusal(error.status, "too_large", f"the body has more than {self._options.body_bytes} bytes")

    async def _ready(self, visit: Visit) -> Placed:
        seconds = self._options.starting_seconds
        if not seconds or visit.session.state is not State.STARTING:
            return await while_there(visit.request, asyncio.ensure_future(visit.session.ready()))
        try:
            async with asyncio.timeout(seconds):
                return await while_there(visit.request, asyncio.ensure_future(visit.session.ready()))
        except TimeoutError:
            headers = [(b"x-backend-state", b"starting"), *answers.LATER]
            message = "the environment is still starting"
            raise answers.Refusal(503, "starting", message, retryable=True, headers=headers) from None

    async def _asked(self, visit: Visit, what: str, answer: Awaitable[Any]) -> Any:  # what the hook returns
        """The answer of an author's hook. Hides from the agent what the hook raises."""
        try:
            return await answer
        except ToolyardError:
            raise
        except Exception as error:  # the author's
            log.exception("session %s: %s broke", visit.session.id, what)
            raise answers.Refusal(500, "broken", f"{what} cannot be had; that is no mistake of yours") from error


async def while_there(request: Request, awaited: asyncio.Future[T]) -> T:
    """The result, unless the client hangs up first: the server must not hold requests without a reader."""
    leaving = asyncio.ensure_future(request.until_gone())
    try:
        await asyncio.wait((awaited, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not awaited.done():
            raise Disconnected
        return awaited.result()
    finally:
        leaving.cancel()
        if not awaited.done():
            awaited.cancel()


def _has(session: Session, call_id: str) -> bool:
    try:
        session.find(call_id)
    except CallNotFound:
        return False
    return True


def parse(body: bytes) -> Asked:
    try:
        return Asked.model_validate(decode(body))
    except HttpError as error:  # the body is no JSON
        raise answers.Refusal(422, "bad_request", "the body is not JSON") from error
    except ValidationError as error:
        problems = error.errors(include_url=False, include_context=False, include_input=False)
        said = "; ".join(f"{'.'.join(map(str, one['loc'])) or 'the body'}: {one['msg']}" for one in problems)
        raise answers.Refusal(422, "bad_request", said[:_SAID_MOST]) from None
