"""What turns a process into a sandbox, and a program in it into an untrusted one. Every step fails closed: it raises,
and the process ends before any code that is not ours has run."""

from __future__ import annotations

import _socket
import fcntl
import itertools
import os
import resource
import signal
import struct
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolyard.sandboxes.base import ENVIRONMENT, RESERVED_BYTES
from toolyard.sandboxes.native import rootfs, seccomp, syscalls
from toolyard.sandboxes.native.syscalls import Syscalls

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

_TERMINALS_MOST = 16
"""Of a sandbox with its branches. Few programs need more than one."""
_RULES_FROM = 16
"""Where the descriptors of rules begin: beyond all that a program is given."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the programs of a sandbox may do; made once, before there is anything to confine."""

    landlock: int
    """Rules as a file descriptor, the same one in every process; -1 where the kernel has no Landlock."""
    added_filter: bytes
    """Of seccomp, beside that which every process has from its template."""

    @classmethod
    def make(cls, *, tcp: bool) -> Rules:
        paths = {"/": syscalls.READ_ONLY, "/dev": syscalls.DEVICES, rootfs.HOME: syscalls.EVERYTHING}
        landlock = -1
        if syscalls.landlock_version():
            made = syscalls.landlock_rules(paths, tcp=tcp)
            landlock = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, _RULES_FROM)
            os.close(made)
        return cls(landlock, seccomp.added_filter())


def environment(path: str) -> dict[str, str]:
    """What a program finds in its environment: nothing of the server's."""
    return {"PATH": path, **ENVIRONMENT}


def birth(limits: Mapping[str, Any], waits: int, doors: Sequence[int], kept: Collection[int]) -> Syscalls:
    """What makes a new process, in namespaces over which it has all capabilities, the agent of a sandbox.

    All of it is prepared by the template, for these numbers of files: `waits` tells that the user is mapped, `doors`
    are those of its control group, and `kept` is what it has open afterwards. `no_new_privs` and the agent's seccomp
    filter are not part of it: every process here has them from its template.
    """
    calls = Syscalls()
    calls.add("read", waits, b"?", 1, gives=1, about="what the template says")  # nothing if it is gone
    for door in doors:
        calls.add("write", door, b"0", 1, gives=1, about="the door of its control group")
    calls.close_all_but(kept)
    calls.add("unshare", syscalls.CLONE_NEWCGROUP)
    calls.add("setresgid", UID, UID, UID)
    calls.add("setresuid", UID, UID, UID)
    mount_processes(calls)
    mount_workspace(calls, limits)
    mount_terminals(calls, limits)
    if limits["network"] != "host":
        calls.add("sethostname", b"sandbox", len(b"sandbox"))
    calls.add("prctl", syscalls.PR_SET_PDEATHSIG, signal.SIGKILL)  # after the change of uid, which would undo it
    settle(calls)
    free = next(free_numbers(kept))
    _take_few_watches(calls, free)
    if limits["network"] == "loopback":
        raise_loopback(calls, fd=free)
    return calls


def free_numbers(taken: Collection[int]) -> Iterator[int]:
    """Those that files get which are opened next."""
    return (number for number in itertools.count() if number not in taken)


def mount_processes(calls: Syscalls) -> None:
    """A /proc that shows the processes of this namespace and no others."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    calls.add("mount", b"proc", b"/proc", b"proc", flags, about="/proc")


def mount_workspace(calls: Syscalls, limits: Mapping[str, Any]) -> None:
    options = f"mode=700,uid={UID},gid={UID},size={limits['disk_bytes']},nr_inodes={limits['disk_files']}"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for place in (rootfs.WORK, rootfs.TEMPORARY):
        calls.add("mount", b"private", place.encode(), b"tmpfs", flags, options.encode(), about=place)


def mount_terminals(calls: Syscalls, limits: Mapping[str, Any]) -> None:
    """Pseudo terminals of its own, and few: the machine has `kernel.pty.max` of them for all."""
    options = f"newinstance,ptmxmode=0666,mode=620,max={min(_TERMINALS_MOST, limits['processes'])}"
    calls.add(
        "mount",
        b"devpts",
        b"/dev/pts",
        b"devpts",
        syscalls.MS_NOSUID | syscalls.MS_NOEXEC,
        options.encode(),
        about="pts",
    )


def settle(calls: Syscalls) -> None:
    """As an agent: in a session of its own, where programs of its uid cannot look into it, in the workspace."""
    calls.add("setsid", gives=None)
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 0)
    calls.add("chdir", rootfs.WORK.encode(), about=rootfs.WORK)


def _take_few_watches(calls: Syscalls, fd: int) -> None:
    """All sandboxes of a server, and its user, share what inotify has: often no more than 128 instances and 8192
    watches."""
    for path, most in _INOTIFY:
        if os.path.exists(path):  # or else it is a kernel without
            calls.write_file(path, most, fd=fd)


_INOTIFY = (("/proc/sys/user/max_inotify_instances", b"8"), ("/proc/sys/user/max_inotify_watches", b"1024"))


def raise_loopback(calls: Syscalls, *, fd: int) -> None:
    """Bring up the network interface `lo` of this network namespace. `fd` is the number that the next file gets."""
    set_flags, up_and_running = 0x8914, 0x41
    calls.add("socket", _socket.AF_INET, _socket.SOCK_DGRAM, gives=fd)
    calls.add("ioctl", fd, set_flags, struct.pack("16sH22x", b"lo", up_and_running), about="lo")
    calls.add("close", fd)


def move_files(fds: Sequence[int], rules: Rules) -> Syscalls:
    """So that these are numbered from 0, and nothing else is open but the rules."""
    calls = Syscalls()
    for number, fd in enumerate(fds):
        calls.add("dup3", fd, number, 0, gives=number)
    calls.close_all_but({*range(len(fds)), rules.landlock} - {-1})
    return calls


def confinement(rules: Rules, limits: Mapping[str, Any], *, files: int, alone: bool = False) -> Syscalls:
    """The last thing before untrusted code: leave the agent's session if there is one, and all power that is not needed
    to run it.

    It is for a process that has so many files open, numbered from 0, and the rules."""
    calls = Syscalls()
    if not alone:
        calls.add("setsid", gives=None)
    for name, most in _resources(limits).items():
        calls.add("prlimit64", 0, name, struct.pack("=QQ", most, most))
    syscalls.drop_capabilities(calls)
    # a process that may look into itself; its agent may not be looked into
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 1)
    # When memory runs out, here or on the whole machine: a program before its agent, and before anything else.
    calls.write_file("/proc/self/oom_score_adj", b"1000", fd=files)
    if rules.landlock >= 0:
        calls.add("landlock_restrict_self", rules.landlock, 0)
        calls.add("close", rules.landlock)
    syscalls.load_filter(calls, rules.added_filter)
    return calls


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
        most[resource.RLIMIT_DATA] = limits["memory_bytes"]
        most[resource.RLIMIT_AS] = limits["memory_bytes"] + RESERVED_BYTES
    return {name: min(value, hard) if hard >= 0 else value for name, value, hard in _with_hard(most)}


def _with_hard(most: dict[int, int]) -> list[tuple[int, int, int]]:
    """Limits that are already lower than ours stay."""
    return [(name, value, resource.getrlimit(name)[1]) for name, value in most.items()]
