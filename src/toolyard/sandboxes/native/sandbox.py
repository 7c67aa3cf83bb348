"""A native sandbox as its user sees it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import posixpath
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from toolyard.core.errors import CannotFork, SandboxError, SandboxLost, WorkspaceError
from toolyard.sandboxes.base import WORKSPACE, Entry, Executed, Finished, Limit, Limits, PythonError, Report, Usage
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.channel import Answer
from toolyard.sandboxes.native.guest import Guest, Program, Watch
from toolyard.sandboxes.pipes import feed
from toolyard.sandboxes.shell import ARGV, Shell, refused

_GRACE_SECONDS = 0.5
"""For Python code that is interrupted to stop by itself, which saves the session's variables."""
_MEASURE_SECONDS = 0.1
_PIECE = 256 * 1024


@dataclass(frozen=True, slots=True)
class Reply:
    """What the interpreter says of a piece of code."""

    value: str | None
    error: PythonError | None
    cpu_seconds: float
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox and its branches stand on."""

    report: Callable[[], Report]
    owner: int
    """The user, outside, that programs run as; -1 if that is our own."""
    memory_enforced: bool
    oom_kills: Callable[[], int]
    """How often the kernel has ended something in the sandbox because of its memory."""


class NativeSandbox:
    def __init__(
        self,
        guest: Guest,
        limits: Limits,
        ground: Ground,
        *,
        end: Callable[[], Awaitable[None]],
        parent: NativeSandbox | None = None,
    ) -> None:
        self.limits = limits
        self._guest = guest
        self._ground = ground
        self._end = end
        self._parent = parent
        self._branches: set[NativeSandbox] = set()
        self._interpreter: Program | None = None
        self._bash: tuple[Program, Shell] | None = None
        self._turn = asyncio.Lock()
        """One piece of code at a time; programs and shell commands may run beside it."""
        self._shell_turn = asyncio.Lock()
        self._closed = False

    @property
    def alive(self) -> bool:
        return not (self._closed or self._guest.lost)

    async def warm(self) -> None:
        """Start the interpreter, for code that is still to come."""
        await self._python()

    # Programs.

    async def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
        limits: Limits | None = None,
    ) -> Finished:
        self._check_open()
        within = limits or self.limits
        watch = Watch(within.wall_seconds if timeout is None else timeout)
        killed_before = self._ground.oom_kills()
        try:
            program = await self._guest.run(argv, env or {}, self._told(within), within.output_bytes)
        except OSError as error:
            return self._not_started(str(error.strerror))
        program.watch = watch
        feeding = asyncio.ensure_future(feed(program.stdin, stdin))
        program.stdin = -1
        try:
            async with self._measured(program, watch, within):
                exceeded = await watch.until(program.ended)
            ending = await self._guest.kill(program) if exceeded else program.ended.result()
            self._check_open()
            return Finished(
                exit_code=ending["code"],
                stdout=program.stdout.take(),
                stderr=program.stderr.take(),
                killed_by=exceeded or self._exceeded(ending, within, killed_before),
                usage=Usage(watch.seconds, ending["cpu"], ending["peak"]),
                isolation=self.report().level,
            )
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            program.close()

    def _exceeded(self, ending: Mapping[str, Any], limits: Limits, killed_before: int) -> Limit | None:
        """The limit that the kernel enforced, if one ended the program."""
        code = ending["code"]
        if code == -signal.SIGXFSZ:
            return "file_size"
        if limits.cpu_seconds is not None and ending["cpu"] >= limits.cpu_seconds and code < 0:
            return "cpu"
        return "memory" if code == -signal.SIGKILL and self._ground.oom_kills() > killed_before else None

    def _not_started(self, problem: str) -> Finished:
        text = f"toolyard: the program could not be started: {problem}\n"
        return Finished(126, b"", text.encode(), None, Usage(), self.report().level)

    def _told(self, limits: Limits) -> Mapping[str, Any]:
        return {**dataclasses.asdict(limits), "memory_enforced": self._ground.memory_enforced}

    # Python.

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        async with self._turn:
            self._check_open()
            interpreter = await self._python()
            assert interpreter.channel is not None
            for stream in (interpreter.stdout, interpreter.stderr):
                stream.begin(self.limits.output_bytes)
            interpreter.watch = watch = Watch(self.limits.wall_seconds if timeout is None else timeout)
            killed_before = self._ground.oom_kills()
            answer = asyncio.ensure_future(
                interpreter.channel.ask("exec", payload=code.encode("utf-8", "surrogatepass"))
            )
            try:
                async with self._measured(interpreter, watch, self.limits):
                    exceeded = await watch.until(answer)
                if exceeded:
                    await self._interrupt(interpreter, answer)
                reply = _reply(answer)
                ending = await self._gone(interpreter) if reply is None else None
            finally:
                answer.cancel()
                interpreter.watch = None
            self._check_open()
            if ending is not None and exceeded is None:
                exceeded = self._exceeded(ending, self.limits, killed_before)
            return self._executed(interpreter, reply, ending, exceeded, watch.seconds)

    async def _python(self) -> Program:
        if self._interpreter is None:
            try:
                self._interpreter = await self._guest.interpret(self.limits.output_bytes)
            except OSError as error:
                raise SandboxError(f"the interpreter could not be started: {error.strerror}") from error
        return self._interpreter

    async def _interrupt(self, interpreter: Program, answer: asyncio.Future[Any]) -> None:
        """Ask the code to stop, which saves the variables; it is given little time to do so."""
        with contextlib.suppress(OSError):
            await self._guest.signal(interpreter, signal.SIGINT)
        await asyncio.wait((answer,), timeout=_GRACE_SECONDS)

    async def _gone(self, interpreter: Program) -> Mapping[str, Any]:
        """See to it that an interpreter that did not answer is no more."""
        self._interpreter = None
        return await self._guest.kill(interpreter)

    def _executed(
        self,
        interpreter: Program,
        reply: Reply | None,
        ending: Mapping[str, Any] | None,
        exceeded: Limit | None,
        seconds: float,
    ) -> Executed:
        stdout, stderr = (stream.take().decode(errors="replace") for stream in (interpreter.stdout, interpreter.stderr))
        if reply is None:
            assert ending is not None
            interpreter.close()
            how = f"the interpreter ended with code {ending['code']}"
            error = None if exceeded else PythonError("InterpreterEnded", how, "")
            usage = Usage(seconds, ending["cpu"], ending["peak"])
            return Executed(stdout, stderr, None, error, exceeded, usage, self.report().level, state_lost=True)
        usage = Usage(seconds, reply.cpu_seconds, reply.memory_bytes)
        return Executed(stdout, stderr, reply.value, reply.error, exceeded, usage, self.report().level)

    # The shell.

    async def shell(self, command: str, *, timeout: float | None = None) -> Finished:
        async with self._shell_turn:
            self._check_open()
            if problem := refused(command):
                return self._not_started(problem)
            try:
                bash, talk = await self._started_bash()
            except OSError as error:
                return self._not_started(str(error.strerror))
            bash.watch = watch = Watch(self.limits.wall_seconds if timeout is None else timeout)
            killed_before = self._ground.oom_kills()
            done = asyncio.ensure_future(talk.run(command, self.limits.output_bytes))
            try:
                async with self._measured(bash, watch, self.limits):
                    exceeded = await watch.until(done, bash.ended)
                if exceeded:
                    await self._guest.end_since(bash, watch.seconds)
                    await asyncio.wait((done,), timeout=_GRACE_SECONDS)
                ending = None if done.done() else await self._without_bash(bash)
                self._check_open()
                return Finished(
                    exit_code=ending["code"] if ending else done.result(),
                    stdout=bash.stdout.take(),
                    stderr=bash.stderr.take(),
                    killed_by=exceeded or (self._exceeded(ending, self.limits, killed_before) if ending else None),
                    usage=Usage(watch.seconds, ending["cpu"] if ending else 0.0, ending["peak"] if ending else 0),
                    isolation=self.report().level,
                    state_lost=ending is not None,
                )
            finally:
                bash.watch = None
                if not done.done():
                    done.cancel()
                    await asyncio.gather(done, return_exceptions=True)
                    bash.close()

    async def _started_bash(self) -> tuple[Program, Shell]:
        if self._bash is None:
            limits = dataclasses.replace(self.limits, cpu_seconds=None)  # which is for each command, and watched
            bash = await self._guest.run(ARGV, {}, self._told(limits), self.limits.output_bytes)
            self._bash = bash, Shell(bash.stdin, bash.stdout, bash.stderr)
        return self._bash

    async def _without_bash(self, bash: Program) -> Mapping[str, Any]:
        self._bash = None
        return await self._guest.kill(bash)

    # Files.

    async def read(self, path: str) -> bytes:
        self._check_open()
        inside, whole = _inside(path), bytearray()
        while True:
            piece = await self._file("read", path, inside, offset=len(whole), most=_PIECE)
            whole += piece
            if len(piece) < _PIECE:
                return bytes(whole)
            if len(whole) > self.limits.file_bytes:
                raise WorkspaceError(f"{path}: larger than the {self.limits.file_bytes} bytes that a file may have")

    async def write(self, path: str, data: bytes) -> None:
        self._check_open()
        inside = _inside(path)
        for at in range(0, max(len(data), 1), _PIECE):
            await self._file("write", path, inside, payload=data[at : at + _PIECE], more=at > 0)

    async def list(self, path: str = ".") -> Sequence[Entry]:
        self._check_open()
        found = json.loads(await self._file("list", path, _inside(path)))
        return [Entry(str(name), kind, int(size)) for name, kind, size in found]

    async def _file(self, op: str, path: str, inside: str, **more: Any) -> bytes:
        try:
            return (await self._guest.ask(op, path=inside, **more)).payload
        except OSError as error:
            raise WorkspaceError(f"{path}: {error.strerror}") from error

    # Branches.

    async def fork(self, count: int = 1) -> Sequence[NativeSandbox]:
        async with self._turn:
            self._check_open()
            branches: list[NativeSandbox] = []
            try:
                for _ in range(count):
                    branches.append(await self._fork())
            except BaseException:
                for branch in branches:
                    await branch.close()
                raise
            return branches

    async def _fork(self) -> NativeSandbox:
        ours, theirs = wire.pair()
        guest = Guest(ours, owner=self._ground.owner)
        try:
            with theirs:
                ended = await self._guest.branch(theirs)
            await guest.ready()
            interpreter = await guest.fork(await self._python(), self.limits.output_bytes)
        except OSError as error:
            guest.close()
            raise CannotFork(f"the session cannot be forked: {error.strerror}") from error
        except BaseException:
            guest.close()
            raise

        async def end() -> None:
            guest.close()
            await ended

        branch = NativeSandbox(guest, self.limits, self._ground, end=end, parent=self)
        branch._interpreter = interpreter
        self._branches.add(branch)
        return branch

    # The end.

    def report(self) -> Report:
        return self._ground.report()

    async def close(self) -> None:
        """Its branches live inside it, so the last of them frees it."""
        if self._closed:
            return
        self._closed = True
        await asyncio.shield(self._free())

    async def _free(self) -> None:
        for program in (self._interpreter, self._bash and self._bash[0]):
            if program is not None:
                if self._branches and not self._guest.lost:
                    await self._guest.kill(program)
                program.close()
        self._interpreter = self._bash = None
        if self._branches:
            return
        await self._end()
        if self._parent is not None:
            self._parent._branches.discard(self)
            if self._parent._closed:
                await self._parent._free()

    def _check_open(self) -> None:
        if self._closed:
            raise SandboxLost("the sandbox is closed")
        if self._guest.lost:
            raise SandboxLost(f"the sandbox is gone: {self._guest.lost}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    # What no limit of the kernel's covers.

    @contextlib.asynccontextmanager
    async def _measured(self, program: Program, watch: Watch, limits: Limits) -> AsyncIterator[None]:
        """Look now and then at the processor time of all of its processes together, and at their memory where no
        cgroup does."""
        if limits.cpu_seconds is None and self._ground.memory_enforced:
            yield
            return
        measuring = asyncio.ensure_future(self._measure(program, watch, limits))
        try:
            yield
        finally:
            measuring.cancel()
            await asyncio.gather(measuring, return_exceptions=True)

    async def _measure(self, program: Program, watch: Watch, limits: Limits) -> None:
        before: float | None = None
        while True:
            used = (await self._guest.ask("measure", program=program.number)).header
            before = used["cpu"] if before is None else before
            if limits.cpu_seconds is not None and used["cpu"] - before > limits.cpu_seconds:
                watch.exceed("cpu")
            if not self._ground.memory_enforced and used["memory"] > limits.memory_bytes:
                watch.exceed("memory")
            await asyncio.sleep(_MEASURE_SECONDS)


def _reply(answer: asyncio.Future[Answer]) -> Reply | None:
    """What the interpreter answered, if it is an answer: it is untrusted code's own word, so its form is checked."""
    if not answer.done() or answer.exception() is not None:
        return None
    header = answer.result().header
    try:
        said = json.loads(answer.result().payload)
        value, raised = said["value"], said["error"]
        error = PythonError(*(_text(raised[part]) for part in ("name", "message", "traceback"))) if raised else None
        return Reply(None if value is None else _text(value), error, float(header["cpu"]), int(header["peak"]))
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None


def _text(said: object) -> str:
    if not isinstance(said, str):
        raise TypeError(said)
    return said.encode(errors="replace").decode()  # half a character in JSON is no text


def _inside(path: str) -> str:
    """A path relative to the workspace. That it stays inside, links and all, is seen to where it is opened."""
    if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
        path = path.removeprefix(WORKSPACE).lstrip("/")
    if path.startswith("/"):
        raise WorkspaceError(f"{path}: not in the workspace, which is {WORKSPACE}")
    if "\0" in path:
        raise WorkspaceError(f"{path!r}: a path cannot hold a null character")
    return posixpath.normpath(path or ".")
