from dataclasses import replace

from toolyard import Environment, TextBlock, ToolOutput, tool
from toolyard.sandboxes import open_sandbox, tool_output, usual_limits

GOALS = {"the largest of them": max, "the smallest of them": min, "their sum": sum}
INPUTS = [[3], [4, -7, 12], [5, 5, 0, 1]]


class Programs(Environment):
    """Write a program. It is graded by what it prints, in a sandbox that the agent has never been in."""

    uses_sandbox = True
    sandbox = None

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"goal": goal} for goal in GOALS]

    async def setup(self):
        self.sandbox = await open_sandbox(replace(usual_limits(), wall_seconds=5))
        await self.sandbox.write("solution.py", b"print(0)\n")

    async def teardown(self):
        if self.sandbox is not None:
            await self.sandbox.close()

    def get_prompt(self):
        return (
            "Write solution.py: it reads whole numbers, one in each line of its standard input, and prints "
            f"{self.task_spec['goal']}. Try it as often as you like, then call submit."
        )

    @tool
    async def bash(self, command: str) -> ToolOutput:
        """Run a command in a shell that keeps its directory and its variables.

        Args:
            command: Any number of lines.
        """
        return tool_output(await self.sandbox.shell(command))

    @tool
    async def write_file(self, path: str, text: str) -> str:
        """Write a file.

        Args:
            path: Where, from the directory of solution.py.
            text: All that is to be in it.
        """
        await self.sandbox.write(path, text.encode())
        return "written"

    @tool
    async def submit(self) -> ToolOutput:
        """Hand in solution.py as it is now. This ends the task."""
        right = await self.is_right(await self.sandbox.read("solution.py"))
        verdict = "Right." if right else "Wrong."
        return ToolOutput(blocks=[TextBlock(text=verdict)], reward=float(right), finished=True)

    async def is_right(self, program):
        async with await open_sandbox() as judge:
            await judge.write("solution.py", program)
            for numbers in INPUTS:
                stdin = "".join(f"{number}\n" for number in numbers).encode()
                finished = await judge.run(["python3", "solution.py"], stdin=stdin, timeout=2)
                expected = GOALS[self.task_spec["goal"]](numbers)
                if finished.exit_code != 0 or finished.stdout.split() != [b"%d" % expected]:
                    return False
        return True
