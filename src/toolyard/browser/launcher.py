"""A program, not a module: runs Chromium as a user without rights, and cleans up after it.

    python launcher.py probe UID                         exits with 0 if that user can make namespaces
    python launcher.py run DIRECTORY UID COMMAND…        runs the command to its end

The server holds the other end of `DIRECTORY/lifeline`. When it lets go, in whatever way it ended, Chromium is killed.
When Chromium has ended, in whatever way, the rest of its processes are killed and the directory is removed.

The user may not be able to read Python's own files, so nothing is imported after it has been become, not even a codec.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import shutil
import signal
import sys
import time

_NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000
"""Of users, processes and network: those that Chromium's own sandbox makes."""
_PDEATHSIG, _SUBREAPER = 1, 36
_LOCKS = 10
_REMOVE_SECONDS = 10
_PIPES = (3, 4)
"""Through them Chromium is driven; it ends when they do."""


def main() -> None:
    match sys.argv[1:]:
        case ["probe", user]:
            become(int(user))
            sys.exit(_libc.unshare(_NAMESPACES) != 0)
        case ["run", directory, user, *command]:
            become(int(user))
            run(directory, command)


def become(user: int) -> None:
    if os.geteuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)


def run(directory: str, command: list[str]) -> None:
    """Beside the browser there are two processes. The driver kills this one, with its group; the other cleans up."""
    os.umask(0o077)
    os.chdir(directory)
    lifeline = os.open("lifeline", os.O_RDONLY | os.O_NONBLOCK)
    ours, theirs = os.pipe()
    if (supervisor := os.fork()) == 0:
        try:
            os.close(theirs)
            os.setsid()
            unmark()
            supervised(directory, command, [lifeline, ours])
        finally:
            os._exit(0)
    for unused in (*_PIPES, ours, lifeline):
        os.close(unused)
    os.waitpid(supervisor, 0)


def unmark() -> None:
    """We may belong to a session (`toolyard.sandboxes.session_mark`). Whoever ends it must not end us: we clean up."""
    most = resource.getrlimit(_LOCKS)[1]
    resource.setrlimit(_LOCKS, (most, most))


def supervised(directory: str, command: list[str], lifelines: list[int]) -> None:
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # what Chromium leaves behind becomes ours
    ended = listen_for_children()
    supervisor = os.getpid()
    if (browser := os.fork()) == 0:
        _libc.prctl(_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() == supervisor:
            os.execv(command[0], command)
        os._exit(1)
    for pipe in _PIPES:
        os.close(pipe)
    wait_for(browser, ended, lifelines)
    remove(directory)


def listen_for_children() -> int:
    """What can be read from when a child has ended."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def wait_for(browser: int, ended: int, lifelines: list[int]) -> None:
    """Until the browser has ended, or the server or the driver has."""
    wait = select.poll()
    wait.register(ended, select.POLLIN)
    for lifeline in lifelines:
        wait.register(lifeline, 0)  # its end only
    while True:
        ready = {fd for fd, _ in wait.poll()}
        if ended in ready:
            os.read(ended, 4096)
            if browser in reap():
                return
        if ready.intersection(lifelines):
            return


def reap() -> set[int]:
    """Every child that has ended."""
    ended: set[int] = set()
    try:
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(child)
    except ChildProcessError:
        return ended
    return ended


def remove(directory: str) -> None:
    """Every process that is left, and then every file: who is dying may still be writing."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        left = children()
        for child in left:
            os.kill(child, signal.SIGKILL)
        reap()
        shutil.rmtree(directory, ignore_errors=True)
        if not left and not (os.path.exists(directory) and os.listdir(directory)):
            return  # the directory itself stays if only others may write where it is: the server removes it
        time.sleep(0.01)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


_libc = ctypes.CDLL(None)

if __name__ == "__main__":
    main()
