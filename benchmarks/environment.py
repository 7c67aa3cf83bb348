"""The environment that both servers serve, as an author would write it.

The reference server gets this very file; only the line that imports from toolyard names its package instead.
"""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from toolyard import Environment, Split, TextBlock, ToolOutput, tool


class EchoInput(BaseModel):
    text: str


class FillInput(BaseModel):
    size: int


class Echo(Environment):
    @classmethod
    def list_splits(cls) -> Sequence[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> Sequence[dict[str, Any]]:
        return [{"id": 1, "question": "What is 2 + 2?"}]

    def get_prompt(self) -> Sequence[TextBlock]:
        return [TextBlock(text=self.task_spec["question"])]

    @tool
    async def echo(self, params: EchoInput) -> ToolOutput:
        """Say the text back."""
        return ToolOutput(blocks=[TextBlock(text=params.text)], reward=0.0)

    @tool
    async def fill(self, params: FillInput) -> ToolOutput:
        """Say a text of this many characters."""
        return ToolOutput(blocks=[TextBlock(text="x" * params.size)], reward=0.0)
