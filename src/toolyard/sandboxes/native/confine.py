"""Turns a process into a sandbox, and a program in it into an untrusted one. Every step fails closed: it raises, and
the process ends before any foreign code has run."""

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
"""The user of programs inside. Outside, it is a user of its own, or the server's if the server is not root."""

NAMESPACES = (
    syscalls.CLONE_NEWUSER
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
)
"""All but those of cgroups, made once the sandbox is in its own group, and of the network."""

_TERMINALS_MOST = 16
"""Terminals of a sandbox with its branches. Few programs need more than one."""
_RULES_FROM = 16
"""The lowest descriptor of rules: above all that a program gets."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the programs of a sandbox may do; made once, before anything is confined."""

    landlock: int
    """Rules as a file descriptor, the same one in every process; -1 where the kernel has no Landlock."""
    added_filter: bytes
    """The seccomp filter to add to the one that every process has from its template."""

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
    """A program's environment: nothing of the server's."""
    return {"PATH": path, **ENVIRONMENT}


def birth(limits: Mapping[str, Any], waits: int, doors: Sequence[int], kept: Collection[int]) -> Syscalls:
    """The calls that turn a new process, which has all capabilities over its namespaces, into the agent of a sandbox.

    The template prepares all of them, for these numbers of files: `waits` signals that the user is mapped, `doors` lead
    into its control group, and `kept` stays open. They do not include `no_new_privs` and the agent's seccomp filter:
    every process here has both from its template.
    """
    calls = Syscalls()
    calls.add("read", waits, b"?", 1, gives=1, about="what the template says")  # an end of file if it is gone
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
    """The numbers that the next opened files get."""
    return (number for number in itertools.count() if number not in taken)


def mount_processes(calls: Syscalls) -> None:
    """Mount a /proc that shows only the processes of this namespace."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    calls.add("mount", b"proc", b"/proc", b"proc", flags, about="/proc")


def mount_workspace(calls: Syscalls, limits: Mapping[str, Any]) -> None:
    options = f"mode=700,uid={UID},gid={UID},size={limits['disk_bytes']},nr_inodes={limits['disk_files']}"
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
    for place in (rootfs.WORK, rootfs.TEMPORARY):
        calls.add("mount", b"private", place.encode(), b"tmpfs", flags, options.encode(), about=place)


def mount_terminals(calls: Syscalls, limits: Mapping[str, Any]) -> None:
    """Mount its own pseudo terminals, and few: `kernel.pty.max` limits them for the whole machine."""
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
    """Set up an agent: its own session, hidden from programs of its uid, in the workspace."""
    calls.add("setsid", gives=None)
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 0)
    calls.add("chdir", rootfs.WORK.encode(), about=rootfs.WORK)


def _take_few_watches(calls: Syscalls, fd: int) -> None:
    """Limit inotify. All sandboxes of a server share its user's supply: often only 128 instances and 8192 watches."""
    for path, most in _INOTIFY:
        if os.path.exists(path):  # older kernels do not have it
            calls.write_file(path, most, fd=fd)


_INOTIFY = (("/proc/sys/user/max_inotify_instances", b"8"), ("/proc/sys/user/max_inotify_watches", b"1024"))


def raise_loopback(calls: Syscalls, *, fd: int) -> None:
    """Bring up the network interface `lo` of this network namespace. `fd` is the number that the next file gets."""
    set_flags, up_and_running = 0x8914, 0x41
    calls.add("socket", _socket.AF_INET, _socket.SOCK_DGRAM, gives=fd)
    calls.add("ioctl", fd, set_flags, struct.pack("16sH22x", b"lo", up_and_running), about="lo")
    calls.add("close", fd)


def move_files(fds: Sequence[int], rules: Rules) -> Syscalls:
    """Number these files from 0, and close everything else but the rules."""
    calls = Syscalls()
    for number, fd in enumerate(fds):
        calls.add("dup3", fd, number, 0, gives=number)
    calls.close_all_but({*range(len(fds)), rules.landlock} - {-1})
    return calls


def confinement(rules: Rules, limits: Mapping[str, Any], *, files: int, alone: bool = False) -> Syscalls:
    """The last calls before untrusted code: leave the agent's session, if there is one, and give up all privileges that
    running it does not need.

    For a process whose open files are numbered from 0 up to `files`, besides the rules."""
    calls = Syscalls()
    if not alone:
        calls.add("setsid", gives=None)
    for name, most in _resources(limits).items():
        calls.add("prlimit64", 0, name, struct.pack("=QQ", most, most))
    syscalls.drop_capabilities(calls)
    # the process may inspect itself, but not its agent
    calls.add("prctl", syscalls.PR_SET_DUMPABLE, 1)
    # When memory runs out, here or on the whole machine, the kernel kills programs before their agent and all else.
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
        resource.RLIMIT_CORE: 1,  # with 0 the kernel would still pipe the core to a program of the host
        resource.RLIMIT_MEMLOCK: 64 * 1024,
        resource.RLIMIT_MSGQUEUE: 64 * 1024,
        resource.RLIMIT_SIGPENDING: 256,  # signals and timers count against the server's user too
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
    """Keep hard limits that are lower than ours."""
    return [(name, value, resource.getrlimit(name)[1]) for name, value in most.items()]
