"""Common to tests of the ToolServer's wire: a strict client with a cookie, and a world."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2

from tests.wires.wire import Wire, strict_json
from tests.worlds import OneTask
from toolyard import Environment, ImageBlock, ListToolsOutput, TextBlock, ToolError, ToolOutput, Toolset, ToolSpec, tool
from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import AskAgain
from toolyard.runtime.runtime import Runtime
from toolyard.testing import running
from toolyard.tools.environment import ToolsEnvironment

PNG = b"\x89PNG\r\n\x1a\n a picture"


class Node(Wire):
    """A client of one node; httpx keeps its cookie."""

    async def cookie(self, body: Any = None) -> str:
        response = await self.post("/get_cookie", **({} if body is None else {"json": body}))
        assert response.status_code == 200, response.text
        return self.node_id

    @property
    def node_id(self) -> str:
        return self.cookies["node_id"]

    async def execute(self, name: str, **arguments: Any) -> Any:
        """The result, which must be there."""
        response = await self.asked(name, **arguments)
        assert response.status_code == 200, response.text
        return strict_json(response.content)

    async def asked(self, name: str, **arguments: Any) -> httpx2.Response:
        return await self.post("/execute_tool", json={"tool_name": name, "arguments": arguments})

    async def detail(self, name: str, status: int = 500, **arguments: Any) -> Any:
        response = await self.asked(name, **arguments)
        assert response.status_code == status, response.text
        answer = strict_json(response.content)
        assert set(answer) <= {"detail", "reason", "retryable"}
        return answer["detail"]

    async def answer(self, path: str, body: Any = None) -> Any:
        response = await self.post(path, **({} if body is None else {"json": body}))
        assert response.status_code == 200, response.text
        return strict_json(response.content)


class Values(Toolset):
    """Tools that return
    one thing each."""

    prefixed = True
    catalogue = {
        f"unlisted_{n}": ToolSpec(
            name=f"unlisted_{n}",
            description=f"Convert currency number {n} into Martian credits.",
            input_schema={"type": "object", "properties": {"amount": {"type": "number"}}, "required": ["amount"]},
        )
        for n in range(60)
    }

    def call_task_tool(self, name: str, arguments: Any) -> Any:
        return {name: arguments["amount"]}

    @tool
    async def value(self, kind: str) -> Any:
        """Return one.

        Of whatever kind.

        Args:
            kind: Which.
        """
        return {
            "text": "words",
            "none": None,
            "number": 3,
            "nan": float("nan"),
            "list": [1, {"a": 2}],
            "dict": {"a": 1},
            "wrapped": {"type": "simple", "data": 7},
            "wrapped by XAgent": {"type": "composite", "data": ["a", {"type": "binary", "name": None, "data": "AP8="}]},
            "pair": ("a", {"b": 2}),
            "single": (5,),
            "empty": (),
            "bytes": b"\x00\xff",
            "nested": ("x", [1]),
            "picture": PNG,
            "blocks": [TextBlock(text="one"), PNG],
        }[kind]

    @tool
    async def grouped(self) -> ToolOutput:
        picture = ImageBlock(data="AAAA", mimeType="image/png", detail={"group": 1})
        return ToolOutput(
            blocks=[TextBlock(text="first"), TextBlock(text="<Figure>", detail={"group": 1}), picture],
        )

    @tool
    async def long_words(self) -> str:
        return ""

    long_words.__doc__ = "w" * 2000


class Patience(Toolset):
    prefixed = True

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.opened = anyio.Event()
        self.runs = 0

    @tool
    async def begin(self) -> AskAgain:
        return AskAgain("end", {"n": 2})

    @tool
    async def end(self, n: int = 1) -> str | AskAgain:
        self.runs += 1
        return f"done after {self.runs}" if self.runs >= n else AskAgain("end", {"n": n})

    @tool(concurrent=True)
    async def wait(self, text: str = "waited") -> str:
        self.runs += 1
        await self.opened.wait()
        return f"{text} {self.runs}"

    @tool(concurrent=True)
    async def open(self) -> str:
        self.opened.set()
        return "opened"

    @tool
    async def fail(self, how: str) -> str:
        match how:
            case "words":
                raise ToolError("it \x1b[31mcannot\x1b[0m be done")
            case "object":
                raise ToolError("no", detail={"ReturnCode": 3})
            case "lost":
                raise ServiceUnavailable("the engine is down")
        raise ValueError("broken")


class Alone(Toolset):
    @tool
    async def stand_alone(self, n: int = 1) -> int:
        return n

    async def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="only_here", description="Of the session.", input_schema=None)])

    async def call_task_tool(self, name: str, arguments: Any) -> str:
        return f"{name} ran"


class Many(Environment):
    """An environment with a task, and with more tools than are told."""

    catalogue = {f"tool_{n}": ToolSpec(name=f"tool_{n}", description="", input_schema=None) for n in range(59)}

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"answer": n} for n in range(3)]

    def get_prompt(self):
        return f"The answer is {self.task_spec['answer']}."

    def call_task_tool(self, name, arguments):
        return name

    @tool
    def submit(self, answer: int) -> ToolOutput:
        return ToolOutput(
            blocks=[TextBlock(text="graded")], reward=float(answer == self.task_spec["answer"]), finished=True
        )


class Toolbox(ToolsEnvironment):
    toolsets = [Values, Patience, Alone]


class Described(OneTask):
    """All of its tools are those of a task."""

    async def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="paint", description="Paint a fence.", input_schema=None)])

    async def call_task_tool(self, name: str, arguments: Any) -> str:
        return f"{name} ran"


@asynccontextmanager
async def node_of(*environments: type[Environment], **settings: Any) -> AsyncIterator[tuple[Node, Runtime]]:
    """A node on a server of its own, and that server's runtime."""
    with running(environments, **settings) as server:
        async with Node(server.url) as node:
            await node.cookie()
            yield node, server.server.runtime
