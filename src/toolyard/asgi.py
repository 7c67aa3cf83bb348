"""The little HTTP that all protocols share: requests, JSON in and out, errors as answers, and the door to all routes.

Hot routes are plain ASGI on purpose. An answer is two messages, or one call where the server offers `ANSWER`.
"""

from __future__ import annotations

import hmac
import json
import logging
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import Token
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

from pydantic import ValidationError
from pydantic_core import from_json
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from toolyard.core.encoding import encode
from toolyard.core.errors import describe

log = logging.getLogger("toolyard.http")

Headers: TypeAlias = Sequence[tuple[bytes, bytes]]
Lifespan: TypeAlias = Callable[[], AbstractAsyncContextManager[object]]
Verbosity: TypeAlias = Literal["none", "exception", "stacktrace"]

ANSWER = "toolyard.answer"
"""The key in the scope under which a server may offer to send a whole answer at once: a function of status, headers
without the content's length, and body. It returns False, and has done nothing, for an answer that it cannot send.

Only our own servers offer this. They let a request run to its end when its client has gone away."""
HEAD = "toolyard.head"
"""The key in the scope of a HEAD request. It is answered as GET, and its answer goes out without the body."""
PASSED = "toolyard.passed"
"""The key in the scope of a request that another gateway has passed on to this one."""
AGENTS = "/agent/"
"""The path of an agent's request begins with this, then the token. The token is the key: such requests have a door of
their own."""
_HIDDEN = AGENTS + "-"


@dataclass(frozen=True, slots=True)
class HttpOptions:
    """The settings of HTTP that all protocols need. `settings.py` explains each."""

    body_bytes: int
    ping_seconds: float
    starting_seconds: float
    errors: Verbosity
    api_key: str


class HttpError(Exception):
    """An answer that is not 2xx. Raise it, and `Door` sends it. Without detail, as in a redirect, it has no body."""

    def __init__(self, status: int, detail: object, headers: Headers = (), **more: object) -> None:
        super().__init__(status, detail)
        self.status = status
        self.headers = headers
        self.body: Mapping[str, object] | None = {"detail": detail, **more}
        if detail is None:
            self.body = None
        elif isinstance(detail, str):  # SDKs read `detail`, the ORS documents `error`
            self.body = {"detail": detail, "error": detail, **more}


class Disconnected(Exception):
    """The client went away before its whole request had arrived."""


class Request:
    """One HTTP exchange. Code answers it once, whole or as a stream."""

    __slots__ = ("_answer", "_headers", "_receive", "_send", "options", "scope", "started")

    def __init__(self, scope: Scope, receive: Receive, send: Send, options: HttpOptions) -> None:
        self.scope = scope
        self.options = options
        self.started = False
        self._receive = receive
        self._send = send
        self._answer = scope.pop(ANSWER, None)  # taken out: it refers to the scope, and a cycle would live on
        self._headers: dict[bytes, bytes] = dict(scope["headers"])

    def header(self, name: bytes) -> str:
        """The value without surrounding space, empty if it is not there. `name` is in lower case."""
        return self._headers.get(name, b"").decode("latin-1").strip()

    async def body(self) -> bytes:
        limit = self.options.body_bytes
        length = self._headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > limit:
            raise self._too_large(limit)
        message = await self._receive()
        if not message.get("more_body") and message["type"] == "http.request":
            whole: bytes = message.get("body", b"")
            if len(whole) > limit:
                raise self._too_large(limit)
            return whole
        gathered = bytearray()  # a list of parts would take fifty times their size if they are of one byte
        while True:
            if message["type"] == "http.disconnect":
                raise Disconnected
            gathered += message.get("body", b"")
            if len(gathered) > limit:
                raise self._too_large(limit)
            if not message.get("more_body"):
                return bytes(gathered)
            message = await self._receive()

    async def answer(self, status: int, headers: Headers, body: bytes) -> None:
        self.started = True
        if self._answer is not None and self._answer(status, headers, body):
            return
        sized = [*headers, (b"content-length", b"%d" % len(body))]
        await self._send({"type": "http.response.start", "status": status, "headers": sized})
        await self._send({"type": "http.response.body", "body": body})

    async def answer_json(self, value: object, status: int = 200, headers: Headers = ()) -> None:
        await self.answer(status, ((b"content-type", b"application/json"), *headers), encode(value))

    def is_gone(self) -> bool:
        """Whether the client has hung up. Call this only after the body was read and before the answer."""
        waiting = self._receive()
        try:
            waiting.send(None)  # type: ignore[attr-defined]  # the servers' are coroutines
        except StopIteration as end:
            return bool(end.value["type"] == "http.disconnect")
        waiting.close()  # type: ignore[attr-defined]
        return False

    async def until_gone(self) -> None:
        """Wait until the client hangs up. Call this only after the body was read and before the answer."""
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def start(self, headers: Headers, status: int = 200) -> None:
        """Begin a stream. `write` continues it and `write(…, last=True)` ends it."""
        self.started = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def write(self, data: bytes, *, last: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": data, "more_body": not last})

    def _too_large(self, limit: int) -> HttpError:
        # The connection stays open, and the rest of the body is thrown away as it comes: to a client that is still
        # writing, a closed connection would hide the answer.
        return HttpError(413, f"the request body is larger than {limit} bytes")


def header_in(scope: Scope, name: bytes) -> str:
    """As `Request.header`, before there is a request: of several headers with this name, the last counts."""
    for key, value in reversed(scope["headers"]):
        if key == name:
            found: str = value.decode("latin-1").strip()
            return found
    return ""


def decode(data: bytes) -> Any:  # any JSON value
    """Decode JSON as clients really send it: with NaN, Infinity and lone surrogates, as Python's encoder writes them.

    It keeps integers exact, however long, which orjson does not promise.
    """
    try:
        return from_json(data)
    except ValueError as problem:
        refused = str(problem)
    try:
        if "recursion limit" in refused:
            raise RecursionError
        return json.loads(data)  # slower, and takes what the strict decoder refuses
    except RecursionError:
        error, position = "it is nested too deeply", 0
    except UnicodeDecodeError as problem:
        error, position = "it is not UTF-8", problem.start
    except json.JSONDecodeError as problem:
        error, position = problem.msg, problem.pos
    except ValueError as problem:  # an integer of thousands of digits
        error, position = str(problem), 0
    raise HttpError(
        422,
        [
            {
                "type": "json_invalid",
                "loc": ["body", position],
                "msg": "JSON decode error",
                "input": {},
                "ctx": {"error": error},
            }
        ],
    )


def unprocessable(error: ValidationError, *, echo: bool = False) -> HttpError:
    """The answer to a body that does not fit its model. With `echo` it quotes what the client sent."""
    problems = error.errors(include_url=False, include_context=False, include_input=echo)
    return HttpError(422, [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems])


def wrong_method(allowed: str) -> HttpError:
    """The answer to a method that a path does not take. `allowed` is as `GET, POST`."""
    return HttpError(405, "Method Not Allowed", [(b"allow", allowed.encode())])


async def answer_error(error: HttpError, request: Request) -> None:
    if error.body is None:
        await request.answer(error.status, error.headers, b"")
    else:
        await request.answer_json(error.body, error.status, error.headers)


@runtime_checkable
class NamesPaths(Protocol):
    """A route that lists paths that it takes, for a quick look-up. It may take other paths too, but none that a later
    route lists."""

    @property
    def paths(self) -> Collection[str]: ...
    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@runtime_checkable
class SpeaksWebSocket(Protocol):
    """A route with paths at which a WebSocket is spoken."""

    def is_socket(self, path: str) -> bool: ...
    def session_of_socket(self, query: bytes) -> str:
        """The session that a socket is for, under the name that clients use; empty if it opens its own."""

    async def handle_socket(self, scope: Scope, receive: Receive, send: Send) -> None: ...


@runtime_checkable
class AsksForKey(Protocol):
    """A route with pages for people, which asks for the key itself, and checks it in each request that it takes."""

    def asks_for_key(self, scope: Scope) -> bool: ...


@runtime_checkable
class WordsErrors(Protocol):
    """A route whose clients read errors in a form of their own, also those that occur before the route is called."""

    def worded(self, error: HttpError) -> HttpError: ...


def by_path(routes: Sequence[BaseRoute]) -> Mapping[str, NamesPaths]:
    """The route of each listed path. Leaves out routes after one that lists no paths: that one must match first."""
    known: dict[str, NamesPaths] = {}
    for route in reversed(routes):
        known = known | dict.fromkeys(route.paths, route) if isinstance(route, NamesPaths) else {}
    return known


def without_body(send: Send) -> Send:
    async def sent(message: Message) -> None:
        await send({**message, "body": b""} if message["type"] == "http.response.body" else message)

    return sent


def refusing(scope: Scope, send: Send) -> Send:
    """Send the answer of HTTP to a handshake that is refused. Servers that cannot do so answer 403."""
    if scope["type"] != "websocket":
        return send

    async def sent(message: Message) -> None:
        if message["type"].startswith("http."):
            if "websocket.http.response" not in scope.get("extensions", {}):
                message = {"type": "websocket.close"} if message["type"] == "http.response.start" else {}
            else:
                message = {**message, "type": f"websocket.{message['type']}"}
        if message:
            await send(message)

    return sent


def without_token(scope: Scope) -> Scope:
    """A copy of an agent's request to go on with. The request itself loses its token: a server may log it."""
    inner = {**scope}
    scope.pop(ANSWER, None)  # it refers to the scope, and the copy has it
    scope.update(path=_HIDDEN, raw_path=_HIDDEN.encode(), query_string=b"")
    return inner


class Door:
    """The ASGI application: checks the key, finds the route, and turns `HttpError` into an answer.

    With `agents`, every request whose path begins with `AGENTS` goes through that door instead.
    """

    def __init__(
        self,
        routes: Sequence[BaseRoute],
        lifespan: Lifespan,
        options: HttpOptions,
        enter: Callable[[], Token[Any]],
        agents: ASGIApp | None = None,
    ) -> None:
        self._agents = agents
        self._routes = routes
        self._by_path = by_path(routes)
        self._sockets = [route for route in routes if isinstance(route, SpeaksWebSocket)]
        self._asking = [route for route in routes if isinstance(route, AsksForKey)]
        self._lifespan = lifespan
        self._options = options
        self._enter = enter
        """Called for each request: sets a context variable for all code that runs for it."""
        self._key = options.api_key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        if self._agents is not None and scope["path"].startswith(AGENTS):
            await self._agents(scope, receive, send)
            return
        if scope["type"] != "http":
            await self._open_socket(scope, receive, refusing(scope, send))
            return
        if scope["method"] == "HEAD":
            scope.pop(ANSWER, None)  # HEAD must not send the body
            scope, send = {**scope, "method": "GET", HEAD: True}, without_body(send)
        entered = self._enter()
        try:
            if self._key and scope["path"] != "/health":
                self._check_key(dict(scope["headers"]), scope)
            route = self._by_path.get(scope["path"]) or self._find(scope)
            await route.handle(scope, receive, send)
        except Disconnected:
            return
        except HttpError as error:
            await answer_error(self._worded(error, scope), Request(scope, receive, send, self._options))
        finally:
            entered.var.reset(entered)

    def socket_route(self, path: str) -> SpeaksWebSocket | None:
        """The route that speaks WebSocket at this path."""
        return next((route for route in self._sockets if route.is_socket(path)), None)

    async def _open_socket(self, scope: Scope, receive: Receive, send: Send) -> None:
        entered = self._enter()
        try:
            if self._key:
                self._check_key(dict(scope["headers"]))
            if (route := self.socket_route(scope["path"])) is None:
                raise HttpError(404, "Not Found")
            await route.handle_socket(scope, receive, send)
        except Disconnected:
            return
        except HttpError as error:
            await answer_error(error, Request(scope, receive, send, self._options))
        finally:
            entered.var.reset(entered)

    def _worded(self, error: HttpError, scope: Scope) -> HttpError:
        takers = (route for route in self._routes if route.matches(scope)[0] is not Match.NONE)
        route = self._by_path.get(scope["path"]) or next(takers, None)
        return route.worded(error) if isinstance(route, WordsErrors) else error

    def _find(self, scope: Scope) -> BaseRoute:
        for route in self._routes:
            match, child = route.matches(scope)
            if match is not Match.NONE:
                scope.update(child)
                return route
        raise HttpError(404, "Not Found")

    def _check_key(self, headers: Mapping[bytes, bytes], scope: Scope | None = None) -> None:
        """Read the headers alone: a `Request` made here would take `ANSWER` from the scope, which the route's needs."""
        given = headers.get(b"x-api-key", b"").strip() or headers.get(b"authorization", b"").removeprefix(b"Bearer ")
        if not hmac.compare_digest(given.strip(), self._key):
            if scope is not None and any(route.asks_for_key(scope) for route in self._asking):
                return
            raise HttpError(401, "a valid API key is required, as X-API-Key or as Authorization: Bearer")

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        started = False
        try:
            async with self._lifespan():
                await send({"type": "lifespan.startup.complete"})
                started = True
                await receive()
        except Exception as error:
            log.exception("the server could not %s", "stop cleanly" if started else "start")
            what = "shutdown" if started else "startup"
            await send({"type": f"lifespan.{what}.failed", "message": describe(error)})
            return
        await send({"type": "lifespan.shutdown.complete"})


class Within:
    """An application that runs inside a context variable, which `enter` sets, whichever server runs it."""

    def __init__(self, app: ASGIApp, enter: Callable[[], Token[Any]]) -> None:
        self._app = app
        self._enter = enter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        entered = self._enter()
        try:
            await self._app(scope, receive, send)
        finally:
            entered.var.reset(entered)


def explain(error: BaseException, verbosity: Verbosity) -> str:
    """What a client may see of an unexpected exception."""
    match verbosity:
        case "none":
            return "Internal Server Error"
        case "exception":
            return describe(error)
        case "stacktrace":
            return "".join(traceback.format_exception(error))
