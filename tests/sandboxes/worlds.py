"""Environments that run code, as authors write them."""

from __future__ import annotations

import asyncio

from tests.worlds import OneTask
from toolyard import Environment, ToolOutput, Toolset, tool
from toolyard.sandboxes import Sandbox, blocking, open_sandbox, tool_output, usual_limits


class Runner(OneTask):
    """Opens sandboxes in every right way, and in two wrong ones."""

    box: Sandbox | None = None

    async def teardown(self):
        if self.box is not None:
            await self.box.close()

    @tool
    async def python(self, code: str) -> ToolOutput:
        """Run Python."""
        if self.box is None:
            self.box = await open_sandbox()
        return tool_output(await self.box.exec(code))

    @tool
    async def read(self, path: str) -> str:
        """Read a file."""
        async with await open_sandbox() as box:
            return (await box.read(path)).decode()

    @tool
    async def use_a_closed_one(self) -> str:
        """Use a sandbox that is closed."""
        box = await open_sandbox()
        await box.close()
        return str(await box.exec("1"))

    @tool
    async def limits(self) -> dict:
        """What a sandbox may take."""
        async with await open_sandbox() as box:
            return {"usual": usual_limits().processes, "given": box.limits.processes}

    @tool
    def plainly(self, code: str) -> str:
        """Run Python from a plain function."""
        box = blocking(open_sandbox())
        try:
            return str(blocking(box.exec(code)).value)
        finally:
            blocking(box.close())

    @tool
    def in_a_loop_of_its_own(self) -> str:
        """Open a sandbox on another event loop."""
        return str(asyncio.run(open_sandbox()))

    @tool
    async def blocks_the_loop(self) -> str:
        """Wait for a sandbox the wrong way."""
        return str(blocking(open_sandbox()))


class Declared(Runner):
    uses_sandbox = True


class Commands(Toolset):
    uses_sandbox = True

    @tool
    async def command(self, line: str) -> ToolOutput:
        """Run a shell command."""
        async with await open_sandbox() as box:
            return tool_output(await box.shell(line))


class ByToolset(Runner):
    toolsets = [Commands]


class PlainThroughout(Environment):
    """An environment whose author does not use coroutines."""

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def setup(self):
        self.box = blocking(open_sandbox())

    def teardown(self):
        blocking(self.box.close())

    def get_prompt(self):
        return "Run something."

    @tool
    def python(self, code: str) -> ToolOutput:
        """Run Python."""
        return tool_output(blocking(self.box.exec(code)))
