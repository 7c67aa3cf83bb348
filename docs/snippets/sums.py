from toolyard import Environment, ToolOutput, tool


class Sums(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"a": n, "b": n + 1} for n in range(100)]

    def get_prompt(self):
        return f"What is {self.task_spec['a']} + {self.task_spec['b']}? Call submit with the answer."

    @tool
    def submit(self, answer: int) -> ToolOutput:
        """Hand in the answer. This ends the task.

        Args:
            answer: The sum.
        """
        correct = answer == self.task_spec["a"] + self.task_spec["b"]
        return ToolOutput(reward=float(correct), finished=True)
