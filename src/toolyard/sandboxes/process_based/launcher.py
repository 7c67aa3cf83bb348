"""Starts one untrusted program with its limits, and sees to it that nothing of it is left.

The text of this file is handed to a Python where the program is to run. It starts for each program, so it imports next
to nothing. Its orders are a Python dictionary in its first argument, and the others are the program. What to `do`:

    exec    set the limits and become the program
    spawn   set the limits, run the program and end everything that it started. SIGINT is passed on to it, SIGTERM ends
            it all. With a mark, how it ended is said on standard output and error, each after the mark
    signal  send a signal to the launcher that has this name
    relieve end what its program has started since a moment, and send that a signal first
    used    say what the launcher that has this name uses now, with all below it
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
"""In its environment, and not in that of the program: the name by which it can be found."""
NEVER_BEGAN = 125
"""Exit code of what was to become the program and could not; of that, nothing is said with a mark."""
WALLED = b"!"
"""What a warden says when all walls stand."""
_SUBREAPER = 36
_TICKS, _PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
_TICK_SECONDS = 0.02
"""How exactly the system knows when a process has started."""
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
        signal.signal(number, signal.SIG_DFL)  # Python, which we are, has its own way with them
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
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # who has started us may have blocked them until now
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
    """By hand: to load what writes JSON takes longer than all else here."""
    said = {"cpu": 0.0, "peak": 0, "out_of_memory": '""', "unstarted": 0, "wall": 0.0, **told}
    if mark:
        text = ", ".join(f'"{name}": {value}' for name, value in said.items())
        os.write(1, f"{mark}={{{text}}}\n".encode())
        os.write(2, f"{mark}=\n".encode())


def _adopt_descendants() -> None:
    """Whoever loses its parent becomes our child and not that of process 1."""
    __import__("ctypes").CDLL(None).prctl(_SUBREAPER, 1, 0, 0, 0)  # dear, and not always needed


def _end_descendants() -> None:
    for _ in range(_ROUNDS_MOST):
        below = [pid for pid in tree(os.getpid())[1:] if not is_over(pid)]
        if not below:
            return
        for pid in below:
            kill(pid, signal.SIGKILL)
        time.sleep(_ROUND_SECONDS)


def _out_of_memory() -> tuple[int, int]:
    """How often the container had no memory left of its own, and how often the kernel has ended a process here for want
    of memory, be it the container's or the host's."""
    try:
        with open("/sys/fs/cgroup/memory.events") as file:
            found = dict(line.split() for line in file)
        return int(found.get("oom", 0)), int(found.get("oom_kill", 0))
    except OSError:
        return 0, 0


def _launchers(name: str) -> Sequence[int]:
    return [pid for pid in processes() if f"{NAME}={name}".encode() in environment(pid).split(b"\0")]


# Processes, as /proc tells of them. Where there is none, there are no processes.


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def relieve(pids: Sequence[int], since: float, first: int) -> None:
    """Of a program and those that it may have started: send the program the signal `first`, if there is one, and end
    the others that were started since that moment."""
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
    """As it was when the program started; empty if it is not ours to see."""
    return _read(pid, "environ")


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    for parent in found:  # which grows meanwhile
        try:
            threads = os.listdir(f"/proc/{parent}/task")
        except OSError:
            continue
        for thread in threads:
            found += map(int, _read(parent, f"task/{thread}/children").split())
    return found


def used(pid: int) -> tuple[float, int]:
    """Seconds of processor time, with those of children that it has waited for, and bytes of memory."""
    fields = _stat(pid)
    return (sum(map(int, fields[11:15])) / _TICKS, int(fields[21]) * _PAGE) if fields else (0.0, 0)


def started(pid: int) -> float:
    """In seconds since the system was; 0 if there is no such process."""
    fields = _stat(pid)
    return int(fields[19]) / _TICKS if fields else 0.0


def is_over(pid: int) -> bool:
    """Whether it has ended, be it waited for or not."""
    fields = _stat(pid)
    return not fields or fields[0] in (b"Z", b"X")


def _stat(pid: int) -> list[bytes]:
    """From the state on."""
    return _read(pid, "stat").rpartition(b")")[2].split()


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


if __name__ == "__main__":
    main()
