"""Keeps results for clients that lost their connection: for a while after the call, and at most so many bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

from toolyard.runtime.call import Call

OVERHEAD = 1536
"""Bytes that a kept call takes beside its text, about."""


class ReplayCache:
    def __init__(self, seconds: float, most_bytes: int) -> None:
        self._seconds = seconds
        self._most = most_bytes
        self._bytes = 0
        self._calls: OrderedDict[Call[Any], tuple[float, Callable[[Call[Any]], None]]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, call: Call[Any], forget: Callable[[Call[Any]], None], now: float) -> None:
        """Keep a call from now on. `forget` is called when it is evicted."""
        self._calls[call] = (now + self._seconds, forget)
        self._bytes += call.size + OVERHEAD
        while self._bytes > self._most and len(self._calls) > 1:
            self._evict()

    def drop(self, call: Call[Any]) -> None:
        """Forget a call whose session is over."""
        if self._calls.pop(call, None) is not None:
            self._bytes -= call.size + OVERHEAD

    def sweep(self, now: float) -> None:
        while self._calls and next(iter(self._calls.values()))[0] <= now:
            self._evict()

    def _evict(self) -> None:
        call, (_, forget) = self._calls.popitem(last=False)
        self._bytes -= call.size + OVERHEAD
        forget(call)
