"""What the sessions of one server share: limits, background tasks, slots for calls, results kept for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from toolyard.runtime.background import Background
from toolyard.runtime.call import Call
from toolyard.runtime.journal import Journal
from toolyard.runtime.limits import Limits
from toolyard.runtime.replay_cache import ReplayCache
from toolyard.runtime.turn_queue import Slots


class Shared:
    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.background = Background()
        self.journal = Journal()
        self.replays = ReplayCache(limits.replay_seconds, limits.replay_bytes)
        self.slots = Slots(limits.max_concurrent_calls)
        self.calls: dict[Call[Any], Callable[[Call[Any]], None]] = {}
        """The calls that run or wait to run. The value abandons a call that does not stop."""
        self.calls_most = limits.max_concurrent_calls + limits.max_queued_calls
        self.draining = False

    def stop_late_calls(self, now: float) -> None:
        """Stop calls past their deadline. After `teardown_seconds` more, abandon those that have not ended."""
        for call, abandon in [(call, abandon) for call, abandon in self.calls.items() if call.due < now]:
            call.stop("timed_out")
            if call.due + self.limits.teardown_seconds < now:
                abandon(call)

    def excuse_calls(self, seconds: float) -> None:
        """Give every call back the time in which this process stood still and could not take its result."""
        for call in self.calls:
            call.excused += min(seconds, self.limits.call_seconds)
