from toolyard import Environment, ToolOutput, Toolset, tool


class Notebook(Toolset):
    """Tools for any environment that has a list called `notes`."""

    @tool
    def write_note(self, text: str) -> str:
        """Write something down.

        Args:
            text: What to remember.
        """
        self.env.notes.append(text)
        return f"note {len(self.env.notes)}"

    @tool
    def read_notes(self) -> list[str]:
        """Read everything that was written down."""
        return self.env.notes


class Memory(Environment):
    toolsets = [Notebook]

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"secret": "7 green doors"}]

    def setup(self):
        self.notes = []

    def get_prompt(self):
        return f"Remember this: {self.task_spec['secret']}."

    @tool
    def recall(self, text: str) -> ToolOutput:
        """Say what you were asked to remember. This ends the task.

        Args:
            text: The words.
        """
        return ToolOutput(reward=float(text == self.task_spec["secret"]), finished=True)
