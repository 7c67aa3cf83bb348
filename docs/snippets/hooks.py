import shutil
import tempfile
from pathlib import Path

from toolyard import Environment, Split, ToolError, ToolOutput, tool


class Files(Environment):
    """Find the file that holds a word."""

    # Asked of the class, before there is any session.

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), Split(name="hard", type="test")]

    @classmethod
    def list_tasks(cls, split):
        count = 3 if split == "train" else 30
        return [{"count": count, "wanted": number} for number in range(count)]

    # Asked of the instance: there is one for each session.

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.folder = None

    def setup(self):
        self.folder = Path(tempfile.mkdtemp())
        for number in range(self.task_spec["count"]):
            word = "treasure" if number == self.task_spec["wanted"] else "nothing"
            (self.folder / f"{number}.txt").write_text(word)

    def get_prompt(self):
        return "One of the files holds the word treasure. Which one?"

    def teardown(self):
        if self.folder is not None:
            shutil.rmtree(self.folder)

    @tool
    def list_files(self) -> list[str]:
        """List the names of the files."""
        return sorted(path.name for path in self.folder.iterdir())

    @tool
    def read_file(self, name: str) -> str:
        """Read a file.

        Args:
            name: As list_files gives it.
        """
        path = self.folder / Path(name).name
        if not path.is_file():
            raise ToolError(f"there is no file {name!r}; list_files knows them all")
        return path.read_text()

    @tool
    def submit(self, name: str) -> ToolOutput:
        """Say which file it is. This ends the task.

        Args:
            name: The name of the file.
        """
        return ToolOutput(reward=float(name == f"{self.task_spec['wanted']}.txt"), finished=True)
