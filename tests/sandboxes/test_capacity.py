"""A sandbox is refused where there is no room for it, for each limit: real limits where this machine has them, and the
texts of version 2 in plain files of the same names."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from toolyard.core.errors import NoRoom
from toolyard.sandboxes import capacity
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.capacity import Bound, Readings, shortages
from toolyard.sandboxes.groups import LimitedGroup, groups_above
from toolyard.sandboxes.native.cgroups import Hierarchy, own_hierarchies
from toolyard.sandboxes.processors import quota_of
from toolyard.sandboxes.provider import Provider, open_sandbox

pytestmark = pytest.mark.anyio

MiB = 2**20
MANY_FILES = Bound(10, 20_000, "")
ROOM = Bound(100, 32_768, "this machine may have (kernel.pid_max)")
MEMORY = Bound(1024 * MiB, 4096 * MiB, "on this machine")


# What follows from the readings.


def told(count: int = 0, making: int = 0, **readings: Bound) -> list[str]:
    files = readings.get("files", MANY_FILES)
    seen = Readings([ROOM, readings.get("processes", ROOM)], [MEMORY, readings.get("memory", MEMORY)])
    return list(shortages(count, making, files, seen))


def test_with_room_everywhere_nothing_is_short():
    assert told(count=100, making=16) == []


def test_a_limit_of_processes_counts_those_that_are_being_made():
    most = Bound(900, 1000, "the server's user may have (ulimit -u)")
    assert told(making=3, processes=most) == []
    assert told(making=8, processes=most) == [
        "900 of the 1000 processes are there already that the server's user may have (ulimit -u)"
    ]


def test_the_memory_of_a_group_counts_where_the_machine_has_plenty():
    most = Bound(500 * MiB, 512 * MiB, "in the control group /x (memory.max)")
    assert told(memory=most) == ["12 of 512 MiB of memory are left in the control group /x (memory.max)"]
    assert told(memory=most._replace(used=400 * MiB)) == []


def test_files_that_are_spoken_for_count_as_used():
    assert told(count=80, files=Bound(50, 1024, "")) == [
        "80 sandboxes need most of the 1024 files that the server may open (ulimit -n)"
    ]


# The readings.


def test_every_group_around_a_process_is_looked_at():
    hierarchy = Hierarchy(2, frozenset({"memory"}), "/sys/fs/cgroup", "/sys/fs/cgroup/a/b")
    assert [group.path for group in groups_above(hierarchy)] == [
        "/sys/fs/cgroup/a/b",
        "/sys/fs/cgroup/a",
        "/sys/fs/cgroup",
    ]


def group_of_files(folder: Path, version: int, **texts: str) -> LimitedGroup:
    for name, text in texts.items():
        (folder / name.replace("__", ".", 1)).write_text(text)
    return LimitedGroup(version, frozenset({"memory", "pids", "cpu"}), str(folder))


def test_version_2_tells_its_limits_and_what_is_used_without_idle_files(tmp_path):
    texts = {"memory__max": "1000\n", "memory__current": "900\n", "memory__stat": "anon 5\ninactive_file 300\n"}
    group = group_of_files(tmp_path, 2, **texts, pids__max="50\n", pids__current="7\n", cpu__max="150000 100000\n")
    assert [bound[:2] for bound in capacity.groups_memory(group)] == [(600, 1000)]
    assert [bound[:2] for bound in capacity.groups_processes(group)] == [(7, 50)]
    assert quota_of(group) == 1.5


def test_a_group_of_version_2_without_limits_bounds_nothing(tmp_path):
    group = group_of_files(tmp_path, 2, memory__max="max\n", pids__max="max\n", cpu__max="max 100000\n")
    assert [*capacity.groups_memory(group), *capacity.groups_processes(group)] == []
    assert quota_of(group) is None


def test_version_1_tells_its_quota_and_has_no_limit_of_memory_beyond_all_memory(tmp_path):
    texts = {"memory__limit_in_bytes": "9223372036854771712\n", "cpu__cfs_quota_us": "200000\n"}
    group = group_of_files(tmp_path, 1, **texts, cpu__cfs_period_us="100000\n")
    assert [*capacity.groups_memory(group)] == []
    assert quota_of(group) == 2.0
    assert quota_of(group_of_files(tmp_path, 1, cpu__cfs_quota_us="-1\n")) is None


# Real limits, which a separate process runs into.

ASKING = """
import asyncio, json, os, resource, sys, time
from toolyard.core.errors import NoRoom
from toolyard.sandboxes import capacity
from toolyard.sandboxes.provider import Provider, open_sandbox
async def main(limit):
    async with Provider("subprocess", "L0") as provider:
        box = await open_sandbox()
        await box.exec("x = 6")
        limit()
        await asyncio.sleep(capacity._recent.until - time.monotonic())
        told = []
        for opens in (open_sandbox, box.fork):
            try:
                await opens()
                told.append("")
            except NoRoom as error:
                told.append([type(error).__name__, str(error), provider.count])
        limit(None)
        return told
"""


def asked(program: str, *arguments: str) -> list:
    """The results of opening one more sandbox, and of forking an open one."""
    command = [sys.executable, "-c", f"{ASKING}\n{program}\nprint(json.dumps(asyncio.run(main(limit))))", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def check_refused(outcomes: list, why: str) -> None:
    assert len(outcomes) == 2
    for kind, text, count in outcomes:
        assert kind == "NoRoom"
        assert text.startswith("there is no room for another sandbox now: ")
        assert why in text
        assert count == [1, 0]  # no other sandbox was made


@contextmanager
def own_group(controller: str) -> Iterator[str]:
    """A version 1 group of this machine, below ours."""
    own = [one.own for one in own_hierarchies() if one.version == 1 and controller in one.controllers]
    if not own or not os.access(own[0], os.W_OK):
        pytest.skip(f"needs {controller} of version 1, and root")
    path = f"{own[0]}/capacity-test-{os.getpid()}"
    os.mkdir(path)
    try:
        yield path
    finally:
        deadline = time.monotonic() + 10
        while Path(path, "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        os.rmdir(path)


IN_GROUP = """
path, file = sys.argv[1:3]
open(path + "/cgroup.procs", "w").write("0")
def limit(value=int(sys.argv[3])):
    open(f"{path}/{file}", "w").write(str(-1 if value is None and "memory" in file else value or "max"))
"""


def test_a_sandbox_and_a_fork_are_refused_by_the_processes_of_the_servers_own_group():
    with own_group("pids") as path:
        check_refused(asked(IN_GROUP, path, "pids.max", "16"), f"that the control group {path} may have (pids.max)")


def test_a_sandbox_and_a_fork_are_refused_by_the_memory_of_the_servers_own_group():
    with own_group("memory") as path:
        program = IN_GROUP.replace(
            "def limit",
            "held = b'x' * (245 * 2**20)\ndef limit",
        )
        limit = str(256 * MiB)
        check_refused(
            asked(program, path, "memory.limit_in_bytes", limit), f"in the control group {path} (memory.limit_in_bytes)"
        )


FEW_PROCESSES = """
hard = resource.getrlimit(resource.RLIMIT_NPROC)[1]
def limit(value=8):
    user = 0 if value is None else 61234
    os.setresuid(user, user, 0)
    resource.setrlimit(resource.RLIMIT_NPROC, (hard if value is None else value, hard))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to be another user")
def test_a_sandbox_and_a_fork_are_refused_by_the_processes_that_the_servers_user_may_have():
    check_refused(asked(FEW_PROCESSES), "that the server's user may have (ulimit -u)")


FEW_FILES = """
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
def limit(value=40):
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if value is None else value, hard))
    top = os.open(os.devnull, os.O_RDONLY)
    while value is not None and top < 32:
        top = os.dup(top)
"""


def test_a_sandbox_and_a_fork_are_refused_by_the_files_that_the_server_may_open():
    check_refused(asked(FEW_FILES), "of the 40 files that the server may open (ulimit -n)")


@pytest.mark.parametrize("backend", ["native", "subprocess"])
async def test_forks_count_as_the_sandboxes_that_they_are(backend, anyio_backend):
    async with Provider(backend, "L0", ready=0) as provider:
        async with await open_sandbox() as box:
            await box.exec("x = 6")
            branches = await box.fork(2)
            assert provider.count == (3, 0)
            for branch in branches:
                await branch.close()
            assert provider.count == (1, 0)
        assert provider.count == (0, 0)


async def test_a_fork_of_a_native_sandbox_is_refused_before_anything_is_made(anyio_backend):
    async with Provider("native", ready=0) as provider, await open_sandbox(Limits()) as box:
        await box.exec("x = 6")
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        with pytest.raises(NoRoom, match="there is no room for another sandbox now: ") as refused:
            await box.fork(most // capacity.DESCRIPTORS_EACH)
        assert type(refused.value) is NoRoom
        assert provider.count == (1, 0)
        assert (await box.exec("x * 7")).value == "42"


# The cost.


@pytest.mark.alone
def test_ten_thousand_who_ask_at_once_read_the_limits_a_few_times():
    capacity.check(0)
    began = time.process_time()
    capacity.read()
    once = time.process_time() - began
    began = time.process_time()
    for _ in range(10_000):
        capacity.check(0)
    assert time.process_time() - began < max(0.3, 1000 * once)
