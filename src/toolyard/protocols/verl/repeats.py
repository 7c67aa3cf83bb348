"""The same request again: while the first runs it gets the same answer, and so it does when nobody took the first."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

_BYTES_MOST = 16 * 2**20


class Repeats:
    """Trainers send a request again when they lost patience. What it asked for must not be done twice."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[bytes, asyncio.Future[bytes] | None] = {}
        self._untaken: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._untaken)

    async def answer(self, body: bytes, work: Callable[[], Awaitable[bytes]]) -> bytes:
        """What `work` comes to, which is done once for all who ask for it meanwhile."""
        if (kept := self._take(body)) is not None:
            return kept
        if body in self._running:
            waiting = self._running[body]
            if waiting is None:
                waiting = self._running[body] = asyncio.get_running_loop().create_future()
            return await asyncio.shield(waiting)
        self._running[body] = None
        answer: bytes | None = None
        try:
            answer = await work()
            return answer
        finally:
            if (waited := self._running.pop(body)) is not None and not waited.done():
                if answer is None:
                    waited.cancel()
                else:
                    waited.set_result(answer)

    def keep(self, body: bytes, answer: bytes) -> None:
        """For whoever asks again: the one who did has gone away without it."""
        self._forget()
        self._untaken[body] = (time.monotonic() + self._seconds, answer)
        self._held += len(body) + len(answer)
        while self._held > _BYTES_MOST:
            self._drop()

    def _take(self, body: bytes) -> bytes | None:
        if not self._untaken:
            return None
        self._forget()
        if (kept := self._untaken.pop(body, None)) is None:
            return None
        self._held -= len(body) + len(kept[1])
        return kept[1]

    def _forget(self) -> None:
        now = time.monotonic()
        while self._untaken and next(iter(self._untaken.values()))[0] < now:
            self._drop()

    def _drop(self) -> None:
        body, (_, answer) = self._untaken.popitem(last=False)
        self._held -= len(body) + len(answer)
