"""The caller's side of a background program. Its backend ends it and detects its end."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, Self, TypeAlias

from toolyard.core.errors import ProcessError, SandboxLost
from toolyard.sandboxes.base import Finished, Limit, exit_code_of
from toolyard.sandboxes.endings import HostExhausted
from toolyard.sandboxes.pipes import AT_ONCE, Capture, send

MEASURE_SECONDS = 0.5
"""How often to measure its memory where the kernel does not limit it. There may be many programs, mostly waiting."""
_WRITE_MOST, _WRITE_SECONDS = 2**20, 10.0
_PIPE_MOST = 2**20
"""The most data that a pipe can hold after the program has ended."""

Ending: TypeAlias = tuple[int, Limit | None]
"""Exit code as in `subprocess`, and the limit that the program exceeded."""


class Pipes(Protocol):
    """A program as a backend starts it."""

    stdin: int
    stdout: Capture
    stderr: Capture

    def close(self) -> None: ...


class RunningProgram:
    """Reads the program's output as it comes. The backend passes to `begin` how it detects the program's end."""

    def __init__(self, program: Pipes) -> None:
        self.exit_code: int | None = None
        self.killed_by: Limit | None = None
        loop = asyncio.get_running_loop()
        self.unwanted: asyncio.Future[None] = loop.create_future()
        """Done when the caller wants the program to end."""
        self._news = asyncio.Event()
        self._program = program
        self._stdout = program.stdout = Backlog.of(program.stdout, self._news.set)
        self._stderr = program.stderr = Backlog.of(program.stderr, self._news.set)
        self._turn = asyncio.Lock()
        self._sending: asyncio.Future[bool] | None = None
        self._supervising: asyncio.Task[None] | None = None
        self._exhausted = ""
        """What the host was short of, if that ended the program."""

    def begin(self, ending: Coroutine[Any, Any, Ending], on_end: Callable[[Self], None]) -> Self:
        """`ending` waits for the program to end, or until it is `unwanted` and then ends it, with all that it
        started."""
        self._supervising = asyncio.ensure_future(self._supervise(ending))
        self._supervising.add_done_callback(lambda _: on_end(self))
        return self

    def let_go(self) -> None:
        """Do not hold back output any more: the program is about to be ended, and may have to write to end."""
        self._stdout.let_go()
        self._stderr.let_go()

    async def write(self, data: bytes) -> None:
        if len(data) > _WRITE_MOST:
            raise ProcessError(f"{len(data)} bytes are too many to be written at once: {_WRITE_MOST} are allowed")
        async with self._turn:
            self._check_host()
            if self.exit_code is not None:
                raise ProcessError(f"the program has ended with code {self.exit_code}")
            if self._program.stdin < 0:
                raise ProcessError("the program's input has been closed")
            self._sending = asyncio.ensure_future(send(self._program.stdin, data))
            try:
                done, _ = await asyncio.wait((self._sending,), timeout=_WRITE_SECONDS)
            finally:
                await _cancel(self._sending)
            if not done:
                raise ProcessError(f"the program has not read its input for {_WRITE_SECONDS:g} s")
            if self._sending.cancelled() or not self._sending.result():
                raise ProcessError("the program has ended or closed its input, and has not read all of it")

    async def close_input(self) -> None:
        async with self._turn:
            self._close_input()

    async def read(self, seconds: float) -> tuple[bytes, bytes]:
        deadline = asyncio.get_running_loop().time() + seconds
        while True:
            self._news.clear()
            stdout, stderr = self._stdout.pull(), self._stderr.pull()
            if not (stdout or stderr):
                self._check_host()
            if stdout or stderr or self.exit_code is not None:
                return stdout, stderr
            try:
                async with asyncio.timeout_at(deadline):
                    await self._news.wait()
            except TimeoutError:
                return b"", b""

    async def wait(self, seconds: float) -> bool:
        if self._supervising is not None:
            await asyncio.wait((self._supervising,), timeout=seconds)
        self._check_host()
        return self.exit_code is not None

    async def kill(self) -> None:
        if not self.unwanted.done():
            self.unwanted.set_result(None)
        if self._supervising is not None:
            await asyncio.shield(self._supervising)

    def _check_host(self) -> None:
        """Raise, once all output has been read, if the host ended the program: its result proves nothing."""
        if self._exhausted:
            raise HostExhausted(self._exhausted)

    async def _supervise(self, ending: Coroutine[Any, Any, Ending]) -> None:
        ended: Ending = -signal.SIGKILL, None
        try:
            ended = await ending
        except HostExhausted as error:
            self._exhausted = str(error)
        except SandboxLost:  # the program is lost too
            ended = -signal.SIGKILL, None
        finally:
            stdin, self._program.stdin = self._program.stdin, -1  # no new write can begin
            if self._sending is not None:
                await _cancel(self._sending)  # before its pipe is closed
            if stdin >= 0:
                os.close(stdin)
            self._stdout.finish()
            self._stderr.finish()
            self._program.close()
            self.exit_code, self.killed_by = exit_code_of(*ended), ended[1]
            self._news.set()

    def _close_input(self) -> None:
        if self._program.stdin >= 0:
            os.close(self._program.stdin)
            self._program.stdin = -1


class Unstarted:
    """A program that could not start; it counts as ended."""

    killed_by = None

    def __init__(self, finished: Finished) -> None:
        self.exit_code = finished.exit_code
        self._said = finished.stderr

    async def write(self, data: bytes) -> None:
        raise ProcessError("the program could not be started")

    async def close_input(self) -> None:
        """It has no input."""

    async def read(self, seconds: float) -> tuple[bytes, bytes]:
        said, self._said = self._said, b""
        return b"", said

    async def wait(self, seconds: float) -> bool:
        return True

    async def kill(self) -> None:
        """It has already ended."""


class Backlog(Capture):
    """Output that the caller has not read yet. When it is full, further output stays in the pipe and the program
    blocks."""

    def __init__(self, fd: int, limit: int, mark: bytes, on_news: Callable[[], None]) -> None:
        super().__init__(fd, limit, lambda: None)
        self._mark = mark
        self._on_news = on_news
        self._holds = True

    @classmethod
    def of(cls, capture: Capture, on_news: Callable[[], None]) -> Backlog:
        """Replaces a capture that has not read anything yet."""
        return cls(capture.hand_over(), capture._limit, capture._mark, on_news)

    def pull(self) -> bytes:
        self._readable()
        data, self._kept = bytes(self._kept), bytearray()
        self._go_on()
        return data

    def let_go(self) -> None:
        """Keep what still comes, up to the size of a pipe, and drop the rest."""
        if self._holds:
            self._holds = False
            self._limit = len(self._kept) + _PIPE_MOST
            self._go_on()

    def finish(self) -> None:
        """Take the rest of the output after the program has ended."""
        self.let_go()
        self.take()
        self.close()

    def _wanted(self) -> int:
        if not self._holds:
            return AT_ONCE
        size = min(AT_ONCE, max(0, self._limit - len(self._kept) - len(self._unread)))
        if not size and not self._paused:
            self._paused = True
            self._loop.remove_reader(self._fd)
        return size

    def _keep(self, data: bytes | bytearray) -> None:
        self._kept += data[: max(0, self._limit - len(self._kept))]
        if data:
            self._on_news()

    def _begun(self) -> int:
        """The exact number: output that is no mark must reach the caller at once."""
        most = min(len(self._unread), len(self._mark) - 1)
        return next((size for size in range(most, 0, -1) if self._unread.endswith(self._mark[:size])), 0)

    def _go_on(self) -> None:
        if self._paused and self._fd >= 0:
            self._paused = False
            self._loop.add_reader(self._fd, self._readable)


async def _cancel(sending: asyncio.Future[bool]) -> None:
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
