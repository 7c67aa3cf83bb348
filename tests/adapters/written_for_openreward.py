"""Environments as a user of openreward writes them: nothing here knows of Toolyard."""

from __future__ import annotations

import asyncio

from openreward.environments import Environment, Message, Toolset, terminal, tool
from openreward.environments.types import (
    GroupScore,
    ListToolsOutput,
    ReasoningBlock,
    RunToolError,
    RunToolOutput,
    RunToolSuccess,
    TextBlock,
    ToolOutput,
    ToolSpec,
)
from pydantic import BaseModel, Field


class Query(BaseModel):
    query: str = Field(description="what to look for")


class Option(BaseModel):
    option: str


class Reply(BaseModel):
    reply: str


def said(text, **more):
    return ToolOutput(blocks=[TextBlock(text=text)], **more)


class InterfaceEnv(Environment):
    """Other tools for other tasks, after the pages on task-specific tools."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [
            {"kind": "choice", "question": "Which is a colour?", "answer": "B"},
            {"kind": "open", "question": "Which river runs through Bern?", "answer": "Aare"},
            {"kind": "closed", "question": "2 + 2?", "answer": "4"},
        ]

    def get_prompt(self):
        return [TextBlock(text=self.task_spec["question"])]

    @tool
    async def answer(self, params: Reply) -> ToolOutput:
        """Give the final answer."""
        right = params.reply == self.task_spec["answer"]
        return said("right" if right else "wrong", reward=float(right), finished=True)

    @tool(shared=False)
    async def search(self, params: Query) -> ToolOutput:
        """Look something up."""
        return said(f"found {params.query}")

    def list_task_tools(self):
        if self.task_spec["kind"] != "choice":
            return ListToolsOutput(tools=[])
        schema = Option.model_json_schema()
        return ListToolsOutput(tools=[ToolSpec(name="select", description="Choose one.", input_schema=schema)])


class CatalogEnv(InterfaceEnv):
    """Tools without methods, answered for by `_call_tool()`, as environments around other tool servers do it."""

    @classmethod
    def list_tasks(cls, split):
        return [{"question": "?", "answer": "!", "kind": "catalog", "offers": ["alpha", "beta"]}]

    async def setup(self):
        self.calls = []

    def list_task_tools(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
        return ListToolsOutput(
            tools=[ToolSpec(name=name, description=name, input_schema=schema) for name in self.task_spec["offers"]]
        )

    async def _call_tool(self, name, input):
        self.calls.append(name)
        if name not in self.task_spec["offers"]:
            return await super()._call_tool(name, input)
        if input["n"] < 0:
            return RunToolOutput(RunToolError(error="too small"))
        return RunToolOutput(RunToolSuccess(output=said(f"{name} {input} after {self.calls}")))


class Session(Toolset):
    """A toolset that needs what setup() made."""

    @tool(concurrent=True)
    async def where(self) -> ToolOutput:
        """Which sandbox this is."""
        return said(f"{self.sandbox} of {self.env.task_spec['n']}")


class TalkEnv(Environment):
    """A conversation, a terminal tool, a comparison of answers, and tools that wait for each other."""

    toolsets = [Session]

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    async def list_tasks(cls, split):
        await asyncio.sleep(0)
        return [{"n": n} for n in range(3)]

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.secret = secrets.get("token")
        self.sandbox = None
        self.order = []

    async def setup(self):
        self.sandbox = None if self.task_spec["n"] == 2 else "a sandbox"

    async def get_messages(self):
        return [
            Message(role="user", blocks=[TextBlock(text="hello")]),
            Message(role="assistant", blocks=[ReasoningBlock(text="so"), TextBlock(text="hi")], detail={"k": 1}),
        ]

    @tool(concurrent=True)
    async def free(self) -> ToolOutput:
        """Overlaps with anything but an exclusive tool."""
        return await self.watched("free")

    @tool
    async def turn(self) -> ToolOutput:
        """One at a time."""
        return await self.watched("turn")

    @tool(exclusive=True)
    async def alone(self) -> ToolOutput:
        """Nothing else meanwhile."""
        return await self.watched("alone")

    async def watched(self, name):
        self.order.append(f"{name}+")
        await asyncio.sleep(0.05)
        self.order.append(f"{name}-")
        return said(" ".join(self.order))

    @tool
    async def token(self) -> ToolOutput:
        """Tell the secret."""
        return said(str(self.secret))

    @terminal
    @tool
    async def grade(self, params: Reply) -> ToolOutput:
        """Grade the last message."""
        return said("graded", reward=len(params.reply) / 10, finished=True)

    async def score_group(self, candidates):
        lengths = [len(candidate.messages[-1].blocks[0].text) for candidate in candidates]
        return [GroupScore(reward=lengths[0], metadata=candidates[0].metadata), *map(float, lengths[1:])]
