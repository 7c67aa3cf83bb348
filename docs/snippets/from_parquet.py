from pathlib import Path

import pyarrow.parquet as pq

from toolyard import Environment, ToolOutput, tool

DATA = Path(__file__).parent / "data"


class Rows:
    """The rows of a table as tasks."""

    def __init__(self, table):
        self.table = table

    def __len__(self):
        return self.table.num_rows

    def __getitem__(self, index):
        return self.table.slice(index, 1).to_pylist()[0]


class Questions(Environment):
    """Answer a question with a number."""

    hidden = ["data"]

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return Rows(pq.read_table(DATA / "questions.parquet", memory_map=True))

    def get_prompt(self):
        return f"{self.task_spec['question']} Call submit with a number."

    @tool
    def submit(self, answer: int) -> ToolOutput:
        """Hand in the answer. This ends the task.

        Args:
            answer: The number.
        """
        return ToolOutput(reward=float(str(answer) == self.task_spec["answer"]), finished=True)
