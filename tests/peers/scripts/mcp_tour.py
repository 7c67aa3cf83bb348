"""An agent's use of MCP, with the clients of `mcp` 1, `mcp` 2 and `fastmcp`, each by its own API."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import Any

import mcp
from common import main


class Shown(Exception):
    """The client raised instead of returning a result."""


class Sdk2:
    """`mcp.Client`, with or without handshakes."""

    def __init__(self, mode: str) -> None:
        self.mode = mode
        self.steps: list[float] = []

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        self.steps.append(progress)

    @asynccontextmanager
    async def at(self, url: str) -> Any:
        async with mcp.Client(url, mode=self.mode) as client:
            self.client = client
            yield {"version": client.protocol_version, "instructions": client.instructions}

    async def tools(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]

    async def prompt(self) -> list[str]:
        return [message.content.type for message in (await self.client.get_prompt("task")).messages]

    async def call(self, tool: str, **arguments: Any) -> Any:
        return await self.client.call_tool(tool, arguments, progress_callback=self if tool == "rest" else None)

    def meta(self, result: Any) -> Any:
        return result.meta

    def is_error(self, result: Any) -> bool:
        return bool(result.is_error)


class Sdk1(Sdk2):
    """`mcp.ClientSession` of version 1, which always shakes hands."""

    @asynccontextmanager
    async def at(self, url: str) -> Any:
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(url) as (read, write, _), mcp.ClientSession(read, write) as client:
            begun = await client.initialize()
            self.client = client
            yield {"version": begun.protocolVersion, "instructions": begun.instructions}

    def is_error(self, result: Any) -> bool:
        return bool(result.isError)


class FastMcp(Sdk2):
    """`fastmcp.Client` of either version; only the newer one works without handshakes."""

    @asynccontextmanager
    async def at(self, url: str) -> Any:
        import fastmcp

        mode = {"mode": self.mode} if fastmcp.__version__ >= "4" else {}
        async with fastmcp.Client(url, **mode) as client:
            self.client = client
            begun = client.initialize_result
            yield {"version": getattr(begun, "protocolVersion", None) or getattr(begun, "protocol_version", None)}

    async def tools(self) -> list[str]:
        return [tool.name for tool in await self.client.list_tools()]

    async def call(self, tool: str, **arguments: Any) -> Any:
        more = {"progress_handler": self} if tool == "rest" else {}
        return await self.client.call_tool(tool, arguments, raise_on_error=False, **more)

    def is_error(self, result: Any) -> bool:
        return bool(result.is_error)


CLIENTS = {"sdk2": Sdk2, "sdk1": Sdk1, "fastmcp": FastMcp}


async def seen(client: Sdk2, tool: str, **arguments: Any) -> dict[str, Any]:
    """What the host of an agent gets for a call."""
    try:
        result = await client.call(tool, **arguments)
    except Exception as error:
        about = getattr(error, "error", error)
        code, data = getattr(about, "code", None), getattr(about, "data", None)
        return {"raised": type(error).__name__, "code": code, "data": data}
    texts = [getattr(block, "text", block.type) for block in result.content]
    return {"error": client.is_error(result), "texts": [text if len(text) < 1000 else len(text) for text in texts]}


async def tour(kind: str, url: str, by_handshake: str, mode: str = "auto") -> dict[str, Any]:
    client = CLIENTS[kind](mode)
    found: dict[str, Any] = {}
    async with client.at(url) as begun:
        found |= begun
        found["tools"] = await client.tools()
        found["prompt"] = await client.prompt() if kind != "fastmcp" else None
        found["add"] = await seen(client, "add", a=1, b=2)
        found["look"] = await seen(client, "look")
        found["fail"] = await seen(client, "fail")
        found["wrong"] = await seen(client, "add", a=1)
        found["boom"] = await seen(client, "boom")
        found["nope"] = await seen(client, "nope")
        found["lose"] = await seen(client, "lose")
        found["again"] = await seen(client, "add", a=2, b=2)
        found["large"] = await seen(client, "large", size=2_000_000)
        found["rest"] = await seen(client, "rest", seconds=0.7)
        found["steps"] = client.steps
        found["guess"] = await seen(client, "guess", number=7)
        found["late"] = await seen(client, "guess", number=8)
    async with client.at(by_handshake):
        found["notes"] = [await seen(client, "note", text=text) for text in "ab"]
    return found


def run(**arguments: Any) -> dict[str, Any]:
    return asyncio.run(tour(**arguments))


if __name__ == "__main__":
    main(run)
