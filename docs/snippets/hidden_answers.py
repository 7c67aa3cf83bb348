import json
from pathlib import Path

from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.sandboxes import open_sandbox, tool_output

ANSWERS = Path(__file__).with_name("hidden_answers.json")


class Riddles(Environment):
    """Answer a question about the machine that you are on."""

    uses_sandbox = True
    hidden = ["hidden_answers.json"]
    sandbox = None

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"question": question} for question in json.loads(ANSWERS.read_text())]

    async def setup(self):
        self.sandbox = await open_sandbox()

    async def teardown(self):
        if self.sandbox is not None:
            await self.sandbox.close()

    def get_prompt(self):
        return self.task_spec["question"]

    @tool
    async def bash(self, command: str) -> ToolOutput:
        """Run a command in a shell that keeps its directory and its variables.

        Args:
            command: Any number of lines.
        """
        return tool_output(await self.sandbox.shell(command))

    @tool
    async def answer(self, text: str) -> ToolOutput:
        """Answer the question. This ends the task.

        Args:
            text: One word.
        """
        right = json.loads(ANSWERS.read_text())[self.task_spec["question"]] == text.strip()
        return ToolOutput(blocks=[TextBlock(text="Right." if right else "Wrong.")], reward=float(right), finished=True)
