"""Two environments in the shape of openreward's page on task-specific tools, before their import lines are changed."""

from openreward.environments import Blocks, Environment, JSONObject, TextBlock, ToolOutput, tool
from openreward.environments.types import ListToolsOutput, ToolSpec
from pydantic import BaseModel, Field

ATLAS = {"tallest peak of the Alps": "Mont Blanc"}


class LookUp(BaseModel):
    query: str = Field(..., description="What to look up")


class Pick(BaseModel):
    letter: str = Field(..., description="A, B, C or D")


class HandIn(BaseModel):
    answer: str = Field(..., description="The final answer")


class Geography(Environment):
    """One tool for every task, and one that is only listed inside a session."""

    @tool
    async def hand_in(self, params: HandIn) -> ToolOutput:
        """Hand in the final answer"""
        right = params.answer.strip() == self.task_spec["answer"]
        return ToolOutput(
            blocks=[TextBlock(text="That is right." if right else "That is wrong.")],
            reward=1.0 if right else 0.0,
            finished=True,
        )

    @tool(shared=False)
    async def look_up(self, params: LookUp) -> ToolOutput:
        """Look something up in the atlas"""
        return ToolOutput(blocks=[TextBlock(text=ATLAS.get(params.query, "nothing found"))])

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [
            {"question": "Which is the tallest peak of the Alps?", "answer": "Mont Blanc", "tools": ["look_up"]},
            {"question": "How many legs has a spider?", "answer": "8", "tools": []},
        ]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=self.task_spec["question"])]


class Interfaces(Environment):
    """Other tools for other kinds of tasks, described when the task is known."""

    @tool
    async def hand_in(self, params: HandIn) -> ToolOutput:
        """Hand in the final answer"""
        right = params.answer.strip() == self.task_spec["answer"]
        return ToolOutput(
            blocks=[TextBlock(text="That is right." if right else "That is wrong.")],
            reward=1.0 if right else 0.0,
            finished=True,
        )

    def list_task_tools(self) -> ListToolsOutput:
        """What the kind of task calls for."""
        tools = []
        kind = self.task_spec.get("kind")
        if kind == "choice":
            tools.append(ToolSpec(name="pick", description="Pick one", input_schema=Pick.model_json_schema()))
        elif kind == "open book":
            tools.append(ToolSpec(name="look_up", description="Look it up", input_schema=LookUp.model_json_schema()))
        return ListToolsOutput(tools=tools)

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split: str) -> list[JSONObject]:
        return [
            {"kind": "choice", "question": "Which one is a river? A: Etna B: Rhine", "answer": "B"},
            {"kind": "open book", "question": "Why is the sky blue?", "answer": "scattering"},
            {"kind": "closed book", "question": "3 * 4?", "answer": "12"},
        ]

    def get_prompt(self) -> Blocks:
        return [TextBlock(text=self.task_spec["question"])]
