"""The server's handle on the agent inside a sandbox: it starts and ends programs, and holds their pipes."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from toolyard.core.errors import SandboxLost
from toolyard.core.stalls import deadline
from toolyard.sandboxes.base import Limit, Limits
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.channel import Answer, Channel, pair, without_room
from toolyard.sandboxes.pipes import Capture, nobody

_FILE_MOST = wire.LIST_MOST
_INTERPRETER_MOST = 1024 * 1024
"""The longest messages of an agent and of an interpreter."""
_FORK_SECONDS = 10.0
_GOING_SECONDS = 1.0
"""Time for the agent of a branch to exit by itself."""
SECONDS = 30.0
"""Time for an answer of the agent, and for the kernel to end a killed process. After that, the sandbox is lost."""


@contextlib.asynccontextmanager
async def within(seconds: float, otherwise: str) -> AsyncIterator[None]:
    """Turn a timeout of our own into SandboxLost: a TimeoutError would look like the caller's."""
    try:
        async with deadline(seconds):
            yield
    except TimeoutError:
        raise SandboxLost(f"the sandbox is gone: {otherwise}") from None


@functools.lru_cache(64)
def told_of(limits: Limits, *, memory_enforced: bool) -> Mapping[str, Any]:
    """Limits in the form that processes inside take them."""
    return {**dataclasses.asdict(limits), "memory_enforced": memory_enforced}


@dataclass(slots=True)
class RemoteProgram:
    """A program inside. Its user closes it."""

    number: int
    ended: asyncio.Future[Mapping[str, Any]]
    stdin: int
    stdout: Capture
    stderr: Capture
    channel: Channel | None = None
    """The channel to the interpreter, if it is one."""
    on_full: Callable[[], None] = nobody
    """Called when it writes more than is kept."""

    @property
    def cut(self) -> Limit | None:
        """The output limit, if output was dropped. Read this after taking the output."""
        return "output" if self.stdout.full or self.stderr.full else None

    def take_stdin(self) -> int:
        """Give its standard input to a caller who will close it."""
        fd, self.stdin = self.stdin, -1
        return fd

    def rest(self) -> None:
        """Between commands: stop reading when the buffer is full, instead of dropping output."""
        self.stdout.idle = self.stderr.idle = True

    def close(self) -> None:
        if self.stdin >= 0:
            os.close(self.stdin)
            self.stdin = -1
        self.stdout.leave()
        self.stderr.leave()
        self.on_full = nobody  # the callback may hold a reference to us
        if self.channel is not None:
            self.channel.close()


@dataclass(slots=True)
class Expected:
    """A program about to start: its descriptors for both sides, until each side has its own."""

    number: int
    ended: asyncio.Future[Mapping[str, Any]]
    theirs: list[int] = field(default_factory=list)
    ours: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, number: int, owner: int, *, interpreter: bool) -> Expected:
        expected = cls(number, asyncio.get_running_loop().create_future())
        try:
            expected.pipe(owner, inwards=True)
            expected.pipe(owner)
            expected.pipe(owner)
            if interpreter:
                expected.pair()
        except BaseException as error:
            expected.close()
            if isinstance(error, OSError):
                raise without_room(error.strerror) from error
            raise
        return expected

    def pipe(self, owner: int, *, inwards: bool = False) -> None:
        reads, writes = os.pipe2(os.O_CLOEXEC)
        self.ours.append(writes if inwards else reads)
        self.theirs.append(reads if inwards else writes)
        if owner >= 0:
            os.fchown(self.theirs[-1], owner, owner)  # otherwise the program could not open /dev/stdout

    def pair(self) -> None:
        ours, theirs = pair()
        self.ours.append(ours.detach())
        self.theirs.append(theirs.detach())

    def close_theirs(self) -> None:
        for fd in self.theirs:
            os.close(fd)
        self.theirs.clear()

    def take(self) -> Sequence[int]:
        """Our descriptors, for a caller who will close them."""
        self.close_theirs()
        taken, self.ours = self.ours, []
        return taken

    def close(self) -> None:
        for fd in self.take():
            os.close(fd)


async def agreed(asked: Awaitable[Answer]) -> None:
    """Raise OSError with the interpreter's reason if it refuses."""
    try:
        async with deadline(_FORK_SECONDS):
            answer = await asked
    except TimeoutError:
        raise OSError(0, "the interpreter does not answer") from None
    _check_agreed(answer)


def _check_agreed(answer: Answer) -> None:
    if problem := answer.header.get("problem"):
        raise OSError(0, _words(problem))


def _unasked(event: Mapping[str, Any]) -> None:
    raise ValueError("an interpreter only answers")


class Keeper(Protocol):
    """Starts, watches and ends the programs of a sandbox."""

    @property
    def lost(self) -> str: ...

    async def interpret(self, output: int) -> RemoteProgram: ...

    async def measure(self, program: RemoteProgram) -> Mapping[str, Any]: ...

    async def end_since(self, program: RemoteProgram, seconds: float) -> None: ...

    async def signal(self, program: RemoteProgram, number: int) -> None: ...

    async def kill(self, program: RemoteProgram) -> Mapping[str, Any]: ...


class AgentClient:
    def __init__(self, sock: socket.socket, *, owner: int, on_lost: Callable[[str], None] = lambda _: None) -> None:
        self._owner = owner
        self._endings: dict[int, asyncio.Future[Mapping[str, Any]]] = {}
        self._ready: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._on_lost = on_lost
        self.failure = ""
        """Why setup failed, if the agent reported it."""
        self._channel = Channel(sock, on_event=self._event, on_lost=self._lost, payload_most=_FILE_MOST)

    @property
    def lost(self) -> str:
        return self._channel.lost

    async def ready(self, seconds: float | None = None) -> bool:
        """Wait until the sandbox is set up. Returns whether its first interpreter started. Raises SandboxLost if setup
        failed."""
        async with within(SECONDS if seconds is None else seconds, "it does not get ready"):
            return bool((await self._ready).get("interpreter"))

    async def ask(self, op: str, /, **more: Any) -> Answer:
        """Raises OSError with the agent's reason if the operation fails."""
        try:
            async with deadline(SECONDS):
                answer = await self._channel.ask(op, **more)
        except TimeoutError:
            self.close("it does not answer")
            raise SandboxLost("the sandbox does not answer") from None
        if problem := answer.header.get("problem"):
            number = answer.header.get("errno")
            raise OSError(number if isinstance(number, int) and 0 < number < 4096 else 0, _words(problem))
        return answer

    async def run(
        self, argv: Sequence[str], env: Mapping[str, str], limits: Limits, *, memory_enforced: bool
    ) -> RemoteProgram:
        """Start a program in its own pid namespace. Raises OSError if the sandbox allows no more processes."""
        told = told_of(limits, memory_enforced=memory_enforced)
        program = json.dumps({"argv": list(argv), "env": dict(env)}).encode()
        return await self._start("run", limits.output_bytes, payload=program, limits=told)

    async def interpret(self, output: int) -> RemoteProgram:
        """Start the session's interpreter."""
        return await self._start("interpret", output, interpreter=True)

    def expect_interpreter(self) -> Expected:
        """Prepare the interpreter that the sandbox is made with."""
        return self._expected(interpreter=True)

    async def fork(self, interpreter: RemoteProgram, output: int, seconds: float) -> RemoteProgram:
        """Fork another sandbox's interpreter into this one. Raises OSError with what prevents it, and TimeoutError if
        the interpreter takes longer than `seconds`: fork hooks of the code run meanwhile."""
        assert interpreter.channel is not None
        expected = self._expected(interpreter=True)
        try:
            await self.ask("invite")
            async with asyncio.timeout(seconds):
                answer = await interpreter.channel.ask("fork", fds=expected.theirs)
            _check_agreed(answer)
            await self.ask("adopt", number=expected.number)
        except BaseException:
            self.give_up(expected)
            raise
        return self.started(expected, output)

    async def branch(self, theirs: socket.socket, room: int | None) -> tuple[int, int]:
        """Make a place for a branch, whose agent uses that socket, unless the workspace is larger than `room`. Returns
        the number for `end_branch`, and the workspace's size."""
        number = self._channel.number()
        self._endings[number] = asyncio.get_running_loop().create_future()
        made = False
        try:
            answer = await self.ask("branch", number=number, room=room, fds=[theirs.fileno()])
            size = answer.header.get("bytes")
            if not isinstance(size, int) or not 0 <= size < 2**63:
                raise OSError(0, "its size is not known")
            made = room is None or size <= room
        finally:
            if not made:
                self._endings.pop(number, None)
        return number, size

    async def end_branch(self, number: int, *, patience: float = _GOING_SECONDS) -> None:
        """Wait for a branch's agent, which exits once its socket is closed. Kill it if it is stopped or still busy."""
        ended = self._endings.get(number)
        if ended is None:
            return
        with contextlib.suppress(SandboxLost):  # then the branch is lost too
            if not (await asyncio.wait((ended,), timeout=patience))[0]:
                await self._demand("signal", program=number, sent=signal.SIGKILL)
                async with within(SECONDS, "it does not end its programs"):
                    await ended

    async def measure(self, program: RemoteProgram) -> Mapping[str, Any]:
        """Processor time and memory of a program with everything that it started."""
        return (await self.ask("measure", program=program.number)).header

    async def signal(self, program: RemoteProgram, number: int) -> None:
        await self._demand("signal", program=program.number, sent=number)

    async def end_since(self, program: RemoteProgram, seconds: float, first: int = 0) -> None:
        """End what a program has started in the last seconds, but not the program. It first gets the signal `first`."""
        moment = time.clock_gettime(time.CLOCK_BOOTTIME) - seconds  # the answer may come late
        await self._demand("end_since", program=program.number, moment=moment, first=first)

    async def _demand(self, op: str, **more: Any) -> None:
        """Request something that a working agent can always do. If it fails, give up the sandbox."""
        try:
            await self.ask(op, **more)
        except OSError as error:
            self.close(f"it cannot end programs: {error.strerror}")
            raise SandboxLost(f"the sandbox is gone: {self.lost}") from error

    async def kill(self, program: RemoteProgram) -> Mapping[str, Any]:
        """End a program with everything that it started."""
        await self.signal(program, signal.SIGKILL)
        async with within(SECONDS, "it does not end its programs"):
            return await program.ended

    def close(self, why: str = "it was closed") -> None:
        self._channel.close(why)

    async def _start(self, op: str, output: int, *, interpreter: bool = False, **more: Any) -> RemoteProgram:
        expected = self._expected(interpreter=interpreter)
        try:
            await self.ask(op, number=expected.number, fds=expected.theirs, **more)
        except BaseException:
            self.give_up(expected)
            raise
        return self.started(expected, output)

    def _expected(self, *, interpreter: bool) -> Expected:
        expected = Expected.of(self._channel.number(), self._owner, interpreter=interpreter)
        self._endings[expected.number] = expected.ended
        return expected

    def give_up(self, expected: Expected) -> None:
        expected.close()
        self._endings.pop(expected.number, None)

    def started(self, expected: Expected, output: int) -> RemoteProgram:
        """The program has started; the agent will report how it ends."""
        return program_of(expected, output)

    def _event(self, event: Mapping[str, Any]) -> None:
        if "ended" in event:
            _check_ending(event)
            ended = self._endings.pop(event["ended"], None)
            if ended is not None and not ended.done():
                ended.set_result(event)
        elif "failed" in event:
            self.failure = _words(event["failed"])
            self.close(f"it could not be set up: {self.failure}")
        elif not self._ready.done():
            self._ready.set_result(event)

    def _lost(self, why: str) -> None:
        if not self._ready.done():
            self._ready.set_exception(SandboxLost(f"the sandbox is gone: {why}"))
            self._ready.exception()  # mark as retrieved, even if no caller waits
        for ended in self._endings.values():
            if not ended.done():
                ended.set_result({"code": -signal.SIGKILL, "cpu": 0.0, "peak": 0, "wall": 0.0})
        self._endings.clear()
        self._on_lost(why)


def program_of(
    expected: Expected,
    output: int,
    on_event: Callable[[Mapping[str, Any]], None] = _unasked,
    on_lost: Callable[[str], None] = lambda _: None,
) -> RemoteProgram:
    program: RemoteProgram

    def full() -> None:
        program.on_full()

    stdin, stdout, stderr, *control = expected.take()
    captures = Capture(stdout, output, full), Capture(stderr, output, full)
    program = RemoteProgram(expected.number, expected.ended, stdin, *captures)
    if control:
        sock = socket.socket(fileno=control[0])
        program.channel = Channel(sock, on_event=on_event, on_lost=on_lost, payload_most=_INTERPRETER_MOST)
        os.close(program.take_stdin())  # code has no input, and must not wait for any
    return program


def _words(said: object) -> str:
    """The agent's reason as printable text. It may have sent anything."""
    return said[:1000].encode(errors="replace").decode() if isinstance(said, str) else "it does not say what"


def _check_ending(event: Mapping[str, Any]) -> None:
    """Check the form of a program's end, true or not: it goes into the program's result."""
    code, cpu, peak, wall = (event[name] for name in ("code", "cpu", "peak", "wall"))
    if type(code) is not int or type(peak) is not int or not {type(cpu), type(wall)} <= {int, float}:
        raise ValueError(event)
    if not (abs(code) < 2**31 and 0 <= peak < 2**63 and 0 <= cpu < 2**53 and 0 <= wall < 2**53):
        raise ValueError(event)
    if "unstarted" in event and (type(event["unstarted"]) is not int or not 0 <= event["unstarted"] < 4096):
        raise ValueError(event)
