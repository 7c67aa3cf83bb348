"""The environments that the conformance cases are about: MathEnv, the default, and OtherEnv."""

from __future__ import annotations

import threading
import time
from collections import Counter

import anyio
from pydantic import BaseModel

from toolyard import Environment, ListToolsOutput, Split, TextBlock, ToolError, ToolOutput, ToolSpec, tool

ran: Counter[str] = Counter()
"""How often each tool really ran, under the key that the call gave. For "executed exactly once"."""

torn_down: list[str] = []
"""The `q` of every task whose teardown() was called."""


class Answer(BaseModel):
    answer: str


class Fill(BaseModel):
    n: int
    fill: str = "x"
    key: str = ""


class Slow(BaseModel):
    seconds: float
    key: str = ""


class Half(BaseModel):
    number: float


class Path(BaseModel):
    path: str


class OneTask(Environment):
    """What an environment must have beside tools, for those that are about something else."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return "Go."


class MathEnv(Environment):
    """Sums, and tools that misbehave on purpose."""

    @classmethod
    def list_splits(cls):
        return [Split(name="train", type="train"), "custom", "test"]

    @classmethod
    def list_tasks(cls, split):
        tasks = [{"q": str(n), "a": str(n)} for n in range(5)]
        return {"train": tasks, "custom": [], "test": tasks[:1]}[split]

    async def setup(self):
        if seconds := self.task_spec.get("setup_seconds"):
            await anyio.sleep(seconds)
        if self.task_spec.get("setup_boom"):
            raise ValueError("setup boom")

    def teardown(self):
        torn_down.append(self.task_spec.get("q", ""))

    def get_prompt(self):
        return [TextBlock(text=self.task_spec.get("q", "no question"))]

    def list_task_tools(self):
        if not self.task_spec.get("extra"):
            return ListToolsOutput(tools=[])
        schema = {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}
        return ListToolsOutput(tools=[ToolSpec(name="dyn", description="Only in this task.", input_schema=schema)])

    def call_task_tool(self, name, arguments):
        return f"{name} got {arguments['x']!r}"

    @tool
    async def submit(self, params: Answer) -> ToolOutput:
        """Submit the answer."""
        ran["submit"] += 1
        return ToolOutput(blocks=[TextBlock(text=f"ok {params.answer}")], reward=1.0, finished=True)

    @tool
    async def big(self, params: Fill) -> ToolOutput:
        """Text of any length."""
        ran[params.key] += 1
        return ToolOutput(blocks=[TextBlock(text=params.fill * params.n)])

    @tool(concurrent=True)
    async def slow(self, params: Slow) -> ToolOutput:
        """Wait on the loop."""
        ran[params.key] += 1
        await anyio.sleep(params.seconds)
        return ToolOutput(blocks=[TextBlock(text=f"slept {params.seconds}")])

    @tool
    def block(self, params: Slow) -> ToolOutput:
        """Block a thread."""
        ran[params.key] += 1
        time.sleep(params.seconds)
        return ToolOutput(blocks=[TextBlock(text=threading.current_thread().name)])

    @tool
    def boom(self) -> ToolOutput:
        """Break."""
        raise ValueError("line1\nline2 é")

    @tool
    async def noparam(self) -> ToolOutput:
        """Take nothing."""
        return ToolOutput(blocks=[TextBlock(text="nothing")])

    @tool
    async def half(self, params: Half) -> ToolOutput:
        """Halve a number."""
        return ToolOutput(blocks=[TextBlock(text=str(params.number / 2))])

    @tool
    async def read_file(self, params: Path) -> ToolOutput:
        """Never find a file."""
        raise ToolError("File not found")

    @tool
    async def secret(self, params: Answer) -> ToolOutput:
        """Tell a secret."""
        return ToolOutput(blocks=[TextBlock(text=self.secrets.get(params.answer, "none"))])

    @tool(shared=False)
    async def hidden(self) -> ToolOutput:
        """Only inside a session."""
        return ToolOutput(blocks=[TextBlock(text="found")])


class OtherEnv(Environment):
    """A second one, so that the first is the default and not the only one."""

    @classmethod
    def list_splits(cls):
        return ["train", "only_here"]

    @classmethod
    def list_tasks(cls, split):
        return [{"q": f"other {n}"} for n in range(2)]

    def get_prompt(self):
        return self.task_spec["q"]

    @tool
    async def other(self) -> str:
        """Say so."""
        return "the other one"


class ManyEnv(Environment):
    """Too many tasks to list: it is asked for one at a time."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        raise NotImplementedError

    @classmethod
    def num_tasks(cls, split):
        return 1_000_000

    @classmethod
    async def get_task(cls, split, index):
        return {"q": str(index)}

    def get_prompt(self):
        return self.task_spec["q"]

    @tool
    def look(self) -> str:
        """Look."""
        return self.task_spec["q"]
