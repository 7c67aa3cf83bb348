"""Answers the methods of MCP, of both eras, for one message and one session at a time. Knows no transport."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from toolyard.asgi import Verbosity, explain
from toolyard.core.encoding import encode
from toolyard.core.environment import Environment
from toolyard.core.errors import (
    CallConflict,
    CallNotFound,
    NoRoom,
    Overloaded,
    RequestError,
    SessionClosed,
    SessionFailed,
    SessionNotFound,
    ToolyardError,
)
from toolyard.core.output import JsonObject, Returned, TextBlock, ToolOutput
from toolyard.core.tool import ToolSpec
from toolyard.placement.base import list_tools
from toolyard.protocols.mcp.content import listed, shown, told, unavailable, words
from toolyard.protocols.mcp.messages import (
    CANCELLED,
    HANDSHAKE_VERSIONS,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    MODERN_VERSION,
    SERVER_INFO,
    Answer,
    Asked,
    Notice,
    RpcError,
    progress,
    result,
)
from toolyard.protocols.mcp.places import Place
from toolyard.runtime.call import Call
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.version import __version__

log = logging.getLogger("toolyard.mcp")

Method: TypeAlias = Callable[[Asked, Place], Awaitable[dict[str, Any]]]

CALL_ID = "toolyard/callId"
"""The key in `_meta` of a client's own name for a call. The same name again finds the same call."""
REWARD, REWARDS, FINISHED = "toolyard/reward", "toolyard/rewards", "toolyard/finished"

_PAGE = 1000
"""The most tools in one answer."""
_ID_MOST = 256
_TOKEN_MOST = 1000
"""Each notice of progress repeats the token."""
_TASK_URI = "toolyard://task"
_CAPABILITIES = {
    "prompts": {"listChanged": False},
    "resources": {"listChanged": False, "subscribe": False},
    "tools": {"listChanged": False},
}
_UNCACHED = {"ttlMs": 0, "cacheScope": "private"}
"""Tools and prompts are a session's own, and may change with every call."""
_NO_SESSION = (
    "This URL has no session to call tools in. Open one, and use /mcp/s/{session id}; or connect to "
    "/mcp/{environment}, which opens one with the handshake"
)


@dataclass(frozen=True, slots=True)
class Shows:
    """What clients see."""

    rewards: bool = False
    """Reward and end of the episode, in `_meta` of results."""
    instructions: bool = True
    """The session's prompt, as the server's instructions."""
    errors: Verbosity = "exception"


class Core:
    """One for each door. It holds no session: each message comes with the place that knows its session."""

    def __init__(self, runtime: Runtime, shows: Shows, own: str = "") -> None:
        self._runtime = runtime
        self._shows = shows
        self._own = own
        """The prefix of the clients' names of calls, so that they cannot reach calls of another door."""
        self._running: dict[tuple[str, str | int], Following] = {}
        """Calls that did not end at once, by place and request id, for clients that cancel them."""
        both: Mapping[str, Method] = {
            "tools/list": self._list_tools,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read_resource,
        }
        self._modern = {**both, "server/discover": self._discover}
        self._handshake = {**both, "initialize": self._initialize, "ping": self._ping}

    async def answer(self, asked: Asked, place: Place) -> Answer | Following:
        """Answer a request; for a call that goes on, return a ticket for its end. A client's mistake raises nothing."""
        try:
            if place.needs_handshake and asked.modern:
                raise RpcError(METHOD_NOT_FOUND, "Sessions of this URL begin with initialize", asked.method)
            if asked.method == "tools/call":
                return await self._call(asked, place)
            methods = self._modern if asked.modern else self._handshake
            if (method := methods.get(asked.method)) is None:
                raise RpcError(METHOD_NOT_FOUND, "Method not found", asked.method)
            return self.written(asked, place.environment, await method(asked, place))
        except RpcError as error:
            return error.answer(asked.id)
        except ToolyardError as error:
            return self._as_rpc(error).answer(asked.id)
        except Exception as error:
            log.exception("%s", asked.method)
            text = (
                explain(error, self._shows.errors) if self._shows.errors == "stacktrace" else "the server's log has it"
            )
            return RpcError(INTERNAL_ERROR, f"Internal error: {text}").answer(asked.id)

    async def hear(self, notice: Notice, place: Place) -> None:
        """Handle a notification of a client of the era of handshakes."""
        if notice.method == "notifications/cancelled":
            request_id = notice.params.get("requestId")
            if isinstance(request_id, str | int) and (found := self._running.get((place.key, request_id))) is not None:
                found.cancel()

    def written(self, asked: Asked, environment: type[Environment], value: dict[str, Any]) -> Answer:
        if asked.modern:
            value["resultType"] = "complete"
            value["_meta"] = {**value.get("_meta", {}), SERVER_INFO: _server_info(environment)}
            if asked.method not in ("tools/call", "prompts/get"):
                value.update(_UNCACHED)
        return result(asked, value)

    def _as_rpc(self, error: ToolyardError) -> RpcError:
        match error:
            case Overloaded() | NoRoom():
                reason = "draining" if self._runtime.draining else "busy"
                return unavailable(str(error), reason, error.retry_after)
            case SessionClosed() | SessionNotFound():
                return RpcError(INVALID_REQUEST, "Session not found", status=404)
            case SessionFailed() if self._shows.errors == "none":
                return unavailable("the session could not be set up", "failed")
            case SessionFailed():
                return unavailable(f"the session could not be set up: {error}", "failed")
            case RequestError():
                return RpcError(INVALID_PARAMS, str(error))
            case _ if self._shows.errors == "none":
                return unavailable("the environment broke through no fault of yours", "lost")
            case _:
                return unavailable(str(error), "lost")

    # The server.

    async def _ping(self, asked: Asked, place: Place) -> dict[str, Any]:
        await place.session(asked.method)
        return {}

    async def _initialize(self, asked: Asked, place: Place) -> dict[str, Any]:
        match asked.params:
            case {
                "protocolVersion": str(version),
                "capabilities": dict(),
                "clientInfo": {"name": str(), "version": str()},
            }:
                pass
            case _:
                raise RpcError(
                    INVALID_PARAMS,
                    "Invalid request parameters: initialize wants protocolVersion, capabilities and clientInfo",
                )
        agreed = version if version in HANDSHAKE_VERSIONS else HANDSHAKE_VERSIONS[-1]
        about = await self._about(asked, place)
        return {"protocolVersion": agreed, "serverInfo": _server_info(place.environment), **about}

    async def _discover(self, asked: Asked, place: Place) -> dict[str, Any]:
        return {"supportedVersions": [MODERN_VERSION], **await self._about(asked, place)}

    async def _about(self, asked: Asked, place: Place) -> dict[str, Any]:
        session = await place.session(asked.method)
        about: dict[str, Any] = {"capabilities": _CAPABILITIES}
        if session is not None and self._shows.instructions:
            prompt = await session.prompt()
            about["instructions"] = "\n\n".join(block.text for block in prompt if isinstance(block, TextBlock))
        return about

    # Tools.

    async def _list_tools(self, asked: Asked, place: Place) -> dict[str, Any]:
        specs = await self._specs(await place.session(asked.method), place)
        start = _start_of(asked.params.get("cursor"), len(specs))
        page: dict[str, Any] = {"tools": [listed(spec) for spec in specs[start : start + _PAGE]]}
        if start + _PAGE < len(specs):
            page["nextCursor"] = str(start + _PAGE)
        return page

    async def _specs(self, session: Session | None, place: Place) -> Sequence[ToolSpec]:
        if session is None:
            return (await list_tools(place.environment, self._runtime.placement)).tools
        found = await session.tools_before_setup()
        return (found or await (await session.ready()).list_tools()).tools

    async def _call(self, asked: Asked, place: Place) -> Answer | Following:
        params = asked.params
        name, arguments = params.get("name"), params.get("arguments", {})
        if type(name) is not str or type(arguments) is not dict:
            raise RpcError(
                INVALID_PARAMS, "Invalid request parameters: a call has a name and an object of arguments", ""
            )
        call_id, token = None, None
        if meta := asked.meta:
            call_id, token = _call_id(meta, self._own), _token(meta)
        session = await place.session(asked.method)
        if session is None:
            return self.written(asked, place.environment, words(_NO_SESSION, is_error=True))
        try:
            call = session.start(name, arguments, call_id=call_id, kept=call_id is not None)
        except (CallConflict, CallNotFound) as error:
            raise RpcError(INVALID_PARAMS, str(error)) from None
        following = Following(self, asked, session, call, token)
        if call.done:
            return following.answer()
        following.key = (place.key, asked.id)
        self._running[following.key] = following
        return following

    def outcome(self, asked: Asked, session: Session, outcome: Returned) -> Answer:
        """Answer with the result of a call."""
        try:
            value = told(outcome, asked.params["name"], self._shows.errors)
        except RpcError as error:
            return error.answer(asked.id)
        if self._shows.rewards and isinstance(outcome, ToolOutput):
            named = {REWARDS: outcome.rewards} if outcome.rewards else {}
            value["_meta"] = {REWARD: outcome.reward, FINISHED: outcome.finished, **named}
        return self.written(asked, session.spec.environment, value)

    def forget(self, following: Following) -> None:
        if self._running.get(following.key) is following:
            del self._running[following.key]

    # The task.

    async def _list_prompts(self, asked: Asked, place: Place) -> dict[str, Any]:
        _start_of(asked.params.get("cursor"), 0)
        if await place.session(asked.method) is None:
            return {"prompts": []}
        return {"prompts": [{"name": "task", "description": "What the agent is asked to do"}]}

    async def _get_prompt(self, asked: Asked, place: Place) -> dict[str, Any]:
        session = await place.session(asked.method)
        if session is None or asked.params.get("name") != "task":
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {str(asked.params.get('name'))[:200]}")
        blocks = await session.prompt()
        return {"messages": [{"role": "user", "content": shown(block)} for block in blocks]}

    async def _list_resources(self, asked: Asked, place: Place) -> dict[str, Any]:
        _start_of(asked.params.get("cursor"), 0)
        session = await place.session(asked.method)
        if session is None or not session.spec.environment.agents_see_task:
            return {"resources": []}
        return {"resources": [{"uri": _TASK_URI, "name": "task", "mimeType": "application/json"}]}

    async def _list_templates(self, asked: Asked, place: Place) -> dict[str, Any]:
        _start_of(asked.params.get("cursor"), 0)
        return {"resourceTemplates": []}

    async def _read_resource(self, asked: Asked, place: Place) -> dict[str, Any]:
        uri = asked.params.get("uri")
        session = await place.session(asked.method)
        if uri != _TASK_URI or session is None or not session.spec.environment.agents_see_task:
            raise RpcError(INVALID_PARAMS, "Unknown resource", {"uri": uri})
        text = encode(session.spec.task.spec).decode()
        return {"contents": [{"uri": uri, "mimeType": "application/json", "text": text}]}


class Following:
    """A call that goes on. Its transport waits for it, and then calls `answer`."""

    __slots__ = ("_core", "_session", "asked", "call", "cancelled", "key", "token")

    def __init__(
        self, core: Core, asked: Asked, session: Session, call: Call[Returned], token: str | int | None
    ) -> None:
        self._core = core
        self._session = session
        self.asked = asked
        self.call = call
        self.token = token
        """The client's name of the progress of this call, if it wants notices."""
        self.cancelled = False
        self.key: tuple[str, str | int] = ("", "")

    def cancel(self) -> None:
        """Stop the call: the client no longer wants it."""
        self.cancelled = True
        self.call.stop("cancelled")

    def leave(self) -> None:
        """Stop following the call. Leaving twice is fine."""
        self._core.forget(self)

    def progress(self, seconds: float) -> bytes:
        """A notification that the call still runs. It counts seconds, because tools do not report progress."""
        assert self.token is not None
        return progress(self.token, round(seconds, 3), f"{self.call.name[:200]} is running")

    def answer(self) -> Answer:
        """The answer to the call. Call it once, when the call is done."""
        self.leave()
        if self.cancelled:
            return RpcError(CANCELLED, "Request cancelled").answer(self.asked.id)
        return self._core.outcome(self.asked, self._session, self.call.result)


def _server_info(environment: type[Environment]) -> JsonObject:
    return {"name": environment.name(), "version": __version__}


def _start_of(cursor: object, count: int) -> int:
    """The start of a page. A cursor is the end of the page before."""
    if cursor is None:
        return 0
    if isinstance(cursor, str) and cursor.isascii() and cursor.isdigit() and len(cursor) < 10:
        start = int(cursor)
        if start % _PAGE == 0 and 0 < start < count:
            return start
    raise RpcError(INVALID_PARAMS, f"Unknown cursor: {str(cursor)[:200]}")


def _call_id(meta: JsonObject, own: str) -> str | None:
    if (given := meta.get(CALL_ID)) is None:
        return None
    if type(given) is str and 0 < len(given) <= _ID_MOST and given.isprintable() and given == given.strip():
        return own + given
    raise RpcError(INVALID_PARAMS, f"{CALL_ID} is one line of at most {_ID_MOST} printable characters")


def _token(meta: JsonObject) -> str | int | None:
    token = meta.get("progressToken")
    if token is None or type(token) is int or (type(token) is str and len(token) <= _TOKEN_MOST):
        return token
    raise RpcError(INVALID_PARAMS, f"progressToken must be text of at most {_TOKEN_MOST} characters, or an integer")
