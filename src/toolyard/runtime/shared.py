"""What the sessions of one server share: limits, background tasks, slots to run in, results kept for a while."""

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
        """Those running or waiting to run, and what to do with one that does not let itself be stopped."""
        self.calls_most = limits.max_concurrent_calls + limits.max_queued_calls
        self.draining = False

    def stop_late_calls(self, now: float) -> None:
        """Stop calls past their deadline; after a while, give up those that go on all the same."""
        for call, abandon in [(call, abandon) for call, abandon in self.calls.items() if call.due < now]:
            call.stop("timed_out")
            if call.due + self.limits.teardown_seconds < now:
                abandon(call)

    def excuse_calls(self, seconds: float) -> None:
        """Give every call the time again in which this process stood still: nobody could take its result."""
        for call in self.calls:
            call.excused += min(seconds, self.limits.call_seconds)
