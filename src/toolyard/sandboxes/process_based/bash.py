"""The session's shell, on the server's side."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from dataclasses import dataclass

from toolyard.sandboxes.base import Finished, Level, Limit, Limits
from toolyard.sandboxes.endings import unstarted
from toolyard.sandboxes.process_based.programs import HelperProcess
from toolyard.sandboxes.process_based.room import Room, RoomWatch, end
from toolyard.sandboxes.shell import ABANDON, ARGV, Shell, may_wait_for_subshell, refused

_GRACE_SECONDS = 0.5
"""Time for the shell to go on after its hanging command was ended: then its variables are kept."""
_TIMES = 5


@dataclass(slots=True)
class _Running:
    program: HelperProcess
    shell: Shell
    command: asyncio.Future[int] | None = None

    async def close(self) -> None:
        if self.command is not None:
            self.command.cancel()
            await asyncio.gather(self.command, return_exceptions=True)  # before its pipe is closed
        self.program.close()


class Bash:
    """Starts the shell when it is first needed, and again after it was lost. Runs one command at a time."""

    def __init__(self, room: Room, limits: Limits, level: Callable[[], Level], check_open: Callable[[], None]) -> None:
        self._room = room
        self._limits = limits
        self._level = level
        self._check_open = check_open
        self._running: _Running | None = None
        self.turn = asyncio.Lock()

    async def execute(self, command: str, timeout: float | None) -> Finished:
        async with self.turn:
            self._check_open()  # it may have closed while this waited
            if problem := refused(command):
                return Finished.unstarted(problem, self._level())
            try:
                running = await self._started()
            except (OSError, ValueError) as error:
                return unstarted(error, self._level(), own=False)
            program = running.program
            watch = RoomWatch(self._room, self._limits, timeout)
            running.command = done = asyncio.ensure_future(running.shell.run(command, self._limits.output_bytes))
            try:
                exceeded = await watch.until(program, done, program.ended)
                if exceeded and not done.done() and not may_wait_for_subshell(command):
                    await self._give_up(running, done, watch.began)
                if not done.done() or done.cancelled():  # cancelled when everything closes
                    return await self._executed_last(running, exceeded, watch)
            except asyncio.CancelledError:  # the caller was cancelled
                await asyncio.shield(self._abandon(running, done, command, watch.began))
                raise
            finally:
                done.cancel()
            stdout, stderr = program.stdout.take(), program.stderr.take()
            program.rest()
            killed_by = watch.cause(program, exceeded)
            code = -signal.SIGKILL if exceeded else done.result()
            return Finished.ended(code, stdout, stderr, killed_by, usage=watch.usage(), isolation=self._level())

    async def end(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            await end(self._room, running.program)
            await running.close()

    async def stop(self) -> None:
        """End the shell, whatever it does. Waiting callers get the result of that."""
        if self._running is not None:
            await end(self._room, self._running.program)
        async with self.turn:
            await self.end()

    async def _started(self) -> _Running:
        if self._running is None:
            program = await self._room.start(ARGV, env={}, limits=self._limits, lasting=True)
            self._running = _Running(program, Shell(program.stdin, program.stdout, program.stderr))
        return self._running

    async def _give_up(self, running: _Running, done: asyncio.Future[int], since: float) -> None:
        """End the whole command: what it has started, repeatedly in case it starts more, and the rest of it."""
        running.shell.abandoned()
        ends = done, running.program.ended
        for turn in range(_TIMES):
            await self._room.relieve(running.program, since, 0 if turn else ABANDON)
            if (await asyncio.wait(ends, timeout=_GRACE_SECONDS / _TIMES, return_when="FIRST_COMPLETED"))[0]:
                await self._room.relieve(running.program, since)  # what it has started since
                return

    async def _abandon(self, running: _Running, done: asyncio.Future[int], command: str, since: float) -> None:
        if not done.done() and not may_wait_for_subshell(command):
            await self._give_up(running, done, since)
        if not done.done():
            await self.end()

    async def _executed_last(self, running: _Running, exceeded: Limit | None, watch: RoomWatch) -> Finished:
        """The shell has ended, or hangs and must end."""
        self._running, program = None, running.program
        try:
            ending = await end(self._room, program)
            stdout, stderr = program.stdout.take(), program.stderr.take()
            code = -signal.SIGKILL if exceeded else ending.code
            exceeded = watch.cause(program, exceeded, ending)
            usage = watch.usage(ending.cpu_seconds, ending.memory_bytes)
            level = self._level()
            return Finished.ended(code, stdout, stderr, exceeded, usage=usage, isolation=level, state_lost=True)
        finally:
            await running.close()
