"""The session's Python interpreter, on the server's side."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolyard.core.errors import SandboxError
from toolyard.core.stalls import deadline
from toolyard.sandboxes.base import Executed, Limit, Limits, PythonError, Usage
from toolyard.sandboxes.endings import how_ended
from toolyard.sandboxes.native.agent_client import Keeper, RemoteProgram
from toolyard.sandboxes.native.cgroups import Strain
from toolyard.sandboxes.native.channel import Answer, loaded
from toolyard.sandboxes.native.watch import Ground, NativeWatch

_GRACE_SECONDS = 0.5
"""Time for interrupted code to stop by itself: then the session's variables are kept."""
_TIMES = 5


@dataclass(frozen=True, slots=True)
class Reply:
    """The interpreter's answer to a piece of code."""

    value: str | None
    error: PythonError | None
    cpu_seconds: float
    memory_bytes: int
    wall_seconds: float


class Python:
    """Starts the interpreter when it is first needed, and again after it was lost. Runs one piece of code at a time."""

    def __init__(self, keeper: Keeper, limits: Limits, ground: Ground, program: RemoteProgram | None = None) -> None:
        self._keeper = keeper
        self._limits = limits
        self._ground = ground
        self._program = program
        self._rested = Strain()
        """The sandbox's strain when the previous piece of code had ended."""
        self.turn = asyncio.Lock()

    async def execute(self, code: str, watch: NativeWatch) -> Executed:
        async with self.turn:
            program = await self.program()
            assert program.channel is not None
            watch.begin()
            if program.ended.done():  # it ended between two pieces of code
                watch.look_back(self._rested)
            for stream in (program.stdout, program.stderr):
                stream.begin(self._limits.output_bytes)
            payload = code.encode("utf-8", "surrogatepass")
            answer = program.channel.begin("exec", payload)
            try:
                exceeded = await watch.until(self._keeper, program, answer)
                if exceeded:
                    await self._interrupt(program, answer, watch)
                reply = _reply(answer)
                if reply is None:
                    return await self._executed_last(program, exceeded, watch)
            finally:
                answer.cancel()
            stdout, stderr = _output(program)
            moved = max(map(len, (payload, stdout, stderr)))
            exceeded = exceeded or watch.overran(reply.wall_seconds, moved_bytes=moved) or program.cut
            program.rest()
            self._rested = self._ground.group.glance()
            usage = Usage(watch.seconds, reply.cpu_seconds, reply.memory_bytes)
            return Executed(stdout, stderr, reply.value, reply.error, exceeded, usage, self._ground.report().level)

    async def rehearse(self) -> None:
        async with self.turn:
            program = await self.program()
            assert program.channel is not None
            async with deadline(self._limits.wall_seconds):
                await program.channel.begin("rehearse", b"")

    async def program(self) -> RemoteProgram:
        if self._program is None:
            try:
                self._program = await self._keeper.interpret(self._limits.output_bytes)
            except OSError as error:
                raise SandboxError(f"the interpreter could not be started: {error.strerror}") from error
        return self._program

    async def end(self) -> None:
        if self._program is not None:
            program, self._program = self._program, None
            try:
                if not self._keeper.lost:
                    await self._keeper.kill(program)
            finally:
                program.close()

    async def _interrupt(self, program: RemoteProgram, answer: asyncio.Future[Answer], watch: NativeWatch) -> None:
        """End the processes that the code has started and interrupt it. It gets little time to stop."""
        with contextlib.suppress(OSError):
            for _ in range(_TIMES):  # it may start more meanwhile
                await self._keeper.end_since(program, watch.seconds)  # the code may be waiting for them
                await self._keeper.signal(program, signal.SIGINT)
                await asyncio.wait((answer,), timeout=_GRACE_SECONDS / _TIMES)
                if answer.done():
                    await self._keeper.end_since(program, watch.seconds)  # what it has started since
                    return

    async def _executed_last(self, program: RemoteProgram, exceeded: Limit | None, watch: NativeWatch) -> Executed:
        """The interpreter did not answer, or its answer was invalid: end it."""
        self._program = None
        assert program.channel is not None
        talked_nonsense = not program.channel.hung_up
        try:
            ending = await self._keeper.kill(program)
            stdout, stderr = _output(program)
            exceeded = exceeded or watch.enforced(ending, ended_here=talked_nonsense) or program.cut
            how = f"the interpreter {how_ended(ending['code'])}"
            error = None if exceeded else PythonError("InterpreterEnded", how, "")
            usage = Usage(watch.seconds, ending["cpu"], ending["peak"])
            level = self._ground.report().level
            return Executed(stdout, stderr, None, error, exceeded, usage, level, state_lost=True)
        finally:
            program.close()


def _output(program: RemoteProgram) -> tuple[str, str]:
    return program.stdout.take().decode(errors="replace"), program.stderr.take().decode(errors="replace")


def _reply(answer: asyncio.Future[Answer]) -> Reply | None:
    """The interpreter's answer if it is valid. Untrusted code may have written it, so check its form."""
    if not answer.done() or answer.exception() is not None:
        return None
    header = answer.result().header
    try:
        said: Mapping[str, Any] = loaded(answer.result().payload)
        value, raised = said["value"], said["error"]
        error = PythonError(*(_text(raised[part]) for part in ("name", "message", "traceback"))) if raised else None
        cpu, peak, wall = (_amount(header[name]) for name in ("cpu", "peak", "wall"))
        return Reply(None if value is None else _text(value), error, cpu, int(peak), wall)
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _amount(said: object) -> float:
    if not isinstance(said, (int, float)) or not 0 <= said < 2**53:
        raise TypeError(said)
    return said


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise TypeError(said)
    return said.encode(errors="replace").decode()  # a lone surrogate is no text
