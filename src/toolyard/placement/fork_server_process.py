"""The process of the fork server, and the guard above it.

    server -> guard -> fork server -> workers, and orphans of theirs

The fork server forks workers and ends them. Every process that a worker starts bears the worker's mark. If its parent
ends, it becomes a child of the fork server, which kills it once its worker has ended. However the fork server or the
server ends, the guard kills what is left.
"""

from __future__ import annotations

import contextlib
import gc
import json
import math
import os
import resource
import select
import signal
import socket
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NoReturn

from toolyard.placement.worker import Worker, become_session, flush_output
from toolyard.placement.worker_side import Served
from toolyard.sandboxes import session_mark
from toolyard.sandboxes.native import syscalls

LONGEST = 4096
"""Bytes of a question to the fork server, or of an answer."""
_ROUNDS_MOST = 1000
"""Rounds of killing. The children of a killed process become ours; a program that forks without rest must not keep us
busy for ever."""
_AWAITED = (signal.SIGCHLD, signal.SIGTERM)
_END_SECONDS = 5
"""Seconds until the guard gives up on processes that the kernel cannot end: the server waits for the guard."""


def start(control: socket.socket, served: Served) -> int:
    """Fork the guard, which forks the fork server. Return the guard's pid. SIGTERM to it, or our own end, ends all."""
    server = os.getpid()
    flush_output()  # or the new processes would write it again
    guard = os.fork()
    if guard == 0:
        with _never_returning():
            _guard(server, control, served)
    return guard


def _guard(server: int, control: socket.socket, served: Served) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _AWAITED)
    syscalls.die_with_parent(signal.SIGTERM)
    if os.getppid() != server:
        return
    os.setsid()  # an interrupt from the terminal is for the server
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, signal.SIG_DFL)
    signal.set_wakeup_fd(-1)
    syscalls.adopt_orphans()
    session_mark.unmark()
    _let_go_of_files(control.fileno())
    gc.freeze()
    fork_server = os.fork()
    if fork_server == 0:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _ForkServerProcess(control, served).live()
    control.close()
    while fork_server not in _reaped():
        if signal.sigwait(_AWAITED) == signal.SIGTERM:
            os.kill(fork_server, signal.SIGKILL)
            os.waitpid(fork_server, 0)
            break
    signal.alarm(_END_SECONDS)
    _end_all(lambda: [*filter(session_mark.mark_of, _children())])


class _ForkServerProcess:
    """Forks workers and kills them, on the server's orders. `live` never returns."""

    def __init__(self, control: socket.socket, served: Served) -> None:
        self._control = control
        self._served = served
        self._workers: set[int] = set()
        self._children_end, self._ends = os.pipe2(os.O_NONBLOCK)
        """A pipe that can be read when a child has ended."""

    def live(self) -> None:
        with _never_returning():
            syscalls.die_with_parent()
            syscalls.adopt_orphans()
            signal.signal(signal.SIGCHLD, lambda *_: None)
            signal.set_wakeup_fd(self._ends, warn_on_full_buffer=False)
            wait = select.poll()
            wait.register(self._control, select.POLLIN)
            wait.register(self._children_end, select.POLLIN)
            while True:
                self._look(wait.poll())

    def _look(self, ready: Collection[tuple[int, int]]) -> None:
        answer: Mapping[str, Any] | None = None
        if any(fd == self._control.fileno() for fd, _ in ready):
            answer = self._answer()
        if self._has_lost_children():
            _end_all(self._left_behind)
        if answer is not None:
            self._control.send(json.dumps(answer).encode())

    def _has_lost_children(self) -> bool:
        """Whether a child has ended since the last call."""
        try:
            return bool(os.read(self._children_end, LONGEST))
        except BlockingIOError:
            return False

    def _answer(self) -> Mapping[str, Any]:
        data, ends, _, _ = socket.recv_fds(self._control, LONGEST, 2)
        if not data:
            os._exit(0)
        question = json.loads(data)
        match question["op"]:
            case "start":
                return self._start(question, ends)
            case "know":
                self._workers.add(question["pid"])
                return {}
            case _:
                return {"code": self._end(question["pid"])}

    def _start(self, limits: Mapping[str, Any], ends: Sequence[int]) -> Mapping[str, Any]:
        try:
            pid = os.fork()
        except OSError as error:
            for end in ends:
                os.close(end)
            return {"problem": str(error)}
        if pid == 0:
            with _never_returning():
                self._become_worker(limits, ends)
        for end in ends:
            os.close(end)
        self._workers.add(pid)
        return {"pid": pid}

    def _become_worker(self, limits: Mapping[str, Any], ends: Sequence[int]) -> NoReturn:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._control.close()
        os.close(self._children_end)
        os.close(self._ends)
        become_session()
        _limit(limits)
        line, kin = (socket.socket(fileno=end) for end in ends)
        Worker(self._served, kin).live(line)

    def _end(self, pid: int) -> int:
        """Kill a worker and return its exit code. A worker that another one has forked is our child by adoption."""
        self._workers.discard(pid)
        if _is_over(pid) is None:
            return 0
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

    def _left_behind(self) -> Sequence[int]:
        """Find adopted children whose worker has ended. Reap those that have ended themselves."""
        found: list[int] = []
        for pid in _children() - self._workers:
            if _is_over(pid):
                os.waitpid(pid, 0)
            elif (mark := session_mark.mark_of(pid)) not in (0, pid) and self._has_ended(mark):
                found.append(pid)
        return found

    def _has_ended(self, worker: int) -> bool:
        return worker not in self._workers or _is_over(worker) is not False


def _limit(limits: Mapping[str, Any]) -> None:
    if most := limits["memory_bytes"]:
        with open("/proc/self/statm") as file:
            pages = int(file.read().split()[0])
        size = pages * resource.getpagesize() + most
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    if seconds := math.ceil(limits["cpu_seconds"]):  # the kernel counts whole seconds
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))


def _let_go_of_files(kept: int) -> None:
    """Point every descriptor of the server, except `kept`, at /dev/null.

    To close them would free their numbers for our own sockets. But objects of the server, of authors and of libraries
    still hold those numbers. They may write to them, and close them when they are collected.
    """
    with open(os.devnull, "r+b", buffering=0) as null:
        for number in map(int, os.listdir("/proc/self/fd")):
            if number not in (0, 1, 2, kept, null.fileno()):
                os.dup2(null.fileno(), number, inheritable=False)


@contextlib.contextmanager
def _never_returning() -> Iterator[None]:
    """End a process that has just been forked, when the block ends: the code after it belongs to the parent."""
    try:
        yield
    except BaseException:
        traceback.print_exc()
    finally:
        flush_output()
        os._exit(1)


# Children.


def _children() -> set[int]:
    with open(f"/proc/self/task/{os.getpid()}/children") as file:
        return set(map(int, file.read().split()))


def _is_over(child: int) -> bool | None:
    """Whether a child has ended. None if it is not our child, or was reaped."""
    try:
        return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:
        return None


def _reaped() -> set[int]:
    """Reap every child that has ended, and return their pids."""
    ended: set[int] = set()
    with contextlib.suppress(ChildProcessError):
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(child)
    return ended


def _end_all(find: Callable[[], Collection[int]]) -> None:
    """Kill children until `find` returns none: the children of a killed process become ours."""
    for _ in range(_ROUNDS_MOST):
        found = find()
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        for pid in found:
            os.waitpid(pid, 0)
        if not found:
            return
