"""The cost of work: processor time of all of its processes, and memory, as the kernel counts them.

/proc cannot give the sum for a sandbox afterwards: when process 1 of a pid namespace is killed, the kernel reaps the
others without adding their time to any process. So this process counts in a control group, which everything that it
starts stays in, directly or not: programs, the sandboxes' broker, templates and guests, and itself.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from toolyard.sandboxes.native.cgroups import Group, Hierarchy, Tree, own_hierarchies

_KERNEL_THREADS = 2
"""The parent of all kernel threads."""


@dataclass(frozen=True)
class Cpu:
    """Seconds of processor time so far."""

    processes: float
    kernel_threads: dict[int, float]
    """By pid. They clean up what programs leave: namespaces, mounts, memory."""


@dataclass(frozen=True)
class Meter:
    read: Callable[[], float]
    scope: str
    """Whose processor time it is."""

    def cpu(self) -> Cpu:
        return Cpu(self.read(), dict(_kernel_threads()))


def kernel_seconds(before: Cpu, after: Cpu) -> float:
    earlier = before.kernel_threads
    return sum(seconds - earlier.get(thread, 0.0) for thread, seconds in after.kernel_threads.items())


@contextmanager
def metering() -> Iterator[Meter]:
    """Count the processor time of this process and of everything that it starts from now on."""
    with ExitStack() as leaving:
        yield _own_group(leaving) or _group_around() or Meter(_machine_seconds, "of the whole machine, whoever used it")


def _own_group(leaving: ExitStack) -> Meter | None:
    """In version 1, where groups of this kind have no other use. Needs root."""
    hierarchy = next((one for one in own_hierarchies() if one.version == 1 and "cpuacct" in one.controllers), None)
    if hierarchy is None:
        return None
    tree = _tree(hierarchy)
    group = Group([tree], f"benchmark-{os.getpid()}")
    try:
        group.make()
    except OSError:  # not allowed, or all groups are read-only here
        return None
    leaving.callback(group.remove)
    group.attach(os.getpid())
    leaving.callback(Group([tree], ".").attach, os.getpid())
    return Meter(lambda: group.usage().cpu_seconds, "of all processes that it takes, that of the benchmark included")


def _group_around() -> Meter | None:
    """In version 2 a group of our own would get in the way of the sandboxes', so use the one that we are in."""
    hierarchy = next((one for one in own_hierarchies() if one.version == 2), None)
    if hierarchy is None or not Path(hierarchy.own, "cgroup.type").exists():  # the host's root has no such file
        return None
    group = Group([_tree(hierarchy)], ".")
    return Meter(lambda: group.usage().cpu_seconds, "of all processes in the benchmark's control group")


def _tree(hierarchy: Hierarchy) -> Tree:
    fd = os.open(hierarchy.own, os.O_RDONLY | os.O_DIRECTORY)
    return Tree(hierarchy.version, hierarchy.controllers & {"cpuacct"}, hierarchy.own, fd)


def _machine_seconds() -> float:
    user, nice, system, _, _, *interrupts = map(int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:8])
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


def _kernel_threads() -> Iterator[tuple[int, float]]:
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                if int(_stat(int(name))[1]) == _KERNEL_THREADS:
                    yield int(name), int(Path(f"/proc/{name}/schedstat").read_text().split()[0]) / 1e9


def _stat(pid: int) -> list[str]:
    """State, parent, and so on."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# Processes and memory.


def descendants(pid: int, *, skip: int = 0) -> Iterator[int]:
    """All descendants of this process, without the first so many generations."""
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            if skip == 0:
                yield child
            yield from descendants(child, skip=max(0, skip - 1))


def wait_until_gone(pidfds: set[int]) -> None:
    """Wait until these processes have ended, reaped or not."""
    waiting = select.poll()
    for pidfd in pidfds:
        waiting.register(pidfd, select.POLLIN)
    left = set(pidfds)
    while left:
        ended = waiting.poll(60_000)
        if not ended:
            raise SystemExit("Processes of a sandbox outlived its server by a minute.")
        for pidfd, _ in ended:
            waiting.unregister(pidfd)
            left.discard(pidfd)


def proportional_bytes(pid: int) -> int:
    """Memory of a process; what several share is divided among them."""
    return _rollup(pid, "Pss:")


def unique_bytes(pid: int) -> int:
    """Memory that it shares with no other process."""
    return _rollup(pid, "Private_Clean:", "Private_Dirty:")


def _rollup(pid: int, *fields: str) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(fields))


def available_bytes() -> int:
    """What the machine could still give to new programs."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
