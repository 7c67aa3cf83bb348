from pydantic import BaseModel, Field

from toolyard import Environment, Split, TextBlock, ToolOutput, tool
from toolyard.types import ListToolsOutput, ToolSpec


class Guess(BaseModel):
    number: int = Field(description="From 1 to 10.")


class HigherLower(Environment):
    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.tries = 0

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str):
        return [{"number": 5}, {"number": 9}]

    async def get_prompt(self):
        return [TextBlock(text="Guess a number from 1 to 10.")]

    def list_task_tools(self) -> ListToolsOutput:
        spec = ToolSpec(name="give_up", description="End the game.", input_schema=None)
        return ListToolsOutput(tools=[spec])

    # Not part of ORS: what runs the tools that list_task_tools() describes.
    def call_task_tool(self, name, arguments):
        return ToolOutput(blocks=[TextBlock(text="Maybe next time.")], reward=0.0, finished=True)

    @tool
    async def guess(self, params: Guess) -> ToolOutput:
        """Guess the number."""
        self.tries += 1
        right = params.number == self.task_spec["number"]
        text = "Yes." if right else "Higher." if params.number < self.task_spec["number"] else "Lower."
        return ToolOutput(blocks=[TextBlock(text=text)], reward=1.0 / self.tries if right else 0.0, finished=right)
