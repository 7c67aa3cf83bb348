import asyncio

from toolyard import Environment, ToolOutput, tool


class Workshop(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{"parts": 3}]

    def get_prompt(self):
        return f"Build {self.task_spec['parts']} parts, then call deliver."

    def setup(self):
        self.built = 0

    # The default: two calls of build in one session run one after the other. Another tool may run meanwhile.
    @tool
    async def build(self) -> str:
        """Build a part."""
        before = self.built
        await asyncio.sleep(0.01)
        self.built = before + 1
        return f"part {self.built}"

    # Any number of calls of look at once.
    @tool(concurrent=True)
    async def look(self) -> str:
        """Look at the clock."""
        await asyncio.sleep(0.01)
        return "tick"

    # Nothing else runs in the session meanwhile.
    @tool(exclusive=True)
    async def deliver(self) -> ToolOutput:
        """Hand over what was built. This ends the task."""
        return ToolOutput(reward=float(self.built >= self.task_spec["parts"]), finished=True)
