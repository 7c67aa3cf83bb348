"""A real HTTP server that plays APIs: the library of `examples/data`, a ToolBench endpoint, and a misbehaving one."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
import zlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

DESK_KEY = "desk-0123456789"
STAFF_KEY = "staff+/0123456789"
TOOLBENCH_KEY = "toolbench-0123456789"

BOMB = gzip.compress(bytes(64 * 2**20))
"""A small answer that unpacks to a large one."""

BOOKS: dict[str, dict[str, Any]] = {
    "978-1": {"isbn": "978-1", "title": "Tides", "author": "Ada Marsh", "year": 1987, "subjects": ["sea", "maths"]},
    "978-2": {"isbn": "978-2", "title": "Salt", "author": "Ben Quay", "year": 2004, "subjects": ["sea"]},
    "978-3": {"isbn": "978-3", "title": "Proofs", "author": "Ada Marsh", "year": 2011, "subjects": ["maths"]},
}


@dataclass(frozen=True)
class Asked:
    method: str
    target: str
    """As it was on the wire."""
    headers: dict[str, str]
    body: bytes


class Api:
    def __init__(self) -> None:
        self.forget()
        self.app = Starlette(
            routes=[
                Route("/v1/books", self.books),
                Route("/v1/books/{isbn}", self.book),
                Route("/v1/books/{isbn}/cover", self.cover),
                Route("/v1/loans", self.borrow, methods=["POST"]),
                Route("/v1/loans/{loan:int}/return", self.give_back, methods=["POST"]),
                Route("/v1/readers/{reader}", self.reader),
                Route("/rapidapi", self.toolbench, methods=["POST"]),
                Route("/status/{code:int}", self.status),
                Route("/moved/{where}", self.moved, methods=["GET", "POST"]),
                Route("/answer/{kind}", self.answer),
                Route("/slow", self.slow),
            ]
        )

        self.app.router.default = self.otherwise

    def forget(self) -> None:
        self.asked: list[Asked] = []
        self.elsewhere = ""
        """The target of the redirect at /moved/away."""
        self.peers: set[Any] = set()

    async def otherwise(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await (await self.echo(Request(scope, receive)))(scope, receive, send)

    async def note(self, request: Request) -> Asked:
        query = request.scope["query_string"].decode()
        target = request.scope["raw_path"].decode() + f"?{query}" * bool(query)
        asked = Asked(request.method, target, dict(request.headers), await request.body())
        self.asked.append(asked)
        self.peers.add(request.client)
        return asked

    # The library

    async def books(self, request: Request) -> Response:
        await self.note(request)
        query = request.query_params
        found = [
            book
            for book in BOOKS.values()
            if query.get("author", "") in book["author"]
            and (not query.getlist("subject") or set(query.getlist("subject")) & set(book["subjects"]))
            and int(query.get("years[from]", 0)) <= book["year"] <= int(query.get("years[to]", 9999))
        ]
        return JSONResponse(found[: int(query.get("limit", 10))])

    async def book(self, request: Request) -> Response:
        await self.note(request)
        book = BOOKS.get(request.path_params["isbn"])
        return JSONResponse(book) if book else JSONResponse({"problem": "there is no such book"}, 404)

    async def cover(self, request: Request) -> Response:
        await self.note(request)
        return Response(png(), media_type="image/png")

    async def borrow(self, request: Request) -> Response:
        asked = await self.note(request)
        if request.headers.get("x-library-key") != DESK_KEY:
            return JSONResponse({"problem": f"{request.headers.get('x-library-key')} is no key"}, 401)
        return JSONResponse({"number": 7, **json.loads(asked.body), "id": request.headers.get("request-id")}, 201)

    async def give_back(self, request: Request) -> Response:
        await self.note(request)
        return Response(status_code=204 if request.headers.get("x-library-key") == DESK_KEY else 403)

    async def reader(self, request: Request) -> Response:
        await self.note(request)
        if request.headers.get("authorization") != f"Bearer {STAFF_KEY}":
            return JSONResponse({"problem": "staff only"}, 401)
        return JSONResponse({"name": request.path_params["reader"], "loans": []})

    # ToolBench's endpoint

    async def toolbench(self, request: Request) -> Response:
        body = json.loads((await self.note(request)).body)
        if body.get("toolbench_key") != TOOLBENCH_KEY or request.headers.get("toolbench_key") != TOOLBENCH_KEY:
            return JSONResponse({"detail": "no key"}, 401)
        told = f"{body['category']}/{body['tool_name']}/{body['api_name']} {json.dumps(body['tool_input'])}"
        return JSONResponse({"error": "", "response": told})

    # A misbehaving one

    async def echo(self, request: Request) -> Response:
        """Returns everything that it received, keys too."""
        asked = await self.note(request)
        body = asked.body.decode()
        answer = JSONResponse({"method": asked.method, "target": asked.target, "headers": asked.headers, "body": body})
        answer.set_cookie("visitor", "one-of-many")
        return answer

    async def status(self, request: Request) -> Response:
        asked = await self.note(request)
        return Response(f"because of {asked.headers.get('x-key')} " + "x" * 5000, request.path_params["code"])

    async def moved(self, request: Request) -> Response:
        await self.note(request)
        where = {
            "here": "/echo/there?a=1",
            "away": f"{self.elsewhere}/echo",
            "round": "/moved/round",
            "odd": "http://[",
        }
        kept = request.path_params["where"] == "kept"
        return RedirectResponse(where.get(request.path_params["where"], "/echo/kept"), 307 if kept else 302)

    async def answer(self, request: Request) -> Response:
        await self.note(request)
        match request.path_params["kind"]:
            case "huge":
                return StreamingResponse(megabytes(32), media_type="text/plain")
            case "bomb":
                return Response(BOMB, headers={"content-encoding": "gzip"})
            case "packed":
                return Response(gzip.compress(b'{"unpacked": true}'), headers={"content-encoding": "gzip"})
            case "torn":
                return Response(gzip.compress(bytes(10**6))[:200], headers={"content-encoding": "gzip"})
            case "strange":
                return Response(b"....", headers={"content-encoding": "br"})
            case "deep":
                return Response("[" * 5000 + "]" * 5000, media_type="application/json")
            case "large":
                return JSONResponse({"numbers": list(range(200_000))})
            case "binary":
                return Response(b"%PDF\0\0", media_type="application/pdf")
            case "wrong":
                return Response("{not JSON", media_type="application/json")
            case _:
                return Response("plain words", media_type="text/plain")

    async def slow(self, request: Request) -> Response:
        await self.note(request)
        while not await request.is_disconnected():
            await asyncio.sleep(0.05)
        return Response()


async def megabytes(count: int) -> AsyncIterator[bytes]:
    for _ in range(count):
        yield b"x" * 2**20


def png() -> bytes:
    """One grey pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"\0\x80")) + chunk(b"IEND", b"")


def document(paths: dict[str, Any], **more: Any) -> dict[str, Any]:
    """An OpenAPI 3.0 document with these paths."""
    return {"openapi": "3.0.3", "info": {"title": "An API", "version": "1"}, "paths": paths, **more}


def get(*parameters: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"get": {"parameters": list(parameters), "responses": {}, **more}}


def parameter(name: str, place: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "in": place, "schema": {}, **more}
