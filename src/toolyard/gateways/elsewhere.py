"""The route before those of all protocols: it takes requests that another gateway has to answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from starlette.routing import BaseRoute, Match
from starlette.types import Message, Receive, Scope, Send

from toolyard.asgi import PASSED, HttpError, HttpOptions, Request, SpeaksWebSocket
from toolyard.gateways.gateway import Gateway
from toolyard.runtime.owners import GatewayLost

_OWNER, _ROUTE, _MOURNER = "toolyard.owner", "toolyard.route", "toolyard.mourner"
"""What `matches` found: the owner of the session, and the route that answers if the owner is this gateway. Without an
owner, the body of the request decides. The mourner is the route that answers if the session is lost elsewhere."""


@runtime_checkable
class NamesSession(Protocol):
    """A route whose requests name their session in the head."""

    def session_of(self, scope: Scope) -> str:
        """The session, under the name that clients use; empty if the request names none."""


@runtime_checkable
class AnswersLost(Protocol):
    """A route whose clients want to read in their own words that a session is lost."""

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """Answer a request whose sessions are lost."""


@runtime_checkable
class NamesSessionInBody(AnswersLost, Protocol):
    """A route with requests that name their session in the body."""

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None: ...

    def says_in_body(self, scope: Scope) -> bool:
        """Whether this is such a request."""

    def session_in(self, body: bytes) -> str:
        """The session, or one of several; empty if the body names none."""


class Elsewhere(BaseRoute):
    def __init__(self, routes: Sequence[BaseRoute], options: HttpOptions) -> None:
        self._options = options
        self._routes = [
            (
                route,
                route.session_of if isinstance(route, NamesSession) else _none,
                route.says_in_body if isinstance(route, NamesSessionInBody) else _never,
            )
            for route in routes
        ]
        self._joined: Gateway | None = None

    def join(self, gateway: Gateway) -> None:
        """From now on, pass requests on to other gateways through this one."""
        self._joined = gateway

    @property
    def _gateway(self) -> Gateway:
        assert self._joined is not None
        return self._joined

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        if self._joined is None or PASSED in scope:
            return Match.NONE, {}
        owners = self._joined.owners
        for route, session_of, says_in_body in self._routes:
            match, child = route.matches(scope)
            if match is Match.NONE:
                continue
            if says_in_body(scope):
                return match, {**child, _ROUTE: route}
            name = session_of(scope)
            if name and (owner := owners.of(name)) != owners.number:
                return match, {_OWNER: owner, _MOURNER: route}
            return match, {**child, _ROUTE: route, _OWNER: owners.number}
        return Match.NONE, {}

    def give(self, path: str, query: bytes, file: int, head: bytes) -> bool:
        """Give the connection of a WebSocket to the gateway that owns its session, if that is another one."""
        if self._joined is None:
            return False
        sockets = (route for route, *_ in self._routes if isinstance(route, SpeaksWebSocket) and route.is_socket(path))
        name = next((route.session_of_socket(query) for route in sockets), "")
        owner = self._joined.owners.of(name) if name else self._joined.owners.number
        return owner != self._joined.owners.number and self._joined.give(owner, file, head)

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if _OWNER not in scope:
            await self._by_body(scope[_ROUTE], scope, receive, send)
        elif _ROUTE in scope:
            await scope[_ROUTE].handle(scope, receive, send)
        else:
            await self._pass_on(scope[_MOURNER], scope, receive, send)

    async def _pass_on(self, route: BaseRoute, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive, send, self._options)
        body = await request.body()
        try:
            await self._gateway.pass_on(scope[_OWNER], request, body)
        except GatewayLost as error:
            if not isinstance(route, AnswersLost):
                raise HttpError(502, str(error), reason="lost") from error
            await route.answer_lost(request, body, str(error))

    async def _by_body(self, route: NamesSessionInBody, scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(dict(scope), receive, send, self._options)
        body = await request.body()
        name, owners = route.session_in(body), self._gateway.owners
        owner = owners.of(name) if name else owners.number
        if owner == owners.number:
            await route.handle(scope, _again(body, receive), send)
            return
        try:
            await self._gateway.pass_on(owner, request, body)
        except GatewayLost as error:
            await route.answer_lost(request, body, str(error))


def _none(_: Scope) -> str:
    return ""


def _never(_: Scope) -> bool:
    return False


def _again(body: bytes, receive: Receive) -> Receive:
    """As `receive`, but first with the body that has been read already."""
    left = [body]

    async def again() -> Message:
        if left:
            return {"type": "http.request", "body": left.pop(), "more_body": False}
        return await receive()

    return again
