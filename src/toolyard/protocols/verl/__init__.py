"""verl-tool's tool server: one POST carries the texts of many trajectories, and its answer their observations."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import PASSED, Headers, HttpError, HttpOptions, Request
from toolyard.core.encoding import encode
from toolyard.core.stalls import first_of
from toolyard.protocols.verl import batches
from toolyard.protocols.verl.observations import Result, lost
from toolyard.protocols.verl.repeats import Repeats
from toolyard.protocols.verl.spread import PART, Spread, first_trajectory
from toolyard.protocols.verl.trajectories import Trajectories
from toolyard.runtime.runtime import Runtime

log = logging.getLogger("toolyard.verl")

_PROMPT = 0.05
"""For this many seconds, no client gives up waiting, so that we need not check whether it did."""
_TEXT_ONLY = {str}


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    protocol: tuple[str, ...]
    max_concurrent_calls: int
    verl_request_seconds: float
    verl_repeat_seconds: float
    verl_done_if_invalid: bool
    verl_explain_invalid: bool


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Verl(runtime, options)]


class Verl(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._started = time.monotonic()
        self._requests = 0
        self._repeats = Repeats(options.verl_repeat_seconds)
        self._trajectories = Trajectories(
            runtime, done_if_invalid=options.verl_done_if_invalid, explain_invalid=options.verl_explain_invalid
        )
        self._spread = Spread(runtime, self._trajectories)
        self._late: set[asyncio.Task[tuple[bytes, bool]]] = set()
        """Work that goes on for requests that were answered 408."""
        endpoints: dict[str, tuple[str, Callable[[Request], Awaitable[None]]]] = {
            "/get_observation": ("POST", self.get_observation),
            "/verl/get_observation": ("POST", self.get_observation),
            "/verl/health": ("GET", self.health),
            "/verl/metrics": ("GET", self.metrics),
            PART: ("POST", self.part),
        }
        if options.protocol == ("verl",):  # the only protocol has the paths of the original
            endpoints |= {"/health": ("GET", self.health), "/metrics": ("GET", self.metrics)}
        self._endpoints: Mapping[str, tuple[str, Callable[[Request], Awaitable[None]]]] = endpoints

    @property
    def paths(self) -> Collection[str]:
        return self._endpoints

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"].rstrip("/") in self._endpoints else Match.NONE), {}

    def says_in_body(self, scope: Scope) -> bool:
        """Whether the body of this request names trajectories."""
        path: str = scope["path"]
        return scope["method"] == "POST" and path.rstrip("/").endswith("/get_observation")

    def session_in(self, body: bytes) -> str:
        """The trajectory whose gateway handles the whole batch; empty if there is none."""
        return first_trajectory(body)

    async def answer_lost(self, request: Request, body: bytes, why: str) -> None:
        """Answer a batch whose gateway has ended."""
        await request.answer(200, headers_of(0.0), as_answer([lost(why)] * len(batches.parse(body)), 0.0))

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, endpoint = self._endpoints[scope["path"].rstrip("/")]
        if scope["method"] != method:
            raise HttpError(405, "Method Not Allowed", [(b"allow", method.encode())])
        await endpoint(Request(scope, receive, send, self._options))

    async def get_observation(self, request: Request) -> None:
        body = await request.body()
        began = time.perf_counter()
        self._requests += 1
        try:
            answer, last = await self._in_time(body)
        finally:
            self._requests -= 1
        seconds = time.perf_counter() - began
        if seconds > _PROMPT and request.is_gone():
            if last:
                self._repeats.keep(body, answer)
            return
        if last:
            self._repeats.taken(body)
        await request.answer(200, headers_of(seconds), answer)

    async def _in_time(self, body: bytes) -> tuple[bytes, bool]:
        """The answer, and whether this request is the last to ask for it. If it takes too long, answer 408: the work
        goes on, and the same request again finds it."""
        work = self._repeats.answer(body, partial(self._work, body))
        if not (seconds := self._options.verl_request_seconds):
            return await work
        working = asyncio.ensure_future(work)
        if await first_of((working,), seconds):
            return working.result()
        self._repeats.leave(body)
        self._late.add(working)
        working.add_done_callback(self._late_one_done)
        raise HttpError(408, "Request processing timeout")

    def _late_one_done(self, working: asyncio.Task[tuple[bytes, bool]]) -> None:
        self._late.discard(working)
        if not working.cancelled() and (error := working.exception()) is not None:
            log.error("a request that had been answered 408 failed", exc_info=error)

    async def _work(self, body: bytes) -> bytes:
        began = time.perf_counter()
        act = self._trajectories.act if self._runtime.owners.alone else self._spread.act
        return as_answer(await act(batches.parse(body)), time.perf_counter() - began)

    async def part(self, request: Request) -> None:
        """Act for our part of a batch that another gateway handles."""
        if PASSED not in request.scope:
            raise HttpError(404, "Not Found")
        answer = await self._spread.act_here(await request.body())
        await request.answer(200, ((b"content-type", b"application/json"),), answer)

    async def health(self, request: Request) -> None:
        tools = [name for env in self._runtime.environments.values() for name in env._definition.tools]
        await request.answer_json(
            {
                "status": "draining" if self._runtime.draining else "healthy",
                "concurrent_requests": self._requests,
                "thread_pool_size": self._options.max_concurrent_calls,
                "active_tasks": self._runtime.calls,
                "trajectories": self._trajectories.open,
                "max_concurrent": self._options.max_concurrent_calls,
                "tools": [*dict.fromkeys(tools), "finish"],
                "uptime_seconds": time.monotonic() - self._started,
            },
            503 if self._runtime.draining else 200,
        )

    async def metrics(self, request: Request) -> None:
        await request.answer_json(
            {
                "active_requests": self._requests,
                "cached_responses": len(self._repeats),
                "tools_initialized": sum(len(env._definition.tools) for env in self._runtime.environments.values()) + 1,
                "uptime_seconds": time.monotonic() - self._started,
                "config": {
                    "max_concurrent": self._options.max_concurrent_calls,
                    "timeout": self._options.verl_request_seconds or None,
                    "hashing_enabled": self._options.verl_repeat_seconds > 0,
                },
            }
        )


def headers_of(seconds: float) -> Headers:
    """The time is rounded to the millisecond, so that most heads are equal and come from a cache."""
    return ((b"content-type", b"application/json"), (b"x-process-time", b"%.3f" % seconds))


def as_answer(results: Sequence[Result], seconds: float) -> bytes:
    observations, dones, valids = results, [False] * len(results), [True] * len(results)
    if set(map(type, results)) != _TEXT_ONLY:
        observed = [(one, False, True) if isinstance(one, str) else one for one in results]
        observations, dones, valids = map(list, zip(*observed, strict=True))
    return encode(
        {
            "observations": observations,
            "dones": dones,
            "valids": valids,
            "processing_time_ms": seconds * 1000,
            "queue_time_ms": 0.0,
        }
    )
