"""Control groups, on the real ones of this machine: run as root where memory, pids and cpu are of version 1.

Everything happens in a group that these tests make. What needs version 2's controllers is checked against plain files
of the same names: that the right text goes into the right file, not that the kernel obeys it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import pytest

from toolyard.sandboxes.native import cgroups
from toolyard.sandboxes.native.cgroups import Caps, Group, Groups, Hierarchy, Support

MiB = 2**20
NO_CAPS = Caps()
PYTHON = [sys.executable, "-I", "-S", "-c"]

LOAD = """
import importlib.util, json, os, sys
spec = importlib.util.spec_from_file_location("cgroups", sys.argv[1])
cgroups = importlib.util.module_from_spec(spec)
spec.loader.exec_module(cgroups)
def enter_yard(paths):
    for path in paths:
        with open(path + "/cgroup.procs", "w") as file:
            file.write("0")
"""

BROKER = f"""{LOAD}
caps, uid, yard = json.loads(sys.argv[2])
enter_yard(yard)
if uid:
    os.setgroups([]); os.setgid(uid); os.setuid(uid)
groups = cgroups.Groups.create(cgroups.Caps(*caps))
print(json.dumps([groups.describe(), groups.support]), flush=True)
if sys.stdin.read(1):
    os._exit(0)  # without a word of goodbye
print(json.dumps(groups.remove()), flush=True)
"""

ENTER = """
import os, sys
for door in sys.argv[1:]:
    os.write(int(door), b"0")
"""

FORK_FOR_EVER = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:  # in every child as well
    try:
        os.fork()
    except BlockingIOError:
        continue
"""


class Broker(NamedTuple):
    process: subprocess.Popen[bytes]
    groups: Groups
    support: dict[str, Support]

    def end(self) -> bool:
        output, _ = self.process.communicate(timeout=10)
        return json.loads(output) is True


@pytest.fixture(scope="module")
def yard() -> Iterator[list[Hierarchy]]:
    """Our own group in each hierarchy, in which everything else is made."""
    assert os.geteuid() == 0, "these tests need root, to make groups and to limit them"
    places = []
    for hierarchy in cgroups.own_hierarchies():
        path = f"{hierarchy.own}/toolyard-test-{os.getpid()}"
        os.mkdir(path)
        places.append(hierarchy._replace(mount=path, own=path))
    yield places
    left = [path for place in places for path in below(place.own)]
    for place in sorted(places, key=lambda place: place.version, reverse=True):
        remove(place.own)
    assert left == [], "tests left groups behind"


def below(path: str) -> list[str]:
    return [f"{directory}/{name}" for directory, names, _ in os.walk(path) for name in names]


def remove(path: str) -> None:
    def gone() -> bool:
        for directory, _, _ in os.walk(path, topdown=False):
            for pid in Path(directory, "cgroup.procs").read_text().split():
                os.kill(int(pid), signal.SIGKILL)
            try:
                os.rmdir(directory)
            except OSError as error:
                if error.errno != errno.EBUSY:
                    raise
        return not os.path.isdir(path)

    wait_until(gone)


def wait_until(condition: Callable[[], bool], seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "that did not happen in time"
        time.sleep(0.005)


@contextmanager
def broker(yard: Sequence[Hierarchy], caps: Caps = NO_CAPS, uid: int = 0) -> Iterator[Broker]:
    """A process that makes the parent group, as the broker does; we act as the server."""
    arguments = json.dumps([caps, uid, [place.own for place in yard]])
    command = [*PYTHON, BROKER, cgroups.__file__, arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            description, support = json.loads(process.stdout.readline())
            groups = Groups.at(description)
            yield Broker(process, groups, {name: Support(*values) for name, values in support.items()})
            groups.close()
        finally:
            if process.poll() is None:
                process.communicate(timeout=10)


@pytest.fixture(scope="module")
def groups(yard: list[Hierarchy]) -> Iterator[Groups]:
    with broker(yard) as made:
        missing = {name: support for name, support in made.support.items() if not support.enforced}
        assert not missing, f"these tests need root and control groups of version 1: {missing}"
        yield made.groups


@contextmanager
def group(groups: Groups, caps: Caps = NO_CAPS) -> Iterator[Group]:
    made = groups.new(f"s{time.monotonic_ns()}", caps)
    try:
        yield made
    finally:
        assert made.remove(patience=5)


@contextmanager
def program(group: Group, code: str) -> Iterator[subprocess.Popen[str]]:
    """Python that puts itself into the group and then runs the code."""
    doors = group.doors()
    command = [*PYTHON, ENTER + code, *map(str, doors)]
    with subprocess.Popen(
        command, pass_fds=doors, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        cgroups.close(doors)
        try:
            yield process
        finally:
            process.kill()


def run(group: Group, code: str) -> tuple[int, str, str]:
    with program(group, code) as process:
        stdout, stderr = process.communicate(timeout=20)
        return process.returncode, stdout, stderr


def pids_file(name: str, group: Group, groups: Groups) -> int:
    pids = next(tree for tree in groups.trees if "pids" in tree.controllers)
    return int(Path(pids.path, group.name, name).read_text())


# ---- What this host enforces


def test_this_host_enforces_memory_processes_and_processor_time(yard: list[Hierarchy]) -> None:
    with broker(yard) as made:
        assert made.support == dict.fromkeys(["memory", "pids", "cpu"], Support(True))
        assert made.end()
    assert [path for place in yard for path in below(place.own)] == []


def test_a_user_without_a_delegated_group_is_told_what_is_missing_and_how_to_get_it(yard: list[Hierarchy]) -> None:
    with broker(yard, uid=65534) as made:
        assert set(made.support) == {"memory", "pids", "cpu"}
        for support in made.support.values():
            assert not support.enforced
            assert "EACCES" in support.reason
            assert "Delegate=yes" in support.fix
        assert made.groups.trees == []
        assert made.groups.new("sandbox", Caps(memory_bytes=MiB)).usage() == (0.0, 0, 0)


def test_a_user_with_a_delegated_group_gets_every_limit(yard: list[Hierarchy]) -> None:
    delegated = [place._replace(own=f"{place.own}/delegated") for place in yard]
    for place in delegated:
        os.mkdir(place.own)
        for path in [place.own, f"{place.own}/cgroup.procs"]:
            os.chown(path, 65534, 65534)
    try:
        with broker(delegated, uid=65534) as made:
            assert made.support == dict.fromkeys(["memory", "pids", "cpu"], Support(True))
            assert made.end()
    finally:
        for place in delegated:
            remove(place.own)


def test_only_what_is_delegated_is_enforced_and_the_rest_is_reported(yard: list[Hierarchy]) -> None:
    delegated = [place._replace(own=f"{place.own}/delegated") for place in yard if "pids" in place.controllers]
    for place in delegated:
        os.mkdir(place.own)
        for path in [place.own, f"{place.own}/cgroup.procs"]:
            os.chown(path, 65534, 65534)
    others = [place for place in yard if "pids" not in place.controllers]
    try:
        with broker([*delegated, *others], uid=65534) as made:
            assert {name for name, support in made.support.items() if support.enforced} == {"pids"}
            assert [tree.controllers for tree in made.groups.trees] == [{"pids"}]
    finally:
        for place in delegated:
            remove(place.own)


def test_one_process_has_one_parent_group(yard: list[Hierarchy]) -> None:
    code = f"""{LOAD}
enter_yard(sys.argv[2:])
groups = cgroups.Groups.create()
try:
    cgroups.Groups.create()
except FileExistsError:
    print(all(os.path.isdir(tree.path) for tree in groups.trees))
groups.remove()
"""
    command = [*PYTHON, code, cgroups.__file__, *(place.own for place in yard)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=20)
    assert done.stdout == "True\n"


# ---- Limits


def test_a_program_that_takes_more_memory_than_its_group_has_is_killed_and_counted(groups: Groups) -> None:
    with group(groups, Caps(memory_bytes=32 * MiB)) as sandbox:
        code, _, _ = run(sandbox, "x = bytearray(64 * 2**20)")
        assert code == -signal.SIGKILL
        used = sandbox.usage()
        assert used.oom_kills == sandbox.oom_kills() == 1
        assert 24 * MiB < used.peak_bytes <= 32 * MiB


def test_memory_is_counted_for_all_processes_of_a_group_together(groups: Groups) -> None:
    take = "x = bytearray(24 * 2**20); print(len(x), flush=True); sys.stdin.read()"
    with group(groups, Caps(memory_bytes=40 * MiB)) as sandbox, program(sandbox, take) as first:
        assert first.stdout.readline()
        with program(sandbox, take) as second:
            wait_until(lambda: sandbox.oom_kills() == 1)
            wait_until(lambda: first.poll() is not None or second.poll() is not None)


def test_memory_limits_can_be_raised_and_lowered(groups: Groups) -> None:
    with group(groups, Caps(memory_bytes=16 * MiB)) as sandbox:
        sandbox.limit(Caps(memory_bytes=96 * MiB))
        assert run(sandbox, "x = bytearray(64 * 2**20); print('held')")[:2] == (0, "held\n")
        sandbox.limit(Caps(memory_bytes=32 * MiB))
        assert run(sandbox, "x = bytearray(64 * 2**20)")[0] == -signal.SIGKILL


def test_a_fork_beyond_the_limit_of_processes_fails(groups: Groups) -> None:
    forks = """
made = []
try:
    while len(made) < 10:
        pid = os.fork()
        if pid == 0:
            sys.stdin.read()
            os._exit(0)
        made.append(pid)
except BlockingIOError:
    print(len(made))
"""
    with group(groups, Caps(processes=4)) as sandbox, program(sandbox, forks) as process:
        assert process.stdout.readline() == "3\n"


def test_a_group_gets_no_more_processor_time_than_its_share(groups: Groups) -> None:
    spin = """
import time
end = time.monotonic() + 0.6
while time.monotonic() < end:
    pass
"""
    with group(groups, Caps(cpus=0.2)) as sandbox:
        assert run(sandbox, spin)[0] == 0
        assert sandbox.throttled() >= 3
        assert sandbox.usage().cpu_seconds < 0.3


def test_processor_time_is_that_of_all_processes_ended_ones_too(groups: Groups) -> None:
    spin = """
import time
for _ in range(2):
    if os.fork() == 0:
        while time.process_time() < 0.1:
            pass
        os._exit(0)
    os.wait()
"""
    with group(groups) as sandbox:
        assert run(sandbox, spin)[0] == 0
        assert 0.2 <= sandbox.usage().cpu_seconds < 0.4


def test_the_limits_of_the_parent_hold_for_all_sandboxes_together(yard: list[Hierarchy]) -> None:
    take = "x = bytearray(24 * 2**20); print(len(x), flush=True); sys.stdin.read()"
    with broker(yard, Caps(memory_bytes=40 * MiB)) as made:
        each = Caps(memory_bytes=32 * MiB)
        with group(made.groups, each) as one, group(made.groups, each) as other, program(one, take) as first:
            assert first.stdout.readline()
            with program(other, take):
                wait_until(lambda: one.oom_kills() + other.oom_kills() == 1)
        assert made.end()


def test_a_sandbox_may_ask_for_more_processor_time_than_the_parent_gives_and_gets_what_that_gives(
    yard: list[Hierarchy],
) -> None:
    with broker(yard, Caps(cpus=0.2)) as made:
        with group(made.groups, Caps(cpus=4)) as sandbox:
            spin = "import time\nend = time.monotonic() + 0.5\nwhile time.monotonic() < end: pass"
            assert run(sandbox, spin)[0] == 0
            assert sandbox.usage().cpu_seconds < 0.3
        assert made.end()


def test_a_name_that_is_taken_leaves_the_group_that_has_it_alone(groups: Groups) -> None:
    with group(groups, Caps(processes=7)) as sandbox:
        with pytest.raises(FileExistsError):
            groups.new(sandbox.name, Caps())
        assert sandbox.usage().oom_kills == 0


# ---- Putting processes in, and ending them


def test_another_process_can_be_attached(groups: Groups) -> None:
    with (
        group(groups) as sandbox,
        subprocess.Popen([*PYTHON, "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process,
    ):
        sandbox.attach(process.pid)
        membership = Path(f"/proc/{process.pid}/cgroup").read_text()
        assert membership.count(f"/{sandbox.name}\n") == len(groups.trees)
        process.communicate()


def test_a_zygote_without_sys_works_through_its_descriptors_and_a_child_in_its_own_user_namespace_gets_in(
    groups: Groups, tmp_path: Path
) -> None:
    zygote = f"""{LOAD}
import ctypes, signal
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) != 0:
        raise OSError(ctypes.get_errno(), name)
NEWNS, NEWUSER, INTO_CGROUP, PRIVATE, RECURSIVE, DETACH = 0x20000, 0x10000000, 1 << 33, 1 << 18, 1 << 14, 2
groups = cgroups.Groups.at(json.loads(sys.argv[3]))
call("unshare", NEWNS)
call("mount", None, b"/", None, PRIVATE | RECURSIVE, None)
call("mount", b"none", sys.argv[2].encode(), b"tmpfs", 0, None)
os.chdir(sys.argv[2])
os.mkdir("old")
call("pivot_root", b".", b"old")
os.chdir("/")
call("umount2", b"/old", DETACH)
assert os.listdir("/") == ["old"]

group = groups.new("of-the-zygote", cgroups.Caps(8 * 2**20, 3, 0.5))
directory, doors = group.directory(), group.doors(v2=False)
clone3 = (ctypes.c_uint64 * 11)(NEWUSER | INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, directory)
child = ctypes.PyDLL(None).syscall(435, clone3, ctypes.sizeof(clone3))
if child == 0:
    try:
        cgroups.enter(doors)
        bytearray(32 * 2**20)
    finally:
        os._exit(1)
cgroups.close([directory, *doors])
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
used = group.usage()
print(json.dumps([code, used.oom_kills, used.cpu_seconds > 0, group.remove(0)]))
"""
    done = subprocess.run(
        [*PYTHON, zygote, cgroups.__file__, str(tmp_path), json.dumps(groups.describe())],
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("[-9, 1, true, true]\n", "")


def test_killing_a_group_ends_a_program_that_never_stops_forking(groups: Groups) -> None:
    with group(groups, Caps(processes=20)) as sandbox, program(sandbox, FORK_FOR_EVER):
        wait_until(lambda: pids_file("pids.current", sandbox, groups) == 20)
        assert sandbox.remove(patience=5)


def test_without_version_2_a_program_that_never_stops_forking_is_ended_all_the_same(groups: Groups) -> None:
    old = Groups([tree for tree in groups.trees if tree.version == 1])
    assert len(old.trees) == 3
    with group(old, Caps(processes=20)) as sandbox, program(sandbox, FORK_FOR_EVER):
        wait_until(lambda: pids_file("pids.current", sandbox, groups) == 20)
        sandbox.kill()
        assert pids_file("pids.max", sandbox, groups) == 0, "it could go on forking while it is being killed"
        assert sandbox.remove(patience=5)


def test_a_killed_group_need_not_wait_for_its_next_share_of_processor_time_to_die(groups: Groups) -> None:
    spin = "print(1, flush=True)\nwhile True: pass"
    with group(groups, Caps(cpus=0.01)) as sandbox, program(sandbox, spin) as process:
        wait_until(lambda: sandbox.throttled() >= 2)
        sandbox.kill()
        cpu = next(tree for tree in groups.trees if "cpu" in tree.controllers)
        assert Path(cpu.path, sandbox.name, "cpu.cfs_quota_us").read_text() == "-1\n"
        assert process.wait(timeout=10) == -signal.SIGKILL


def test_a_group_whose_processes_are_still_there_says_so_when_it_cannot_wait(groups: Groups) -> None:
    with group(groups) as sandbox, program(sandbox, "print(1, flush=True); sys.stdin.read()") as process:
        process.stdout.readline()
        assert not sandbox.remove(patience=-1)
        assert process.poll() is None


def test_the_usage_of_a_removed_group_is_an_error_and_not_zero(groups: Groups) -> None:
    with group(groups) as sandbox:
        assert sandbox.remove()
        with pytest.raises(FileNotFoundError):
            sandbox.usage()


def test_a_group_that_another_process_removes_while_it_is_killed_is_gone_and_no_error(groups: Groups, monkeypatch):
    """The broker and the server may both end a group. The kernel knows no file of it from then on, even an open one."""
    with group(groups) as doomed:
        opens = os.open

        def opens_and_loses(path: str, *rest: int, **more: int) -> int:
            opened = opens(path, *rest, **more)
            if path.startswith(f"{doomed.name}/"):
                for tree in doomed._trees:
                    with suppress(FileNotFoundError):
                        os.rmdir(doomed.name, dir_fd=tree.fd)
            return opened

        monkeypatch.setattr(os, "open", opens_and_loses)
        doomed.kill()
        monkeypatch.undo()
        assert doomed.remove()


def test_the_broker_ends_what_is_in_its_groups_and_leaves_nothing(yard: list[Hierarchy]) -> None:
    with broker(yard) as made:
        sandbox = made.groups.new("sandbox", Caps(cpus=0.05))
        with program(sandbox, "print(1, flush=True)\nwhile True: pass") as process:
            process.stdout.readline()
            assert made.end()
            assert process.wait(timeout=10) == -signal.SIGKILL
    assert not any(os.path.isdir(tree.path) for tree in made.groups.trees)


# ---- Orphans


def test_the_groups_of_a_dead_broker_are_removed_with_a_process_that_still_lives_in_them(yard: list[Hierarchy]) -> None:
    with broker(yard) as made:
        paths = [tree.path for tree in made.groups.trees]
        sandbox = made.groups.new("sandbox", Caps())
        with program(sandbox, "print(1, flush=True); sys.stdin.read()") as process:
            process.stdout.readline()
            made.process.kill()
            os.waitid(os.P_PID, made.process.pid, os.WEXITED | os.WNOWAIT)  # dead, but not reaped
            assert process.poll() is None
            swept = cgroups.sweep(yard)
            assert sorted(swept.removed) == sorted(paths)
            assert swept.left == []
            assert process.wait(timeout=10) == -signal.SIGKILL
    assert not any(os.path.isdir(path) for path in paths)


def test_the_groups_of_a_live_broker_are_left_alone(yard: list[Hierarchy]) -> None:
    with broker(yard) as made:
        sandbox = made.groups.new("sandbox", Caps())
        with program(sandbox, "print(1, flush=True); sys.stdin.read()") as process:
            process.stdout.readline()
            ours = {tree.path for tree in made.groups.trees}
            assert ours.isdisjoint(cgroups.sweep().removed)
            assert cgroups.sweep(yard) == ([], [])
            assert process.poll() is None
            assert all(os.path.isdir(path) for path in ours)
        assert made.end()


@pytest.mark.parametrize("without_kill_file", [False, True])
def test_sweeping_ends_a_program_that_never_stops_forking(yard: list[Hierarchy], without_kill_file: bool) -> None:
    with broker(yard) as made:
        versions = [1] if without_kill_file else [1, 2]
        trees = [tree for tree in made.groups.trees if tree.version in versions]
        sandbox = Groups(trees).new("sandbox", Caps(processes=20))
        with program(sandbox, FORK_FOR_EVER):
            wait_until(lambda: pids_file("pids.current", sandbox, made.groups) == 20)
            made.process.communicate(b"x", timeout=10)
            swept = cgroups.sweep([place for place in yard if place.version in versions], patience=10)
            assert swept.left == []
            assert len(swept.removed) == len(trees)
        cgroups.sweep(yard)


def test_another_process_with_the_number_of_a_dead_broker_does_not_keep_its_groups(yard: list[Hierarchy]) -> None:
    prefix, start = cgroups.name_of_broker(os.getpid()).rsplit("-", 1)
    path = f"{yard[0].own}/{prefix}-{int(start) - 1}"
    os.makedirs(f"{path}/sandbox/deeper")
    assert cgroups.sweep(yard) == ([path], [])


@pytest.mark.parametrize("name", ["toolyard-1-999999999-5", "toolyard-mine", "tool-4026531836-999999999-5", "other"])
def test_what_is_not_known_to_be_an_orphan_of_ours_stays(yard: list[Hierarchy], name: str) -> None:
    path = f"{yard[0].own}/{name}"
    os.mkdir(path)
    try:
        assert cgroups.sweep(yard) == ([], [])
        assert os.path.isdir(path)
    finally:
        os.rmdir(path)


def test_a_process_does_not_sweep_the_group_that_it_is_in(yard: list[Hierarchy]) -> None:
    prefix, start = cgroups.name_of_broker(os.getpid()).rsplit("-", 1)
    path = f"{yard[0].own}/{prefix}-{int(start) - 1}"
    os.makedirs(f"{path}/sandbox")
    inside = yard[0]._replace(own=f"{path}/sandbox")
    assert cgroups.sweep([inside]) == ([], [])
    assert cgroups.sweep([yard[0]]) == ([path], [])


# ---- Where our groups are

HYBRID_MOUNTS = """\
31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
40 31 0:37 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,name=systemd
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
"""


def test_hierarchies_of_both_versions_are_found_with_our_group_in_each() -> None:
    membership = "9:name=systemd:/a\n5:devices:/\n4:memory:/jobs/7\n2:cpu,cpuacct:/\n0::/user.slice\n"
    assert cgroups.find_hierarchies(HYBRID_MOUNTS, membership) == [
        Hierarchy(1, frozenset({"memory"}), "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/jobs/7"),
        Hierarchy(1, frozenset({"cpu", "cpuacct"}), "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct"),
        Hierarchy(2, frozenset(), "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/user.slice"),
    ]


@pytest.mark.parametrize(
    ("root", "group", "own"),
    [
        ("/", "/user.slice/run-5.scope", "/a b/user.slice/run-5.scope"),
        ("/", "/", "/a b"),
        ("/docker/0a", "/docker/0a", "/a b"),
        ("/docker/0a", "/docker/0a/job:1", "/a b/job:1"),
        ("/docker/0a", "/docker/0ab", None),
        ("/docker/0a", "/", None),
        ("/", "/../other", None),
        ("/..", "/", None),
    ],
)
def test_our_group_is_found_where_the_mount_shows_it(root: str, group: str, own: str | None) -> None:
    found = cgroups.find_hierarchies(f"41 31 0:38 {root} /a\\040b ro - cgroup2 cgroup2 rw\n", f"0::{group}\n")
    assert [hierarchy.own for hierarchy in found] == ([] if own is None else [own])


# ---- Version 2


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Path]:
    """The files of a version 2 group; later kernels have files that earlier ones lack."""
    sandbox = tmp_path / "parent" / "sandbox"
    sandbox.mkdir(parents=True)
    for name in ["memory.max", "memory.oom.group", "memory.swap.max", "pids.max", "cpu.max", "cgroup.procs"]:
        (sandbox / name).write_text("")
    (sandbox / "cgroup.kill").write_text("")
    (sandbox / "memory.peak").write_text("7340032\n")
    (sandbox / "memory.events").write_text("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 1\n")
    (sandbox / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\nnr_periods 8\nnr_throttled 4\n")
    return sandbox


@pytest.fixture
def on_version_2(files: Path) -> Iterator[Group]:
    groups = Groups.at([(2, ["cpu", "memory", "pids"], str(files.parent))])
    yield groups.group("sandbox")
    groups.close()


def contents(files: Path, *names: str) -> list[str]:
    return [(files / name).read_text() for name in names]


def test_version_2_limits_go_into_its_files(files: Path, on_version_2: Group) -> None:
    on_version_2.limit(Caps(memory_bytes=64 * MiB, processes=5, cpus=1.5, oom_kills_all=True))
    assert contents(files, "memory.max", "memory.swap.max", "memory.oom.group") == ["67108864", "0", "1"]
    assert contents(files, "pids.max", "cpu.max") == ["5", "150000 100000"]


def test_version_2_without_swap_accounting_has_the_other_limits(files: Path, on_version_2: Group) -> None:
    (files / "memory.swap.max").unlink()
    on_version_2.limit(Caps(memory_bytes=64 * MiB))
    assert contents(files, "memory.max", "memory.oom.group") == ["67108864", ""]


def test_version_2_usage_comes_from_its_files(files: Path, on_version_2: Group) -> None:
    assert on_version_2.usage() == (1.5, 7 * MiB, 2)
    assert on_version_2.throttled() == 4
    (files / "memory.peak").unlink()
    assert on_version_2.usage() == (1.5, 0, 2)


def test_version_2_takes_processes_by_clone_by_door_or_by_number(files: Path, on_version_2: Group) -> None:
    directory = on_version_2.directory()
    assert directory is not None
    assert os.path.samestat(os.fstat(directory), files.stat())
    os.close(directory)
    assert on_version_2.doors(v2=False) == []
    on_version_2.attach(99, v2=False)
    assert contents(files, "cgroup.procs") == [""]
    cgroups.enter(on_version_2.doors())
    assert contents(files, "cgroup.procs") == ["0"]
    on_version_2.attach(99)
    assert contents(files, "cgroup.procs") == ["99"]


def test_version_2_kills_by_its_file_and_lifts_the_quota_before(files: Path, on_version_2: Group) -> None:
    on_version_2.kill()
    assert contents(files, "cgroup.kill", "cpu.max") == ["1", "max"]


def test_at_the_root_of_a_host_controllers_are_passed_on_and_nobody_moves(tmp_path: Path) -> None:
    (tmp_path / "cgroup.subtree_control").write_text("cpu io\n")
    (tmp_path / "cgroup.procs").write_text("1\n2\n")
    cgroups.enable(str(tmp_path), ["cpu", "memory", "pids"])
    assert (tmp_path / "cgroup.subtree_control").read_text().startswith("+memory +pids")
    assert not (tmp_path / cgroups.OUTSIDE).exists()


@pytest.fixture
def populated(yard: list[Hierarchy]) -> Iterator[tuple[str, int]]:
    """A real version 2 group with a process in it, and that process."""
    unified = next(place for place in yard if place.version == 2)
    path = f"{unified.own}/populated"
    os.mkdir(path)
    with subprocess.Popen([*PYTHON, "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        Path(path, "cgroup.procs").write_text(str(process.pid))
        yield path, process.pid
        process.communicate()
    remove(path)


def group_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()[-1].rpartition("/")[2]


def test_processes_step_aside_in_a_delegated_group_and_are_put_back(populated: tuple[str, int]) -> None:
    own, pid = populated
    os.setxattr(own, "user.delegate", b"1")
    cgroups._step_aside(own)
    assert group_of(pid) == cgroups.OUTSIDE
    cgroups.disable(own)
    assert group_of(pid) == "populated"
    assert below(own) == []


def test_processes_that_stepped_aside_stay_there_while_a_broker_has_its_groups(populated: tuple[str, int]) -> None:
    own, pid = populated
    os.setxattr(own, "user.delegate", b"1")
    cgroups._step_aside(own)
    living = f"{own}/{cgroups.name_of_broker(os.getpid())}"
    os.mkdir(living)
    cgroups.disable(own)
    assert group_of(pid) == cgroups.OUTSIDE
    os.rmdir(living)
    cgroups.disable(own)
    assert group_of(pid) == "populated"


def test_processes_are_put_back_when_the_controllers_cannot_be_had(populated: tuple[str, int]) -> None:
    own, pid = populated
    os.setxattr(own, "user.delegate", b"1")
    with pytest.raises(FileNotFoundError):
        cgroups.enable(own, ["memory"])  # this controller is in version 1 here
    assert group_of(pid) == "populated"
    assert below(own) == []


def test_nobody_is_moved_in_a_group_that_is_not_delegated(populated: tuple[str, int]) -> None:
    own, pid = populated
    with pytest.raises(cgroups.CannotEnforce, match="not delegated") as refused:
        cgroups.enable(own, ["memory"])
    assert "Delegate=yes" in refused.value.fix
    assert group_of(pid) == "populated"
    assert below(own) == []


def test_sweeping_puts_back_those_who_stepped_aside_for_a_dead_broker(
    yard: list[Hierarchy], populated: tuple[str, int]
) -> None:
    own, pid = populated
    os.setxattr(own, "user.delegate", b"1")
    cgroups._step_aside(own)
    prefix, start = cgroups.name_of_broker(os.getpid()).rsplit("-", 1)
    orphan = f"{own}/{prefix}-{int(start) - 1}"
    os.mkdir(orphan)
    assert cgroups.sweep(yard) == ([orphan], [])
    assert group_of(pid) == "populated"
    assert below(own) == []
