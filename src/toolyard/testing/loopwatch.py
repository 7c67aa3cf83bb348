"""Notices when the author's code blocks the event loop, and names that code."""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from types import FrameType
from typing import Self

from toolyard.testing.blame import running_code

_LOOK_SECONDS = 0.02
_STUCK_SECONDS = 5
_SEEN_LEAST = 3
"""How often the watch must see the same code: a stall of the whole machine also stops the watch."""


class LoopWatch:
    """Use it as `with LoopWatch(0.1, stuck) as watch:` in the loop's thread, and read `watch.blocked` afterwards.

    It samples that thread's stack. A step of the loop that lasts longer than the given seconds has blocked it.
    """

    def __init__(self, seconds: float, stuck: Callable[[str, float], None]) -> None:
        self._limit = seconds
        self._stuck = stuck
        """The watching thread calls it once for code that seems to block for good."""
        self._loop_thread = threading.get_ident()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="toolyard-loopwatch", daemon=True)
        self._step: FrameType | None = None
        self._since = 0.0
        self._seen: Counter[str] = Counter()
        self._told: set[str] = set()
        self.blocked: dict[str, float] = {}
        """Code that blocked the loop, and its longest block in seconds."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            self._look(sys._current_frames().get(self._loop_thread))
        self._step = None

    def _look(self, frame: FrameType | None) -> None:
        step, code = running_code(frame)
        if step is not self._step:
            self._step, self._since = step, time.monotonic()
            self._seen.clear()
        if code is not None:
            self._seen[code] += 1
            self._judge(time.monotonic() - self._since)

    def _judge(self, seconds: float) -> None:
        code, times = self._seen.most_common(1)[0]
        if seconds >= self._limit and times >= _SEEN_LEAST:
            self.blocked[code] = max(self.blocked.get(code, 0), seconds)
            if seconds > _STUCK_SECONDS and code not in self._told:
                self._told.add(code)
                self._stuck(code, seconds)
