"""The place that an interpreter forks itself into: a user namespace nested in the sandbox's. In it are a pid, a mount,
an IPC and a network namespace, an agent and a copy of the workspace.

The interpreter has no capabilities and may not make namespaces. It may enter these: they belong to its own user.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from typing import Any

from toolyard.sandboxes.native import forking, rootfs, syscalls, wire
from toolyard.sandboxes.native.confine import (
    UID,
    free_numbers,
    mount_processes,
    mount_workspace,
    raise_loopback,
    settle,
)
from toolyard.sandboxes.native.syscalls import Syscalls

_KINDS = {
    "user": syscalls.CLONE_NEWUSER,
    "pid": syscalls.CLONE_NEWPID,
    "ipc": syscalls.CLONE_NEWIPC,
    "net": syscalls.CLONE_NEWNET,
    "mnt": syscalls.CLONE_NEWNS,
}
"""Namespaces of a branch, in the order of entering them."""
_MAPS = {
    "/proc/self/setgroups": b"deny",
    "/proc/self/uid_map": b"%d %d 1" % (UID, UID),
    "/proc/self/gid_map": b"%d %d 1" % (UID, UID),
}
_PLACES = (rootfs.WORK, rootfs.TEMPORARY)
_OOM_SCORE = "/proc/self/oom_score_adj"


class Branching:
    """Makes branches of a sandbox with these limits, for these numbers of files.

    `kin` leads to the interpreter that will be forked, `new_kin` becomes the branch's own, and the agent of the branch
    also has `others`.
    """

    def __init__(self, limits: Mapping[str, Any], kin: int, new_kin: int, others: Sequence[int]) -> None:
        self._kinds = {name: kind for name, kind in _KINDS.items() if name != "net" or limits["network"] != "host"}
        """With its own network, a branch cannot reach its siblings and has all ports. The host's network cannot be
        split."""
        self._kin, self._new_kin = kin, new_kin
        (self._invitation,) = wire.packets({"namespaces": list(self._kinds.values())})
        kept = {0, 1, 2, kin, new_kin, *others}
        free = free_numbers(kept)
        self._calls = calls = Syscalls()
        calls.close_all_but(kept)
        victim = next(free)
        _map_user(calls, fd=victim)
        _go_first(calls, fd=victim)
        self._originals = [next(free) for _ in _PLACES]
        for fd, place in zip(self._originals, _PLACES, strict=True):
            calls.open_directory(place, fd=fd)
        mount_processes(calls)
        mount_workspace(calls, limits)
        settle(calls)
        self._copies = [next(free) for _ in _PLACES]
        if limits["network"] == "loopback":
            raise_loopback(calls, fd=self._copies[0])
        for fd, place in zip(self._copies, _PLACES, strict=True):
            calls.open_directory(place, fd=fd)
        self._namespaces = [next(free) for _ in self._kinds]
        for fd, kind in zip(self._namespaces, self._kinds, strict=True):
            calls.open_file(f"/proc/self/ns/{kind}", fd=fd)
        self._finish, self._leave = Syscalls(), Syscalls()
        usual = _oom_score()
        self._finish.add("write", victim, usual, len(usual), gives=len(usual), about=_OOM_SCORE)
        for fd in (victim, *self._originals, *self._copies):
            self._finish.add("close", fd)
        for fd in (*self._namespaces, kin, new_kin):
            self._leave.add("close", fd)

    def clone(self) -> int:
        """In the agent: fork into the namespaces of a branch. Returns 0 in the child, else the child's number."""
        try:
            pid, pidfd = forking.clone(sum(self._kinds.values()))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EUSERS):
                raise OSError(error.errno, "branches are nested as deeply as the kernel allows") from error
            raise
        if pid:
            os.close(pidfd)
        return pid

    def make(self) -> None:
        """In the new namespaces: become the same user, and copy the workspace."""
        self._calls.make()
        for original, copy in zip(self._originals, self._copies, strict=True):
            copy_directory(original, copy)
        self._finish.make()

    def invite(self) -> None:
        """Let the interpreter in, once."""
        kin = wire.at(self._kin)
        wire.send_packet(kin, self._invitation, [*self._namespaces, self._new_kin])
        kin.detach()
        self._leave.make()


def _map_user(calls: Syscalls, *, fd: int) -> None:
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 1)  # otherwise we would not own the files
    for path, data in _MAPS.items():
        calls.write_file(path, data, fd=fd)


def _go_first(calls: Syscalls, *, fd: int) -> None:
    """If the host runs out of memory during the copy, the kernel kills the copy before the session's agent. The file
    stays open to restore the score afterwards."""
    calls.open_file(_OOM_SCORE, fd=fd, flags=os.O_WRONLY)
    calls.add("write", fd, b"1000", 4, gives=4, about=_OOM_SCORE)
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 0)


def _oom_score() -> bytes:
    with open(_OOM_SCORE, "rb") as file:
        return file.read()


def size_of_files() -> int:
    """Bytes that the workspace uses, and its copy will."""
    return sum((about.f_blocks - about.f_bfree) * about.f_frsize for about in map(os.statvfs, _PLACES))


def copy_directory(source: int, target: int) -> None:
    """Copy everything below one open directory into another. Links stay links; sockets are skipped."""
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
            _copy_data(original, copy)
            os.fchmod(copy, mode)
        finally:
            os.close(copy)
    finally:
        os.close(original)


def _copy_data(original: int, copy: int) -> None:
    """Copy data but not holes, which then take no space in the copy either."""
    size = os.fstat(original).st_size
    os.truncate(copy, size)
    end = 0
    while end < size:
        try:
            start = os.lseek(original, end, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # no more data
                return
            raise
        end = os.lseek(original, start, os.SEEK_HOLE)
        os.lseek(original, start, os.SEEK_SET)
        os.lseek(copy, start, os.SEEK_SET)
        while start < end and (sent := os.sendfile(copy, original, None, end - start)):
            start += sent
