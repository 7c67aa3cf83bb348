"""Environments as a user of ors-sdk writes them: nothing here knows of Toolyard."""

from __future__ import annotations

import asyncio
import functools
import threading
import time

from ors import Environment, ImageBlock, Split, TextBlock, ToolOutput, Toolset, tool
from ors.types import ListToolsOutput, ToolSpec
from pydantic import BaseModel, Field


class Guess(BaseModel):
    number: int = Field(description="what you think it is")


class Note(BaseModel):
    text: str


class Notebook(Toolset):
    """Wants its environment."""

    def __init__(self, env):
        super().__init__(env)
        self.notes = []

    @tool
    async def note(self, params: Note) -> ToolOutput:
        """Write something down."""
        self.notes.append(params.text)
        return ToolOutput(blocks=[TextBlock(text=f"{self.env.task_spec['name']}: {self.notes}")])


class Clock:
    """Wants nothing, and is not even a Toolset."""

    def __init__(self):
        self.ticks = 0

    @tool
    def tick(self) -> ToolOutput:
        """Count a tick."""
        self.ticks += 1
        return ToolOutput(blocks=[TextBlock(text=str(self.ticks))])


class SumEnv(Environment):
    """Plain hooks, toolsets of both kinds, and a tool that only a session shows."""

    toolsets = [Notebook, Clock]
    torn_down: list[str] = []

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.key = secrets.get("key", "none")

    @classmethod
    @functools.cache
    def list_splits(cls):
        return [Split(name="train", type="train"), "extra"]

    @classmethod
    def list_tasks(cls, split: str):
        names = {"train": ["one", "two", "three"], "extra": []}[split]
        return [{"name": name, "total": len(name), "used": []} for name in names]

    def setup(self):
        time.sleep(0.01)
        self.thread = threading.current_thread().name
        self.task_spec["used"].append("setup")

    def teardown(self):
        self.torn_down.append(self.task_spec["name"])

    def get_prompt(self):
        return [
            TextBlock(text=f"How long is {self.task_spec['name']}?", detail={"from": "ors"}),
            ImageBlock(data="aGk=", mimeType="image/png"),
        ]

    @tool
    def guess(self, params: Guess) -> ToolOutput:
        """
        Say a number.

        It ends the episode.
        """
        right = params.number == self.task_spec["total"]
        return ToolOutput(blocks=[TextBlock(text=str(right))], reward=float(right), finished=True)

    @tool(shared=False)
    async def peek(self) -> ToolOutput:
        """Look at the state."""
        used = f"{self.key} {self.task_spec['used']} {self.thread.startswith('toolyard')}"
        return ToolOutput(blocks=[TextBlock(text=used)], metadata={"torn_down": list(self.torn_down)})

    @tool
    def boom(self) -> ToolOutput:
        """Break."""
        raise ValueError("it broke")

    @tool
    def wrong(self) -> ToolOutput:
        """Return what is not an output."""
        return "just text"

    @tool
    def forgotten(self, params: Guess):
        """Without the hint for what it returns, ors-sdk does not take this for a tool."""

    def not_a_tool(self) -> ToolOutput:
        return ToolOutput(blocks=[])


class AsyncSumEnv(Environment):
    """Every hook a coroutine, and too many tasks to list."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str):
        raise NotImplementedError

    @classmethod
    async def num_tasks(cls, split: str):
        return 1000

    @classmethod
    async def get_task(cls, split: str, index: int):
        await asyncio.sleep(0)
        return {"n": index}

    async def setup(self):
        await asyncio.sleep(0.01)
        self.loop = asyncio.get_running_loop()

    async def get_prompt(self):
        await asyncio.sleep(0)
        return [TextBlock(text=f"task {self.task_spec['n']}")]

    def list_task_tools(self) -> ListToolsOutput:
        schema = Guess.model_json_schema()
        return ListToolsOutput(tools=[ToolSpec(name="described", description="No method.", input_schema=schema)])

    @tool
    async def same_loop(self) -> ToolOutput:
        """Whether setup() ran on the loop that this runs on."""
        return ToolOutput(blocks=[TextBlock(text=str(asyncio.get_running_loop() is self.loop))])

    @tool
    def later(self) -> ToolOutput:
        """A plain function that hands back a coroutine, as older environments do."""

        async def output():
            await asyncio.sleep(0)
            return ToolOutput(blocks=[TextBlock(text="awaited")])

        return output()
