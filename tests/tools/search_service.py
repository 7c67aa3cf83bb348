"""Plays Serper at /search and Bright Data at /request, for tests of web search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.tools.loopback import serving

KEY = "k-0123456789"
PAGE = {"title": " Toolyard ", "link": "https://t.example", "snippet": "One server."}


def found(*results: dict[str, Any]) -> Response:
    return JSONResponse({"organic": list(results)})


class Service:
    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.keys: list[str] = []
        self.answers: list[Callable[[], Response]] = []
        """Returned one after the other; after that, one page."""
        routes = [Route(path, self.answer, methods=["POST"]) for path in ("/search", "/request")]
        self.app = Starlette(routes=routes)

    async def answer(self, request: Request) -> Response:
        self.asked.append(await request.json())
        self.keys.append(request.headers.get("x-api-key") or request.headers["authorization"])
        return self.answers.pop(0)() if self.answers else found(PAGE)


@contextmanager
def searching(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    """With keys for both, and no corpus."""
    service = Service()
    with serving(service.app) as url:
        monkeypatch.delenv("TOOLYARD_SEARCH_CORPUS", raising=False)
        monkeypatch.setenv("SERPER_URL", f"{url}/search")
        monkeypatch.setenv("BRIGHTDATA_URL", f"{url}/request")
        monkeypatch.setenv("SERPER_API_KEY", KEY)
        monkeypatch.setenv("BRIGHTDATA_API_KEY", KEY)
        yield service
