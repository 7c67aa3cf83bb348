"""Passes requests on to another gateway, and brings back the answers."""

from __future__ import annotations

import asyncio
from operator import itemgetter
from typing import Any

from starlette.types import Scope

from toolyard.asgi import HttpError, Request
from toolyard.gateways.answering import SENT
from toolyard.rpc import OurQuestion, PeerLost, RpcConnection
from toolyard.runtime.owners import GatewayLost

_PROMPT = 0.05
"""For this many seconds, no client gives up waiting, so that we need not watch for that."""

_ENDED = "the gateway that had this session has ended, and the session with it"

_of_scope = itemgetter(*SENT)


class Asking:
    """Passes requests on over a connection to another gateway."""

    def __init__(self, connection: RpcConnection) -> None:
        self._connection = connection
        self._new: list[PassedOn] = []
        self._recent: list[PassedOn] = []
        """Requests that were new at the last look."""
        self._looking = False

    def ask(self, scope: Scope, body: bytes) -> PassedOn:
        asked = PassedOn(self._connection.ask("request", _of_scope(scope), body))
        self._new.append(asked)
        if not self._looking:
            self._looking = True
            self._connection.loop.call_later(_PROMPT, self._look)
        return asked

    def _look(self) -> None:
        """One timer serves all requests: from the second look on, watch whether their clients go away."""
        for asked in self._recent:
            asked.watch()
        self._recent, self._new = self._new, []
        self._looking = bool(self._recent)
        if self._looking:
            self._connection.loop.call_later(_PROMPT, self._look)


class PassedOn:
    """A request that another gateway answers.

    The answer is status, headers and body; or a part with status and headers, then parts of the body, the last of which
    is the answer; or None, if the other gateway failed to answer.
    """

    __slots__ = ("_question", "_request", "_watching")

    def __init__(self, question: OurQuestion) -> None:
        self._question = question
        self._request: Request | None = None
        """The client's request, while its answer is brought back."""
        self._watching: asyncio.Task[None] | None = None

    async def whole(self) -> tuple[int, bytes]:
        """The status and the body of the answer."""
        parts: list[Any] = []
        try:
            while (part := await self._question.part()) is not None:
                parts.append(part)
            match parts, self._question.result():
                case [], [status, _, body]:
                    return status, body
                case [[status, _], *begun], bytes(end):
                    return status, b"".join((*begun, end))
        except PeerLost:
            pass
        finally:
            self._question.leave()
        raise GatewayLost(_ENDED)

    async def bring_back(self, request: Request) -> None:
        """Send the answer to the client. If the client hangs up, tell the other gateway."""
        self._request = request
        try:
            while (part := await self._question.part()) is not None:
                await self._bring_part(part, request)
            if not self._question.cancelled():  # as it is when the client has gone
                await self._bring_last(self._question.result(), request)
        except PeerLost:
            if not request.started:  # otherwise the answer breaks off, and the server closes its connection
                raise GatewayLost(_ENDED) from None
        finally:
            self._request = None
            if self._watching is not None:
                self._watching.cancel()
            self._question.leave()

    async def _bring_part(self, part: Any, request: Request) -> None:
        if isinstance(part, bytes):
            await request.write(part)
        else:
            status, headers = part
            await request.start(_pairs(headers), status)

    async def _bring_last(self, answer: Any, request: Request) -> None:
        if isinstance(answer, bytes):
            await request.write(answer, last=True)
        elif answer is not None:
            status, headers, body = answer
            await request.answer(status, _pairs(headers), body)
        elif not request.started:
            raise HttpError(500, "Internal Server Error")

    def watch(self) -> None:
        """Watch from now on whether the client goes away."""
        if self._request is not None and self._watching is None:
            self._watching = asyncio.ensure_future(self._until_gone(self._request))

    async def _until_gone(self, request: Request) -> None:
        await request.until_gone()
        self._question.leave()


def _pairs(headers: list[list[bytes]]) -> list[Any]:
    """Headers as ASGI has them, from the lists of a message."""
    return [*map(tuple, headers)]
