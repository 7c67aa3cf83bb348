"""`GET /sessions/{session id}/outcome`: rewards and failures of a session, for its trainer. Always served, for all
wires."""

from __future__ import annotations

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpError, HttpOptions, Request, wrong_method
from toolyard.core.errors import SessionNotFound
from toolyard.core.output import JsonObject
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.tally import Standing
from toolyard.session_ids import owned_as

_BEGIN, _END = "/sessions/", "/outcome"

Options = HttpOptions


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Sessions(runtime, options)]


class Sessions(BaseRoute):
    paths = ()

    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        path: str = scope["path"]
        return (Match.FULL if path.startswith(_BEGIN) and path.endswith(_END) else Match.NONE), {}

    def session_of(self, scope: Scope) -> str:
        return owned_as(_named(scope))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] != "GET":
            raise wrong_method("GET")
        try:
            standing = self._runtime.standing(_named(scope))
        except SessionNotFound as error:
            raise HttpError(404, str(error)) from None
        await Request(scope, receive, send, self._options).answer_json(outcome(standing))


def outcome(standing: Standing) -> JsonObject:
    trouble = standing.trouble
    return {
        "sid": standing.session_id,
        "env": standing.environment,
        "rewards": standing.rewards,
        "reward": standing.reward,
        "return": standing.total,
        "finished": standing.finished,
        "calls": standing.tally.calls,
        "failure": None if trouble is None else {"reason": trouble, "retryable": standing.retryable},
    }


def _named(scope: Scope) -> str:
    path: str = scope["path"]
    return path[len(_BEGIN) : -len(_END)]
