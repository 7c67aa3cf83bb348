"""The process that workers are forked from: it has everything loaded that they need, and does nothing else.

It is forked from the server before that serves anybody. It ends when the server does, and its workers with it, however
that comes about.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import resource
import signal
import socket
from collections import deque
from collections.abc import Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from toolyard.placement.worker import Served, Worker, become_session
from toolyard.sandboxes.native import syscalls

_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class ProcessLimits:
    """Of one worker. Zero: none."""

    memory_bytes: int = 0
    """That it may take beside what the template has."""
    cpu_seconds: float = 0


class TemplateLost(Exception):
    """It has ended, and every worker with it."""


class Template:
    """The server's side. Used on one event loop."""

    def __init__(self, served: Served, limits: ProcessLimits) -> None:
        self._limits = limits
        self._answers: deque[asyncio.Future[Mapping[str, Any]]] = deque()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        gc.collect()
        self.pid = os.fork()
        if self.pid == 0:
            _live(theirs, served)
        theirs.close()
        self._control.setblocking(False)
        self._reading = False
        self.workers = 0
        """That it has forked, or adopted, and that have not been ended."""

    async def start(self) -> tuple[int, socket.socket, socket.socket]:
        """Fork a worker: its number, our end of its line, and our end of what passes more of those."""
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
        """A worker that another one has forked is ended as those that the template has."""
        await self._ask({"op": "know", "pid": pid})
        self.workers += 1

    async def end(self, pid: int) -> int:
        """Kill a worker and whatever it has started in its process group; its exit code as in `subprocess`."""
        self.workers -= 1
        code: int = (await self._ask({"op": "end", "pid": pid}))["code"]
        return code

    def close(self) -> None:
        if self._reading:
            asyncio.get_running_loop().remove_reader(self._control)
        self._control.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # it has nothing to do any more, and is not waited for
        with contextlib.suppress(ChildProcessError):  # somebody reaps all children of this process
            os.waitpid(self.pid, 0)

    async def _ask(self, question: Mapping[str, Any], ends: Sequence[socket.socket] = ()) -> Mapping[str, Any]:
        loop = asyncio.get_running_loop()
        if not self._reading:
            loop.add_reader(self._control, self._read)
            self._reading = True
        answer: asyncio.Future[Mapping[str, Any]] = loop.create_future()
        try:
            socket.send_fds(self._control, [json.dumps(question).encode()], [end.fileno() for end in ends])
        except OSError as error:
            raise TemplateLost(f"the template process has ended: {error}") from error
        self._answers.append(answer)
        return await answer

    def _read(self) -> None:
        """It answers one question after the other."""
        try:
            data = self._control.recv(_LONGEST)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            answer = self._answers.popleft()
            if not answer.done():  # who asked may have given up
                answer.set_result(json.loads(data))
            return
        asyncio.get_running_loop().remove_reader(self._control)
        self._reading = False
        while self._answers:
            answer = self._answers.popleft()
            if not answer.done():
                answer.set_exception(TemplateLost("the template process has ended"))


def pair_of_ends() -> tuple[socket.socket, socket.socket, tuple[socket.socket, socket.socket]]:
    """Our ends of a line and of what passes more of those; and the ends for a worker."""
    line, their_line = socket.socketpair()
    kin, their_kin = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return line, kin, (their_line, their_kin)


# In the template's process.


def _live(control: socket.socket, served: Served) -> NoReturn:
    workers: set[int] = set()
    try:
        _become_template(control)
        while True:
            data, ends, _, _ = socket.recv_fds(control, _LONGEST, 2)
            if not data:
                os._exit(0)
            question = json.loads(data)
            match question["op"]:
                case "start":
                    answer = _start(control, served, question, ends)
                    workers.add(answer.get("pid", 0))
                case "know":
                    workers.add(question["pid"])
                    answer = {}
                case _:
                    answer = {"code": _end(question["pid"])}
                    workers.discard(question["pid"])
                    _bury(workers)
            control.send(json.dumps(answer).encode())
    finally:
        os._exit(1)


def _become_template(control: socket.socket) -> None:
    syscalls.die_with_parent()
    syscalls.adopt_orphans()
    os.setsid()  # an interrupt from the terminal is for the server
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    kept = control.fileno()
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    gc.freeze()


def _start(control: socket.socket, served: Served, limits: Mapping[str, Any], ends: Sequence[int]) -> Mapping[str, Any]:
    try:
        pid = os.fork()
    except OSError as error:
        for end in ends:
            os.close(end)
        return {"problem": str(error)}
    if pid == 0:
        try:
            control.close()
            become_session()
            _limit(limits)
            line, kin = (socket.socket(fileno=end) for end in ends)
            Worker(served, kin).live(line)
        finally:
            os._exit(1)
    for end in ends:
        os.close(end)
    return {"pid": pid}


def _limit(limits: Mapping[str, Any]) -> None:
    if most := limits["memory_bytes"]:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        size = pages * resource.getpagesize() + most
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if seconds := limits["cpu_seconds"]:
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 1))


def _end(pid: int) -> int:
    """Also of a worker that another one has forked: it is a child of ours by adoption."""
    for kill in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(pid, signal.SIGKILL)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:  # it was ended before
        return 0


def _bury(workers: Set[int]) -> None:
    """Reap what workers had started, and left to us when they ended."""
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        children = set(map(int, file.read().split()))
    for pid in children - workers:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)
