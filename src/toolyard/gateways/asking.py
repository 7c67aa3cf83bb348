"""Requests on their way to another gateway, and what comes back of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpError, Request
from toolyard.gateways.answering import BROKEN, HEAD, LAST, PART, SENT, WHOLE
from toolyard.gateways.frames import Frame, Frames
from toolyard.runtime.owners import GatewayLost

_LOST, _LEFT = -1, -2
"""What ends a request here: the other gateway has gone, or the client."""
_PROMPT = 0.05
"""Seconds within which nobody gives up waiting, so that one need not look whether somebody did."""

_WAITING_MOST = 4 * 2**20
"""Bytes of one answer that wait here for a client that reads slowly. Then the other gateway waits, too."""

_ENDED = "the gateway that had this session has ended, and the session with it"

_of_scope = itemgetter(*SENT)


class Asking(Frames):
    """The end of a line at which requests go in."""

    def __init__(self, on_lost: Callable[[], None]) -> None:
        super().__init__()
        self._on_lost = on_lost
        self._asked: dict[int, Asked] = {}
        self._count = 0
        self._new: list[Asked] = []
        self._recent: list[Asked] = []
        """Those that were new when we looked last for clients that may have gone."""
        self._looking = False

    def ask(self, scope: Scope, body: bytes) -> Asked:
        if not self.is_open:
            raise GatewayLost(_ENDED)
        self._count += 1
        asked = self._asked[self._count] = Asked(self, self._count)
        self.send((self._count, _of_scope(scope), body))
        self._new.append(asked)
        if not self._looking:
            self._looking = True
            self._loop.call_later(_PROMPT, self._look)
        return asked

    def _look(self) -> None:
        """One timer does for all: from the second look on, a request that is under way is watched."""
        for asked in self._recent:
            asked.watch()
        self._recent, self._new = self._new, []
        self._looking = bool(self._recent)
        if self._looking:
            self._loop.call_later(_PROMPT, self._look)

    def tell(self, number: int, *, go_on: bool) -> None:
        """Whether there is room for more of an answer."""
        if number in self._asked:
            self.send((number, go_on))

    def leave(self, number: int) -> None:
        """Nobody waits for this one any more."""
        if self._asked.pop(number, None) is not None:
            self.send((number,))

    def received(self, frame: Frame) -> None:
        number, *back = frame
        asked = self._asked.get(number)
        if asked is None:  # it was left meanwhile
            return
        if back[0] in (WHOLE, LAST, BROKEN):
            del self._asked[number]
        asked.put(back)

    def lost(self) -> None:
        for asked in self._asked.values():
            asked.put([_LOST])
        self._asked.clear()
        self._on_lost()


class Asked:
    """A request under way, and what has come back and not been looked at."""

    __slots__ = ("_came", "_is_held", "_line", "_number", "_receive", "_size", "_waiting", "_watching")

    def __init__(self, line: Asking, number: int) -> None:
        self._line = line
        self._number = number
        self._came: deque[list[Any]] = deque()
        self._size = 0
        """Bytes of parts in it."""
        self._is_held = False
        self._waiting: asyncio.Future[None] | None = None
        self._receive: Receive | None = None
        self._watching: asyncio.Task[None] | None = None

    def put(self, back: list[Any]) -> None:
        self._came.append(back)
        if back[0] == PART:
            self._grow(len(back[1]))
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def next(self) -> list[Any]:
        if not self._came:
            self._waiting = asyncio.get_running_loop().create_future()
            await self._waiting
        back = self._came.popleft()
        if back[0] == PART:
            self._grow(-len(back[1]))
        return back

    def _grow(self, by: int) -> None:
        self._size += by
        if self._is_held != (self._size > (_WAITING_MOST // 2 if self._is_held else _WAITING_MOST)):
            self._is_held = not self._is_held
            self._line.tell(self._number, go_on=not self._is_held)

    async def whole(self) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        status, parts = 0, []
        try:
            while True:
                kind, *said = await self.next()
                if kind in (WHOLE, HEAD):
                    status = said[0]
                if kind in (WHOLE, PART, LAST):
                    parts.append(said[-1])
                if kind in (WHOLE, LAST):
                    return status, b"".join(parts)
                if kind not in (HEAD, PART):
                    raise GatewayLost(_ENDED)
        finally:
            self._line.leave(self._number)

    async def bring_back(self, request: Request, receive: Receive, send: Send) -> None:
        """To the client. If that hangs up, the other gateway is told."""
        self._receive = receive
        try:
            kind, *said = await self.next()
            if kind == WHOLE:
                await request.answer(*said)
            else:
                await self._bring_rest(kind, said, request, send)
        finally:
            self._receive = None
            if self._watching is not None:
                self._watching.cancel()
            self._line.leave(self._number)

    async def _bring_rest(self, kind: int, said: Sequence[Any], request: Request, send: Send) -> None:
        """Of an answer that comes in parts."""
        while True:
            if kind == HEAD:
                request.started = True
                await send({"type": "http.response.start", "status": said[0], "headers": said[1]})
            elif kind in (PART, LAST):
                await send({"type": "http.response.body", "body": said[0], "more_body": kind == PART})
            if kind not in (HEAD, PART):
                self._check_end(kind, request)
                return
            kind, *said = await self.next()

    def _check_end(self, kind: int, request: Request) -> None:
        """An answer that has begun and does not go on ends with its connection."""
        if request.started or kind == _LEFT:
            return
        if kind == _LOST:
            raise GatewayLost(_ENDED)
        raise HttpError(500, "Internal Server Error")

    def watch(self) -> None:
        """Hear from now on if the client goes away."""
        if self._receive is not None and self._watching is None:
            self._watching = asyncio.ensure_future(self._until_gone(self._receive))

    async def _until_gone(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            continue
        self._line.leave(self._number)
        self.put([_LEFT])
