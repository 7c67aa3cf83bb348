"""`ShellEnv`: a bash that stays open. One tool types into it, the other reads it."""

from __future__ import annotations

import asyncio

from toolyard.core.environment import Environment
from toolyard.core.errors import ToolError
from toolyard.core.output import AskAgain
from toolyard.core.tool import tool
from toolyard.tools.live_shell import LiveShell, ShellOutput
from toolyard.tools.sandboxed import SandboxedToolset

INSTANT_SECONDS = 0.1
PROBE_SECONDS = 20.0
"""Clients ask ten times, so a command may be silent for 200 s."""
READ_SECONDS = 5.0
INSTANT = "Instant shell output: "
NOT_RUNNING = "The shell is not running: write_stdin starts one."
AFRESH = "The next write_stdin starts a fresh one in the same workspace: variables are gone, files are kept."
INTERRUPT = "\x03"

_ASK_AGAIN = AskAgain("read_stdout", {"probe": True})


class ShellEnv(SandboxedToolset):
    """An interactive shell. Write commands to it, and read what they say, also while they run."""

    prefixed = True

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._shell: LiveShell | None = None
        self._starting = asyncio.Lock()
        self._is_asked = False
        """A command was typed and has no output yet."""
        self._unheard = ""
        """Unread output of an earlier shell."""
        self._is_told = False
        """The agent knows that the shell has ended."""

    @tool(concurrent=True)
    async def write_stdin(self, content: str) -> str | AskAgain:
        """Write a line to the standard input of the shell, or of the program that runs in it. The shell keeps its
        directory and variables. What it says at once is returned; read_stdout gets the rest.

        Args:
            content: One or more lines, without a newline at the end. The character Ctrl-C alone ends the shell with
                everything that runs in it, should it hang; the next line then goes to a fresh one.
        """
        shell = await self._running()
        if content == INTERRUPT:
            await shell.end()
            self._is_told = True
            return INSTANT + self._told(await shell.listen(0)) + f"{shell.ended} {AFRESH}"
        await shell.type(content)
        heard = await shell.listen(INSTANT_SECONDS, until_idle=True)
        if text := self._told(heard):
            return INSTANT + text
        self._is_asked = True
        return _ASK_AGAIN

    @tool(concurrent=True)
    async def read_stdout(self, probe: bool = False) -> str | AskAgain:
        """Read what the shell has said since it was last read, standard error first. Waits a few seconds if that is
        nothing yet.

        Args:
            probe: Wait until there is something, defaults to False.
        """
        if (shell := self._shell) is None:
            raise ToolError(NOT_RUNNING)
        heard = await shell.listen(PROBE_SECONDS if probe else READ_SECONDS, until_idle=self._is_asked)
        if text := self._told(heard):
            return text
        if ended := shell.ended:
            self._is_told = True
            raise ToolError(f"{ended} {AFRESH}")
        if probe and not (self._is_asked and shell.idle):
            return _ASK_AGAIN
        self._is_asked = False
        return ""

    async def _running(self) -> LiveShell:
        async with self._starting:
            if self._shell is not None and self._shell.ended:
                last = self._told(await self._shell.listen(0))
                self._unheard = last + f"[{self._shell.ended} This is a fresh one.]\n" * (not self._is_told)
                self._shell = None
            if self._shell is None:
                self._shell, self._is_told = await LiveShell.start(await self.sandbox()), False
            return self._shell

    def _told(self, heard: ShellOutput) -> str:
        text = self._unheard + heard.stderr + heard.stdout
        self._unheard = ""
        if text:
            self._is_asked = False
        return text
