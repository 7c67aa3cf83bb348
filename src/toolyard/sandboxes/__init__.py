"""Where untrusted programs run. `base` is the contract; each backend is one module or folder, named in `choice`.

from toolyard.sandboxes import Sandbox, open_sandbox, tool_output

class MyEnvironment(Environment):
    uses_sandbox = True

    async def setup(self) -> None:
        self.sandbox: Sandbox = await open_sandbox()

    async def teardown(self) -> None:
        await self.sandbox.close()

    @tool
    async def python(self, code: str) -> ToolOutput:
        return tool_output(await self.sandbox.exec(code))
"""

from toolyard.sandboxes.base import Executed, Finished, Level, Limits, Profile, Report, Sandbox
from toolyard.sandboxes.choice import BACKENDS, start
from toolyard.sandboxes.output import tool_output
from toolyard.sandboxes.provider import (
    Provider,
    blocking,
    close_sandboxes,
    in_force,
    open_sandbox,
    usual_limits,
)

__all__ = [
    "BACKENDS",
    "Executed",
    "Finished",
    "Level",
    "Limits",
    "Profile",
    "Provider",
    "Report",
    "Sandbox",
    "blocking",
    "close_sandboxes",
    "in_force",
    "open_sandbox",
    "start",
    "tool_output",
    "usual_limits",
]
