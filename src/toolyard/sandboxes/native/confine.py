"""What turns a process into a sandbox, and a program in it into an untrusted one. Every step fails closed: it raises,
and the process ends before any code that is not ours has run."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolyard.sandboxes.base import ENVIRONMENT
from toolyard.sandboxes.native import seccomp, syscalls, template

UID = 1000
"""Who programs are inside. Outside it is a user that nobody else is, or the server's own if that is not root."""

NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
"""All but that of cgroups, which is to be made when the sandbox is in its own, and that of the network."""

_FILES_MOST = 4096
"""More than any of our processes has open."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the programs of a sandbox may do; made once, before there is anything to confine."""

    landlock: int
    """Rules as a file descriptor; -1 where the kernel has no Landlock."""
    program_filter: bytes
    agent_filter: bytes

    def move(self, fd: int) -> Rules:
        """The same with the file descriptor that was asked for."""
        if self.landlock < 0:
            return self
        return Rules(os.dup2(self.landlock, fd), self.program_filter, self.agent_filter)

    @classmethod
    def make(cls, *, tcp: bool) -> Rules:
        paths = {"/": syscalls.READ_ONLY, "/dev": syscalls.DEVICES, template.HOME: syscalls.EVERYTHING}
        landlock = syscalls.landlock_rules(paths, tcp=tcp) if syscalls.landlock_version() else -1
        return cls(landlock, seccomp.program_filter(), seccomp.agent_filter())


def environment(path: str) -> dict[str, str]:
    """What a program finds in its environment: nothing of the server's."""
    return {"PATH": path, **ENVIRONMENT}


def furnish(rules: Rules, limits: Mapping[str, Any]) -> None:
    """Make new namespaces, over which this process has all capabilities, a sandbox of its own."""
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    mount_processes()
    mount_workspace(limits)
    _take_few_watches()
    safe = syscalls.MS_NOSUID | syscalls.MS_NOEXEC
    syscalls.mount("devpts", "/dev/pts", "devpts", safe, "newinstance,ptmxmode=0666,mode=620")
    if limits["network"] != "host":
        syscalls.set_hostname("sandbox")
    if limits["network"] == "loopback":
        raise_loopback()
    syscalls.die_with_parent()  # after the change of uid, which would undo it
    syscalls.forbid_new_privileges()
    syscalls.load_filter(rules.agent_filter)


def _take_few_watches() -> None:
    """All sandboxes of a server, and its user, share what inotify has: often no more than 128 instances and 8192
    watches."""
    for what, most in (("instances", 8), ("watches", 1024)):
        with contextlib.suppress(FileNotFoundError), open(f"/proc/sys/user/max_inotify_{what}", "w") as file:
            file.write(str(most))


def mount_processes() -> None:
    """A /proc that shows the processes of this namespace and no others."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", "/proc", "proc", flags)


def mount_workspace(limits: Mapping[str, Any]) -> None:
    options = f"mode=700,uid={UID},gid={UID},size={limits['disk_bytes']},nr_inodes={limits['disk_files']}"
    for place in (template.WORK, template.TEMPORARY):
        syscalls.mount("private", place, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, options)


def raise_loopback() -> None:
    """Bring up the network interface `lo` of this network namespace."""
    set_flags, up_and_running = 0x8914, 0x41
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, set_flags, struct.pack("16sH22x", b"lo", up_and_running))


def confine(rules: Rules, limits: Mapping[str, Any]) -> None:
    """The last thing before untrusted code: give up everything that is not needed to run it."""
    for name, most in _resources(limits).items():
        resource.setrlimit(name, (most, most))
    syscalls.forbid_new_privileges()
    syscalls.drop_capabilities()
    syscalls.set_dumpable(True)  # a process that may look into itself; its agent may not be looked into
    _be_first_to_go()
    if rules.landlock >= 0:
        syscalls.landlock(rules.landlock)
        os.close(rules.landlock)
    syscalls.load_filter(rules.program_filter)


def _resources(limits: Mapping[str, Any]) -> dict[int, int]:
    most = {
        resource.RLIMIT_NOFILE: limits["open_files"],
        resource.RLIMIT_FSIZE: limits["file_bytes"],
        resource.RLIMIT_NPROC: limits["processes"],
        resource.RLIMIT_CORE: 1,  # with 0 the kernel would still hand the core to a program of the host's
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_MSGQUEUE: 64 * 1024,
        resource.RLIMIT_SIGPENDING: 256,  # signals and timers count for the server's user too
        resource.RLIMIT_NICE: 0,
        resource.RLIMIT_RTPRIO: 0,
    }
    if limits["cpu_seconds"] is not None:
        most[resource.RLIMIT_CPU] = max(1, round(limits["cpu_seconds"] + 0.5))
    if not limits["memory_enforced"]:  # by a cgroup
        most[resource.RLIMIT_AS] = limits["memory_bytes"]
    return {name: min(value, hard) if hard >= 0 else value for name, value, hard in _with_hard(most)}


def _with_hard(most: dict[int, int]) -> list[tuple[int, int, int]]:
    """Limits that are already lower than ours stay."""
    return [(name, value, resource.getrlimit(name)[1]) for name, value in most.items()]


def close_all_but(*fds: int) -> None:
    """Keep the standard files, and these."""
    first = 3
    for fd in sorted(fd for fd in fds if fd >= first):
        os.closerange(first, fd)
        first = fd + 1
    os.closerange(first, _FILES_MOST)


def _be_first_to_go() -> None:
    """When memory runs out, here or on the whole machine: a program before its agent, and before anything else."""
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def reset_signals() -> None:
    """Programs expect the defaults; Python has changed a few for itself."""
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who started the server may have blocked some
