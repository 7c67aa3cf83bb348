"""A process that holds one session or many: environments as in `local`, controlled over an `RpcConnection`."""

from __future__ import annotations

import asyncio
import errno
import io
import os
import random
import selectors
import socket
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NoReturn

from toolyard.core.errors import CannotFork, NoRoom, NotSupported
from toolyard.placement.base import Placed
from toolyard.placement.local import LocalEnvironment, LocalPlacement
from toolyard.placement.worker_side import Hosting, Served
from toolyard.rpc import RpcConnection
from toolyard.sandboxes import session_mark, template_loan
from toolyard.sandboxes.native import syscalls
from toolyard.sandboxes.provider import provided

_THREADS_END = 1.0
"""Seconds that threads without work have to end before a fork."""


class Worker(Hosting):
    def __init__(self, served: Served, kin: socket.socket) -> None:
        self._local = LocalPlacement(served.threads)
        super().__init__(served, self._local)
        self._kin = kin
        """The socket that passes sockets: the server sends the ends of new connections, and we send the end of one to
        the server's sandboxes."""
        self._sock: socket.socket | None = None
        self._selector: selectors.EpollSelector | None = None
        self._doing = {**self._doing, "fork": self._fork, "pid": self._pid}

    def live(self, sock: socket.socket) -> NoReturn:
        """Serve until the server hangs up."""
        self._sock, self._selector = sock, selectors.EpollSelector()
        loop = asyncio.SelectorEventLoop(self._selector)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._live(sock))
        finally:
            flush_output()
            os._exit(0)  # the author's threads must not keep the process alive

    async def _live(self, sock: socket.socket) -> None:
        self._served.enter()
        if (sandboxes := provided()) is not None:
            sandboxes.lender = partial(template_loan.borrow, self._kin)
        await (await RpcConnection.on(sock, self._answer)).lost

    async def _pid(self) -> int:
        return os.getpid()

    # Forking this process, with the one session that is in it.

    async def _fork(self, session: str, new: str) -> None:
        """Fork. The copy goes on as session `new`, on a connection whose end the server has sent through `kin`."""
        _, ends, _, _ = socket.recv_fds(self._kin, 1, 2)
        try:
            placed = self._placed[session]
            if len(ends) != 2:  # the system drops descriptors for which there is no room
                raise _without_room(errno.EMFILE)
            if len(self._placed) != 1:
                raise NotSupported("this process has several sessions")
            if problem := await self._unforkable():
                raise CannotFork(problem)
            flush_output()
            try:
                helper = os.fork()
            except OSError as error:
                raise _without_room(error.errno) from error
            if helper == 0:
                self._make_copy(placed, new, *ends)
            if status := os.waitpid(helper, 0)[1]:  # noqa: ASYNC222  # which ends at once
                raise _without_room(os.waitstatus_to_exitcode(status))
        finally:
            for end in ends:
                os.close(end)

    def _make_copy(self, placed: Placed, new: str, end: int, kin: int) -> NoReturn:
        """Runs in a process between this one and the copy. The copy must lose its parent, to become a child of the fork
        server."""
        code = errno.EIO
        try:
            between = os.getpid()
            if os.fork() == 0:
                while os.getppid() == between:
                    os.sched_yield()
                self._go_on_as_copy(placed, new, end, kin)
            code = 0
        except OSError as error:
            code = error.errno or code
        finally:
            os._exit(code)  # in any case: the event loop and all tasks belong to the original

    def _go_on_as_copy(self, placed: Placed, new: str, end: int, kin: int) -> NoReturn:
        """Runs in the copy. The old event loop and its tasks belong to the original, so the copy leaves them alone."""
        become_session()
        assert self._selector is not None
        assert self._sock is not None
        self._selector.close()  # only closed: to unregister from it here would change the original's, too
        self._sock.close()
        self._kin.close()
        asyncio._set_running_loop(None)
        copy = Worker(self._served, socket.socket(fileno=kin))
        assert isinstance(placed, LocalEnvironment)
        placed.move_to(copy._local)
        copy._placed[new] = placed
        copy.live(socket.socket(fileno=end))

    async def _unforkable(self) -> str:
        """Why this process cannot be forked; empty if it can."""
        if self._calls:
            return f"{self._calls} calls are running in it"
        if (sandboxes := provided()) is not None and (count := await sandboxes.let_go()):
            return f"it has {count} sandboxes open"
        self._local.close()  # threads that wait for work end; there will be new ones
        ends = time.monotonic() + _THREADS_END
        # Ask the kernel: for Python a thread has ended a moment before it is gone.
        while (threads := len(os.listdir("/proc/self/task"))) > 1 and time.monotonic() < ends:  # noqa: ASYNC110
            await asyncio.sleep(0.001)  # no event tells when a thread has gone
        if threads > 1:
            return f"{threads - 1} other threads are running in it"
        return f"it has child processes: {', '.join(children)}" if (children := _children()) else ""


def _without_room(number: int | None) -> NoRoom:
    return NoRoom(f"no process for a fork could be started: {os.strerror(number or errno.EIO)}")


def _children() -> Sequence[str]:
    return Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()


def become_session() -> None:
    """Prepare a process that has just been forked to hold sessions."""
    syscalls.die_with_parent()
    session_mark.mark(os.getpid())
    os.setsid()
    random.seed()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # the process is killed in the end, and its buffers are lost


def flush_output() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None in some services
            stream.flush()
