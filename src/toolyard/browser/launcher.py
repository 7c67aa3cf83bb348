"""A program, not a module: runs Chromium as a user without rights, and cleans up after it.

    python launcher.py probe UID                         exits with 0 if that user can make namespaces
    python launcher.py run DIRECTORY UID COMMAND…        runs the command to its end

The server holds the other end of `DIRECTORY/lifeline`. When the server ends, in any way, this program kills Chromium.
When Chromium ends, in any way, it kills the rest of Chromium's processes and removes the directory.

The user may not be able to read Python's own files, so nothing is imported after the switch to it, not even a codec.
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
"""The namespaces that Chromium's own sandbox makes: of users, processes and network."""
_PDEATHSIG, _SUBREAPER = 1, 36
_LOCKS = 10
_REMOVE_SECONDS = 10
_PIPES = (3, 4)
"""The driver controls Chromium through these pipes; Chromium ends when they close."""


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
    """Run the browser and a supervisor. The driver kills this process and its group; the supervisor cleans up."""
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
    """Leave the session that this process may belong to (`toolyard.sandboxes.session_mark`): its end must not stop the
    clean-up."""
    most = resource.getrlimit(_LOCKS)[1]
    resource.setrlimit(_LOCKS, (most, most))


def supervised(directory: str, command: list[str], lifelines: list[int]) -> None:
    _libc.prctl(_SUBREAPER, 1, 0, 0, 0)  # Chromium's orphans become children of this process
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
    """A descriptor that becomes readable when a child ends."""
    readable, writable = os.pipe()
    os.set_blocking(writable, False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    signal.set_wakeup_fd(writable, warn_on_full_buffer=False)
    return readable


def wait_for(browser: int, ended: int, lifelines: list[int]) -> None:
    """Wait until the browser, the server or the driver ends."""
    wait = select.poll()
    wait.register(ended, select.POLLIN)
    for lifeline in lifelines:
        wait.register(lifeline, 0)  # only for hang-up
    while True:
        ready = {fd for fd, _ in wait.poll()}
        if ended in ready:
            os.read(ended, 4096)
            if browser in reap():
                return
        if ready.intersection(lifelines):
            return


def reap() -> set[int]:
    """Reap every child that has ended, and return their ids."""
    ended: set[int] = set()
    try:
        while child := os.waitpid(-1, os.WNOHANG)[0]:
            ended.add(child)
    except ChildProcessError:
        return ended
    return ended


def remove(directory: str) -> None:
    """Kill every remaining process, then remove every file: a dying process may still write."""
    deadline = time.monotonic() + _REMOVE_SECONDS
    while time.monotonic() < deadline:
        left = children()
        for child in left:
            os.kill(child, signal.SIGKILL)
        reap()
        shutil.rmtree(directory, ignore_errors=True)
        if not left and not (os.path.exists(directory) and os.listdir(directory)):
            return  # an empty directory may stay if its parent is not writable: the server removes it
        time.sleep(0.01)


def children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
        return [int(child) for child in file.read().split()]


_libc = ctypes.CDLL(None)

if __name__ == "__main__":
    main()
