"""Measures how well the sandbox holds, with programs in it that try to get out."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from toolyard.core.errors import SandboxUnavailable
from toolyard.sandboxes.base import Missing, Report
from toolyard.sandboxes.native.sandbox import NativeSandbox

_TRY = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(attempt):
    try:
        return attempt() is False
    except OSError:
        return True
def status(field):
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith(field + ":"))
def reach():
    with socket.socket() as probe:
        probe.settimeout(1)
        probe.connect(("127.0.0.1", {port}))
def write(path):
    with open(path, "w"):
        pass
print(json.dumps({{
    "files": all(map(refused, [lambda: open({marker!r}), lambda: write("/usr/probe"), lambda: write("/probe")])),
    "network": refused(reach),
    "processes": len([*filter(str.isdigit, os.listdir("/proc"))]) < 8 and os.stat("/proc/self/ns/pid").st_ino != {pids},
    "user": os.getuid() == {uid} and status("CapEff") == "0000000000000000" and status("CapBnd") == "0000000000000000",
    "privileges": status("NoNewPrivs") == "1",
    "system calls": status("Seccomp") == "2" and libc.unshare(0x10000000) == -1 and libc.syscall(425, 1, 0) == -1,
}}))
"""

_FIXES = {
    "memory": "memory is limited for each process, and for all together only now and then",
    "pids": "the number of processes is limited for each user and not for each sandbox",
    "cpu": "a sandbox can take all processors",
}


async def probe(
    sandbox: NativeSandbox, support: Mapping[str, Sequence[Any]], landlock: int, hidden: str = ""
) -> Report:
    """Raises `SandboxUnavailable` if a wall does not stand."""
    with _bait() as (marker, port):
        pids = os.stat("/proc/self/ns/pid").st_ino
        tried = await sandbox.exec(_TRY.format(marker=marker, port=port, pids=pids, uid=1000))
    try:
        held = json.loads(tried.stdout)
    except ValueError:
        raise SandboxUnavailable(
            f"the sandbox does not run Python: {tried.stdout}{tried.stderr}{tried.error}"
        ) from None
    if fallen := [layer for layer, holds in held.items() if not holds]:
        raise SandboxUnavailable(f"the sandbox does not hold here: {', '.join(fallen)} could be got around")
    missing = [
        Missing(f"cgroup: {name}", f"{reason}; {_FIXES[name]}", fix)
        for name, (enforced, reason, fix) in support.items()
        if not enforced
    ]
    if not landlock:
        missing.append(Missing("Landlock", "the kernel has none", "Linux 5.13 or later, with landlock among its LSMs"))
    limits = {name: "cgroup" if enforced else "none" for name, (enforced, _, _) in support.items()}
    return Report(
        "native",
        "L3" if support["memory"][0] and support["pids"][0] else "L3-nolimit",
        {
            "files": "mount namespace, read-only root" + (f", Landlock {landlock}" if landlock else "") + hidden,
            "network": "network namespace",
            "processes": "pid and IPC namespaces",
            "user": "user namespace, no capabilities",
            "system calls": "seccomp allowlist, no_new_privs",
            "memory": limits["memory"] if support["memory"][0] else "data of each process, watched",
            "number of processes": limits["pids"] if support["pids"][0] else "RLIMIT_NPROC",
            "processor time": limits["cpu"],
            "disk": "tmpfs",
        },
        tuple(missing),
    )


@contextmanager
def _bait() -> Iterator[tuple[str, int]]:
    """A file and a listening socket of the host, which programs inside must not reach. Every host has this file; a file
    of our own would be left behind if the server were killed now."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield "/sys/devices/system/cpu/online", listener.getsockname()[1]


def unavailable(problem: str, number: int) -> SandboxUnavailable:
    """Why there can be no native sandbox here, and what would help."""
    hints = {
        errno.EPERM: (
            "This host does not let an ordinary user make namespaces. Try sysctl kernel.unprivileged_userns_clone=1, "
            "on Ubuntu kernel.apparmor_restrict_unprivileged_userns=0, in a container --security-opt "
            "seccomp=unconfined --security-opt systempaths=unconfined; or start the server as root, or use the "
            "bubblewrap or docker backend"
        ),
        errno.ENOSPC: "Raise sysctl user.max_user_namespaces",
        errno.EINVAL: "The kernel is too old, or was built without namespaces: Linux 5.12 or later is needed",
        errno.ENOSYS: "The kernel is too old: Linux 5.12 or later is needed",
    }
    hint = hints.get(number, "")
    return SandboxUnavailable(f"the native sandbox cannot work here: {problem}. {hint}".rstrip(". ") + ".")
