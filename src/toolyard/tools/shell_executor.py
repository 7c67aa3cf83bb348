"""`shell_command_executor`: runs one shell command and returns its result, or starts shells that go on in the
background."""

from __future__ import annotations

import asyncio
from typing import Any

from toolyard.core.environment import Environment
from toolyard.core.errors import ToolError
from toolyard.core.output import JsonObject
from toolyard.core.tool import tool
from toolyard.sandboxes.base import Finished
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.shell import refused
from toolyard.tools.live_shell import HEARD_MOST, LiveShell, ShellOutput
from toolyard.tools.sandboxed import SandboxedToolset

SECONDS = 300.0
"""The time limit of a command that the call waits for."""
SILENT_SECONDS = 35.0
"""How long to wait for the first output of a background command."""
GATHER_SECONDS = 5.0
"""How long to gather output after the first."""
SHELLS_MOST = 16
TIMED_OUT = "Timeout while executing command."
NO_SUCH_SHELL = "Shell not found or has been closed."
RUNNING = "shell still running, no return code"
KILLED = "shell thread has been killed"
TOO_MUCH = "[ended: it wrote more output than it may, and the rest is not shown]\n"

_ARGUMENT_MOST = 100_000
"""The most bytes of a command that the kernel accepts as an argument. A longer one comes on standard input, and finds
it empty afterwards."""
_READ_AND_RUN = 'eval "$(cat)"'


class ShellExecutor(SandboxedToolset):
    """Shell commands in the workspace."""

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._shells: dict[int, LiveShell] = {}
        self._count = 0
        self._starting = asyncio.Lock()

    @tool(concurrent=True)
    async def shell_command_executor(
        self, command: str = "", run_async: bool = False, shell_id: int | None = None, kill: bool = False
    ) -> JsonObject:
        """Run a shell command in the workspace, and return its exit code, errors and output. It may take 300 seconds.

        A command that takes longer, such as a server, is run with run_async: this returns soon, with the id of a shell
        that goes on. With that id and an empty command it tells what the shell has said since; with another command,
        the same shell runs that too; with kill, it is ended. Without run_async, a command that is given to such a shell
        is its last: it is waited for, and the shell is closed.

        Args:
            command: The command, or several lines of them, defaults to nothing.
            run_async: Do not wait for the end, defaults to False.
            shell_id: The shell to use, if it is not to be a new one.
            kill: End the shell, defaults to False.
        """
        if problem := refused(command):
            raise ToolError(problem)
        if shell_id is None and not run_async:
            return _result(await self._finished(command), kill=kill)
        number, shell = await self._shell(shell_id, command)
        if run_async or kill:
            return await self._looked_at(number, shell, is_told=not kill or bool(command), kill=kill)
        return await self._closed(number, shell)

    async def _finished(self, command: str) -> Finished:
        sandbox, data = await self.sandbox(), command.encode("utf-8", "surrogateescape")
        if len(data) > _ARGUMENT_MOST:
            return await sandbox.run(["bash", "-c", _READ_AND_RUN], stdin=data, timeout=SECONDS)
        return await sandbox.run(["bash", "-c", "--", command], timeout=SECONDS)

    async def _shell(self, shell_id: int | None, command: str) -> tuple[int, LiveShell]:
        """The shell with this number, or a new one with the command typed into it."""
        if shell_id is None:
            return await self._new_shell(command)
        if shell_id not in self._shells:
            raise ToolError(NO_SUCH_SHELL, detail={"Error": NO_SUCH_SHELL})
        await _give(self._shells[shell_id], command)
        return shell_id, self._shells[shell_id]

    async def _new_shell(self, command: str) -> tuple[int, LiveShell]:
        async with self._starting:
            if len(self._shells) >= SHELLS_MOST:
                ids = ", ".join(map(str, self._shells))
                raise ToolError(f"There are {SHELLS_MOST} shells already: kill one of {ids}.")
            shell = await LiveShell.start(await self.sandbox())
            try:
                await _give(shell, command)
            except BaseException:  # no caller gets its number
                await shell.end()
                raise
            number, self._count = self._count, self._count + 1
            self._shells[number] = shell
        return number, shell

    async def _looked_at(self, number: int, shell: LiveShell, *, is_told: bool, kill: bool) -> JsonObject:
        """The new output of a background shell, and its state."""
        heard = await _first_words(shell) if is_told else ShellOutput()
        if kill:
            await shell.end()
            self._shells.pop(number, None)
            heard += await shell.listen(0)
            return {"shell_id": number, "display": _display(heard.stderr, heard.stdout), "status": KILLED}
        display = _display(heard.stderr, heard.stdout)
        if shell.exit_code is None:
            return {"shell_id": number, "display": display, "status": RUNNING}
        self._shells.pop(number, None)
        return _ended({"shell_id": number, "ReturnCode": shell.exit_code, "display": display})

    async def _closed(self, number: int, shell: LiveShell) -> JsonObject:
        """Let a shell finish its commands and end, and return its result."""
        self._shells.pop(number, None)
        try:
            await shell.close_input()
            heard, is_over = await _to_the_end(shell)
        finally:
            await asyncio.shield(shell.end())
        display = _display(heard.stderr, heard.stdout)
        if not is_over:
            raise ToolError(f"{TIMED_OUT}{display}")
        return _ended({"ReturnCode": shell.exit_code, "display": display})


async def _give(shell: LiveShell, command: str) -> None:
    if command:
        await shell.type(command)


async def _first_words(shell: LiveShell) -> ShellOutput:
    """The first output: returns when the shell is silent again, has nothing more to do, or the time is over."""
    clock = asyncio.get_running_loop().time
    heard = await shell.listen(SILENT_SECONDS, until_idle=True)
    deadline = clock() + GATHER_SECONDS
    while heard and not shell.idle and len(heard) < HEARD_MOST and (left := deadline - clock()) > 0:
        if not (more := await shell.listen(min(left, 1.0), until_idle=True)):
            break
        heard += more
    return heard


async def _to_the_end(shell: LiveShell) -> tuple[ShellOutput, bool]:
    """The output until the end, and whether the shell ended in time. Ends a shell that writes too much."""
    clock = asyncio.get_running_loop().time
    deadline, heard = clock() + SECONDS, ShellOutput()
    while (left := deadline - clock()) > 0:
        more = await shell.listen(left)
        heard += more
        if shell.exit_code is not None and not more:
            return heard, True
        if len(heard) > HEARD_MOST:
            await shell.end()
            return heard + ShellOutput(stderr=TOO_MUCH), True
    return heard, False


def _result(finished: Finished, *, kill: bool) -> JsonObject:
    stderr, stdout = (stream.decode(errors="replace") for stream in (finished.stderr, finished.stdout))
    if finished.timed_out:
        raise ToolError(f"{TIMED_OUT}{_display(stderr, stdout)}")
    if finished.killed_by is not None:
        stderr += f"[{ended_by(finished.killed_by, finished.usage.wall_seconds)}]\n"
    return _ended({"ReturnCode": finished.exit_code, "display": _display(stderr, stdout)}, kill=kill)


def _ended(result: dict[str, Any], *, kill: bool = False) -> JsonObject:
    if result["ReturnCode"] and not kill:
        raise ToolError(f"ReturnCode: {result['ReturnCode']}{result['display']}", detail=result)
    return result


def _display(stderr: str, stdout: str) -> str:
    return f"\nstderr:\n{stderr}" * bool(stderr) + f"\nstdout:\n{stdout}" * bool(stdout)
