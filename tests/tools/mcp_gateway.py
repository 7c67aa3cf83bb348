"""A gateway to two MCP servers of the official SDK: `python -m tests.tools.mcp_gateway PORT` serves it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn
from mcp.server.mcpserver import Image, MCPServer
from mcp.types import BlobResourceContents, EmbeddedResource, ImageContent, ResourceLink
from starlette.applications import Starlette
from starlette.routing import Mount
from starlette.types import ASGIApp, Receive, Scope, Send

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def math_server() -> MCPServer:
    server = MCPServer("math", instructions="sums")

    @server.tool()
    async def add(a: int, b: int) -> str:
        """Add two numbers."""
        return str(a + b)

    @server.tool()
    async def same(text: str) -> str:
        """Say the same."""
        return text

    @server.tool()
    async def boom() -> str:
        """Fail."""
        raise RuntimeError("it broke")

    @server.tool()
    async def sleep(mark: str = "") -> str:
        """Take long, and leave a mark at the start."""
        if mark:
            await asyncio.to_thread(Path(mark).touch)
        await asyncio.sleep(60)
        return "late"

    @server.tool(structured_output=False)
    async def draw() -> list[Any]:
        """A picture and words."""
        return ["a", "b", Image(data=PIXEL, format="png")]

    @server.resource("notes://today")
    async def today() -> str:
        """What is to be done."""
        return "nothing"

    return server


def text_server() -> MCPServer:
    server = MCPServer("text")

    @server.resource("notes://long", mime_type="text/plain")
    async def long() -> str:
        """Much of it."""
        return "x" * 30_000

    @server.resource("notes://pixel", mime_type="image/png")
    async def pixel() -> bytes:
        """A picture."""
        return PIXEL

    @server.resource("notes://bits", mime_type="application/octet-stream")
    async def bits() -> bytes:
        """Neither text nor picture."""
        return b"\0\1\2"

    @server.tool()
    async def upper(text: str) -> str:
        """In capitals."""
        return text.upper()

    @server.tool()
    async def same(text: str) -> str:
        """Say the same."""
        return text

    @server.tool(structured_output=False)
    async def sketch() -> list[Any]:
        """Draw, and say nothing."""
        return [ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png")]

    @server.tool(structured_output=False)
    async def point() -> list[Any]:
        """Point to resources."""
        link = ResourceLink(type="resource_link", uri="notes://long", name="long", mime_type="text/plain")
        blob = BlobResourceContents(uri="notes://bits", blob="AAEC", mime_type="application/octet-stream")
        pixel = BlobResourceContents(uri="notes://pixel", blob=base64.b64encode(PIXEL).decode(), mime_type="image/png")
        embedded = [EmbeddedResource(type="resource", resource=one) for one in (blob, pixel)]
        return ["see ", link, *embedded]

    return server


class Gateway:
    """Several servers at one address, each at `/NAME/sse` and, newer, at `/NAME/mcp`."""

    def __init__(self) -> None:
        self.opened: Counter[str] = Counter()
        """Streams by path."""
        self.gone: Counter[str] = Counter()
        servers = {"math": math_server(), "text": text_server()}
        # Made anew for each start: a session manager runs once.
        self._newer = {
            name: server.streamable_http_app(streamable_http_path="/mcp") for name, server in servers.items()
        }
        mounts = [Mount(f"/{name}", self._either(name, server.sse_app())) for name, server in servers.items()]
        self.app = Starlette(routes=mounts, lifespan=self._lifespan)

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            for newer in self._newer.values():
                await stack.enter_async_context(newer.router.lifespan_context(newer))
            yield

    def _either(self, name: str, older: ASGIApp) -> ASGIApp:
        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            path = scope["path"]
            if path.endswith("/mcp"):
                await self._newer[name](scope, receive, send)
                return
            counted = path.endswith("/sse")
            self.opened[path] += counted
            try:
                await older(scope, receive, send)
            finally:
                self.gone[path] += counted

        return app


if __name__ == "__main__":
    uvicorn.run(Gateway().app, host="127.0.0.1", port=int(sys.argv[1]), log_config=None)
