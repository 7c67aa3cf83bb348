"""Measures how well a sandbox holds, with a program in it that tries to get out."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from toolyard.sandboxes.process_based.sandbox import RoomSandbox

_TRY = """
import ctypes, json, os, socket
libc = ctypes.CDLL(None, use_errno=True)
def refused(attempt):
    try:
        attempt()
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
def own_user_namespace():
    if libc.unshare(0x10000000):
        raise OSError
def few_processes():
    return refused(lambda: os.listdir("/proc")) or len([name for name in os.listdir("/proc") if name.isdigit()]) < 8
def memory_limit():
    limits = []
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            with open(path) as file:
                limits += [int(text) for text in file.read().split() if text.isdigit()]
        except OSError:
            pass  # it is not there, or not to be read
    return min(limits, default=float("inf"))
none = "0000000000000000"
print(json.dumps({{
    "files": all(map(refused, [lambda: open({marker!r}), lambda: write("/usr/probe"), lambda: write("/probe")]))
        and bool(refused(lambda: os.chmod({marker!r}, 0o644))),
    "network": bool(refused(reach)),
    "processes": not os.path.exists("/proc/{pid}/root") and bool(few_processes()),
    "signals": bool(refused(lambda: os.kill({pid}, 0))),
    "user": os.getuid() == {uid} and status("CapEff") == none and status("CapPrm") == none,
    "privileges": status("NoNewPrivs") == "1",
    "system calls": status("Seccomp") == "2" and bool(refused(own_user_namespace)),
    "memory": memory_limit() <= {memory},
}}))
"""


@dataclass(frozen=True, slots=True)
class Trial:
    problem: str
    """Why the trial failed; empty if it ran."""
    fallen: Sequence[str]
    """The walls that do not stand."""


async def try_out(sandbox: RoomSandbox, *, uid: int, memory_bytes: int | None = None) -> Trial:
    """`uid` is the user of programs. `memory_bytes` is the cgroup's expected limit, if there should be one."""
    with _bait() as (marker, port):
        memory = "float('inf')" if memory_bytes is None else memory_bytes
        code = _TRY.format(marker=marker, port=port, pid=os.getpid(), uid=uid, memory=memory)
        tried = await sandbox.exec(code)
    try:
        held = json.loads(tried.stdout)
    except ValueError:
        said = tried.stderr.strip() or (tried.error.message if tried.error else tried.stdout)
        return Trial(f"it does not run Python: {' '.join(said.split())[:1000]}", ())
    return Trial("", [wall for wall, holds in held.items() if not holds])


@contextmanager
def _bait() -> Iterator[tuple[str, int]]:
    """A file and a listening socket of the host, which programs inside must not reach."""
    with tempfile.NamedTemporaryFile() as marker, socket.create_server(("127.0.0.1", 0)) as listener:
        os.chmod(marker.name, 0o644)
        yield marker.name, listener.getsockname()[1]
