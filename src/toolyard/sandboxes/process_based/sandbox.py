"""A sandbox in a room, as its user sees it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from toolyard.core.errors import CannotFork, NoRoom, SandboxError, SandboxLost
from toolyard.sandboxes.base import (
    Entry,
    Executed,
    Finished,
    Grader,
    Level,
    Limits,
    Process,
    Profile,
    Report,
    Sandbox,
)
from toolyard.sandboxes.carrier import Carrier
from toolyard.sandboxes.endings import is_short, unstarted
from toolyard.sandboxes.grading.grader import open_grader
from toolyard.sandboxes.paths import check_mode, inside
from toolyard.sandboxes.pipes import feed
from toolyard.sandboxes.process import MEASURE_SECONDS, Ending, RunningProgram, Unstarted
from toolyard.sandboxes.process_based.bash import Bash
from toolyard.sandboxes.process_based.programs import HelperProcess
from toolyard.sandboxes.process_based.python import Python
from toolyard.sandboxes.process_based.room import Room, RoomWatch, end, naming


class RoomSandbox(Carrier):
    """`again` makes a fresh sandbox of the same kind, for forks. `check_room` raises `SandboxError` if there is no room
    for so many more."""

    def __init__(
        self,
        room: Room,
        limits: Limits,
        profile: Profile,
        *,
        report: Callable[[], Report],
        again: Callable[[], Awaitable[RoomSandbox]],
        another: Callable[[Limits], Awaitable[Sandbox]],
        check_room: Callable[[int], None],
        on_close: Callable[[RoomSandbox], None],
    ) -> None:
        self.limits = limits
        self.another = another
        self._room: Any = room  # all rooms of a backend have one type, which types cannot express here
        self._report = report
        self._again = again
        self._check_room = check_room
        self._on_close = on_close
        self._files = asyncio.Lock()
        """Keeps concurrent reads and writes from interleaving."""
        self._programs: set[HelperProcess] = set()
        self._processes: set[RunningProgram] = set()
        self._python = Python(room, limits, profile, self._level, self._check_open)
        self._bash = Bash(room, limits, self._level, self._check_open)
        self._unwanted: set[asyncio.Task[None]] = set()
        """Tasks that close branches of cancelled forks."""
        self._closing: asyncio.Task[None] | None = None

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
        within = limits.within(self.limits) if limits else self.limits
        if not argv:
            return Finished.unstarted("it has no name", self._level())
        try:
            program = await self._room.start(argv, env=env or {}, limits=within)
        except (OSError, ValueError) as error:
            return unstarted(error, self._level(), own=False)
        self._programs.add(program)
        feeding = asyncio.ensure_future(feed(program.stdin, stdin))
        program.stdin = -1
        try:
            return await self._finished(program, RoomWatch(self._room, within, timeout), len(stdin))
        finally:
            feeding.cancel()
            await asyncio.shield(self._give_up(program, feeding))

    async def _finished(self, program: HelperProcess, watch: RoomWatch, moved: int) -> Finished:
        exceeded = await watch.until(program, program.ended)
        ending = await end(self._room, program)
        self._check_open()
        stdout, stderr = program.stdout.take(), program.stderr.take()
        exceeded = watch.cause(program, exceeded, ending)
        moved = max(moved, len(stdout), len(stderr))
        late = None if exceeded else watch.overran(ending.wall_seconds, moved_bytes=moved)
        usage = watch.usage(ending.cpu_seconds, ending.memory_bytes)
        return Finished.ended(ending.code, stdout, stderr, exceeded or late, usage=usage, isolation=self._level())

    async def _give_up(self, program: HelperProcess, feeding: asyncio.Future[None]) -> None:
        await asyncio.gather(feeding, return_exceptions=True)
        if not program.ended.done():
            await end(self._room, program)
        program.close()
        self._programs.discard(program)

    async def exec(self, code: str, *, timeout: float | None = None) -> Executed:
        executed = await self._python.execute(code, timeout)
        self._check_open()  # otherwise a closed sandbox would look like the code's failure
        return executed

    async def shell(self, command: str, *, timeout: float | None = None) -> Finished:
        finished = await self._bash.execute(command, timeout)
        self._check_open()
        return finished

    async def start(
        self, argv: Sequence[str], *, env: Mapping[str, str] | None = None, limits: Limits | None = None
    ) -> Process:
        self._check_open()
        within = limits.within(self.limits) if limits else self.limits
        try:
            if not argv:
                raise ValueError("it has no name")
            program = await self._room.start(argv, env=env or {}, limits=within)
        except (OSError, ValueError) as error:
            return Unstarted(unstarted(error, self._level(), own=False))
        process = RunningProgram(program)
        self._processes.add(process)
        watch = RoomWatch(self._room, within, math.inf, every=MEASURE_SECONDS)
        return process.begin(self._lived(process, program, watch), self._processes.discard)

    async def _lived(self, process: RunningProgram, program: HelperProcess, watch: RoomWatch) -> Ending:
        exceeded = await watch.until(program, program.ended, process.unwanted)
        process.let_go()
        ending = await end(self._room, program)
        return ending.code, watch.cause(program, exceeded, ending)

    async def stop_programs(self) -> None:
        self._check_open()
        await self._end_programs()
        await self._python.stop()
        await self._bash.stop()

    async def _end_programs(self) -> None:
        for program in list(self._programs):
            await end(self._room, program)
        await asyncio.gather(*(process.kill() for process in self._processes), return_exceptions=True)

    # The workspace.

    async def read(self, path: str) -> bytes:
        self._check_open()
        async with self._files:
            with naming(path):
                data: bytes = await self._room.read(inside(path), self.limits.file_bytes)
        return data

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        self._check_open()
        check_mode(path, mode)
        async with self._files:
            with naming(path):
                await self._room.write(inside(path), data, self.limits.file_bytes, mode)

    async def list(self, path: str = ".") -> Sequence[Entry]:
        self._check_open()
        with naming(path):
            found = await self._room.list(inside(path))
        return [Entry(*entry) for entry in found]

    # Branches.

    async def fork(self, count: int = 1) -> Sequence[RoomSandbox]:
        """Fork by running the session's code again, in a copy of the workspace."""
        self._check_open()
        forking = asyncio.ensure_future(self._fork(count))
        try:
            return await asyncio.shield(forking)
        except asyncio.CancelledError:  # a copy in progress cannot be stopped half-way
            self._unwanted.add(closing := asyncio.ensure_future(_close_all(forking)))
            closing.add_done_callback(self._unwanted.discard)
            raise

    async def _fork(self, count: int) -> Sequence[RoomSandbox]:
        async with self._python.turn, self._bash.turn:
            self._check_open()
            self._check_room(count)
            branches: list[RoomSandbox] = []
            try:
                for _ in range(count):
                    branches.append(await self._again())
                    branches[-1].another = self.another
                    await self._continue_in(branches[-1])
            except BaseException as error:
                await asyncio.gather(*(branch.close() for branch in branches), return_exceptions=True)
                if isinstance(error, SandboxLost) and await self._is_well():
                    raise SandboxError(
                        f"the fork failed, and the session goes on as it was: while it was made, {error}"
                    ) from error
                raise
        return branches

    async def _is_well(self) -> bool:
        return self._closing is None and not await self._room.lost()

    async def _continue_in(self, branch: RoomSandbox) -> None:
        """The code runs on the current files. Copy them again afterwards: what the code does to them is already in
        them."""
        await self._copy_files_to(branch)
        if self._python.recording.pieces:
            await self._python.recording.play(branch)
            await self._copy_files_to(branch)

    async def _copy_files_to(self, branch: RoomSandbox) -> None:
        try:
            await branch._room.copy_from(self._room)
        except (OSError, RecursionError) as error:
            if isinstance(error, OSError) and is_short(error):
                raise NoRoom(f"the server has no room for a copy of the workspace: {error.strerror}") from error
            raise CannotFork(f"the workspace cannot be copied: {error}") from error

    async def grader(
        self,
        *,
        files: Sequence[str] | None = None,
        hidden: Mapping[str, str | bytes | Path] | Path | None = None,
        limits: Limits | None = None,
    ) -> Grader:
        return await open_grader(self, files=files, hidden=hidden or {}, limits=limits)

    # The end.

    def report(self) -> Report:
        return self._report().within(self.limits)

    async def close(self) -> None:
        """Every caller, even a second one, waits until it is closed."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._free())
        await asyncio.shield(self._closing)

    async def _free(self) -> None:
        """Close the room whatever happens to its programs: that ends them too."""
        try:
            if self._unwanted:
                await asyncio.wait(self._unwanted)
            await self._end_programs()
            await self._python.end()
            await self._bash.end()
        finally:
            try:
                await self._room.close()
            finally:
                self._on_close(self)

    def _level(self) -> Level:
        return self._report().level

    def _check_open(self) -> None:
        if self._closing is not None:
            raise SandboxLost("the sandbox is closed")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


async def _close_all(forking: asyncio.Task[Sequence[RoomSandbox]]) -> None:
    """Close the branches of a fork whose caller was cancelled."""
    await asyncio.wait((forking,))
    if forking.exception() is None:
        await asyncio.gather(*(branch.close() for branch in forking.result()), return_exceptions=True)
