"""An interactive bash in a session's sandbox. Callers type into it, read its output, and see whether it is busy.

It has no terminal, so it echoes nothing. Its prompts are hidden marks that show what it does.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import math
import re
import secrets
from dataclasses import dataclass, replace
from typing import Self

from toolyard.core.errors import ProcessError, ToolError
from toolyard.sandboxes.base import Process, Sandbox

_ARGV = ("bash", "--noprofile", "--norc", "--noediting", "-i")
_START_SECONDS = 10.0
_IDLE_SECONDS = 0.1
"""Seconds of waiting for input after which a program has read all that was typed."""
_MORE_SECONDS = 0.2
"""Seconds that a reader with some output waits for the rest of it."""
HEARD_MOST = 64 * 1024
"""A reader with this many bytes does not wait for more. A little more than that may come at once."""
_LEAVE = b"exit\n"
"""The last output of an interactive bash, which is left out."""


@dataclass(slots=True)
class ShellOutput:
    """Decoded output. Bytes that are not UTF-8 become replacement characters."""

    stdout: str = ""
    stderr: str = ""

    def __len__(self) -> int:
        return len(self.stdout) + len(self.stderr)

    def __add__(self, other: ShellOutput) -> ShellOutput:
        return ShellOutput(self.stdout + other.stdout, self.stderr + other.stderr)


class LiveShell:
    """Several callers may type and read at once. Each piece of output goes to one of them."""

    def __init__(self, process: Process, mark: str) -> None:
        self._process = process
        self._stdout = _Ear(mark.encode(), bash=False)
        self._stderr = _Ear(mark.encode(), bash=True)
        self._heard = ShellOutput()
        """Output that no caller has read yet. A caller that stops reading loses nothing."""
        self.idle = False
        """Whether the shell seems to have done everything, and waits for input."""

    @classmethod
    async def start(cls, sandbox: Sandbox) -> Self:
        """Start a shell. Raises `ToolError` if the sandbox can start no more programs."""
        limits = replace(sandbox.limits, cpu_seconds=None)  # that limit is for one command
        mark = f"\x1e{secrets.token_hex(16)}"
        shell = cls(await sandbox.start(_ARGV, limits=limits), mark)
        quoted = f"$'\\x1e{mark[1:]}"
        try:
            await shell._begin(
                f"unset HISTFILE; set +o history +o histexpand; PS0={quoted}b' PS1={quoted}i' PS2={quoted}i'"
            )
        except BaseException:
            await shell.end()
            raise
        return shell

    async def _begin(self, settings: str) -> None:
        with contextlib.suppress(ProcessError):  # the shell's own message is better
            await self._type(settings.encode())
        clock = asyncio.get_running_loop().time
        deadline = clock() + _START_SECONDS
        while not self.idle:
            came = await self._take(max(0.0, deadline - clock()))
            if (self.exit_code is not None and not came) or clock() >= deadline:
                raise ToolError(f"The shell could not be started. {self._heard.stderr}".strip())

    @property
    def exit_code(self) -> int | None:
        return self._process.exit_code

    @property
    def ended(self) -> str:
        """How the shell ended; empty while it runs."""
        if self.exit_code is None:
            return ""
        why = f", since it exceeded its limit of {limit}" if (limit := self._process.killed_by) else ""
        return f"The shell has ended with exit code {self.exit_code}{why}."

    async def type(self, text: str) -> None:
        """Type one or more lines. Raises `ToolError` if the shell does not accept them."""
        self.idle = False
        try:
            await self._type(text.encode(errors="replace"))
        except ProcessError as error:
            raise ToolError(f"The shell does not take this: {error}.") from error

    async def close_input(self) -> None:
        """Let the shell end once it has done everything."""
        await self._process.close_input()

    async def end(self) -> None:
        await self._process.kill()

    async def listen(self, seconds: float, *, until_idle: bool = False) -> ShellOutput:
        """The unread output; without any, the first that comes within this time, and what follows at once. With
        `until_idle`, the wait ends when the shell waits for input."""
        clock = asyncio.get_running_loop().time
        deadline, soon = clock() + seconds, math.inf
        while len(self._heard) < HEARD_MOST:
            heard = bool(self._heard)
            rests = self.idle and (heard or until_idle)
            soon = min(soon, clock() + _MORE_SECONDS) if heard else math.inf
            patience = seconds if not rests else 0.0 if heard else _IDLE_SECONDS
            came = await self._take(max(0.0, min(patience, deadline - clock(), soon - clock())))
            is_over = self.exit_code is not None or (rests and self.idle)
            if (is_over and not came) or clock() >= min(deadline, soon):
                break
        said, self._heard = self._heard, ShellOutput()
        return said

    async def _type(self, data: bytes) -> None:
        await self._process.write(data if data.endswith(b"\n") else data + b"\n")

    async def _take(self, seconds: float) -> bool:
        """Read output. Return whether anything came, even if only a prompt."""
        stdout, stderr = await self._process.read(seconds)
        self._heard += ShellOutput(self._stdout.hear(stdout), self._stderr.hear(stderr))
        if prompt := self._stdout.prompt or self._stderr.prompt:
            self.idle = prompt == b"i"
            self._stdout.prompt = self._stderr.prompt = b""
        if self.exit_code is not None and not stdout and not stderr:
            self._heard += ShellOutput(self._stdout.finish(), self._stderr.finish())
        return bool(stdout or stderr)


class _Ear:
    """Decodes one stream without the prompts; standard error also without bash's own additions."""

    def __init__(self, mark: bytes, *, bash: bool) -> None:
        self._leave = _LEAVE if bash else b""
        self._mark = mark
        self._prompts = re.compile(re.escape(mark) + b"([bi])")
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = b""
        self._is_deaf = bash
        """Drops bash's messages about a missing terminal, until bash prints the marks."""
        self.prompt = b""
        """The last prompt: `b` before a command, `i` when bash waits for input."""

    def hear(self, data: bytes) -> str:
        if not data:
            return ""
        *before, rest = self._prompts.split(self._rest + data)
        if before:
            self.prompt = before[-1]
            before = before[2 if self._is_deaf else 0 :: 2]
            self._is_deaf = False
        ready = self._ready(rest)
        self._rest = rest[ready:]
        return self._decoder.decode(b"".join(before) + rest[:ready])

    def finish(self) -> str:
        text = self._decoder.decode(self._rest.removesuffix(self._leave), final=True)
        self._rest = b""
        return text

    def _ready(self, data: bytes) -> int:
        """How much of the data is certainly text, however it goes on."""
        if self._is_deaf:
            return 0
        if self._leave and data.endswith(self._leave):
            return len(data) - len(self._leave)
        begun = data.rfind(self._mark[:1], -len(self._mark))
        return begun if begun >= 0 and self._mark.startswith(data[begun:]) else len(data)
