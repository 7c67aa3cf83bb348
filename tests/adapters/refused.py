"""What cannot be served, and what is said about it: a script that prints one JSON document."""

from __future__ import annotations

import json
import logging

import ors
from openreward.environments import Environment, TextBlock, ToolOutput, Toolset, terminal, tool
from pydantic import BaseModel

from toolyard import Server
from toolyard.core.errors import DefinitionError


class Two(BaseModel):
    one: str
    other: str


class _Base(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return [TextBlock(text="?")]


class Unfinished(ors.Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]


class NoTool(_Base):
    pass


class NoPrompt(_Base):
    get_prompt = Environment.get_prompt

    @tool
    async def look(self) -> ToolOutput:
        """Look."""


class Shelf(Toolset):
    @tool(shared=False)
    async def look(self) -> ToolOutput:
        """Look here."""

    @tool
    async def take(self) -> ToolOutput:
        """Take."""


class SecondShelf(Toolset):
    @tool
    async def take(self) -> ToolOutput:
        """Take there."""


class Clash(_Base):
    toolsets = [Shelf]

    @tool
    async def look(self) -> ToolOutput:
        """Look."""


class TwoEnds(_Base):
    @terminal
    @tool
    async def first(self) -> ToolOutput:
        """End."""

    @terminal
    @tool
    async def second(self) -> ToolOutput:
        """End as well."""


class WideEnd(_Base):
    @terminal
    @tool
    async def end(self, params: Two) -> ToolOutput:
        """Takes too much."""


class BadHint(_Base):
    @tool
    async def look(self, params: Nowhere) -> ToolOutput:  # noqa: F821
        """Look."""


class Ping(_Base):
    @tool
    async def look(self) -> ToolOutput:
        """Its name is a path of ORS."""


class Warned(_Base):
    toolsets = [Shelf, SecondShelf]

    @classmethod
    def list_tools(cls):
        return super().list_tools()

    @tool
    async def unhinted(self):
        """Not a tool of theirs."""


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def refusal(*classes):
    try:
        Server(classes)
    except DefinitionError as error:
        return str(error)
    return None


heard = Lines()
logging.getLogger("toolyard").addHandler(heard)
refused = [Unfinished, NoTool, NoPrompt, Clash, TwoEnds, WideEnd, BadHint, Ping]
answer = {cls.__name__: refusal(cls) for cls in refused} | {"twice": refusal(Warned, Warned)}
heard.lines.clear()
answer |= {"Warned": refusal(Warned), "warnings": heard.lines}
print(json.dumps(answer))
