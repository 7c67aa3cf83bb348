"""Control groups: bound what a sandbox uses as a whole, count it, and end everything that is in it.

The broker calls `sweep()` and `Groups.create()`. The server and the zygotes open the result with `Groups.at`; a zygote
does so before it leaves the host's file system, and then uses the descriptors. Broker and zygote load this module
without the package around it: it imports only the standard library.
"""

from __future__ import annotations

import errno
import os
import re
import select
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple, TypeAlias

CONTROLLERS = ("memory", "pids", "cpu")
"""The limited resources. cpuacct only counts; it is used where there is no version 2, which counts without it."""

OUTSIDE = "toolyard-outside"
"""Version 2 allows processes only in leaves. This leaf takes those of the group in which we make ours."""

Description: TypeAlias = list[tuple[int, list[str], str]]
"""Describes a parent group as JSON: version, controllers and path of its directory, for each hierarchy."""

_NAME = re.compile(r"toolyard-(\d+)-(\d+)-(\d+)")
_PERIOD_US = 100_000
_WALK = 5000
"""The most directories of a hierarchy that `sweep()` visits."""
_LEFT_BYTES = 2 * 2**20
"""Memory that an empty group may still hold. The kernel frees some of its own records only under pressure."""
_TRIAL_SECONDS = 0.5
"""The most time for one limit to prove itself. It needs some milliseconds, unless the machine is very busy."""
_TRIAL_BYTES = 8 * 2**20
_NEARLY_BYTES = 512 * 1024
"""A group can run out of memory this far below its limit: the kernel allocates several pages at once."""
_STALLED_SECONDS = 0.02
"""A stall for want of memory that the next user of a group may still see counted."""
_HELD, _DID_NOT_HOLD = 0, 255
_DELEGATE = "systemd-run --scope -p Delegate=yes, with --user if not root, or Delegate=yes in its unit"


class Hierarchy(NamedTuple):
    """One mounted tree of groups, and this process's place in it."""

    version: int
    controllers: frozenset[str]
    mount: str
    own: str


class Caps(NamedTuple):
    """Limits of a group; None leaves one unchanged."""

    memory_bytes: int | None = None
    """Including swap, where the kernel counts it."""
    processes: int | None = None
    cpus: float | None = None
    oom_kills_all: bool = False
    """When memory runs out, kill everything and not only the largest process. Version 1 has no such option."""


class CgroupUsage(NamedTuple):
    """What a group has used so far; 0 where this host does not report it."""

    cpu_seconds: float
    peak_bytes: int
    """The peak memory, including files in a tmpfs."""
    oom_kills: int


class Support(NamedTuple):
    """Whether a controller enforces its limit here, by trial."""

    enforced: bool
    reason: str = ""
    fix: str = ""


class Swept(NamedTuple):
    removed: list[str]
    left: list[str]


class CannotEnforce(Exception):
    """A controller does not work here."""

    def __init__(self, reason: str, fix: str) -> None:
        super().__init__(reason)
        self.fix = fix


class Tree(NamedTuple):
    """The directory of a parent group in one hierarchy."""

    version: int
    controllers: frozenset[str]
    path: str
    fd: int


class Strain(NamedTuple):
    """How often a group got less than it asked for, since it was made; 0 where this host does not report it."""

    oom_kills: int = 0
    """Processes that the kernel killed for want of memory: the group's, a parent group's, or the host's."""
    memory_full: int = 0
    """How often the group reached its own memory limit."""
    forks_refused: int = 0
    """Forks refused by the group's own process limit, or by a parent group's."""
    processes_full: bool = False
    """Whether the group ever reached its own process limit."""
    memory_stalled: float = 0.0
    """Seconds in which the whole group stalled for memory without having reached its own limit. Read only after a
    timeout."""

    def out_of_memory(self, before: Strain) -> str:
        """Whose memory ran out since `before`, if something was killed for it: "own", "host" or empty."""
        if self.oom_kills <= before.oom_kills:
            return ""
        return "own" if self.memory_full > before.memory_full else "host"

    def out_of_processes(self, before: Strain) -> str:
        """The same for processes, if a fork was refused."""
        if self.forks_refused <= before.forks_refused:
            return ""
        return "own" if self.processes_full else "host"


class CgroupCount:
    """One number of a group. It reads one descriptor repeatedly, and parses only when the text has changed."""

    def __init__(self, fd: int, key: str) -> None:
        self._fd = fd
        self._key = key
        self._text = b""
        self._number = 0

    def now(self) -> int:
        """The number now. If the group is gone, the last one; 0 if no controller counts (the descriptor is -1)."""
        if self._fd >= 0:
            try:
                text = os.pread(self._fd, 4096, 0)
            except OSError:  # the group is gone
                return self._number
            if text != self._text:
                self._text, self._number = text, _counter(text.decode(), self._key)
        return self._number

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Gauge:
    """The strain of a group while programs come and go. An unchanged group costs two system calls."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._kills = CgroupCount(group.oom_descriptor(), "oom_kill")
        try:
            self._refused = CgroupCount(group.refusals_descriptor(), "max")
        except OSError:
            self._kills.close()
            raise
        self._last = Strain()
        self._seen_full = 0
        self._closed = False

    def glance(self) -> Strain:
        """The baseline for a program: the last `read()`. A shortage since then, caused by a program left running,
        counts for the new program, which may suffer from it."""
        return self._last

    def read(self, *, late: bool = False) -> Strain:
        """The strain now. A removed group keeps its last one: another sandbox may use the group by now."""
        if self._closed:
            return self._last
        kills, refused, last = self._kills.now(), self._refused.now(), self._last
        if late or kills != last.oom_kills or refused != last.forks_refused:
            with suppress(OSError):
                self._last = self._changed(kills, refused, late=late)
        return self._last

    def at_last(self, kills: int, full: int) -> Strain:
        """The strain, with final counts read by another process after everything in the group had ended."""
        more = kills > self._last.oom_kills and full > self._seen_full
        return self._last._replace(oom_kills=kills, memory_full=self._last.memory_full + more)

    def _changed(self, kills: int, refused: int, *, late: bool) -> Strain:
        full = self._last.memory_full
        if kills > self._last.oom_kills and (now := self._group.memory_full()) > self._seen_full:
            full += 1
            self._seen_full = 0 if self._group.forget_peak() else now
        crowded = bool(refused) and self._group.processes_full()
        stalled = self._group.memory_stalled() if late else self._last.memory_stalled
        return Strain(kills, full, refused, crowded, stalled)

    def close(self) -> None:
        self._closed = True
        self._kills.close()
        self._refused.close()


class Group:
    """The group of one sandbox, in every hierarchy. It holds no descriptors, so a zygote can have thousands."""

    def __init__(self, trees: Sequence[Tree], name: str) -> None:
        self.name = name
        self._trees = trees

    def make(self) -> None:
        made: list[Tree] = []
        try:
            for tree in self._trees:
                os.mkdir(self.name, dir_fd=tree.fd)
                made.append(tree)
        except OSError:
            Group(made, self.name).remove()
            raise

    def limit(self, caps: Caps) -> None:
        """Set the limits whose controllers are there; `Groups.support` lists these."""
        for tree in self._trees:
            if caps.memory_bytes is not None and "memory" in tree.controllers:
                self._limit_memory(tree, caps.memory_bytes)
                if caps.oom_kills_all and tree.version == 2:
                    self._write(tree, "memory.oom.group", 1)
            if caps.processes is not None and "pids" in tree.controllers:
                self._write(tree, "pids.max", caps.processes)
            if caps.cpus is not None and "cpu" in tree.controllers:
                self._limit_cpu(tree, max(1000, round(caps.cpus * _PERIOD_US)))

    def directory(self) -> int | None:
        """A descriptor for CLONE_INTO_CGROUP, which the caller closes; None without version 2."""
        for tree in self._trees:
            if tree.version == 2:
                return os.open(self.name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=tree.fd)
        return None

    def doors(self, *, v2: bool = True) -> list[int]:
        """Descriptors with which a single-threaded child puts itself into the group by `enter()`.

        For version 1 this is by far the fastest way: when one process moves another, the kernel blocks every fork on
        the machine for up to 20 ms. Pass `v2=False` for a child that was cloned into `directory()`.
        """
        opened: list[int] = []
        try:
            for tree in self._trees:
                if tree.version == 1 or v2:
                    file = "tasks" if tree.version == 1 else "cgroup.procs"
                    opened.append(os.open(f"{self.name}/{file}", os.O_WRONLY, dir_fd=tree.fd))
        except OSError:
            close(opened)
            raise
        return opened

    def attach(self, pid: int, *, v2: bool = True) -> None:
        """Put another process into the group."""
        for tree in self._trees:
            if tree.version == 1 or v2:
                self._write(tree, "cgroup.procs", pid)

    def usage(self) -> CgroupUsage:
        """Raises FileNotFoundError once the group is removed."""
        cpu_seconds, peak_bytes = 0.0, 0
        for tree in self._trees:
            if tree.version == 2:
                cpu_seconds = _counter(self._read(tree, "cpu.stat"), "usage_usec") / 1e6
            elif "cpuacct" in tree.controllers:
                cpu_seconds = int(self._read(tree, "cpuacct.usage")) / 1e9
            if "memory" in tree.controllers:
                peak_bytes = self._peak(tree)
        return CgroupUsage(cpu_seconds, peak_bytes, self.oom_kills())

    def oom_kills(self) -> int:
        """How many of its processes the kernel killed for want of memory, the group's or the host's."""
        for tree in self._trees:
            if "memory" in tree.controllers:
                return _counter(self._read(tree, _oom_file(tree)), "oom_kill")
        return 0

    def oom_descriptor(self) -> int:
        """A descriptor for `Gauge`, which closes it; -1 if the group is gone, or no controller counts."""
        with suppress(FileNotFoundError):
            for tree in self._trees:
                if "memory" in tree.controllers:
                    return os.open(f"{self.name}/{_oom_file(tree)}", os.O_RDONLY, dir_fd=tree.fd)
        return -1

    def refusals_descriptor(self) -> int:
        """The same for refused forks."""
        with suppress(FileNotFoundError):
            for tree in self._trees:
                if "pids" in tree.controllers:
                    return os.open(f"{self.name}/pids.events", os.O_RDONLY, dir_fd=tree.fd)
        return -1

    def strain(self, *, late: bool = False) -> Strain:
        """Raises FileNotFoundError once the group is removed. Reads only what the result depends on."""
        kills, refused = self.oom_kills(), self.forks_refused()
        full, crowded = self.memory_full() if kills else 0, bool(refused) and self.processes_full()
        return Strain(kills, full, refused, crowded, self.memory_stalled() if late else 0.0)

    def memory_stalled(self) -> float:
        """As in `Strain`. Version 2 reports it even without controllers; 0 if the group reached its own limit."""
        for tree in self._trees:
            if tree.version == 2 and not self._has_reached_limit():
                found = re.search(r"^full .*total=(\d+)", self._read_if_there(tree, "memory.pressure"), re.MULTILINE)
                return int(found[1]) / 1e6 if found else 0.0
        return 0.0

    def memory_full(self) -> int:
        """Version 2 counts in `oom` the failures at this group's limit or below, never above. Version 1 only keeps the
        peak: 1 if that is the limit, until `forget_peak()`."""
        for tree in self._trees:
            if "memory" in tree.controllers and tree.version == 2:
                return _counter(self._read(tree, "memory.events"), "oom")
            if "memory" in tree.controllers:
                most = int(self._read(tree, "memory.limit_in_bytes"))
                return int(self._peak(tree) >= most - _NEARLY_BYTES)
        return 0

    def _has_reached_limit(self) -> bool:
        """Whether it ever had to reclaim memory at its own limit, killed or not. A program could slow itself down that
        way to blame the host."""
        for tree in self._trees:
            if "memory" in tree.controllers and tree.version == 2:
                return _counter(self._read(tree, "memory.events"), "max") > 0
        return self.memory_full() > 0

    def forget_peak(self) -> bool:
        """Reset version 1's peak memory. False for version 2, which counts instead."""
        for tree in self._trees:
            if "memory" in tree.controllers and tree.version == 1:
                self._write(tree, "memory.max_usage_in_bytes", 0)
                return True
        return False

    def forks_refused(self) -> int:
        """From Linux 6.11 on, version 2 counts here only refusals by the group's own limit."""
        for tree in self._trees:
            if "pids" in tree.controllers:
                return _counter(self._read_if_there(tree, "pids.events"), "max")
        return 0

    def processes_full(self) -> bool:
        """Whether it ever reached its process limit. Assume so where the kernel does not record the peak."""
        for tree in self._trees:
            if "pids" in tree.controllers:
                most, peak = self._read(tree, "pids.max").strip(), self._read_if_there(tree, "pids.peak").strip()
                return not peak or (most.isdigit() and int(peak) >= int(most))
        return False

    def memory_left(self) -> int | None:
        """Bytes that it may use beyond what it holds and cannot reclaim. None if unlimited."""
        for tree in self._trees:
            if "memory" in tree.controllers:
                v1 = tree.version == 1
                most = self._read(tree, "memory.limit_in_bytes" if v1 else "memory.max").strip()
                used = int(self._read(tree, "memory.usage_in_bytes" if v1 else "memory.current"))
                about = self._read(tree, "memory.stat")
                files = sum(_counter(about, f"{'total_' if v1 else ''}{kind}_file") for kind in ("active", "inactive"))
                return int(most) - used + files if most.isdigit() else None
        return None

    def is_spotless(self) -> bool:
        """Whether a new user of the group cannot notice earlier ones."""
        for tree in self._trees:
            if "memory" in tree.controllers:
                file = "memory.usage_in_bytes" if tree.version == 1 else "memory.current"
                if int(self._read(tree, file)) > _LEFT_BYTES:
                    return False
        refusals = self.memory_full() or self.oom_kills() or self.forks_refused() or self.throttled()
        return not refusals and self.memory_stalled() < _STALLED_SECONDS

    def throttled(self) -> int:
        """In how many periods the group wanted more processor time than its limit."""
        for tree in self._trees:
            if "cpu" in tree.controllers:
                return _counter(self._read(tree, "cpu.stat"), "nr_throttled")
        return 0

    def unthrottle(self) -> None:
        """Lift the limit of processor time: a throttled process dies only when its next share comes."""
        for tree in self._trees:
            if "cpu" in tree.controllers:
                file, without = ("cpu.cfs_quota_us", "-1") if tree.version == 1 else ("cpu.max", "max")
                self._write(tree, file, without)

    def kill(self) -> None:
        """Kill everything in the group; after that it can only be removed. Dying may take a moment."""
        with suppress(FileNotFoundError):
            self.unthrottle()
        for tree in sorted(self._trees, key=_killing_order):
            if _kill(self.name, tree.fd):
                return

    def remove(self, patience: float = 0.05) -> bool:
        """Remove the group and kill what is left in it; False if that takes longer than `patience` seconds."""
        deadline = time.monotonic() + patience
        left = self._trees
        while left := [tree for tree in left if not _rmdir(self.name, tree.fd)]:
            if time.monotonic() > deadline:
                return False
            Group(left, self.name).kill()
            time.sleep(0.001)
        return True

    def _limit_memory(self, tree: Tree, size: int) -> None:
        if tree.version == 2:
            self._write(tree, "memory.max", size)
            with suppress(FileNotFoundError):
                self._write(tree, "memory.swap.max", 0)
            return
        try:
            self._write(tree, "memory.limit_in_bytes", size)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._write(tree, "memory.memsw.limit_in_bytes", size)  # with swap; never below memory, so first
            self._write(tree, "memory.limit_in_bytes", size)
        with suppress(FileNotFoundError):
            self._write(tree, "memory.memsw.limit_in_bytes", size)

    def _limit_cpu(self, tree: Tree, quota_us: int) -> None:
        if tree.version == 2:
            self._write(tree, "cpu.max", f"{quota_us} {_PERIOD_US}")
            return
        try:
            self._write(tree, "cpu.cfs_quota_us", quota_us)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
            self._write(tree, "cpu.cfs_quota_us", -1)  # a parent group's lower limit applies here too

    def _peak(self, tree: Tree) -> int:
        try:
            return int(self._read(tree, "memory.max_usage_in_bytes" if tree.version == 1 else "memory.peak"))
        except FileNotFoundError:
            if tree.version == 1 or not os.access(self.name, os.F_OK, dir_fd=tree.fd):
                raise
            return 0  # Linux before 5.19

    def _write(self, tree: Tree, file: str, value: int | str) -> None:
        _write(f"{self.name}/{file}", value, tree.fd)

    def _read(self, tree: Tree, file: str) -> str:
        return _read(f"{self.name}/{file}", tree.fd)

    def _read_if_there(self, tree: Tree, file: str) -> str:
        """Empty if this kernel has no such file."""
        try:
            return self._read(tree, file)
        except FileNotFoundError:
            if not os.access(self.name, os.F_OK, dir_fd=tree.fd):
                raise
            return ""


class Groups:
    """The parent of all groups of one broker, in every useful hierarchy."""

    def __init__(self, trees: list[Tree], support: dict[str, Support] | None = None) -> None:
        self.trees = trees
        self.support = support or {}
        """By controller. Only the broker has it, which ran the trials."""

    @classmethod
    def create(cls, caps: Caps | None = None) -> Groups:
        """Make the parent group, find out what works in it, and set limits for all sandboxes together.

        `support` lists what does not work; that is no error. It forks, so there must be no threads.
        """
        hierarchies = sorted(own_hierarchies(), key=_killing_order)
        groups = cls([], dict.fromkeys(CONTROLLERS, _not_there(hierarchies)))
        name = name_of_broker(os.getpid())
        try:
            for hierarchy in hierarchies:
                only_counts = hierarchy.version == 1 and hierarchy.controllers.isdisjoint(CONTROLLERS)
                if not (only_counts and any(tree.version == 2 for tree in groups.trees)):
                    groups._add(hierarchy, f"{hierarchy.own}/{name}")
            groups.group(".").limit(caps or Caps())
        except BaseException:
            groups.remove()
            raise
        return groups

    @classmethod
    def at(cls, description: Description) -> Groups:
        """For any other process that sees the same paths."""
        return cls([Tree(version, frozenset(names), path, _opened(path)) for version, names, path in description])

    def describe(self) -> Description:
        return [(tree.version, sorted(tree.controllers), tree.path) for tree in self.trees]

    def new(self, name: str, caps: Caps) -> Group:
        group = self.group(name)
        group.make()
        try:
            group.limit(caps)
        except BaseException:
            group.remove()
            raise
        return group

    def group(self, name: str) -> Group:
        """An existing group."""
        return Group(self.trees, name)

    def close(self) -> None:
        with suppress(IndexError):  # all are closed: each once, even by several threads
            while True:
                close([self.trees.pop().fd])  # popped first: the number will soon mean another file

    def remove(self, patience: float = 2.0) -> bool:
        """End everything in every group and remove them all; False if that takes longer than `patience` seconds."""
        deadline = time.monotonic() + patience
        for name in {entry.name for tree in self.trees for entry in os.scandir(tree.fd) if entry.is_dir()}:
            self.group(name).kill()
        gone = [_destroy(tree.path, tree.version, deadline) for tree in self.trees]
        self.close()
        return all(gone)

    def _add(self, hierarchy: Hierarchy, path: str) -> None:
        """Make the parent group in this hierarchy, and keep it if it is useful."""
        if os.path.isdir(path):
            raise FileExistsError(errno.EEXIST, "this process has its parent group already", path)
        limited = hierarchy.controllers.intersection(CONTROLLERS)
        try:
            tree = _make_tree(hierarchy, path)
        except (OSError, CannotEnforce) as error:
            self.support.update(dict.fromkeys(limited, _unsupported(error)))
            return
        tried = {controller: _try(tree, controller) for controller in limited or ["entering"]}
        self.support.update({controller: tried[controller] for controller in limited})
        if any(support.enforced for support in tried.values()):
            failed = {controller for controller, support in tried.items() if not support.enforced}
            self.trees.append(tree._replace(controllers=tree.controllers - failed))
        else:
            os.close(tree.fd)
            _destroy(path, tree.version, time.monotonic() + _TRIAL_SECONDS)


def enter(doors: Iterable[int]) -> None:
    """Put this process into the group of these doors, and close them."""
    for door in doors:
        os.write(door, b"0")
        os.close(door)


def close(fds: Iterable[int]) -> None:
    for fd in fds:
        os.close(fd)


# ---- Where we are


def own_hierarchies() -> list[Hierarchy]:
    found = find_hierarchies(_read("/proc/self/mountinfo"), _read("/proc/self/cgroup"))
    return [_look_into(hierarchy) if hierarchy.version == 2 else hierarchy for hierarchy in found]


def find_hierarchies(mountinfo: str, membership: str) -> list[Hierarchy]:
    """Parse /proc/self/mountinfo and /proc/self/cgroup: the hierarchies mounted where they show our group."""
    mounts = [_mount(line) for line in mountinfo.splitlines()]
    found = []
    for line in membership.splitlines():
        _, names, group = line.split(":", 2)
        controllers = frozenset(names.split(",")) & {*CONTROLLERS, "cpuacct"}
        for root, point, kind, options in mounts:
            version = 2 if kind == "cgroup2" and not names else 1
            is_this = version == 2 or (kind == "cgroup" and bool(controllers) and controllers <= options)
            inside = _below(root, group)
            if is_this and inside is not None:
                found.append(Hierarchy(version, controllers, point, f"{point}{inside}"))
                break
    return found


def _mount(line: str) -> tuple[str, str, str, frozenset[str]]:
    """Root, mount point, type and options of a file system."""
    before, _, after = line.partition(" - ")
    root, point = (re.sub(r"\\(\d{3})", lambda code: chr(int(code[1], 8)), text) for text in before.split()[3:5])
    kind, *_, options = after.split(" ")
    return root, point, kind, frozenset(options.split(","))


def _below(root: str, group: str) -> str | None:
    """The path of the group in a mount that shows what is below `root`; None if it does not show the group."""
    inside = group.rstrip("/").removeprefix(root.rstrip("/"))
    if not f"{group}/".startswith(f"{root.rstrip('/')}/") or "/.." in f"{root}{inside}":
        return None
    return inside


def _look_into(unified: Hierarchy) -> Hierarchy:
    """The version 2 controllers of our group, or of the one that we were in before a broker moved us aside."""
    own = unified.own.removesuffix(f"/{OUTSIDE}")
    try:
        offered = _read(f"{own}/cgroup.controllers").split()
    except OSError:  # making a group there fails too, and says why
        offered = list(CONTROLLERS)
    return unified._replace(own=own, controllers=frozenset(CONTROLLERS) & set(offered))


# ---- Version 2: each group passes controllers on to its children; processes live in leaves


def enable(own: str, controllers: Iterable[str]) -> None:
    """Give the groups below this one these controllers."""
    missing = set(controllers)
    if missing:
        missing.difference_update(_read(f"{own}/cgroup.subtree_control").split())
    if not missing:
        return
    try:
        if os.path.exists(f"{own}/cgroup.type") and _processes(own):  # the host's root has none: they may stay
            _step_aside(own)
        _write(f"{own}/cgroup.subtree_control", " ".join(f"+{name}" for name in sorted(missing)))
    except BaseException:
        disable(own)
        raise


def disable(own: str) -> None:
    """Move the processes in `OUTSIDE` back, unless another broker has its groups here."""
    outside = f"{own}/{OUTSIDE}"
    if not os.path.isdir(outside) or any(_NAME.fullmatch(name) for name in os.listdir(own)):
        return
    if enabled := _read(f"{own}/cgroup.subtree_control").split():
        _write(f"{own}/cgroup.subtree_control", " ".join(f"-{name}" for name in enabled))
    _move_all(outside, own)
    os.rmdir(outside)


def _step_aside(own: str) -> None:
    if not _is_delegated(own):
        raise CannotEnforce(f"{own} is not delegated to this server", f"start it by {_DELEGATE}")
    os.makedirs(f"{own}/{OUTSIDE}", exist_ok=True)
    _move_all(own, f"{own}/{OUTSIDE}")


def _is_delegated(own: str) -> bool:
    """Whether we may arrange it: our user owns it, systemd marked it, or it is all that our container sees."""
    if os.geteuid() != 0:
        return os.stat(own).st_uid == os.geteuid()
    if any(hierarchy.version == 2 and hierarchy.mount == own for hierarchy in own_hierarchies()):
        return True
    return not {"user.delegate", "trusted.delegate"}.isdisjoint(os.listxattr(own))


def _move_all(source: str, target: str) -> None:
    for _ in range(20):
        pids = _processes(source)
        if not pids:
            return
        for pid in pids:
            if pid == 0:
                raise CannotEnforce(f"{source} holds a process of another pid namespace", f"start by {_DELEGATE}")
            with suppress(ProcessLookupError):
                _write(f"{target}/cgroup.procs", pid)
    raise CannotEnforce(f"new processes keep coming in {source}", f"start the server alone, by {_DELEGATE}")


# ---- The owner of a group, and its end


def name_of_broker(pid: int) -> str:
    """The name of the broker's parent group. It shows whether the broker lives, even if its pid was reused."""
    return f"toolyard-{_pid_namespace()}-{pid}-{_state_and_start(pid)[1]}"


def sweep(hierarchies: Sequence[Hierarchy] | None = None, patience: float = 2.0) -> Swept:
    """End and remove the groups of dead brokers. Those of other pid namespaces stay: their brokers may be alive."""
    deadline = time.monotonic() + patience
    swept = Swept([], [])
    for hierarchy in sorted(own_hierarchies() if hierarchies is None else hierarchies, key=_killing_order):
        for path in list(_orphans(hierarchy)):
            (swept.removed if _destroy(path, hierarchy.version, deadline) else swept.left).append(path)
    return swept


def _orphans(hierarchy: Hierarchy) -> Iterator[str]:
    """Search the whole hierarchy: a restarted server may be in another group than before."""
    for count, (directory, names, _) in enumerate(os.walk(hierarchy.mount)):
        if count == _WALK:
            return
        for name in [name for name in names if _NAME.fullmatch(name)]:
            names.remove(name)
            path = f"{directory}/{name}"
            if _is_orphan(name) and not f"{hierarchy.own}/".startswith(f"{path}/"):
                yield path


def _is_orphan(name: str) -> bool:
    match = _NAME.fullmatch(name)
    if match is None or int(match[1]) != _pid_namespace():
        return False
    pid = int(match[2])
    try:
        os.kill(pid, 0)
        state, start = _state_and_start(pid)
    except ProcessLookupError:
        return True
    except OSError:  # it exists, but we may not look
        return False
    return state in "ZX" or start != int(match[3])


def _pid_namespace() -> int:
    return os.stat("/proc/self/ns/pid").st_ino


def _state_and_start(pid: int) -> tuple[str, int]:
    fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
    return fields[0], int(fields[19])


def _destroy(path: str, version: int, deadline: float) -> bool:
    """Kill everything in this group and below, and remove it, deepest first."""
    try:
        while os.path.isdir(path):
            below = [directory for directory, _, _ in os.walk(path, topdown=False)]
            busy = [directory for directory in below if not _rmdir(directory)]
            if busy and time.monotonic() > deadline:
                return False
            for directory in reversed(busy):
                _kill(directory)
            time.sleep(0.001 if busy else 0)
        if version == 2:
            disable(os.path.dirname(path))
    except (OSError, CannotEnforce):  # another user's, or read-only by now
        return not os.path.isdir(path)
    return True


def _killing_order(place: Tree | Hierarchy) -> int:
    """Version 2 kills all at once; pids stops a group from forking while its processes are killed one by one."""
    return 0 if place.version == 2 else 1 if "pids" in place.controllers else 2


def _kill(group: str, dir_fd: int | None = None) -> bool:
    """Kill the processes of this group; False if there is no such group."""
    try:
        _write(f"{group}/cgroup.kill", 1, dir_fd)
    except FileNotFoundError:  # version 1, or Linux before 5.14
        return _kill_one_by_one(group, dir_fd)
    return True


def _kill_one_by_one(group: str, dir_fd: int | None) -> bool:
    with suppress(FileNotFoundError):
        _write(f"{group}/pids.max", 0, dir_fd)
    try:
        for pid in _processes(group, dir_fd):
            if pid > 0:  # 0 stands for a process of another pid namespace
                _kill_member(pid, group, dir_fd)
    except FileNotFoundError:
        return False
    return True


def _kill_member(pid: int, group: str, dir_fd: int | None) -> None:
    with suppress(ProcessLookupError):
        pidfd = os.pidfd_open(pid)
        try:
            if pid in _processes(group, dir_fd):  # check again: the pid may have been reused
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        finally:
            os.close(pidfd)


def _rmdir(group: str, dir_fd: int | None = None) -> bool:
    try:
        os.rmdir(group, dir_fd=dir_fd)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True


# ---- What works here, by trial


def _make_tree(hierarchy: Hierarchy, path: str) -> Tree:
    passed_on = hierarchy.controllers if hierarchy.version == 2 else ()
    try:
        enable(hierarchy.own, passed_on)
        os.mkdir(path)
        enable(path, passed_on)
        return Tree(hierarchy.version, hierarchy.controllers, path, _opened(path))
    except (OSError, CannotEnforce):
        _destroy(path, hierarchy.version, time.monotonic())
        raise


def _try(tree: Tree, controller: str) -> Support:
    group = Group([tree], f"trial-{controller}")
    try:
        group.make()
        try:
            _TRIALS[controller](group)
        finally:
            group.remove(_TRIAL_SECONDS)
    except (OSError, CannotEnforce) as error:
        return _unsupported(error)
    return Support(True)


def _try_entering(group: Group) -> None:
    _run_in(group, lambda: True)


def _try_memory(group: Group) -> None:
    group.limit(Caps(memory_bytes=_TRIAL_BYTES))
    if _run_in(group, _take_too_much) == _DID_NOT_HOLD or not group.oom_kills():
        raise CannotEnforce("a program took 4 times its limit of memory", "turn off swap, or boot with swapaccount=1")


def _take_too_much() -> bool:
    return not b"x" * (4 * _TRIAL_BYTES)


def _try_pids(group: Group) -> None:
    group.limit(Caps(processes=1))
    if _run_in(group, _fails_to_fork) != _HELD:
        raise CannotEnforce("a process forked in a group limited to one", "use a kernel with the pids controller")


def _fails_to_fork() -> bool:
    try:
        pid = os.fork()
    except BlockingIOError:
        return True
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    return False


def _try_cpu(group: Group) -> None:
    def bites() -> bool:
        if not group.throttled():
            return False
        group.unthrottle()
        return True

    group.limit(Caps(cpus=0.01))
    if _run_in(group, _spin, until=bites) == _DID_NOT_HOLD:
        raise CannotEnforce("a program was not held to 1 % of a processor", "use a kernel with CFS_BANDWIDTH")


def _spin() -> bool:
    deadline = time.monotonic() + _TRIAL_SECONDS / 2
    while time.monotonic() < deadline:
        continue
    return False


_TRIALS: dict[str, Callable[[Group], None]] = {
    "entering": _try_entering,
    "memory": _try_memory,
    "pids": _try_pids,
    "cpu": _try_cpu,
}


def _run_in(group: Group, attempt: Callable[[], bool], until: Callable[[], bool] = lambda: False) -> int:
    """Run `attempt` in a child in the group until it ends or `until` is true. Returns the child's exit code."""
    doors = group.doors()
    try:
        pid = os.fork()
        if pid == 0:
            _run_and_exit(doors, attempt)
    finally:
        close(doors)
    pidfd = os.pidfd_open(pid)
    deadline = time.monotonic() + _TRIAL_SECONDS
    try:
        while not (ended := bool(select.select([pidfd], [], [], 0.002)[0]) or until()):
            if time.monotonic() > deadline:
                break
    finally:
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        os.close(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if not ended:
        raise CannotEnforce(f"trying it took more than {_TRIAL_SECONDS} s", "start again when the machine is less busy")
    if _HELD < code < _DID_NOT_HOLD:
        raise OSError(code, os.strerror(code), "to put a process into the group")
    return code


def _run_and_exit(doors: list[int], attempt: Callable[[], bool]) -> None:
    code = _DID_NOT_HOLD
    try:
        enter(doors)
        code = _HELD if attempt() else _DID_NOT_HOLD
    except OSError as error:
        code = error.errno or _DID_NOT_HOLD
    finally:
        os._exit(code)


def _unsupported(error: OSError | CannotEnforce) -> Support:
    if isinstance(error, CannotEnforce):
        return Support(False, str(error), error.fix)
    number = error.errno or 0
    reason = f"{error.filename}: {error.strerror} ({errno.errorcode.get(number, number)})"
    return Support(False, reason, _FIXES.get(number, "look this error up in the kernel's documentation of cgroups"))


def _not_there(hierarchies: Sequence[Hierarchy]) -> Support:
    """The support of a controller that no hierarchy has."""
    for hierarchy in hierarchies:
        if hierarchy.version == 2:
            fix = f"start by {_DELEGATE}; boot without cgroup_disable, and where needed with cgroup_enable=memory"
            return Support(False, f"it is not in {hierarchy.own}/cgroup.controllers", fix)
    fix = "mount the control groups at /sys/fs/cgroup; give a container a cgroup namespace of its own"
    return Support(False, "it is not mounted where the group of this process can be seen", fix)


_FIXES = {
    errno.EROFS: "mount the control groups writable; a container needs that from its engine (--privileged does it)",
    errno.EACCES: f"start the server as root, or in a group delegated to its user: {_DELEGATE}",
    errno.EPERM: f"start the server as root, or in a group delegated to its user: {_DELEGATE}",
    errno.EBUSY: f"start the server in a group of its own: {_DELEGATE}",
    errno.ENOENT: "use a kernel that has this controller, and a mount that shows the group of this process",
}


# ---- Files


def _oom_file(tree: Tree) -> str:
    return "memory.oom_control" if tree.version == 1 else "memory.events"


def _counter(text: str, key: str) -> int:
    """A value from lines of a name and a number."""
    return next((int(line.split()[1]) for line in text.splitlines() if line.startswith(f"{key} ")), 0)


def _processes(group: str, dir_fd: int | None = None) -> list[int]:
    return [int(pid) for pid in _read(f"{group}/cgroup.procs", dir_fd).split()]


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY)


def _read(path: str, dir_fd: int | None = None) -> str:
    fd = os.open(path, os.O_RDONLY, dir_fd=dir_fd)
    try:
        return b"".join(iter(lambda: os.read(fd, 65536), b"")).decode()
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed since it was opened
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        raise
    finally:
        os.close(fd)


def _write(path: str, value: int | str, dir_fd: int | None = None) -> None:
    fd = os.open(path, os.O_WRONLY, dir_fd=dir_fd)
    try:
        os.write(fd, str(value).encode())
    except OSError as error:
        if error.errno == errno.ENODEV:  # removed since it was opened
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from error
        error.filename = path
        raise
    finally:
        os.close(fd)
