"""Finds the answer to a repeated request: that of the same request, if it still runs or no client took its answer."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable

_BYTES_MOST = 16 * 2**20


class Repeats:
    """Trainers send a request again when they lose patience. Its actions must not run twice."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[bytes, _Running] = {}
        self._untaken: OrderedDict[bytes, tuple[float, bytes]] = OrderedDict()
        self._held = 0

    def __len__(self) -> int:
        return len(self._untaken)

    async def answer(self, body: bytes, work: Callable[[], Awaitable[bytes]]) -> tuple[bytes, bool]:
        """Run `work`, once for all equal requests at the same time. With no seconds, run it for each request.

        Return the answer, and whether no equal request came later: the last request is the one to be answered.
        """
        if not self._seconds:
            return await work(), True
        if (kept := self._take(body)) is not None:
            return kept, True
        if (running := self._running.get(body)) is not None:
            return await running.join()
        running = self._running[body] = _Running()
        try:
            answer = await work()
        except BaseException as error:
            running.fail(error)
            raise
        finally:
            del self._running[body]
        if running.joined or running.left:  # without a wait in between: the same request may come any moment
            self.keep(body, answer)
        running.succeed(answer)
        return answer, not running.joined

    def leave(self, body: bytes) -> None:
        """A request was answered before its work was done: its client will ask again."""
        if (running := self._running.get(body)) is not None:
            running.left = True

    def taken(self, body: bytes) -> None:
        """The last request gets the answer, so drop it."""
        self._take(body)

    def keep(self, body: bytes, answer: bytes) -> None:
        """Keep an answer for a later request: the client that waited for it has gone."""
        if not self._seconds:
            return
        self._take(body)
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


class _Running:
    """Work that runs for one request, and the future for equal requests that wait for it."""

    __slots__ = ("_shared", "joined", "left")

    def __init__(self) -> None:
        self.joined = 0
        self.left = False
        self._shared: asyncio.Future[bytes] | None = None

    async def join(self) -> tuple[bytes, bool]:
        self.joined += 1
        mine = self.joined
        if self._shared is None:
            self._shared = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._shared), mine == self.joined

    def succeed(self, answer: bytes) -> None:
        if self._shared is not None:
            self._shared.set_result(answer)

    def fail(self, error: BaseException) -> None:
        if self._shared is None:
            return
        if isinstance(error, Exception):
            self._shared.set_exception(error)
        else:
            self._shared.cancel()
