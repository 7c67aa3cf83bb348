from toolyard import Environment, ToolOutput, tool


class Counter(Environment):
    replayable = True  # the same calls lead to the same number

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"goal": goal} for goal in range(5, 10)]

    def setup(self):
        self.number = 0

    def get_prompt(self):
        return f"Come to {self.task_spec['goal']} by adding, then submit."

    @tool
    async def add(self, n: int) -> str:
        """Add to the number.

        Args:
            n: How much.
        """
        self.number += n
        return f"The number is {self.number}."

    @tool
    async def submit(self) -> ToolOutput:
        """Hand it in. This ends the task."""
        return ToolOutput(reward=float(self.number == self.task_spec["goal"]), finished=True)
