"""Starts the gateways, replaces those that die, passes signals on to them, and ends when they have.

The gateways are forked from a process that has everything loaded and does nothing else: no event loop, no thread.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NoReturn

from toolyard.core.errors import ToolyardError
from toolyard.sandboxes.native import syscalls

log = logging.getLogger("toolyard.gateways")

_PAUSE = 1.0
"""Seconds between two starts of a gateway that dies at once."""
_READY = b"."
_LONGEST = 65536


class GatewayFailed(ToolyardError):
    """A gateway could not start, and has logged why."""


@dataclass(slots=True)
class _Running:
    number: int
    pid: int
    report: int
    """A pipe on which the gateway reports that it is ready, or why it cannot start."""
    since: float
    ready: bool = False


class Supervisor:
    """Calls `live(number, ready)` in a process for each number. The process calls `ready` when it serves.

    It calls `on_start` in one of them when all serve, and `let_go` here when it will start no more.
    """

    def __init__(
        self,
        count: int,
        live: Callable[[int, Callable[[], None]], None],
        *,
        on_start: Callable[[], None],
        let_go: Callable[[], None],
        stop_seconds: float,
    ) -> None:
        self._count = count
        self._live = live
        self._on_start = on_start
        self._let_go = let_go
        self._stop_seconds = stop_seconds
        self._running: dict[int, _Running] = {}
        """By pid."""
        self._due: dict[int, float] = {}
        """When to start a gateway that died again, by its number."""
        self._stopped_by: list[int] = []
        self._deadline = float("inf")
        self._serving = False

    def run(self) -> None:
        """Run until a signal ends it. Raises the error of a gateway that could not start."""
        with _signals() as pipe:
            try:
                # The first comes last: when it says that it is ready, all are.
                for numbers in (range(1, self._count), range(1)):
                    for number in numbers if not self._stopped_by else ():
                        self._start(number)
                    while not self._stopped_by and not all(one.ready for one in self._running.values()):
                        self._step(pipe)
                self._serving = True
                while self._running or not self._stopped_by:
                    self._step(pipe)
            finally:
                self._kill_all()
        if self._stopped_by:
            signal.raise_signal(self._stopped_by[0])  # end as a process does that handles no signals

    def _step(self, pipe: int) -> None:
        """Wait until something happens, and handle it."""
        now = time.monotonic()
        until = min([*self._due.values(), self._deadline])
        reports = [one.report for one in self._running.values() if not one.ready]
        readable, _, _ = select.select([pipe, *reports], [], [], min(max(0.0, until - now), 3600.0))
        for one in [one for one in self._running.values() if one.report in readable]:
            if one.pid in self._running:  # still: `_read` of another one may have reaped this one too
                self._read(one)
        if pipe in readable:
            for number in set(os.read(pipe, _LONGEST)) - {signal.SIGCHLD}:
                self._stop(number)
            self._reap()
        for number in [number for number, when in self._due.items() if when <= time.monotonic()]:
            del self._due[number]
            self._replace(number)
        if time.monotonic() > self._deadline:
            log.error("some gateways did not end in time")
            self._kill_all()

    def _read(self, one: _Running) -> None:
        said = os.read(one.report, _LONGEST)
        if said == _READY:
            one.ready = True
        elif said and not self._serving:
            raise pickle.loads(said)
        elif said:
            log.error("gateway %d: %s", one.number, pickle.loads(said))
        else:  # it has closed the pipe: it has ended, or is about to
            os.waitid(os.P_PID, one.pid, os.WEXITED | os.WNOWAIT)
            self._reap()

    def _stop(self, number: int) -> None:
        if not self._stopped_by:
            self._let_go()
            self._due.clear()
            self._deadline = time.monotonic() + self._stop_seconds
        self._stopped_by.append(number)
        for pid in self._running:
            os.kill(pid, number)

    def _reap(self) -> None:
        """Reap processes that have ended. As the first process of a container, we get orphans of others, too."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                if (one := self._running.pop(ended[0], None)) is not None:
                    os.close(one.report)
                    self._ended(one, os.waitstatus_to_exitcode(ended[1]))

    def _ended(self, one: _Running, code: int) -> None:
        if self._stopped_by:
            return
        how = f"by signal {-code}" if code < 0 else f"with code {code}"
        if not self._serving:
            raise GatewayFailed(f"gateway {one.number} ended {how} before it was ready")
        log.error("gateway %d (process %d) has ended %s, and its sessions with it", one.number, one.pid, how)
        now = time.monotonic()
        self._due[one.number] = now if now > one.since + _PAUSE else now + _PAUSE

    def _replace(self, number: int) -> None:
        try:
            self._start(number)
        except OSError as error:  # such as a fork that the kernel refuses: the other gateways go on
            log.error("gateway %d could not be started again: %s", number, error)
            self._due[number] = time.monotonic() + _PAUSE

    def _start(self, number: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        report, theirs = os.pipe()
        parent = os.getpid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)  # the new process must not handle them as we do
        try:
            pid = os.fork()
        except OSError:
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
            os.close(report)
            os.close(theirs)
            raise
        if pid == 0:
            for other in (report, *(one.report for one in self._running.values())):
                os.close(other)
            self._become(number, theirs, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)
        os.close(theirs)
        self._running[pid] = _Running(number, pid, report, time.monotonic())

    def _kill_all(self) -> None:
        for pid, one in self._running.items():
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            os.close(one.report)
        self._running.clear()

    # In the process of a gateway.

    def _become(self, number: int, report: int, parent: int) -> NoReturn:
        try:
            syscalls.die_with_parent()
            if os.getppid() != parent:
                os._exit(1)
            os.setsid()  # an interrupt from the terminal is for the supervisor, which passes it on
            _usual_signals()
            self._live(number, lambda: self._ready(number, report))
        except ToolyardError as error:
            _say(report, pickle.dumps(error))
        except BaseException:
            traceback.print_exc()
            _end(1)
        _end(0)

    def _ready(self, number: int, report: int) -> None:
        _say(report, _READY)
        if number == 0 and not self._serving:  # it does not replace one that died
            self._on_start()


def _say(report: int, what: bytes) -> None:
    with contextlib.suppress(BrokenPipeError):  # the supervisor waits no more, and is about to end us
        os.write(report, what)


def _end(code: int) -> NoReturn:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


_HEARD = (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT)


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """A pipe from which arriving signals can be read."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    handlers = [signal.signal(number, _nothing) for number in _HEARD]
    try:
        yield read
    finally:
        for number, handler in zip(_HEARD, handlers, strict=True):
            signal.signal(number, handler)
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def _usual_signals() -> None:
    signal.set_wakeup_fd(-1)
    for number in _HEARD:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HEARD)


def _nothing(*_: object) -> None:
    """A handler that leaves everything to the pipe."""
