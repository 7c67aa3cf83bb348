"""Who is to blame for an end: a program that exceeds its limits has a result, a host in trouble loses the call."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from toolyard.core.errors import NoRoom, SandboxLost, WorkspaceError
from toolyard.sandboxes import endings, watching
from toolyard.sandboxes.base import Executed, Finished, Limits
from toolyard.sandboxes.endings import HostExhausted, HostKills, unstarted
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.cgroups import Group, Strain, Tree
from toolyard.sandboxes.native.rootfs import place
from toolyard.sandboxes.process_based.launcher import tree
from toolyard.sandboxes.subprocess import SubprocessBackend

pytestmark = pytest.mark.anyio

MiB = 2**20
PYTHON = place(sys.executable)
LIMITS = Limits(memory_bytes=160 * MiB, processes=32, wall_seconds=20)
HUNGRY = f"held = bytearray(b'x') * {100 * MiB}; print(len(held))"
FORKING = "import subprocess; print(subprocess.run(['true']).returncode)"
CATCHING = f"""
import subprocess, sys
print(subprocess.run([sys.executable, "-c", "held = bytearray(b'x') * {100 * MiB}"]).returncode)
"""
"""Ends well, whatever happens to its child."""


@pytest.fixture(scope="module")
async def native(anyio_backend) -> AsyncIterator[NativeBackend]:
    backend = NativeBackend(templates=1, ready=0)
    report = await backend.start()
    try:
        if report.level != "L3":
            pytest.skip("there are no control groups here")
        yield backend
    finally:
        await backend.close()


@contextlib.contextmanager
def host_with(backend: NativeBackend, controller: str, file: str, most: int) -> Iterator[None]:
    """The group around all sandboxes is smaller than one of them may be."""
    tree = next(tree for tree in backend._groups.trees if controller in tree.controllers)
    limit = Path(tree.path, file if tree.version == 1 else file.replace("limit_in_bytes", "max"))
    limit.write_text(str(most))
    try:
        yield
    finally:
        limit.write_text("max" if controller == "pids" or tree.version == 2 else "-1")


def little_memory(backend: NativeBackend) -> contextlib.AbstractContextManager[None]:
    return host_with(backend, "memory", "memory.limit_in_bytes", 64 * MiB)


def few_processes(backend: NativeBackend, most: int) -> contextlib.AbstractContextManager[None]:
    return host_with(backend, "pids", "pids.max", most)


Way = Callable[[NativeBackend, str], Awaitable[Executed | Finished]]


async def alone(backend: NativeBackend, code: str) -> Executed:
    interpreter = await backend.open_interpreter(LIMITS)
    try:
        return await interpreter.exec(code)
    finally:
        await interpreter.close()


async def executed(backend: NativeBackend, code: str) -> Executed:
    async with await backend.open(LIMITS) as box:
        return await box.exec(code)


async def run(backend: NativeBackend, code: str) -> Finished:
    async with await backend.open(LIMITS) as box:
        return await box.run([PYTHON, "-c", code])


async def shelled(backend: NativeBackend, code: str) -> Finished:
    async with await backend.open(LIMITS) as box:
        await box.write("program.py", code.encode())
        return await box.shell("python3 program.py; echo it goes on")


async def started(backend: NativeBackend, code: str) -> None:
    async with await backend.open(LIMITS) as box:
        process = await box.start([PYTHON, "-c", code])
        await process.wait(20)


WAYS = [alone, executed, run, shelled, started]


@pytest.mark.parametrize("way", WAYS)
async def test_a_program_that_the_host_has_no_memory_for_is_lost(native: NativeBackend, way: Way) -> None:
    for code in (HUNGRY, CATCHING):
        with little_memory(native), pytest.raises(HostExhausted, match="the host ran out of memory"):
            await way(native, code)


@pytest.mark.parametrize("way", WAYS)
async def test_a_program_that_the_host_has_no_processes_for_is_lost(native: NativeBackend, way: Way) -> None:
    most = 1 if way is alone else 2  # enough for the sandbox itself
    with few_processes(native, most), pytest.raises(HostExhausted, match="processes"):
        await way(native, FORKING)


async def test_a_program_that_needs_more_memory_than_it_may_has_only_itself_to_blame(native: NativeBackend) -> None:
    hog = HUNGRY.replace(str(100 * MiB), str(300 * MiB))
    assert (await alone(native, hog)).killed_by == "memory"
    async with await native.open(LIMITS) as box:
        assert (await box.exec(hog)).killed_by == "memory"
        with little_memory(native), pytest.raises(HostExhausted):  # earlier kills do not excuse the host
            await box.exec(HUNGRY)
        assert (await box.run([PYTHON, "-c", hog])).killed_by == "memory"
        process = await box.start([PYTHON, "-c", hog])
        assert await process.wait(20)
        assert process.killed_by == "memory"


async def test_an_interpreter_that_the_host_ended_while_nothing_was_asked_of_it_is_lost(native: NativeBackend) -> None:
    async with await native.open(LIMITS) as idle, await native.open(LIMITS) as busy:
        await idle.exec(f"kept = bytearray(b'x') * {40 * MiB}")
        with little_memory(native):  # the kernel kills the largest candidate
            await busy.run([PYTHON, "-c", f"held = bytearray(b'x') * {25 * MiB}"])
        with pytest.raises(HostExhausted, match="the host ran out of memory"):
            await idle.exec("len(kept)")
        assert (await idle.exec("6 * 7")).value == "42"
        assert (await idle.exec("import os; os.kill(os.getpid(), 9)")).error.name == "InterpreterEnded"


async def test_a_sandbox_that_is_full_of_its_own_processes_is_told_so_as_a_result(native: NativeBackend) -> None:
    async with await native.open(Limits(processes=8)) as box:
        crowd = "import subprocess\nfor _ in range(20): subprocess.Popen(['sleep', '30'])"
        assert (await box.exec(crowd)).error.name == "BlockingIOError"
        finished = await box.run(["true"])
        assert (finished.exit_code, finished.killed_by) == (126, None)
        assert b"could not be started" in finished.stderr
        ended = await box.start(["true"])
        assert (ended.exit_code, b"could not be started" in (await ended.read(0))[1]) == (126, True)


FILLING = "for i in range(1000): open(f'{i}', 'wb').write(bytes(2**20))"


async def test_an_agent_that_fills_its_sandbox_with_files_until_that_dies_has_only_itself_to_blame(
    native: NativeBackend,
) -> None:
    async with await native.open(LIMITS) as box:
        assert (await box.exec(FILLING)).killed_by == "memory"
        for _ in range(20):  # until only process 1 is left to kill
            if not box.alive:
                break
            assert (await box.run([PYTHON, "-c", HUNGRY])).killed_by == "memory"
        assert not box.alive
        run, shelled, executed = await box.run(["true"]), await box.shell("true"), await box.exec("1")
        assert (run.exit_code, run.killed_by, shelled.killed_by, executed.killed_by) == (137, *["memory"] * 3)
        assert b"used up all of its memory" in shelled.stderr
        assert executed.state_lost
        assert (await box.start(["true"])).exit_code == 137
        await box.stop_programs()
        with pytest.raises(WorkspaceError, match="used up all of its memory"):
            await box.read("0")


async def test_a_sandbox_that_is_killed_from_outside_is_lost_whatever_it_did_before(native: NativeBackend) -> None:
    async with await native.open(LIMITS) as box:
        assert (await box.exec(HUNGRY.replace(str(100 * MiB), str(300 * MiB)))).killed_by == "memory"
        box._ground.group.signal(signal.SIGKILL)
        for _ in range(2):
            with pytest.raises(SandboxLost, match="the sandbox is gone"):
                await box.run(["true"])


def command_of(pid: int) -> bytes:
    """Empty once it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


async def test_what_the_host_takes_from_a_session_between_two_calls_makes_the_next_one_lost(
    native: NativeBackend,
) -> None:
    async with await native.open(LIMITS) as box:
        waits = "while not os.path.exists('go'): time.sleep(0.01)"
        later = f"import os, time\n{waits}\nheld = bytearray(b'x') * {100 * MiB}"
        await box.exec(f"import subprocess, sys; child = subprocess.Popen([sys.executable, '-c', {later!r}])")
        with little_memory(native):
            await box.write("go", b"")
            async with asyncio.timeout(20):
                while any(waits.encode() in command_of(pid) for pid in tree(os.getpid())):
                    await asyncio.sleep(0.02)
        with pytest.raises(HostExhausted, match="memory"):
            await box.exec("print(child.poll())")
        assert (await box.exec("print(child.wait())")).stdout == "-9\n"


async def test_a_call_in_a_session_opens_no_file_to_see_how_the_host_is(
    native: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with await native.open(LIMITS) as box:
        await box.exec("1")
        opened: list[str] = []
        opening = os.open
        monkeypatch.setattr(
            os, "open", lambda path, *more, **named: (opened.append(path), opening(path, *more, **named))[1]
        )
        for _ in range(3):
            assert (await box.exec("1 + 1")).value == "2"
        assert [path for path in opened if str(path).startswith(("/proc", "/sys"))] == []


def test_a_group_that_was_held_up_by_its_own_limit_was_not_held_up_by_the_host(tmp_path: Path) -> None:
    (tmp_path / "group").mkdir()
    (tmp_path / "group/memory.pressure").write_text("some total=9\nfull avg10=0.00 total=5000000\n")
    directory = os.open(tmp_path, os.O_RDONLY)
    group = Group([Tree(2, frozenset({"memory"}), str(tmp_path), directory)], "group")
    for reached, seconds in ((0, 5.0), (7, 0.0)):
        (tmp_path / "group/memory.events").write_text(f"low 0\nhigh 0\nmax {reached}\noom 0\noom_kill 0\n")
        assert group.memory_stalled() == seconds
    os.close(directory)


async def test_a_program_that_kills_itself_is_not_lost(native: NativeBackend) -> None:
    async with await native.open(LIMITS) as box:
        killed = await box.run(["sh", "-c", "kill -9 $$"])
        assert (killed.exit_code, killed.killed_by) == (137, None)


async def test_a_host_without_room_for_a_sandbox_says_when_to_come_again(native: NativeBackend) -> None:
    unable = OSError(11, "clone3: Resource temporarily unavailable")
    assert isinstance(endings.no_room(unable), NoRoom)
    assert "short of processes" in str(endings.no_room(unable))


# Without control groups that count kills.


async def test_a_kill_that_nobody_ordered_is_the_host_s_if_the_host_ran_out_of_memory(
    anyio_backend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("allocstall_normal 7\noom_kill 3\n")
    monkeypatch.setattr(watching, "host_kills", HostKills(str(vmstat)))
    backend = SubprocessBackend()
    await backend.start()
    async with await backend.open() as box:
        own = await box.run(["sh", "-c", "kill -9 $$"])
        assert (own.exit_code, own.killed_by) == (137, None)
        command = f"printf 'allocstall_normal 9\\noom_kill 4\\n' > {vmstat}; kill -9 $$"
        with pytest.raises(HostExhausted, match="the host ran out of memory"):
            await box.run(["sh", "-c", command])
    await backend.close()


@pytest.mark.parametrize(
    ("last", "lost"), [("os.kill(os.getpid(), 9)", True), ("os.write(3, b'nonsense'); time.sleep(9)", False)]
)
async def test_an_interpreter_that_this_server_had_to_end_is_not_lost_for_a_kill_elsewhere(
    native: NativeBackend, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, last: str, lost: bool
) -> None:
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("allocstall_normal 7\noom_kill 3\n")
    monkeypatch.setattr(watching, "host_kills", HostKills(str(vmstat)))
    async with await native.open(LIMITS) as box:
        box._ground = dataclasses.replace(box._ground, counted=False, memory_enforced=False)
        running = asyncio.ensure_future(box.exec(f"import os, time; time.sleep(0.5); {last}"))
        await asyncio.sleep(0.2)
        vmstat.write_text("allocstall_normal 9\noom_kill 4\n")
        if lost:
            with pytest.raises(HostExhausted):
                await running
        else:
            assert (await running).error.name == "InterpreterEnded"


def test_what_the_host_is_short_of_is_lost_and_how_a_program_was_asked_for_is_a_result() -> None:
    for number in (11, 12, 23, 24):
        with pytest.raises(HostExhausted):
            unstarted(OSError(number, "no room"), "L3", own=False)
        assert unstarted(OSError(number, "no room"), "L3", own=True).exit_code == 126
    assert b"embedded null" in unstarted(ValueError("embedded null byte"), "L3", own=False).stderr


def test_whose_memory_ran_out_is_told_by_the_limit_that_was_reached() -> None:
    before = Strain(oom_kills=1, memory_full=1, forks_refused=2)
    assert before.out_of_memory(before) == before.out_of_processes(before) == ""
    assert before._replace(oom_kills=2).out_of_memory(before) == "host"
    assert before._replace(oom_kills=2, memory_full=2).out_of_memory(before) == "own"
    assert before._replace(forks_refused=3).out_of_processes(before) == "host"
    assert before._replace(forks_refused=3, processes_full=True).out_of_processes(before) == "own"


def test_kills_for_the_limits_of_control_groups_say_nothing_of_the_machine(tmp_path):
    vmstat = tmp_path / "vmstat"
    vmstat.write_text("allocstall_dma 1\nallocstall_normal 7\noom_kill 3\n")
    kills = HostKills(str(vmstat))
    before = kills.now()
    vmstat.write_text("allocstall_dma 1\nallocstall_normal 7\noom_kill 300\n")
    assert kills.now() == before
    vmstat.write_text("allocstall_dma 1\nallocstall_normal 8\noom_kill 301\n")
    assert kills.now() == before + 1
