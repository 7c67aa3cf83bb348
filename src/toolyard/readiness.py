"""Whether a server can take one more session, and why not: a load balancer asks this before it sends a client."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import Literal, NamedTuple, TypeAlias

from toolyard.core.environment import needs_sandbox
from toolyard.runtime.runtime import Runtime
from toolyard.sandboxes.capacity import scarcities
from toolyard.sandboxes.output import isolation
from toolyard.sandboxes.provider import in_force, provided

Status: TypeAlias = Literal["draining", "full", "unavailable"]

_RECENTLY = 60
"""For this many seconds after sandboxes could not be started, the server is not ready. Not for ever: a server that gets
no sessions does not try again."""


class Obstacle(NamedTuple):
    status: Status
    reason: str
    """In words for any client: it reveals nothing of the host."""


def obstacles(runtime: Runtime) -> list[Obstacle]:
    """The reasons why the server can take no session; empty if it can."""
    return list(_found(runtime))


def health(runtime: Runtime) -> tuple[int, Mapping[str, object]]:
    """The status and the body of the answer to a health check."""
    if found := obstacles(runtime):
        return 503, {"status": found[0].status, "reasons": [one.reason for one in found]}
    if (report := in_force()) is not None:
        return 200, {"status": "ok", "isolation": isolation(report)}
    return 200, {"status": "ok"}


def _found(runtime: Runtime) -> Iterator[Obstacle]:
    limits = runtime.limits
    if runtime.draining:
        yield Obstacle("draining", "the server is shutting down")
    if len(runtime.sessions) >= limits.max_sessions:
        yield Obstacle("full", f"all {limits.max_sessions} sessions of this server are in use")
    if runtime.calls >= limits.max_concurrent_calls + limits.max_queued_calls:
        yield Obstacle("full", f"{runtime.calls} calls are running or waiting, and no more are taken")
    if problem := runtime.placement.problem:
        yield Obstacle("unavailable", problem)
    uses_sandboxes = any(map(needs_sandbox, runtime.environments.values()))
    for lack in scarcities(memory=uses_sandboxes):
        yield Obstacle("unavailable", lack)
    if uses_sandboxes and _has_no_sandboxes():
        yield Obstacle("unavailable", "sandboxes could not be started")


def _has_no_sandboxes() -> bool:
    provider = provided()
    failed = provider.failed if provider is not None else None
    return failed is not None and time.monotonic() - failed < _RECENTLY
