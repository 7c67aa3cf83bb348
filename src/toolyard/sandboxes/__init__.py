"""Runs untrusted programs. `base` is the contract; each backend is one module or folder, named in `choice`.

An author writes `uses_sandbox = True` in the class, `self.sandbox = await open_sandbox()` in setup(),
`await self.sandbox.close()` in teardown(), and in a tool `return tool_output(await self.sandbox.exec(code))`.
"""

from toolyard.sandboxes.base import Executed, Finished, Grader, Level, Limits, Process, Profile, Report, Sandbox
from toolyard.sandboxes.choice import BACKENDS, start
from toolyard.sandboxes.driving import Driven, Opaque, ProgramEnded, ProgramRaised, driven
from toolyard.sandboxes.output import tool_output
from toolyard.sandboxes.provider import (
    Provider,
    blocking,
    close_sandboxes,
    execute,
    in_force,
    open_sandbox,
    usual_limits,
)
from toolyard.sandboxes.verdicts import TestReport

__all__ = [
    "BACKENDS",
    "Driven",
    "Executed",
    "Finished",
    "Grader",
    "Level",
    "Limits",
    "Opaque",
    "Process",
    "Profile",
    "ProgramEnded",
    "ProgramRaised",
    "Provider",
    "Report",
    "Sandbox",
    "TestReport",
    "blocking",
    "close_sandboxes",
    "driven",
    "execute",
    "in_force",
    "open_sandbox",
    "start",
    "tool_output",
    "usual_limits",
]
