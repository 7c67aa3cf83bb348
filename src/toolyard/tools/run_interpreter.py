"""`run_interpreter`: write a program to a file of the workspace, and run it."""

from __future__ import annotations

import dataclasses
import shlex

from toolyard.core.errors import ToolError, WorkspaceError
from toolyard.core.output import JsonObject
from toolyard.core.tool import tool
from toolyard.sandboxes.base import Finished
from toolyard.sandboxes.output import ended_by
from toolyard.tools.sandboxed import SandboxedToolset

SECONDS = 300.0


class CodeInterpreter(SandboxedToolset):
    """Runs programs in any language that the sandbox has an interpreter for."""

    @tool
    async def run_interpreter(
        self, code: str = "", command: str = "python {filename}", filename: str = "code.py"
    ) -> JsonObject:
        """Write code to a file of the workspace and run it. Returns its exit code, output and errors.

        Args:
            code: The program. It replaces what was in the file; if it is empty, the file is run as it is.
            command: How to run it, as a shell command. {filename} stands for the file.
            filename: The file, relative to the workspace.
        """
        sandbox = await self.sandbox()
        if code:
            try:
                await sandbox.write(filename, code.encode(errors="replace"))
            except WorkspaceError as error:
                raise ToolError(f"File {filename} cannot be written: {error}") from error
        # A name that begins with a dash must not be an option.
        line = command.replace("{filename}", shlex.quote(f"./{filename}" if filename.startswith("-") else filename))
        limits = dataclasses.replace(sandbox.limits, wall_seconds=SECONDS, cpu_seconds=None)
        return _told(await sandbox.run(["sh", "-c", line], limits=limits))


def _told(finished: Finished) -> JsonObject:
    output, error = (stream.decode(errors="replace") for stream in (finished.stdout, finished.stderr))
    if finished.killed_by is not None:
        error += f"[{ended_by(finished.killed_by, finished.usage.wall_seconds)}]\n"
    parts = {"Output": output, "Error": error}
    return {"ReturnCode": finished.exit_code, **{name: text for name, text in parts.items() if text}}
