"""A retriever with Search-R1's interface: `POST /retrieve` with queries returns passages of a corpus."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from starlette.types import Receive, Scope, Send

from toolyard.asgi import Disconnected, HttpError, HttpOptions, Request, decode, wrong_method
from toolyard.tools.corpus import Corpus, Hit

TOPK = 3
TOPK_MOST = 1_000
QUERIES_MOST = 10_000
_BREATH = 0.005
"""Yield to the event loop after this many seconds of searching."""

OPTIONS = HttpOptions(body_bytes=16 * 2**20, ping_seconds=10, starting_seconds=0, errors="exception", api_key="")


class Retriever:
    """The ASGI application."""

    def __init__(self, corpus: Corpus, *, topk: int = TOPK) -> None:
        self._corpus = corpus
        self._topk = topk
        self._queries = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await _live(receive, send)
            return
        request = Request(scope, receive, send, OPTIONS)
        try:
            await self._answer(request, scope["method"], scope["path"].rstrip("/"))
        except Disconnected:
            return
        except HttpError as error:
            await request.answer_json(error.body, error.status, error.headers)

    async def _answer(self, request: Request, method: str, path: str) -> None:
        match method, path:
            case "POST", "/retrieve":
                await request.answer_json({"result": await self._retrieve(decode(await request.body()))})
            case "GET", "/health":
                told = {"status": "healthy", "passages": len(self._corpus), "queries": self._queries}
                await request.answer_json(told)
            case _, "/retrieve" | "/health":
                raise wrong_method("POST" if path == "/retrieve" else "GET")
            case _:
                raise HttpError(404, f"there is nothing at {path or '/'}; there are POST /retrieve and GET /health")

    async def _retrieve(self, asked: object) -> Sequence[object]:
        queries, topk, scored = read(asked)
        found = []
        begun = time.perf_counter()
        for query in queries:
            hits = self._corpus.search(query, topk or self._topk)
            found.append([document(hit, scored=scored) for hit in hits])
            if time.perf_counter() - begun > _BREATH:
                await asyncio.sleep(0)
                begun = time.perf_counter()
        self._queries += len(queries)
        return found


def document(hit: Hit, *, scored: bool) -> Mapping[str, Any]:
    passage = {"id": hit.passage.id, "contents": hit.passage.contents}
    return {"document": passage, "score": hit.score} if scored else passage


def read(asked: object) -> tuple[Sequence[str], int | None, bool]:
    """The queries, how many passages for each, and whether to return scores. Raises if the request is malformed."""
    if not isinstance(asked, dict):
        raise _invalid("body", "the body must be an object with a list of queries")
    queries, topk, scored = asked.get("queries"), asked.get("topk"), asked.get("return_scores")
    if not isinstance(queries, list) or not all(isinstance(query, str) for query in queries):
        raise _invalid("queries", "queries must be a list of texts")
    if len(queries) > QUERIES_MOST:
        raise _invalid("queries", f"there are {len(queries)} queries; {QUERIES_MOST} are the most")
    if topk is not None and not (type(topk) is int and 0 <= topk <= TOPK_MOST):
        raise _invalid("topk", f"topk must be a whole number up to {TOPK_MOST}")
    if scored is not None and not isinstance(scored, bool):
        raise _invalid("return_scores", "return_scores must be true or false")
    return queries, topk, bool(scored)


def _invalid(field: str, problem: str) -> HttpError:
    where = ["body", field] if field != "body" else ["body"]
    return HttpError(422, [{"type": "value_error", "loc": where, "msg": problem, "input": None}])


async def _live(receive: Receive, send: Send) -> None:
    """There is nothing to start or stop; the corpus was read before."""
    while (message := await receive())["type"] == "lifespan.startup":
        await send({"type": "lifespan.startup.complete"})
    if message["type"] == "lifespan.shutdown":
        await send({"type": "lifespan.shutdown.complete"})
