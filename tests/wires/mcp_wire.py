"""Common to tests of MCP: a client that checks every answer strictly, the doors to a session, and a world."""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

import anyio
import httpx2
from pydantic import BaseModel

from tests.wires.verl_wire import Steps
from tests.wires.wire import H, Wire, strict_json
from toolyard import Environment, ImageBlock, ListToolsOutput, TextBlock, ToolOutput, ToolSpec, tool

ACCEPT = "application/json, text/event-stream"
HANDSHAKE, MODERN = "2025-11-25", "2026-07-28"
_PREFIX = "io.modelcontextprotocol/"
INITIALIZE = {"protocolVersion": HANDSHAKE, "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
META = {
    f"{_PREFIX}protocolVersion": MODERN,
    f"{_PREFIX}clientInfo": {"name": "test", "version": "1"},
    f"{_PREFIX}clientCapabilities": {},
}
SERVER_INFO = f"{_PREFIX}serverInfo"
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n a picture").decode()


class Place(BaseModel):
    x: int
    y: int


class Played(Steps):
    """A world with an example of everything that MCP shows."""

    latch_finished = True

    def get_prompt(self):
        picture = [ImageBlock(data=PNG, mimeType="image/png")] if self.task_spec.get("picture") else []
        return [TextBlock(text=f"Find {self.task_spec.get('name', 'it')}."), *picture]

    def list_task_tools(self):
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        names = [f"dyn{n}" for n in range(self.task_spec.get("tools", 0))]
        return ListToolsOutput(tools=[ToolSpec(name=name, description="", input_schema=schema) for name in names])

    def call_task_tool(self, name, arguments):
        return f"{name} got {arguments['x']}"

    @tool
    async def add(self, a: int, b: int) -> str:
        """Add two numbers."""
        self.notes.append(f"{a}+{b}")
        return str(a + b)

    @tool
    async def nothing(self) -> str:
        """Take nothing."""
        return "nothing"

    @tool
    async def go(self, to: Place, by: list[Place]) -> str:
        """Go somewhere."""
        return f"{to.x} {len(by)}"

    @tool
    async def large(self, size: int) -> str:
        """So much text."""
        return "x" * size

    @tool
    async def look(self) -> ToolOutput:
        """A text, a picture, a text."""
        picture = ImageBlock(data=PNG, mimeType="image/png")
        return ToolOutput(blocks=[TextBlock(text="before"), picture, TextBlock(text="after")], metadata={"secret": 1})

    @tool(concurrent=True)
    async def rest(self, seconds: float) -> str:
        """Take a while."""
        await anyio.sleep(seconds)
        return f"{seconds} s"

    @tool(shared=False)
    async def hidden(self) -> str:
        """Only in a session."""
        return "found"


class Open(Played):
    """The same, and its agents may read their task."""

    agents_see_task = True


class Many(Environment):
    """More tools than fit on a page."""

    catalogue: ClassVar[Mapping[str, ToolSpec]] = {}

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Go."

    def list_task_tools(self):
        return ListToolsOutput(
            tools=[ToolSpec(name=f"tool_{n}", description=f"Number {n}.", input_schema=None) for n in range(2500)]
        )

    def call_task_tool(self, name, arguments):
        return name


@dataclass
class Told:
    """An answer, read strictly."""

    status: int
    headers: httpx2.Headers
    body: bytes
    messages: list[dict[str, Any]] = field(default_factory=list)
    """The messages of its events; just one if it is JSON."""

    @classmethod
    def of(cls, response: httpx2.Response) -> Told:
        told = cls(response.status_code, response.headers, response.content)
        kind = response.headers.get("content-type", "")
        if kind == "application/json":
            told.messages = [strict_json(response.content)]
        elif kind == "text/event-stream":
            told.messages = [strict_json(data) for data in read_events(response.content)]
        else:
            assert response.content == b"", response.content
        return told

    @property
    def is_stream(self) -> bool:
        return self.headers["content-type"] == "text/event-stream"

    @property
    def answer(self) -> dict[str, Any]:
        """The response itself, after all notifications."""
        *before, last = self.messages
        assert all("id" not in one for one in before)
        assert last["jsonrpc"] == "2.0"
        return last

    @property
    def result(self) -> dict[str, Any]:
        assert self.answer.keys() == {"jsonrpc", "id", "result"}, self.answer
        found: dict[str, Any] = self.answer["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        assert self.answer.keys() == {"jsonrpc", "id", "error"}, self.answer
        found: dict[str, Any] = self.answer["error"]
        assert found.keys() - {"data"} == {"code", "message"}
        return found

    @property
    def refusal(self) -> tuple[int, int]:
        """The status and the code."""
        return self.status, self.error["code"]

    @property
    def text(self) -> str:
        """All text of a successful call."""
        assert self.result["isError"] is False, self.result
        return "".join(block["text"] for block in self.result["content"])

    @property
    def complaint(self) -> str:
        """The error text of a call that the agent can correct."""
        assert self.status == 200
        assert self.result["isError"] is True, self.result
        (block,) = self.result["content"]
        return str(block["text"])


def read_events(body: bytes) -> list[str]:
    """The data of each event. Fails on the first byte that some client could reject."""
    assert body.endswith(b"\r\n\r\n")
    assert body.isascii(), "clients may split lines at any Unicode line end"
    found = []
    for frame in body[:-4].decode().split("\r\n\r\n"):
        if frame == ": ping":
            continue
        head, data = frame.split("\r\n")
        assert head == "event: message"
        assert data.startswith("data: ")
        found.append(data.removeprefix("data: "))
    return found


class Client(Wire):
    """A client at one URL, of both eras. A header with the value None is not sent."""

    def __init__(self, url: str, path: str, headers: Mapping[str, str] = {}) -> None:
        super().__init__(url)
        self.path = path
        self.always = {"Accept": ACCEPT, "Content-Type": "application/json", **headers}

    async def say(
        self, body: Any, headers: Mapping[str, str | None] | list[tuple[str, str]] = {}, method: str = "POST"
    ) -> Told:
        if isinstance(headers, list):
            pairs = [*self.always.items(), *headers]
        else:
            pairs = [(name, value) for name, value in {**self.always, **headers}.items() if value is not None]
        content = {"content": body} if isinstance(body, bytes) else {"json": body}
        return Told.of(await self.request(method, self.path, headers=pairs, **(content if body is not None else {})))

    async def h(self, method: str, params: Any = None, *, id: Any = 1, headers: Mapping[str, str | None] = {}) -> Told:
        """A request of a client that shakes hands."""
        body = {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})
        told = await self.say(body, {"MCP-Protocol-Version": HANDSHAKE, **headers})
        assert told.answer["id"] == id or told.status in (400, 404)
        return told

    async def m(
        self,
        method: str,
        params: Mapping[str, Any] | None = None,
        *,
        id: Any = 1,
        meta: Mapping[str, Any] = {},
        headers: Mapping[str, str | None] = {},
    ) -> Told:
        """A request of the modern era. Entries of `meta` with the value None are left out."""
        said = {**(params or {})}
        said["_meta"] = {name: value for name, value in {**META, **meta}.items() if value is not None}
        told = await self.say(
            {"jsonrpc": "2.0", "id": id, "method": method, "params": said},
            {**modern_headers(method, said), **headers},
        )
        assert told.answer["id"] == id
        assert "mcp-session-id" not in told.headers  # F23
        if "result" in told.answer:
            assert told.result["resultType"] == "complete"
            assert told.result["_meta"][SERVER_INFO].keys() == {"name", "version"}
        return told

    async def ask(self, era: str, method: str, params: Mapping[str, Any] | None = None, **more: Any) -> Told:
        return await (self.m if era == "modern" else self.h)(method, params, **more)

    async def call_tool(self, era: str, tool: str, *, meta: Mapping[str, Any] = {}, id: Any = 1, **args: Any) -> Told:
        if era == "modern":
            return await self.m("tools/call", {"name": tool, "arguments": args}, meta=meta, id=id)
        return await self.h("tools/call", {"name": tool, "arguments": args, "_meta": {**meta}}, id=id)

    async def notify(self, method: str, params: Any = None, headers: Mapping[str, str | None] = {}) -> Told:
        body = {"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params})
        return await self.say(body, {"MCP-Protocol-Version": HANDSHAKE, **headers})


def modern_headers(method: str, params: Mapping[str, Any]) -> dict[str, str | None]:
    name = params.get("uri" if method == "resources/read" else "name")
    named = {"Mcp-Name": name} if method in ("tools/call", "prompts/get", "resources/read") else {}
    return {"MCP-Protocol-Version": MODERN, "Mcp-Method": method, **named}


class Door(Protocol):
    """A way to a session. Put a class into `DOORS`, and the cases that hold at each door run there too."""

    name: ClassVar[str]

    async def open(self, url: str, environment: str, task: Mapping[str, Any]) -> tuple[str, str]:
        """Open a session: its id, and its path of MCP."""


class TrainersDoor:
    name = "trainer"

    async def open(self, url: str, environment: str, task: Mapping[str, Any]) -> tuple[str, str]:
        sid = f"s-{uuid.uuid4()}"
        async with Wire(url) as wire:
            body = {"env_name": environment, "task_spec": dict(task)}
            response = await wire.post("/create", headers=H(sid), json=body)
            assert response.status_code == 200, response.text
        return sid, f"/mcp/s/{sid}"


class AgentsDoor(TrainersDoor):
    """An agent's door: it sends only a token."""

    name = "agent"

    async def open(self, url: str, environment: str, task: Mapping[str, Any]) -> tuple[str, str]:
        sid, _ = await super().open(url, environment, task)
        async with Wire(url) as wire:
            response = await wire.post(f"/{environment}/agent", headers=H(sid))
            assert response.status_code == 200, response.text
            return sid, response.json()["url"].removeprefix(url)


DOORS: list[type[Door]] = [TrainersDoor, AgentsDoor]
