"""Starts one untrusted program with its limits, and leaves nothing of it behind.

A Python in the program's room runs the text of this file. It starts for each program, so it imports almost nothing. Its
first argument is a Python dictionary of orders, and the others are the program. What to `do`:

    exec    set the limits and become the program
    spawn   set the limits, run the program and end everything that it started. Pass SIGINT on to it; on SIGTERM, end
            everything. If there is a mark, report the end on standard output and error, after the mark on each
    signal  send a signal to the launcher with this name
    relieve end what its program has started since a moment, after sending the program a signal
    used    report what the launcher with this name uses now, with all of its descendants
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

NAME = "TOOLYARD_LAUNCHER"
"""A variable in the launcher's environment, and not in the program's: the name to find the launcher by."""
NEVER_BEGAN = 125
"""The exit code of a program that could not start; it is not reported with a mark."""
WALLED = b"!"
"""A warden's report that all walls stand."""
_SUBREAPER = 36
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_TICK_SECONDS = 0.02
"""How precisely the system knows the start time of a process."""
_ROUNDS_MOST, _ROUND_SECONDS = 2000, 0.001


def main() -> None:
    orders = eval(sys.argv[1], {})
    argv = sys.argv[2:]
    if orders["do"] == "exec":
        become(argv, orders)
    elif orders["do"] == "spawn":
        spawn(argv, orders)
    elif orders["do"] == "signal":
        for pid in _launchers(orders["name"]):
            kill(pid, orders["number"])
    elif orders["do"] == "relieve":
        for launcher in _launchers(orders["name"]):
            relieve(tree(launcher)[1:], orders["since"], orders["first"])
    else:
        uses = [used(pid) for launcher in _launchers(orders["name"]) for pid in tree(launcher)]
        sys.stdout.write(f"[{sum(cpu for cpu, _ in uses)}, {sum(memory for _, memory in uses)}]")


def become(argv: Sequence[str], orders: Mapping[str, Any]) -> None:
    for name, wanted in orders["limits"].items():
        number = getattr(resource, f"RLIMIT_{name}")
        most = resource.getrlimit(number)[1]
        soft, hard = (value if most == resource.RLIM_INFINITY else min(value, most) for value in wanted)
        resource.setrlimit(number, (soft, hard))
    for number in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)  # this Python has changed their handlers
    try:
        os.environ.pop(NAME, None)
        os.execvpe(argv[0], list(argv), {**os.environ, **orders["env"]})
    except OSError as error:
        os.write(2, f"toolyard: {argv[0]}: {error.strerror}\n".encode(errors="surrogateescape"))
        os._exit(127 if isinstance(error, FileNotFoundError | NotADirectoryError) else 126)


def spawn(
    argv: Sequence[str], orders: Mapping[str, Any], become: Callable[[Sequence[str], Mapping[str, Any]], None] = become
) -> None:
    if orders["adopt"]:
        _adopt_descendants()
    before = _out_of_memory()
    began = time.monotonic()
    try:
        program = os.fork()
    except OSError as error:
        _tell(orders["mark"], {"code": 126, "unstarted": error.errno})
        os._exit(126)
    if program == 0:
        become(argv, orders)
    signal.signal(signal.SIGINT, lambda *_: kill(program, signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: _end_descendants())
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the process that started us may have blocked them
    _, status, usage = os.wait4(program, 0)
    wall = time.monotonic() - began
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _end_descendants()
    code = os.waitstatus_to_exitcode(status)
    if code != NEVER_BEGAN:
        after = _out_of_memory()
        ran_out = "" if after[1] == before[1] else "own" if after[0] > before[0] else "host"
        cpu, peak = usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024
        _tell(orders["mark"], {"code": code, "cpu": cpu, "peak": peak, "out_of_memory": f'"{ran_out}"', "wall": wall})
    os._exit(code if code >= 0 else 128 - code)


def _tell(mark: str, told: Mapping[str, Any]) -> None:
    """Written by hand: loading the json module would take longer than everything else here."""
    said = {"cpu": 0.0, "peak": 0, "out_of_memory": '""', "unstarted": 0, "wall": 0.0, **told}
    if mark:
        text = ", ".join(f'"{name}": {value}' for name, value in said.items())
        os.write(1, f"{mark}={{{text}}}\n".encode())
        os.write(2, f"{mark}=\n".encode())


def _adopt_descendants() -> None:
    """Make orphans our children instead of those of process 1."""
    __import__("ctypes").CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # slow to load, and not always needed


def _end_descendants() -> None:
    for _ in range(_ROUNDS_MOST):
        below = [pid for pid in tree(os.getpid())[1:] if not is_over(pid)]
        if not below:
            return
        for pid in below:
            kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)


def _out_of_memory() -> tuple[int, int]:
    """How often the container exceeded its own memory, and how often the kernel killed a process here for want of
    memory, the container's or the host's."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            found = dict(line.split() for line in file)
        return int(found.get("oom", 0)), int(found.get("oom_kill", 0))
    except OSError:
        return _out_of_memory_v1()


def _out_of_memory_v1() -> tuple[int, int]:
    """The same from control groups of version 1. They do not count how often the limit was reached, only whether: then
    the kills count as the container's own."""
    try:
        with open("/sys/fs/cgroup/memory/memory.oom_control") as file:
            kills = int(dict(line.split() for line in file).get("oom_kill", 0))
        with open("/sys/fs/cgroup/memory/memory.limit_in_bytes") as file:
            limit = int(file.read())
        with open("/sys/fs/cgroup/memory/memory.max_usage_in_bytes") as file:
            most = int(file.read())
        return (kills if most >= limit - _PAGE else 0), kills
    except (OSError, ValueError):
        return 0, 0


def _launchers(name: str) -> Sequence[int]:
    return [pid for pid in processes() if f"{NAME}={name}".encode() in environment(pid).split(b"\0")]


# Processes, by /proc. Without it, there are no processes.


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def relieve(pids: Sequence[int], since: float, first: int) -> None:
    """The first of `pids` is a program, the others are processes that it may have started. Send it the signal `first`,
    unless that is 0, and end the others that started since that moment."""
    for program in pids[:1]:
        if first:
            kill(program, first)
    if others := pids[1:]:
        boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
        for each in others:
            if boot + started(each) >= since - _TICK_SECONDS:
                kill(each, signal.SIGKILL)


def processes() -> Sequence[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def environment(pid: int) -> bytes:
    """The environment that it was started with; empty if we may not read it."""
    return _read(pid, "environ")


def tree(pid: int) -> list[int]:
    """A process and all of its descendants."""
    found = [pid]
    for parent in found:  # the list grows during the loop
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            found += map(int, _read(parent, f"task/{thread}/children").split())
    return found


def used(pid: int) -> tuple[float, int]:
    """Seconds of processor time, including children that it has waited for, and bytes of memory."""
    fields = _stat(pid)
    return (sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE) if fields else (0.0, 0)


def started(pid: int) -> float:
    """Its start time in seconds since boot; 0 if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) / _TICKS if fields else 0.0


def is_over(pid: int) -> bool:
    """Whether it has ended, reaped or not."""
    fields = _stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """The fields of its stat file from the state on."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
