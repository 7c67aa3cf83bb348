"""A scripted endpoint that speaks OpenAI's chat completions, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Reply: TypeAlias = Response | Callable[["Asked"], Any]


class Asked:
    """One request."""

    def __init__(self, body: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.body = body
        self.headers = headers
        self.system, self.user = (message["content"] for message in body["messages"])
        self.mark = re.match(r"The mark is ([0-9a-f]{16})\n", self.user)[1]

    def section(self, name: str) -> str:
        return re.search(rf"\[{self.mark} begin: {name}\]\n(.*)\n\[{self.mark} end: {name}\]", self.user, re.S)[1]


class Endpoint:
    """Answers with the replies of its script, one after the other; the last one stays."""

    def __init__(self, *script: Reply) -> None:
        self.script = list(script)
        self.asked: list[Asked] = []

    async def answer(self, request: Request) -> Response:
        asked = Asked(json.loads(await request.body()), dict(request.headers))
        self.asked.append(asked)
        reply = self.script[0] if len(self.script) == 1 else self.script.pop(0)
        if isinstance(reply, Response):
            return reply
        said = reply(asked)
        if asyncio.iscoroutine(said):
            said = await said
        return said if isinstance(said, Response) else completion(said)


class Endpoints:
    """One server with an endpoint for each test."""

    def __init__(self) -> None:
        self.all: list[Endpoint] = []
        self.app = Starlette(routes=[Route("/{number:int}/v1/chat/completions", self.answer, methods=["POST"])])
        self.url = ""

    def open(self, *script: Reply) -> tuple[str, Endpoint]:
        self.all.append(Endpoint(*script))
        return f"{self.url}/{len(self.all) - 1}/v1", self.all[-1]

    async def answer(self, request: Request) -> Response:
        return await self.all[request.path_params["number"]].answer(request)


def completion(content: object, finish_reason: str = "stop") -> Response:
    message = {"role": "assistant", "content": content}
    return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": finish_reason}]})


def verdict(mark: str, **scores: object) -> str:
    said = {name: {"reason": f"why {name}", "score": score} for name, score in scores.items()}
    return json.dumps({"mark": mark, "scores": said})


def giving(**scores: object) -> Callable[[Asked], str]:
    """A judge with these scores."""
    return lambda asked: verdict(asked.mark, **scores)


def refusing(status: int, **headers: str) -> Response:
    return JSONResponse({"error": {"message": f"status {status}"}}, status, headers)
