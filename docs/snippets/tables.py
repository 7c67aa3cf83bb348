"""An environment whose sessions find files in their workspace."""

from toolyard import Environment, ToolOutput, tool
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.shell_executor import ShellExecutor


class Tables(Environment):
    toolsets = [FileSystemEnv, ShellExecutor]
    workspace_files = {"count.sh": "wc -l < people.csv\n"}

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"people": ["Ada", "Grace", "Edsger"]}]

    def setup(self):
        people = "\n".join(["name", *self.task_spec["people"]])
        self.workspace_files = {**self.workspace_files, "people.csv": f"{people}\n"}

    def get_prompt(self):
        return "How many people does people.csv list? Call answer with the number."

    @tool
    def answer(self, number: int) -> ToolOutput:
        """Say how many. This ends the task.

        Args:
            number: Of people.
        """
        return ToolOutput(reward=float(number == len(self.task_spec["people"])), finished=True)
