"""The session's shell, on the server's side."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
from dataclasses import dataclass

from toolyard.sandboxes.base import Finished, Limit, Limits, Usage
from toolyard.sandboxes.native.agent_client import AgentClient, RemoteProgram
from toolyard.sandboxes.native.watch import Ground, NativeWatch
from toolyard.sandboxes.shell import ABANDON, ARGV, Shell, may_wait_for_subshell, refused

_GRACE_SECONDS = 0.5
"""Time for the shell to go on after its hanging command was ended: then its variables are kept."""
_TIMES = 5


@dataclass(slots=True)
class _Running:
    program: RemoteProgram
    shell: Shell
    command: asyncio.Future[int] | None = None

    async def close(self) -> None:
        if self.command is not None:
            self.command.cancel()
            await asyncio.gather(self.command, return_exceptions=True)  # before its pipe is closed
        self.program.close()


class Bash:
    """Starts the shell when it is first needed, and again after it was lost. Runs one command at a time."""

    def __init__(self, client: AgentClient, limits: Limits, ground: Ground) -> None:
        self._client = client
        self._limits = limits
        self._ground = ground
        self._running: _Running | None = None
        self.turn = asyncio.Lock()

    async def execute(self, command: str, watch: NativeWatch) -> Finished:
        async with self.turn:
            if problem := refused(command):
                return Finished.unstarted(problem, self._ground.report().level)
            try:
                running = await self._started()
            except OSError as error:
                return watch.unstarted(error)
            watch.begin()
            program = running.program
            running.command = done = asyncio.ensure_future(running.shell.run(command, self._limits.output_bytes))
            try:
                exceeded = await watch.until(self._client, program, done, program.ended)
                if exceeded and not may_wait_for_subshell(command):
                    await self._give_up(running, done, watch)
                if not done.done() or done.cancelled():  # cancelled when everything closes
                    return await self._executed_last(running, exceeded, watch)
            finally:
                done.cancel()
            usage, level = Usage(watch.seconds), self._ground.report().level
            stdout, stderr = program.stdout.take(), program.stderr.take()
            killed_by = exceeded or program.cut
            code = -signal.SIGKILL if exceeded else done.result()
            program.rest()
            return Finished.ended(code, stdout, stderr, killed_by, usage=usage, isolation=level)

    async def _give_up(self, running: _Running, done: asyncio.Future[int], watch: NativeWatch) -> None:
        """End the whole command: what it has started, repeatedly in case it starts more, and the rest of it."""
        running.shell.abandoned()
        ends = done, running.program.ended
        for turn in range(_TIMES):
            await self._client.end_since(running.program, watch.seconds, 0 if turn else ABANDON)
            if (await asyncio.wait(ends, timeout=_GRACE_SECONDS / _TIMES, return_when="FIRST_COMPLETED"))[0]:
                await self._client.end_since(running.program, watch.seconds)  # what it has started since
                return

    async def end(self) -> None:
        if self._running is not None:
            running, self._running = self._running, None
            try:
                if not self._client.lost:
                    await self._client.kill(running.program)
            finally:
                await running.close()

    async def _started(self) -> _Running:
        if self._running is None:
            limits = dataclasses.replace(self._limits, cpu_seconds=None)  # for each command, and watched
            program = await self._client.run(ARGV, {}, limits, memory_enforced=self._ground.memory_enforced)
            self._running = _Running(program, Shell(program.stdin, program.stdout, program.stderr))
        return self._running

    async def _executed_last(self, running: _Running, exceeded: Limit | None, watch: NativeWatch) -> Finished:
        """The shell has ended, or hangs and must end."""
        self._running, program = None, running.program
        try:
            ending = await self._client.kill(program)
            usage = Usage(watch.seconds, ending["cpu"], ending["peak"])
            return Finished.ended(
                -signal.SIGKILL if exceeded else ending["code"],
                program.stdout.take(),
                program.stderr.take(),
                exceeded or watch.enforced(ending) or program.cut,
                usage=usage,
                isolation=self._ground.report().level,
                state_lost=True,
            )
        finally:
            await running.close()
