"""The process between the server and the templates: it starts them, and outlives the server briefly to clean up."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import sys
from collections.abc import Sequence
from typing import NoReturn

from toolyard.sandboxes import session_mark
from toolyard.sandboxes.native import wire
from toolyard.sandboxes.native.cgroups import Groups, sweep
from toolyard.sandboxes.native.helper_argv import TEMPLATE_ENVIRONMENT, command

_CONTROL = 3


def main(control_fd: int) -> NoReturn:
    """Serve until the server disconnects, for whatever reason, and then clean up."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # only the server's end ends us
    session_mark.unmark()
    control = wire.at(control_fd)
    sweep()
    groups = Groups.create()
    zygotes: set[int] = set()
    with contextlib.suppress(wire.Closed, ConnectionError):
        wire.send(control, {"groups": groups.describe(), "support": groups.support})
        while True:
            select.select([control], [], [])
            request, _, fds = wire.receive(control)
            zygotes = {pid for pid in zygotes if os.waitpid(pid, os.WNOHANG) == (0, 0)}
            try:
                zygotes.add(_spawn(fds, request["python"]))
                problem = {}
            except OSError as error:  # no more processes or files; the others go on
                problem = {"failed": str(error)}
            for fd in fds:
                os.close(fd)
            wire.send(control, {"id": request["id"], **problem})
    for pid in zygotes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    for pid in zygotes:
        os.waitpid(pid, 0)
    groups.remove()
    sys.exit(0)


def _spawn(fds: Sequence[int], python: str) -> int:
    if not fds:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))  # we had no room for the descriptor
    files = [
        (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0, 1),
        (os.POSIX_SPAWN_DUP2, fds[0], _CONTROL),
    ]
    argv = command("native.loader", _CONTROL, os.getpid(), python=python)
    return os.posix_spawn(argv[0], argv, TEMPLATE_ENVIRONMENT, file_actions=files, setsigdef=signal.valid_signals())
