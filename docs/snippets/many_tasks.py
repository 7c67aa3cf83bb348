import random

from toolyard import Environment, ToolOutput, tool


class Coins(Environment):
    """A million tasks, none of them stored."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def num_tasks(cls, split):
        return 1_000_000

    @classmethod
    def get_task(cls, split, index):
        dice = random.Random(index)
        return {"coins": [dice.choice([1, 2, 5]) for _ in range(5)]}

    def get_prompt(self):
        return f"Add up these coins: {self.task_spec['coins']}."

    @tool
    def submit(self, total: int) -> ToolOutput:
        """Hand in the total. This ends the task.

        Args:
            total: The sum of the coins.
        """
        return ToolOutput(reward=float(total == sum(self.task_spec["coins"])), finished=True)
