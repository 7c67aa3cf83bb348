"""The process that workers are forked from, from the server's side: it has everything loaded that they need.

It is forked from the server before that serves anybody. It ends when the server does, and its workers with it, however
that comes about. What happens in it is in `zygote`.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from toolyard.placement import fork_server_process
from toolyard.placement.worker_side import Served

_UNANSWERED_MOST = 64
"""Questions on their way. A socket takes a few hundred, and says then that it is full."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Of one worker. Zero: none."""

    memory_bytes: int = 0
    """That it may take beside what the fork server has."""
    cpu_seconds: float = 0


class ForkServerLost(Exception):
    """It has ended, and every worker with it."""


class ForkServer:
    """The server's side. Used on one event loop."""

    def __init__(self, served: Served, limits: ProcessLimits) -> None:
        self._limits = limits
        self._answers: deque[asyncio.Future[Mapping[str, Any]]] = deque()
        self._room = asyncio.Semaphore(_UNANSWERED_MOST)
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        with theirs:
            self._guard = fork_server_process.start(theirs, served)
        self._control.setblocking(False)
        self._reading = False
        self._ending: asyncio.Future[int] | None = None
        """Of a worker that nobody wanted any more."""
        self.workers = 0
        """That it has forked, or adopted, and that have not been ended."""

    async def start(self) -> tuple[int, socket.socket, socket.socket]:
        """Fork a worker: its number, our end of its connection, and our end of what passes more of those."""
        line, kin, theirs = pair_of_ends()
        try:
            with contextlib.closing(theirs[0]), contextlib.closing(theirs[1]):
                answer = await self._ask({"op": "start", **asdict(self._limits)}, theirs)
            if "problem" in answer:
                raise OSError(answer["problem"])
        except BaseException:
            line.close()
            kin.close()
            raise
        self.workers += 1
        return answer["pid"], line, kin

    async def know(self, pid: int) -> None:
        """A worker that another one has forked is ended as those that the fork server has."""
        self.workers += 1
        await self._ask({"op": "know", "pid": pid})

    async def end(self, pid: int) -> int:
        """Kill a worker and whatever it has started; its exit code as in `subprocess`."""
        self.workers -= 1
        code: int = (await self._ask({"op": "end", "pid": pid}))["code"]
        return code

    def close(self) -> None:
        if self._reading:
            self._stop_reading()
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guard, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):  # somebody reaps all children of this process
            os.waitpid(self._guard, 0)

    async def _ask(self, question: Mapping[str, Any], ends: Sequence[socket.socket] = ()) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        if self._control.fileno() < 0:
            raise ForkServerLost("the fork server was ended")
        if not self._reading:
            loop.add_reader(self._control, self._read)
            self._reading = True
        await self._room.acquire()
        answer: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        try:
            socket.send_fds(self._control, [json.dumps(question).encode()], [end.fileno() for end in ends])
        except OSError as error:
            self._room.release()
            raise ForkServerLost(f"the fork server has ended: {error}") from error
        self._answers.append(answer)
        return await answer

    def _read(self) -> None:
        """It answers one question after the other."""
        try:
            data = self._control.recv(fork_server_process.LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            answer, told = self._answers.popleft(), json.loads(data)
            self._room.release()
            if not answer.done():
                answer.set_result(told)
            elif "pid" in told:  # who wanted this worker has given up
                self.workers += 1
                self._ending = asyncio.ensure_future(self.end(told["pid"]))
            return
        self._stop_reading()

    def _stop_reading(self) -> None:
        """Nobody will answer any more."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._reading = False
        while self._answers:
            self._room.release()
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(ForkServerLost("the fork server has ended"))


def pair_of_ends() -> tuple[socket.socket, socket.socket, tuple[socket.socket, socket.socket]]:
    """Our ends of a connection and of what passes more of those; and the ends for a worker."""
    line, their_line = socket.socketpair()
    kin, their_kin = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return line, kin, (their_line, their_kin)
