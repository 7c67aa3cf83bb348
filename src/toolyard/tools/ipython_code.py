"""`ipython_code`: an IPython that keeps its variables until the session ends, through errors and timeouts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from toolyard.core.actions import tool_call
from toolyard.core.environment import Environment
from toolyard.core.errors import SandboxError, ToolError
from toolyard.core.forms import fenced, tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.sandboxes import profiles
from toolyard.sandboxes.base import Executed, Sandbox
from toolyard.sandboxes.output import ended_by
from toolyard.tools.after_blocks import after_block
from toolyard.tools.sandboxed import SandboxedToolset

SECONDS = 10
LONGEST = 102_400
"""The most characters of output to show."""
NO_OUTPUT = "Script executed successfully (no output)"
EMPTY = "Error: script must be a non-empty string"
AFRESH = "[the interpreter starts afresh: variables are gone, files are kept]"

_SHOW_AS_USUAL = """
def _toolyard_show_as_usual():
    from IPython.core.displayhook import DisplayHook
    shell = get_ipython()
    for name in ("showtraceback", "showsyntaxerror", "showindentationerror"):
        vars(shell).pop(name, None)
    shell.displayhook.__class__ = DisplayHook
    del shell.user_ns["_toolyard_show_as_usual"]
    shell.history_manager.reset()
    shell.execution_count = 1
_toolyard_show_as_usual()
"""
"""A sandbox's IPython shows neither values nor errors; this setup makes it show both, as a terminal would."""

_RULE = re.compile(r"^-+\n.*(?=Traceback \(most recent call last\))", re.MULTILINE)
"""IPython's header of a traceback: a line of dashes and the error's name, which follows anyway."""


@dataclass(frozen=True, slots=True)
class CellForm:
    """Reads `<python>` tags, or else fences marked python; several are one cell. Or a JSON call of a tool named
    python."""

    shown: Sequence[str] = ("metrics", "timeout")

    def read(self, text: str) -> JsonObject | None:
        blocks = tagged(text, "python") or fenced(text, "python") or _called(text)
        return {"code": "\n".join(block.strip() for block in blocks)} if blocks else None

    def answer(self, text: str, result: str) -> str:
        return after_block(text, result, tag="python", output="output", fences=("```python",), called="{}")


class IPythonCode(SandboxedToolset):
    """An IPython for each session, in the session's workspace."""

    profile = "ipython"

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._is_prepared = False
        self._has_run = False
        """Whether any code of the agent has run. Later failures may be the agent's own."""

    @classmethod
    def missing(cls) -> str:
        return profiles.not_installed(profiles.missing(cls.profile), "ipython")

    @tool(form=CellForm())
    async def ipython_code(self, code: str) -> ToolOutput:
        """Run Python in an IPython that keeps its variables from one call to the next. The last value is shown.

        Args:
            code: One cell, as in a notebook.
        """
        if not code or code.isspace():
            return _output(EMPTY, code)
        sandbox = await self._prepared()
        self._has_run = True
        self._is_prepared = False  # until the result shows that this interpreter goes on
        executed = await sandbox.exec(code, timeout=SECONDS)
        self._is_prepared = not executed.state_lost
        return _output(written(executed), code, executed)

    async def _prepared(self) -> Sandbox:
        sandbox = await self.sandbox()
        if not self._is_prepared and (error := (await sandbox.exec(_SHOW_AS_USUAL)).error) is not None:
            kind = ToolError if self._has_run else SandboxError
            raise kind(f"IPython cannot be used as it is here: {error.name}: {error.message}")
        return sandbox


def written(executed: Executed) -> str:
    """IPython's output, then standard error, then how the cell failed, if it did."""
    if executed.timed_out:
        text = f"Execution time out after {SECONDS} seconds"
    elif executed.error is None and executed.killed_by is None:
        text = executed.stdout + f"\nWarnings: {executed.stderr}" * bool(executed.stderr)
    else:
        text = _failure(executed) + f"\nStderr: {executed.stderr}" * bool(executed.stderr)
    text = text[:LONGEST].rstrip(" \n")
    return "\n".join([text] * bool(text) + [AFRESH] * executed.state_lost).lstrip(" \n") or NO_OUTPUT


def _failure(executed: Executed) -> str:
    """Standard output with the traceback at its end; Python's own traceback if IPython showed none."""
    shown, error = executed.stdout.rstrip(" \n"), executed.error
    if executed.killed_by is not None:
        how = f"Execution {ended_by(executed.killed_by, executed.usage.wall_seconds)}."
    elif error is None or error.name in shown:
        rules = list(_RULE.finditer(shown))
        return shown[: rules[-1].start()] + shown[rules[-1].end() :] if rules else shown
    else:
        how = error.traceback or f"{error.message[:1].upper()}{error.message[1:]}."
    return f"{shown}\n{how}"


def _called(text: str) -> list[str]:
    """The code of the first `<tool_call>`, if it calls a tool named python."""
    call = tool_call(calls[0]) if (calls := tagged(text, "tool_call")) else None
    if call is None or call[0] != "python":
        return []
    code = call[1].get("code")
    return [code] if isinstance(code, str) and code.strip() else []


def _output(text: str, code: str, executed: Executed | None = None) -> ToolOutput:
    succeeded = executed is not None and executed.error is None and executed.killed_by is None
    metadata: dict[str, object] = {
        "metrics": {"code_success": succeeded, "code_lines": code.count("\n") + 1},
        "timeout": executed is not None and executed.timed_out,
    }
    if executed is not None:
        metadata["isolation"] = executed.isolation
        if executed.state_lost:
            metadata["state_lost"] = True
    return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata)
