"""The place that an interpreter forks itself into: a user namespace within the sandbox's, and in it a pid, a mount, an
IPC and a network namespace with an agent of their own and a copy of the workspace.

The interpreter has no capabilities and may not make namespaces. But it may enter these: they belong to its own user.
"""

from __future__ import annotations

import _socket
import errno
import os
import stat
from collections.abc import Mapping
from typing import Any

from toolyard.sandboxes.native import syscalls, template, wire
from toolyard.sandboxes.native.confine import UID, mount_processes, mount_workspace, raise_loopback, settle, write
from toolyard.sandboxes.native.syscalls import Calls

_KINDS = {
    "user": syscalls.CLONE_NEWUSER,
    "pid": syscalls.CLONE_NEWPID,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
}
"""Namespaces of a branch, in the order in which they can be entered."""
_MAPS = (
    ("/proc/self/setgroups", b"deny"),
    ("/proc/self/uid_map", b"%d %d 1" % (UID, UID)),
    ("/proc/self/gid_map", b"%d %d 1" % (UID, UID)),
)


def clone_branch(limits: Mapping[str, Any]) -> int:
    """As the agent: fork into the namespaces of a branch. 0 there, and here the number of the process that is there."""
    try:
        pid, pidfd = syscalls.clone(sum(_kinds(limits).values()))
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EUSERS):
            raise OSError(error.errno, "branches are nested as deeply as the kernel allows") from error
        raise
    if pid:
        os.close(pidfd)
    return pid


def furnishing(limits: Mapping[str, Any]) -> Calls:
    """What is private to a branch, and then the agent's own place."""
    calls = Calls()
    mount_processes(calls)
    mount_workspace(calls, limits)
    settle(calls)
    return calls


def furnish_branch(limits: Mapping[str, Any], furnishing: Calls, kin: _socket.socket, new_kin: _socket.socket) -> None:
    """In the new namespaces: be the same user, copy the workspace, and let the interpreter in.

    `kin` leads to the interpreter that is to be forked, and `new_kin` is what the branch will have for its own.
    """
    _map_user()
    places = (template.WORK, template.TEMPORARY)
    originals = [os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for place in places]
    furnishing.make()
    if limits["network"] == "loopback":
        raise_loopback()
    for original, place in zip(originals, places, strict=True):
        copy = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        copy_directory(original, copy)
        os.close(original)
        os.close(copy)
    kinds = _kinds(limits)
    namespaces = [os.open(f"/proc/self/ns/{kind}", os.O_RDONLY) for kind in kinds]
    wire.send(kin, {"namespaces": list(kinds.values())}, fds=[*namespaces, new_kin.fileno()])
    for fd in namespaces:
        os.close(fd)
    kin.close()
    new_kin.close()


def _map_user() -> None:
    syscalls.set_dumpable(True)  # or the files would not be ours
    for path, data in _MAPS:
        write(path, data)
    syscalls.set_dumpable(False)


def _kinds(limits: Mapping[str, Any]) -> Mapping[str, int]:
    """In a network of their own siblings cannot meet, and each has all ports. The host's cannot be parted."""
    return {name: kind for name, kind in _KINDS.items() if name != "net" or limits["network"] != "host"}


def copy_directory(source: int, target: int) -> None:
    """Everything below one open directory into another. Links stay links; sockets are left."""
    for name in os.listdir(source):
        about = os.stat(name, dir_fd=source, follow_symlinks=False)
        mode = stat.S_IMODE(about.st_mode)
        if stat.S_ISLNK(about.st_mode):
            os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
        elif stat.S_ISFIFO(about.st_mode):
            os.mkfifo(name, mode, dir_fd=target)
        elif stat.S_ISREG(about.st_mode):
            _copy_file(name, source, target, mode)
        elif stat.S_ISDIR(about.st_mode):
            os.mkdir(name, 0o700, dir_fd=target)
            below = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=source)
            copy = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=target)
            try:
                copy_directory(below, copy)
                os.fchmod(copy, mode)
            finally:
                os.close(below)
                os.close(copy)
        if not stat.S_ISSOCK(about.st_mode):
            times = (about.st_atime_ns, about.st_mtime_ns)
            os.utime(name, ns=times, dir_fd=target, follow_symlinks=False)


def _copy_file(name: str, source: int, target: int, mode: int) -> None:
    original = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source)
    try:
        copy = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
        try:
            while os.sendfile(copy, original, None, 2**30):  # from where it stands, until there is no more
                continue
            os.fchmod(copy, mode)
        finally:
            os.close(copy)
    finally:
        os.close(original)
