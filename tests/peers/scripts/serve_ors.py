"""The reference servers of ORS, `ors` or `openreward`, with an environment that has something for each case."""

import importlib
import json
import sys

import uvicorn
from pydantic import BaseModel

arguments = json.loads(sys.argv[1])
ors = importlib.import_module(arguments["package"])


class Answer(BaseModel):
    answer: str


class Fill(BaseModel):
    n: int
    fill: str = "x"


class Sums(ors.Environment):
    @classmethod
    def list_splits(cls):
        return [ors.Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split):
        return [{"q": str(n)} for n in range(3)]

    def get_prompt(self):
        return [ors.TextBlock(text=self.task_spec["q"])]

    @ors.tool
    async def big(self, params: Fill) -> ors.ToolOutput:
        """Text of any length."""
        return ors.ToolOutput(blocks=[ors.TextBlock(text=params.fill * params.n)])

    @ors.tool
    async def submit(self, params: Answer) -> ors.ToolOutput:
        """Submit the answer."""
        return ors.ToolOutput(blocks=[ors.TextBlock(text=params.answer)], reward=1.0, finished=True)

    @ors.tool(shared=False)
    async def hidden(self) -> ors.ToolOutput:
        """Only inside a session."""
        return ors.ToolOutput(blocks=[ors.TextBlock(text="found")])


uvicorn.run(ors.Server([Sums]).app, host="127.0.0.1", port=arguments["port"], log_level="warning")
