"""The session's Python interpreter, on the server's side."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from toolyard.core.errors import SandboxError
from toolyard.sandboxes import profiles
from toolyard.sandboxes.base import Executed, Level, Limit, Limits, Profile, PythonError
from toolyard.sandboxes.endings import how_ended
from toolyard.sandboxes.pipes import send
from toolyard.sandboxes.process_based.programs import HelperProcess
from toolyard.sandboxes.process_based.recording import Recording
from toolyard.sandboxes.process_based.room import Room, RoomWatch, end, script

_GRACE_SECONDS = 0.5
"""Time for interrupted code to stop by itself: then the session's variables are kept."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The interpreter's answer to a piece of code."""

    value: str | None
    error: PythonError | None
    cpu_seconds: float
    memory_bytes: int


class Python:
    """Starts the interpreter when it is first needed, and again after it was lost. Runs one piece of code at a time."""

    def __init__(
        self, room: Room, limits: Limits, profile: Profile, level: Callable[[], Level], check_open: Callable[[], None]
    ) -> None:
        self._room = room
        self._limits = limits
        self._options = ["--ipython"] if profiles.is_ipython(profile) else []
        self._level = level
        self._check_open = check_open
        self._program: HelperProcess | None = None
        self.turn = asyncio.Lock()
        self.recording = Recording()

    async def execute(self, code: str, timeout: float | None) -> Executed:
        async with self.turn:
            self._check_open()  # it may have closed while this waited
            program = await self._started()
            watch = RoomWatch(self._room, self._limits, timeout)
            answer = asyncio.ensure_future(self._ask(program, code))
            try:
                exceeded = await watch.until(program, answer, program.ended)
                if exceeded:
                    await self._interrupt(program, answer, watch.began)
                reply = _reply(answer)
                if reply is None:
                    executed = await self._executed_last(program, exceeded, watch)
                else:
                    executed = self._executed(program, exceeded, watch, reply)
            except asyncio.CancelledError:
                await asyncio.shield(self._abandon(program, answer, watch.began))
                raise
            finally:
                answer.cancel()
            self.recording.note(code, executed)
            return executed

    async def end(self) -> None:
        if self._program is not None:
            program, self._program = self._program, None
            await end(self._room, program)
            program.close()

    async def stop(self) -> None:
        """End the interpreter, whatever it does. Waiting callers get the result of that."""
        if self._program is not None:
            await end(self._room, self._program)
        async with self.turn:
            self.recording.pieces.clear()
            await self.end()

    async def _started(self) -> HelperProcess:
        if self._program is None:
            try:
                argv = script([*self._room.python, "-X", "utf8"], "interpreter", *self._options)
                self._program = await self._room.start(argv, env={}, limits=self._limits, lasting=True)
            except (OSError, ValueError) as error:
                raise SandboxError(f"the interpreter could not be started: {error}") from error
        return self._program

    async def _ask(self, program: HelperProcess, code: str) -> bytes:
        mark = secrets.token_hex(16)
        for stream in (program.stdout, program.stderr):
            stream.begin(self._limits.output_bytes, mark.encode(), forget=program.used)  # keep errors of its start
        program.used = True
        await send(program.stdin, json.dumps({"mark": mark, "code": code}).encode() + b"\n")
        answer, _ = await asyncio.gather(program.stdout.answer, program.stderr.answer)
        return answer

    async def _interrupt(self, program: HelperProcess, answer: asyncio.Future[bytes], since: float) -> None:
        """End the processes that the code has started, which it may be waiting for, and interrupt it."""
        if not answer.done():
            await self._room.relieve(program, since)
            await self._room.interrupt(program)
            await asyncio.wait((answer, program.ended), timeout=_GRACE_SECONDS, return_when="FIRST_COMPLETED")

    async def _abandon(self, program: HelperProcess, answer: asyncio.Future[bytes], since: float) -> None:
        """The caller was cancelled: interrupt the code. If it does not stop, give up the interpreter with it."""
        await self._interrupt(program, answer, since)
        if _reply(answer) is None:
            self.recording.pieces.clear()
            await self.end()

    def _executed(self, program: HelperProcess, exceeded: Limit | None, watch: RoomWatch, reply: Reply) -> Executed:
        stdout, stderr = _output(program)
        program.rest()
        usage = watch.usage(reply.cpu_seconds, reply.memory_bytes)
        exceeded = watch.cause(program, exceeded)
        return Executed(stdout, stderr, reply.value, reply.error, exceeded, usage, self._level())

    async def _executed_last(self, program: HelperProcess, exceeded: Limit | None, watch: RoomWatch) -> Executed:
        """The interpreter did not answer, or its answer was invalid: end it."""
        self._program = None
        try:
            ending = await end(self._room, program)
            stdout, stderr = _output(program)
            exceeded = watch.cause(program, exceeded, ending)
            how = f"the interpreter {how_ended(ending.code)}"
            error = None if exceeded else PythonError("InterpreterEnded", how, "")
            usage = watch.usage(ending.cpu_seconds, ending.memory_bytes)
            return Executed(stdout, stderr, None, error, exceeded, usage, self._level(), state_lost=True)
        finally:
            program.close()


def _output(program: HelperProcess) -> tuple[str, str]:
    return program.stdout.take().decode(errors="replace"), program.stderr.take().decode(errors="replace")


def _reply(answer: asyncio.Future[bytes]) -> Reply | None:
    """The interpreter's answer if it is valid. Untrusted code may have written it, so check its form."""
    if not answer.done() or answer.cancelled():
        return None
    with contextlib.suppress(ValueError, KeyError, TypeError, OverflowError, RecursionError):
        said: Mapping[str, Any] = json.loads(answer.result())
        value, raised = said["value"], said["error"]
        error = PythonError(*(_text(raised[part]) for part in ("name", "message", "traceback"))) if raised else None
        return Reply(None if value is None else _text(value), error, float(said["cpu"]), int(said["peak"]))
    return None


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise TypeError(said)
    return said.encode(errors="replace").decode()  # a lone surrogate is no text
