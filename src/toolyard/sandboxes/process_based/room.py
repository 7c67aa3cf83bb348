"""`Room`, which a backend provides: a workspace, and a place to start programs in. And what all rooms share."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import secrets
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, Protocol, Self

from toolyard.core.errors import SandboxLost, WorkspaceError
from toolyard.core.stalls import deadline
from toolyard.sandboxes import watching
from toolyard.sandboxes.base import RESERVED_BYTES, Limit, Limits, Usage
from toolyard.sandboxes.endings import HostExhausted, unstarted
from toolyard.sandboxes.process_based.programs import Ending, HelperProcess

_END_SECONDS = 30.0
_BY_SIGNAL = 128
"""Exit codes from here on stand for a signal, which a program could send to the process that started it."""


class Room(Protocol):
    """The place where one sandbox's programs run."""

    python: Sequence[str]
    """The Python of the room, with options that keep it from reading its surroundings."""
    watched: bool
    """Whether the server must check the memory of programs now and then, because no kernel does."""

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], limits: Limits, lasting: bool = False
    ) -> HelperProcess:
        """A `lasting` program serves many commands, so no limit of processor time applies to all of them together.

        Raises OSError or ValueError if it cannot be started at all.
        """

    async def interrupt(self, program: HelperProcess) -> None:
        """Send SIGINT to a lasting program."""

    async def relieve(self, program: HelperProcess, since: float, first: int = 0) -> None:
        """End what a lasting program has started since that moment, but not the program, where possible. It first gets
        the signal `first`, unless that is 0."""

    async def kill(self, program: HelperProcess) -> None:
        """End it with everything that it started or left behind. Does not wait for its report."""

    async def measure(self, program: HelperProcess) -> tuple[float, int]:
        """Seconds of processor time and bytes of memory of all of its processes together."""

    async def lost(self) -> str:
        """Why the room no longer works; empty if it does. Call this if a program ended without a reason."""

    async def read(self, path: str, most: int) -> bytes:
        """Like the other methods for the workspace, this raises OSError."""

    async def write(self, path: str, data: bytes, most: int, mode: int | None = None) -> None: ...

    async def list(self, path: str) -> Sequence[tuple[str, str, int]]: ...

    async def copy_from(self, other: Self) -> None:
        """Replace the workspace by a copy of the other's."""

    async def close(self) -> None: ...


async def end(room: Room, program: HelperProcess) -> Ending:
    """Make sure that a program has ended, with everything that it started."""
    program.unwanted = program.unwanted or not program.ended.done()
    await room.kill(program)
    try:
        async with deadline(_END_SECONDS):
            ending = await program.ending()
    except TimeoutError:  # it would look like the caller's own
        raise SandboxLost("the sandbox is gone: it does not end its programs") from None
    if not (program.killed or program.told):
        if why := await room.lost():
            raise SandboxLost(f"the sandbox is gone: {why}")
        if program.mark and 0 < ending.code < _BY_SIGNAL:  # its launcher failed, not the program
            raise SandboxLost(f"the program could not be started: {program.last_words()}")
    if ending.unstarted:
        unstarted(OSError(ending.unstarted, os.strerror(ending.unstarted)), "L0", own=False)
    return ending


class RoomWatch(watching.Watch):
    def __init__(
        self, room: Room, limits: Limits, timeout: float | None, *, every: float = watching.MEASURE_SECONDS
    ) -> None:
        self._room = room
        super().__init__(limits, timeout, memory_enforced=not room.watched, every=every)
        self.began = time.time()

    def usage(self, cpu_seconds: float = 0.0, memory_bytes: int = 0) -> Usage:
        """The usage known at the end, or the highest one measured on the way."""
        return Usage(self.seconds, max(cpu_seconds, self._cpu_seconds), memory_bytes)

    async def until(self, program: HelperProcess, *ends: asyncio.Future[Any]) -> Limit | None:
        """Wait until one of `ends` is done, or the program exceeds a limit."""
        program.on_full = self.fill
        return await self.wait(lambda: self._room.measure(program), *ends)

    def cause(self, program: HelperProcess, exceeded: Limit | None, ending: Ending | None = None) -> Limit | None:
        """The limit that ended the program: one of ours, one of the kernel's, or too much output, which it may write
        before the server can end it. Raises HostExhausted if the host ran out of memory instead."""
        if exceeded is None and ending is not None:
            exceeded = self._enforced(program, ending)
        return exceeded or ("output" if program.stdout.full or program.stderr.full else None)

    def _enforced(self, program: HelperProcess, ending: Ending) -> Limit | None:
        if ending.host_out_of_memory:
            raise HostExhausted.of("memory")
        if limit := self.by_signal(ending.code, ending.cpu_seconds):
            return limit
        if ending.out_of_memory and ending.code == -signal.SIGKILL:
            return "memory"
        if not program.unwanted:
            self.check_killed(ending.code)
        return None


def resources_of(limits: Limits, *, lasting: bool, each_process: bool, processes: bool) -> dict[str, tuple[int, int]]:
    """The limits that the kernel keeps for a process, by their names in `resource`, soft and hard.

    `each_process`: limit the memory of each, because there is no limit for all together. `processes`: the kernel counts
    them for this sandbox alone, and not for everything that the server's user runs.
    """
    most: dict[str, tuple[int, int]] = {
        "NOFILE": (limits.open_files, limits.open_files),
        "FSIZE": (limits.file_bytes, limits.file_bytes),
        "CORE": (0, 0),
    }
    if each_process:
        most["DATA"] = (limits.memory_bytes, limits.memory_bytes)
        most["AS"] = (limits.memory_bytes + RESERVED_BYTES,) * 2
    if processes:
        most["NPROC"] = (limits.processes, limits.processes)
    if limits.cpu_seconds is not None and not lasting:
        seconds = math.ceil(limits.cpu_seconds)
        most["CPU"] = (seconds, seconds + 1)
    return most


def new_mark() -> str:
    """It begins with a character that programs hardly ever write, because any output could begin a mark."""
    return f"\x1e{secrets.token_hex(16)}"


def text_of(module: str) -> str:
    """The text of a module of ours, for another Python."""
    return (resources.files("toolyard.sandboxes") / f"{module}.py").read_text()


_RUN_TEXT = "import sys; exec(compile(sys.argv.pop(1), '<toolyard>', 'exec'))"


def script(python: Sequence[str], module: str, *arguments: str) -> Sequence[str]:
    """A command line that runs such a module where its file does not exist."""
    return [*python, "-c", _RUN_TEXT, text_of(module), *arguments]


@contextlib.contextmanager
def naming(path: str) -> Iterator[None]:
    """Name the caller's path in errors of file operations."""
    try:
        yield
    except OSError as error:
        raise WorkspaceError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:  # not a path
        raise WorkspaceError(f"{path!r}: {error}") from error
