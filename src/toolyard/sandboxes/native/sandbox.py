"""A native sandbox, as its user sees it."""

from __future__ import annotations

import asyncio
import errno
import json
import math
import signal
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from toolyard.core.errors import CannotFork, SandboxError, SandboxLost, WorkspaceError
from toolyard.sandboxes import paths
from toolyard.sandboxes.base import Entry, Executed, Finished, Grader, Limits, Process, Report, Sandbox, Usage
from toolyard.sandboxes.carrier import Carrier
from toolyard.sandboxes.endings import HostExhausted
from toolyard.sandboxes.grading.grader import open_grader
from toolyard.sandboxes.native.agent_client import SECONDS, AgentClient, RemoteProgram, agreed
from toolyard.sandboxes.native.bash import Bash
from toolyard.sandboxes.native.cgroups import Strain
from toolyard.sandboxes.native.channel import pair
from toolyard.sandboxes.native.python import Python
from toolyard.sandboxes.native.watch import Ground, NativeWatch
from toolyard.sandboxes.pipes import feed
from toolyard.sandboxes.process import MEASURE_SECONDS, Ending, RunningProgram, Unstarted

T = TypeVar("T")

_PIECE = 256 * 1024
_BRANCH_BYTES = 8 * 2**20
"""Memory that a branch needs beside its files."""
_COPIED_PER_SECOND = 10 * 2**20
"""Bytes, on a machine that is busy with much else; an idle one copies a hundred times as many."""
_SPENT = "the sandbox is gone: its programs and files used up all of its memory"
_UNFORKABLE = "the session cannot be forked:"


class NativeSandbox(Carrier):
    """`end` frees the sandbox's resources. A branch lives inside its parent and starts with an interpreter."""

    def __init__(
        self,
        client: AgentClient,
        limits: Limits,
        ground: Ground,
        *,
        end: Callable[[], Awaitable[None]],
        another: Callable[[Limits], Awaitable[Sandbox]],
        on_branched: Callable[[NativeSandbox], None] = lambda _: None,
        on_closed: Callable[[NativeSandbox], None] = lambda _: None,
        parent: NativeSandbox | None = None,
        interpreter: RemoteProgram | None = None,
    ) -> None:
        self.limits = limits
        self.another = another
        self._client = client
        self._ground = ground
        self._end = end
        self._on_branched = on_branched
        self._on_closed = on_closed
        self._parent = parent
        self._python = Python(client, limits, ground, interpreter)
        self._bash = Bash(client, limits, ground)
        self._files = asyncio.Lock()
        """Files are read and written in pieces; this keeps concurrent callers from interleaving them."""
        self._processes: set[RunningProgram] = set()
        self._branches: set[NativeSandbox] = set()
        self._under_way: set[asyncio.Task[Any]] = set()
        """Work that has begun and whose caller was cancelled."""
        self._unwanted: set[asyncio.Task[Any]] = set()
        """Tasks that close branches of a cancelled fork. They wait for our close, so our close must not wait for
        them."""
        self._watches: set[NativeWatch] = set()
        self._closing: asyncio.Task[None] | None = None
        self._is_freed = False
        self._ran_out: str | None = None
        """Whose memory ran out, if the sandbox ended by itself."""

    @property
    def alive(self) -> bool:
        return self._closing is None and not self._client.lost

    def report(self) -> Report:
        return self._ground.report().within(self.limits)

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
        self._check_not_closed()
        within = limits.within(self.limits) if limits else self.limits
        watch = NativeWatch(within, timeout, self._ground_for(within))
        work = self._run(argv, stdin, env or {}, within, watch)
        return await self._wind_up_if_cancelled(work, watch, self._spent)

    def _ground_for(self, limits: Limits) -> Ground:
        return self._ground if limits.memory_bytes == self.limits.memory_bytes else self._ground.unenforced()

    async def _run(
        self, argv: Sequence[str], stdin: bytes, env: Mapping[str, str], limits: Limits, watch: NativeWatch
    ) -> Finished:
        try:
            program = await self._client.run(argv, env, limits, memory_enforced=watch.memory_enforced)
        except OSError as error:
            return watch.unstarted(error)
        feeding = asyncio.ensure_future(feed(program.take_stdin(), stdin))
        try:
            exceeded = await watch.until(self._client, program, program.ended)
            ending = await self._client.kill(program) if exceeded else program.ended.result()
            stdout, stderr = program.stdout.take(), program.stderr.take()
            exceeded = exceeded or watch.enforced(ending)
            moved = max(map(len, (stdin, stdout, stderr)))
            late = None if exceeded else watch.overran(ending["wall"], moved_bytes=moved)
            return Finished.ended(
                ending["code"],
                stdout,
                stderr,
                exceeded or late or program.cut,
                usage=Usage(watch.seconds, ending["cpu"], ending["peak"]),
                isolation=self.report().level,
            )
        finally:
            feeding.cancel()
            await asyncio.gather(feeding, return_exceptions=True)
            program.close()

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Process:
        self._check_not_closed()
        within = limits.within(self.limits) if limits else self.limits
        starting = asyncio.ensure_future(self._start(argv, env or {}, within))
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            _keep(asyncio.ensure_future(_kill_started(starting)), self._under_way)
            raise

    async def _start(self, argv: Sequence[str], env: Mapping[str, str], limits: Limits) -> Process:
        watch = NativeWatch(limits, math.inf, self._ground_for(limits), every=MEASURE_SECONDS)
        try:
            program = await self._client.run(argv, env, limits, memory_enforced=watch.memory_enforced)
        except OSError as error:
            return Unstarted(watch.unstarted(error))
        except SandboxLost as error:
            if await self._is_own_doing(error, watch.before):
                return Unstarted(self._spent(watch.seconds))
            raise
        process = RunningProgram(program)
        self._processes.add(process)
        process.begin(self._lived(process, program, watch), self._processes.discard)
        if self._closing is not None:  # closed while it started
            await process.kill()
        self._check_open()
        return process

    async def _lived(self, process: RunningProgram, program: RemoteProgram, watch: NativeWatch) -> Ending:
        exceeded = await watch.until(self._client, program, program.ended, process.unwanted)
        if not program.ended.done():
            return (await self._client.kill(program))["code"], exceeded
        ending = program.ended.result()
        exceeded = exceeded or watch.enforced(ending)
        watch.check_host()
        return ending["code"], exceeded

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        self._check_not_closed()
        watch = NativeWatch(self.limits, timeout, self._ground)
        return await self._wind_up_if_cancelled(self._python.execute(code, watch), watch, self._executed_spent)

    async def shell(self, command: str, *, timeout: float | None = None) -> Finished:
        self._check_not_closed()
        watch = NativeWatch(self.limits, timeout, self._ground)
        return await self._wind_up_if_cancelled(self._bash.execute(command, watch), watch, self._spent)

    async def stop_programs(self) -> None:
        try:
            self._check_open()
        except SandboxLost as error:
            if await self._is_own_doing(error, self._ground.group.glance()):
                return  # nothing is running
            raise
        for watch in list(self._watches):
            watch.exceed("wall")
        async with self._python.turn, self._bash.turn:  # wait until the running code has stopped
            await self._end_programs()

    async def rehearse(self) -> None:
        """Let the interpreter practise once what it will do. That only makes it faster."""
        await self._python.rehearse()

    async def _wind_up_if_cancelled(
        self, work: Coroutine[Any, Any, T], watch: NativeWatch, spent: Callable[[float], T]
    ) -> T:
        """Run `work`. If the caller is cancelled, end it as if its time were over, so that nothing goes on unseen; the
        sandbox is usable again once that is done. `spent` makes the result of a program whose sandbox used up its
        memory and ended."""
        task = asyncio.ensure_future(work)
        self._watches.add(watch)
        task.add_done_callback(lambda _: self._watches.discard(watch))
        try:
            done = await asyncio.shield(task)
            self._check_open()
        except asyncio.CancelledError:
            watch.exceed("wall")
            _keep(task, self._under_way)
            raise
        except SandboxLost as error:
            if await self._is_own_doing(error, watch.before):
                return spent(watch.seconds)
            raise
        watch.check_host()
        return done

    async def _is_own_doing(self, error: SandboxLost, before: Strain) -> bool:
        """Whether the sandbox was lost because its own programs used all of its memory. They must not pass for trouble
        of the host."""
        if isinstance(error, HostExhausted) or self._closing is not None or not self._client.lost:
            return False
        if self._ran_out is None:
            self._ran_out = await self._ground.group.ran_out(before)
        return self._ran_out == "own"

    def _spent(self, seconds: float) -> Finished:
        words = f"toolyard: {_SPENT}\n".encode()
        usage, level = Usage(seconds), self.report().level
        return Finished.ended(-signal.SIGKILL, b"", words, "memory", usage=usage, isolation=level)

    def _executed_spent(self, seconds: float) -> Executed:
        words = f"toolyard: {_SPENT}\n"
        return Executed("", words, None, None, "memory", Usage(seconds), self.report().level, state_lost=True)

    # Files.

    async def read(self, path: str) -> bytes:
        inside, whole = paths.inside(path), bytearray()
        async with self._files:
            while True:
                piece = await self._file("read", path, inside, offset=len(whole), most=_PIECE)
                whole += piece
                self._check_size(path, len(whole))
                if len(piece) < _PIECE:
                    return bytes(whole)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        inside = paths.inside(path)
        paths.check_mode(path, mode)
        self._check_size(path, len(data))
        async with self._files:
            for at in range(0, max(len(data), 1), _PIECE):
                piece = data[at : at + _PIECE]
                is_last = at + _PIECE >= len(data)  # a mode without writing would let us open it no more
                about = {"mode": mode} if is_last and mode is not None else {}
                await self._file("write", path, inside, payload=piece, more=at > 0, **about)

    async def list(self, path: str = ".") -> Sequence[Entry]:
        told = await self._file("list", path, paths.inside(path))
        try:
            return [_entry(*about) for about in json.loads(told.decode("utf-8", "surrogateescape"))]
        except (ValueError, TypeError, RecursionError) as error:
            self._client.close("it sent something that is not a list of names")
            raise SandboxLost("the sandbox is gone: it sent something that is not a list of names") from error

    def _check_size(self, path: str, size: int) -> None:
        if size > self.limits.file_bytes:
            raise WorkspaceError(f"{path}: larger than the {self.limits.file_bytes} bytes that a file may have")

    async def _file(self, op: str, path: str, inside: str, **more: Any) -> bytes:
        self._check_not_closed()
        before = self._ground.group.glance()
        asking = asyncio.ensure_future(self._client.ask(op, path=inside, **more))
        try:
            return (await asyncio.shield(asking)).payload
        except asyncio.CancelledError:
            _keep(asking, self._under_way)  # the agent would wait for the rest of a half-sent message
            raise
        except OSError as error:
            raise WorkspaceError(f"{path}: {error.strerror}") from error
        except SandboxLost as error:
            if await self._is_own_doing(error, before):
                raise WorkspaceError(f"{path}: {_SPENT}") from error
            raise

    # Branches.

    async def fork(self, count: int = 1) -> Sequence[NativeSandbox]:
        self._check_open()
        task = asyncio.ensure_future(self._fork(count))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            _keep(asyncio.ensure_future(_close_all(task)), self._unwanted)
            raise

    async def _fork(self, count: int) -> Sequence[NativeSandbox]:
        branches: list[NativeSandbox] = []
        async with self._python.turn:
            self._ground.check_room(count)
            try:
                for _ in range(count):
                    branches.append(await self._branch())
            except BaseException:
                await asyncio.gather(*(branch.close() for branch in branches))
                raise
        return branches

    async def _branch(self) -> NativeSandbox:
        interpreter = await self._python.program()
        async with self._ground.copying:
            number, client, forked = await self._place_for(interpreter)

        async def end() -> None:
            client.close()
            await self._client.end_branch(number)

        branch = NativeSandbox(
            client,
            self.limits,
            self._ground.of_branch(),
            end=end,
            another=self.another,
            on_branched=self._on_branched,
            on_closed=self._on_closed,
            parent=self,
            interpreter=forked,
        )
        self._branches.add(branch)
        self._on_branched(branch)
        return branch

    async def _place_for(self, interpreter: RemoteProgram) -> tuple[int, AgentClient, RemoteProgram]:
        """Have the agent make a place for a branch while the interpreter checks that it can fork; then fork it.

        After any failure, nothing is left of the branch and the sandbox is unchanged."""
        assert interpreter.channel is not None
        left = self._ground.memory_left()
        room = None if left is None else left - _BRANCH_BYTES
        ours, theirs = pair()
        client = AgentClient(ours, owner=self._ground.owner)
        forkable = interpreter.channel.begin("check", b"")
        number, code_runs = 0, False
        try:
            with theirs:
                number, size = await self._client.branch(theirs, room)
            if left is not None and room is not None and size > room:
                raise self._has_no_memory_for(size, left)
            await client.ready(SECONDS + size / _COPIED_PER_SECOND)
            await agreed(forkable)
            code_runs = True
            return number, client, await client.fork(interpreter, self.limits.output_bytes, self.limits.wall_seconds)
        except BaseException as error:
            why = client.failure or (str(error) if code_runs else "")
            client.close()
            await self._client.end_branch(number, patience=0)
            if interpreter.channel.lost or isinstance(error, BrokenPipeError):
                self._check_open()
                raise CannotFork(f"{_UNFORKABLE} the interpreter has ended, and its variables are lost") from error
            raise (await self._refusal(error, why)) from error
        finally:
            forkable.cancel()

    def _has_no_memory_for(self, size: int, left: int) -> CannotFork:
        return CannotFork(
            f"the session cannot be forked: the copy of its files takes {_mebibytes(size)} of memory, and of the "
            f"{_mebibytes(self.limits.memory_bytes)} that a sandbox and its branches may use together, "
            f"{_mebibytes(max(left, 0))} are left"
        )

    async def _refusal(self, error: BaseException, failure: str) -> BaseException:
        """The exception for a failed fork. `failure` is the message of the branch's agent, or why that agent was lost
        if code of the session may have caused it."""
        self._check_open()
        match error:
            case TimeoutError():
                await self._python.end()
                return CannotFork(
                    f"{_UNFORKABLE} the interpreter did not do so in time and was ended: its variables are lost"
                )
            case OSError(errno=errno.EAGAIN):
                self._ground.check_room(1)  # raises if the server, and not the sandbox, is out of processes
                most = self.limits.processes
                return CannotFork(
                    f"{_UNFORKABLE} it would exceed the {most} processes that a sandbox and its branches may have"
                )
            case OSError():
                return CannotFork(f"{_UNFORKABLE} {error.strerror}")
            case SandboxLost() if failure:
                return CannotFork(f"{_UNFORKABLE} the branch could not be made: {failure}")
            case SandboxLost():
                return SandboxError(f"the fork failed, and the session goes on as it was: while it was made, {error}")
        return error

    async def grader(
        self,
        *,
        files: Sequence[str] | None = None,
        hidden: Mapping[str, str | bytes | Path] | Path | None = None,
        limits: Limits | None = None,
    ) -> Grader:
        return await open_grader(self, files=files, hidden=hidden or {}, limits=limits)

    # The end.

    async def close(self) -> None:
        """Branches live inside, so closing the last of them frees what they share."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._free())
        await asyncio.shield(self._closing)

    async def close_family(self) -> None:
        """Close it with its branches."""
        await asyncio.gather(*(branch.close_family() for branch in list(self._branches)))
        await self.close()

    async def _free(self) -> None:
        if self._branches:
            for watch in list(self._watches):
                watch.exceed("wall")
            await self._end_programs()
            return
        if self._is_freed:  # by the last branch, closed at the same time
            return
        self._is_freed = True
        await self._end()
        self._on_closed(self)
        await self._end_programs(*self._under_way)
        if self._parent is not None:
            await self._parent._lose(self)

    async def _end_programs(self, *more: Awaitable[Any]) -> None:
        going_on = [process.kill() for process in self._processes]
        ending = (self._python.end(), self._bash.end(), *going_on, *more)
        await asyncio.gather(*ending, return_exceptions=True)  # the agent may be dying

    async def _lose(self, branch: NativeSandbox) -> None:
        self._branches.discard(branch)
        if self._closing is not None and not self._branches:
            await self._closing
            await self._free()

    def _check_not_closed(self) -> None:
        if self._closing is not None:
            raise SandboxLost("the sandbox is closed")

    def _check_open(self) -> None:
        self._check_not_closed()
        if self._client.lost:
            raise SandboxLost(f"the sandbox is gone: {self._client.lost}")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


def _keep(task: asyncio.Task[Any], among: set[asyncio.Task[Any]]) -> None:
    """Hold a task until it has ended."""
    among.add(task)
    task.add_done_callback(among.discard)
    task.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieve it; no caller waits


async def _kill_started(starting: asyncio.Task[Process]) -> None:
    """End a program whose caller was cancelled."""
    await (await starting).kill()


async def _close_all(forking: asyncio.Task[Sequence[NativeSandbox]]) -> None:
    """Close the branches of a fork whose caller was cancelled."""
    for branch in await forking:
        await branch.close()


def _mebibytes(size: int) -> str:
    return f"{size / 2**20:.0f} MiB"


def _entry(name: object, kind: object, size: object) -> Entry:
    """The agent's description of a file, if its form is right."""
    if not isinstance(name, str) or type(size) is not int:
        raise TypeError((name, size))
    match kind:
        case "file" | "directory" | "link" | "other":
            return Entry(name, kind, size)
    raise ValueError(kind)
