"""The fork server, from the server's side: a process that has everything loaded that workers need, and forks them.

The server forks it before it answers requests. It ends with the server, however that ends, and its workers end with it.
Its own code is in `fork_server_process`.
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
"""Questions that may be on their way. A socket is full after a few hundred."""


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """The limits of one worker. Zero means no limit."""

    memory_bytes: int = 0
    """Memory that it may take beyond what it shares with the fork server."""
    cpu_seconds: float = 0


class ForkServerLost(Exception):
    """The fork server has ended, and every worker with it."""


class ForkServer:
    """The fork server, as the server sees it. Use it on one event loop."""

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
        """Ends a worker whose caller gave up before it was there."""
        self.workers = 0
        """How many workers it has forked or adopted that have not been ended."""

    async def start(self) -> tuple[int, socket.socket, socket.socket]:
        """Fork a worker. Return its pid, our end of its connection, and our end of the socket that passes sockets."""
        ours, kin, theirs = pair_of_ends()
        try:
            with contextlib.closing(theirs[0]), contextlib.closing(theirs[1]):
                answer = await self._ask({"op": "start", **asdict(self._limits)}, theirs)
            if "problem" in answer:
                raise OSError(answer["problem"])
        except BaseException:
            ours.close()
            kin.close()
            raise
        self.workers += 1
        return answer["pid"], ours, kin

    async def know(self, pid: int) -> None:
        """Let the fork server adopt a worker that another worker has forked."""
        self.workers += 1
        await self._ask({"op": "know", "pid": pid})

    async def end(self, pid: int) -> int:
        """Kill a worker and the processes that it has started. Return its exit code, as `subprocess` has it."""
        self.workers -= 1
        code: int = (await self._ask({"op": "end", "pid": pid}))["code"]
        return code

    def close(self) -> None:
        if self._reading:
            self._stop_reading()
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._guard, signal.SIGTERM)
        with contextlib.suppress(ChildProcessError):  # other code in this process may have reaped it
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
        """Read one answer. They come in the order of the questions."""
        try:
            data = self._control.recv(fork_server_process.LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            waiting, answer = self._answers.popleft(), json.loads(data)
            self._room.release()
            if not waiting.done():
                waiting.set_result(answer)
            elif "pid" in answer:  # a worker whose caller has given up
                self.workers += 1
                self._ending = asyncio.ensure_future(self.end(answer["pid"]))
            return
        self._stop_reading()

    def _stop_reading(self) -> None:
        """Fail all questions that wait: no answer will come."""
        asyncio.get_running_loop().remove_reader(self._control)
        self._reading = False
        while self._answers:
            self._room.release()
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(ForkServerLost("the fork server has ended"))


def pair_of_ends() -> tuple[socket.socket, socket.socket, tuple[socket.socket, socket.socket]]:
    """Our ends of a connection and of the socket that passes sockets, and both ends for a worker."""
    ours, theirs = socket.socketpair()
    kin, their_kin = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return ours, kin, (theirs, their_kin)
