"""The backends of ordinary processes: without walls, bubblewrap, and containers."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.sandboxes import backends
from tests.sandboxes.backends import StandIn
from toolyard.core.errors import CannotFork, SandboxLost, SandboxUnavailable
from toolyard.sandboxes import bubblewrap
from toolyard.sandboxes.base import Backend, Limits, Sandbox
from toolyard.sandboxes.bubblewrap import BubblewrapBackend
from toolyard.sandboxes.installation import own
from toolyard.sandboxes.process_based import origin, room
from toolyard.sandboxes.subprocess import SubprocessBackend
from toolyard.sandboxes.view import View

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The directory in which backends make theirs, for this test alone."""
    directory = tmp_path / "temporary"
    directory.mkdir(mode=0o711)
    monkeypatch.setattr(tempfile, "tempdir", str(directory))
    return directory


@pytest.fixture
def stand_in(tmp_path) -> StandIn:
    (tmp_path / "engine").mkdir()
    return StandIn(tmp_path / "engine")


@contextlib.asynccontextmanager
async def started(backend: Backend) -> AsyncIterator[Backend]:
    await backend.start()
    try:
        yield backend
    finally:
        await backend.close()


def sleeping(number: str) -> list[str]:
    """Processes that sleep for so long."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes() == f"sleep\0{number}\0".encode():
                found.append(pid)
    return found


async def until(condition, seconds: float = 10) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        await asyncio.sleep(0.02)
    return True


# A server that is killed. It opens a sandbox, starts sleeping programs, and reports that it is ready.

SERVER = """
import asyncio, sys, tempfile
sys.path.insert(0, {path!r})
tempfile.tempdir = {temporary!r}
from tests.sandboxes.backends import *
async def main():
    backend = {backend}
    await backend.start()
    box = await backend.open()
    await box.exec("import subprocess; subprocess.Popen(['sleep', '{number}'])")
    await box.shell("setsid sleep {number} >/dev/null 2>&1 &")
    running = asyncio.ensure_future(box.run(["sleep", "{number}"]))
    await box.start(["sleep", "{number}"])
    await asyncio.sleep(0.5)
    print("ready", flush=True)
    await running
asyncio.run(main())
"""


@contextlib.contextmanager
def server(backend: str, temporary: Path, number: str) -> Iterator[subprocess.Popen[bytes]]:
    path = str(Path(__file__).parents[2])
    code = SERVER.format(path=path, temporary=str(temporary), backend=backend, number=number)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            yield process
        finally:
            process.kill()


async def test_what_a_killed_server_leaves_without_walls_is_swept_by_the_next(temporary):
    number = str(1_000_000 + os.getpid())
    with server("SubprocessBackend()", temporary, number) as process:
        assert await until(lambda: len(sleeping(number)) == 4)
        async with started(SubprocessBackend()):
            assert len(sleeping(number)) == 4  # the server and its programs are alive
        process.kill()
        process.wait()
        assert len(list(temporary.iterdir())) == 1
        async with started(SubprocessBackend()):
            assert sleeping(number) == []
            assert list(temporary.iterdir()) == []


async def test_when_a_server_is_killed_the_kernel_ends_what_bubblewrap_holds(temporary):
    number = str(2_000_000 + os.getpid())
    backends.bubblewrap()
    with server("BubblewrapBackend()", temporary, number) as process:
        assert await until(lambda: len(sleeping(number)) == 4)
        process.kill()
        process.wait()
        assert await until(lambda: not sleeping(number))
        async with started(BubblewrapBackend()):
            assert list(temporary.iterdir()) == []


async def test_when_a_server_is_killed_its_containers_end(temporary, stand_in):
    number = str(3_000_000 + os.getpid())
    made = f"StandIn.__new__(StandIn).__class__.backend(type('S', (), dict(program={str(stand_in.program)!r}))())"
    with server(made, temporary, number) as process:
        assert await until(lambda: len(sleeping(number)) == 4)
        process.kill()
        process.wait()
        assert await until(lambda: not sleeping(number))
        assert await until(lambda: not stand_in.containers())


async def test_only_what_nobody_owns_is_swept(temporary):
    mine = origin.make_directory("subprocess")
    pid, moment, namespace, boot = origin.mine().split("-")
    for name, gone in {
        f"{pid}-{moment}-{namespace}-{boot}": False,
        f"{pid}-{int(moment) + 9}-{namespace}-{boot}": True,  # the pid was reused
        f"4194305-{moment}-{namespace}-{boot}": True,
        f"4194305-{moment}-1-{boot}": False,  # from another namespace, where it may be alive
        f"4194305-{moment}-{namespace}-feedfeedfeed": False,
        "nonsense": False,
    }.items():
        assert origin.is_gone(name) is gone, name
    assert origin.is_gone(f"{pid}-{moment}-{namespace}-feedfeedfeed", any_system=True)
    (temporary / f"toolyard-subprocess-4194305-1-{namespace}-{boot}-x").mkdir()
    (temporary / f"toolyard-subprocess-4194305-1-{namespace}-{boot}-y").symlink_to(mine)
    (temporary / "toolyard-subprocess-other").mkdir()
    async with started(SubprocessBackend()):
        left = sorted(path.name.rpartition("-")[2] for path in temporary.iterdir())
        assert left == sorted([mine.name.rpartition("-")[2], "y", "other"])


# Without walls.


async def test_that_nothing_is_isolated_is_said_loudly(caplog):
    async with started(SubprocessBackend()) as backend:
        assert "DO NOT ISOLATE" in caplog.text
        assert caplog.records[0].levelname == "WARNING"
        assert caplog.records[0].name == "toolyard.sandbox"
        assert backend.report().level == "L0"
        assert set(backend.report().layers.values()) == {"none", "data of each process, watched"}


async def test_a_program_that_leaves_its_group_and_its_parents_is_found_by_its_environment():
    number = str(4_000_000 + os.getpid())
    async with started(SubprocessBackend()) as backend, await backend.open() as box:
        done = await box.run(
            ["sh", "-c", f"(setsid setsid sleep {number} </dev/null >/dev/null 2>&1 &) & wait; sleep 0.2"]
        )
        assert done.exit_code == 0
        assert sleeping(number) == []


async def test_memory_of_all_processes_together_is_watched():
    code = "import os, time\nx = bytearray(60 * 2**20)\nos.fork(); os.fork()\nx = bytearray(60 * 2**20)\ntime.sleep(20)"
    for backend in (SubprocessBackend(), backends.bubblewrap()):
        async with started(backend), await backend.open(Limits(memory_bytes=200 * 2**20)) as box:
            done = await box.run([sys.executable, "-c", code])
            assert done.killed_by == "memory", done


async def test_a_directory_that_programs_made_unreadable_is_removed_all_the_same(temporary):
    async with started(SubprocessBackend()) as backend, await backend.open() as box:
        await box.run(["sh", "-c", "mkdir -p a/b/c; touch a/b/c/file; chmod 0 a/b/c a/b a ."])
    assert list(temporary.iterdir()) == []


async def leave(program) -> None:
    """Act as if it could not be killed."""


async def test_a_program_that_cannot_be_ended_is_a_lost_sandbox_and_no_timeout_of_its_user(monkeypatch):
    async with started(SubprocessBackend()) as backend, await backend.open() as box:
        monkeypatch.setattr(room, "_END_SECONDS", 0.05)
        monkeypatch.setattr(box._room, "kill", leave)
        with pytest.raises(SandboxLost, match="it does not end its programs"):
            await box.run(["sleep", "60"], timeout=0.1)
        monkeypatch.undo()


DEEP = "import os\nfor _ in range(1500):\n    os.mkdir('deep'); os.chdir('deep')\nopen('file', 'w').close()"
"""Deeper than Python can descend, and longer than a path may be."""


@pytest.mark.parametrize("kind", [SubprocessBackend, backends.bubblewrap])
async def test_what_programs_buried_deep_is_removed_and_cannot_be_forked(kind, temporary):
    async with started(kind()) as backend, await backend.open() as box:
        assert (await box.run(["python3", "-c", DEEP])).exit_code == 0
        with pytest.raises(CannotFork, match="the workspace cannot be copied"):
            await box.fork()
        assert (await box.run(["echo", "hello"])).stdout == b"hello\n"
    assert list(temporary.iterdir()) == []


async def test_what_programs_of_a_killed_server_buried_deep_is_swept_too(temporary):
    ended = python("from toolyard.sandboxes.process_based import origin; print(origin.mine())", temporary)
    left = temporary / f"toolyard-subprocess-{ended}-left"
    left.mkdir()
    python(DEEP, left)
    async with started(SubprocessBackend()):
        assert list(temporary.iterdir()) == []


def python(code: str, directory: Path) -> str:
    """The output of a separate Python process."""
    argv = [sys.executable, "-c", code]
    return subprocess.run(argv, cwd=directory, capture_output=True, check=True, text=True).stdout.strip()


async def test_a_profile_that_is_not_installed_is_refused_by_name():
    view = View(replace(own(), libraries={}))
    with pytest.raises(SandboxUnavailable, match="'ipython' needs IPython"):
        await SubprocessBackend(view).open(profile="ipython")


# Branches that run the code again.


@pytest.fixture
async def box() -> AsyncIterator[Sandbox]:
    async with await SubprocessBackend().open() as sandbox:
        yield sandbox


async def test_code_that_failed_is_not_run_again_in_a_branch(box):
    await box.exec("x = 1")
    await box.exec("x = 2; 1 / 0")
    await box.exec("y = 3")
    await box.exec("while True: pass", timeout=0.3)
    (branch,) = await box.fork()
    assert (await branch.exec("x, y")).value == "(1, 3)"
    await branch.close()


async def test_a_branch_that_does_not_come_out_the_same_is_refused(box):
    await box.exec("import os\nif os.path.exists('once'): raise RuntimeError('again')\nopen('once', 'w').close()")
    before = set(tempfile.gettempdir().split()) | set(os.listdir(tempfile.gettempdir()))
    with pytest.raises(CannotFork, match="code 1 of 1 failed when it was run again: RuntimeError: again"):
        await box.fork(2)
    assert not [name for name in set(os.listdir(tempfile.gettempdir())) - before if "toolyard-subprocess" in name]
    assert (await box.exec("1")).value == "1"


async def test_what_a_lost_interpreter_had_is_not_in_a_branch(box):
    await box.exec("x = 1")
    await box.exec("import os; os._exit(0)")
    await box.exec("y = 2")
    (branch,) = await box.fork()
    assert (await branch.exec("y")).value == "2"
    assert (await branch.exec("x")).error.name == "NameError"
    await branch.close()


async def test_a_branch_has_the_files_as_they_were_whatever_its_code_does_again(box):
    await box.exec("open('log', 'a').write('line')")
    await box.exec("import os; os.remove('log'); open('new', 'w').close()")
    await box.run(
        ["sh", "-c", "mkdir empty; ln -s new link; printf '#!/bin/sh\\necho runs' > program; chmod +x program"]
    )
    (branch,) = await box.fork()
    assert [(entry.name, entry.kind) for entry in await branch.list()] == [
        ("empty", "directory"),
        ("link", "link"),
        ("new", "file"),
        ("program", "file"),
    ]
    assert (await branch.run(["./program"])).stdout == b"runs\n"
    await branch.close()


# Bubblewrap.


async def test_without_bwrap_it_is_said_how_to_get_it(monkeypatch):
    monkeypatch.setattr(bubblewrap, "find_program", lambda: None)
    with pytest.raises(SandboxUnavailable, match="apt install bubblewrap"):
        await BubblewrapBackend().start()


async def test_a_bwrap_that_does_not_work_is_refused_with_its_own_words(tmp_path):
    broken = tmp_path / "bwrap"
    broken.write_text("#!/bin/sh\necho 'bwrap: No permissions to create new namespace' >&2\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SandboxUnavailable, match=r"No permissions to create new namespace.*sysctl"):
        await BubblewrapBackend(str(broken)).start()


async def test_a_bwrap_that_builds_no_walls_is_refused(tmp_path):
    """Programs find out by trying, whatever it claims."""
    broken = tmp_path / "bwrap"
    broken.write_text('#!/bin/sh\nwhile [ "$1" != -- ]; do shift; done\nshift\nexec "$@"\n')
    broken.chmod(0o755)
    with pytest.raises(
        SandboxUnavailable, match="files, network, processes, signals, user, privileges, system calls could be got"
    ):
        await BubblewrapBackend(str(broken)).start()


async def test_the_packaged_bwrap_works_like_the_systems(monkeypatch):
    monkeypatch.setattr(bubblewrap.shutil, "which", lambda name: None)
    program = bubblewrap.find_program()
    assert program is not None
    assert "site-packages" in program or ".venv" in program
    async with started(BubblewrapBackend(program)) as backend, await backend.open() as box:
        assert (await box.exec("6 * 7")).value == "42"


async def test_programs_see_a_small_system_of_their_own():
    backend = backends.bubblewrap()
    async with started(backend), await backend.open() as box:
        done = await box.run(
            ["sh", "-c", "id -un; pwd; hostname; ls /; cat /etc/passwd | wc -l; ls /home /root /srv /mnt"]
        )
        lines = done.stdout.decode().split()
        assert lines[:3] == ["agent", "/home/work", "sandbox"]
        assert not {"sys", "boot", "srv", "opt"} & set(lines)
        assert "2" in lines
        for place in ("/", "/usr", "/etc", "/dev", "/proc"):
            assert (await box.run(["touch", f"{place}/x"])).exit_code != 0, place
        for place in (".", "/tmp", "/dev/shm"):
            assert (await box.run(["touch", f"{place}/x"])).exit_code == 0, place


async def test_the_network_is_the_hosts_only_if_that_was_asked_for():
    backend = backends.bubblewrap()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connect = f"import socket; socket.create_connection(('127.0.0.1', {listener.getsockname()[1]}), 2).close()"
        own = "s = socket.create_server(('127.0.0.1', 0))\nsocket.create_connection(s.getsockname(), 2).close()"
        async with started(backend):
            for network, reached in ("none", False), ("loopback", False), ("host", True):
                async with await backend.open(Limits(network=network)) as box:
                    assert ((await box.exec(connect)).error is None) is reached
                    assert (await box.exec(own)).error is None


async def test_what_a_program_may_ask_of_the_kernel_is_filtered():
    backend = backends.bubblewrap()
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def errno(result): return ctypes.get_errno() if result == -1 else 0
[errno(libc.unshare(0x10000000)), errno(libc.syscall(425, 1, 0)), errno(libc.mount(b'a', b'/', b'tmpfs', 0, 0)),
 errno(libc.ptrace(16, 1, 0, 0)), errno(libc.syscall(321, 0, 0, 0))]
"""
    async with started(backend), await backend.open() as box:
        assert 0 not in eval((await box.exec(code)).value)


async def test_closing_leaves_no_namespace_behind():
    backend = backends.bubblewrap()
    number = str(5_000_000 + os.getpid())
    async with started(backend):
        box = await backend.open()
        await box.shell(f"for n in 1 2 3; do setsid sleep {number} & done")
        await box.start(["sleep", number])
        assert await until(lambda: len(sleeping(number)) == 4)
        await box.close()
        assert sleeping(number) == []


# Containers, with a stand-in for the engine.


async def test_the_command_line_of_a_container_leaves_it_no_rights(stand_in):
    limits = Limits(memory_bytes=10**8, processes=10, cpus=0.5, disk_bytes=5000, disk_files=50)
    async with started(stand_in.backend()) as backend, await backend.open(limits):
        command = stand_in.commands("run")[-1]
        for options in (
            ["--network", "none"],
            ["--cap-drop", "ALL"],
            ["--security-opt", "no-new-privileges"],
            ["--user", "0:0"],
            ["--memory", "100000000"],
            ["--memory-swap", "100000000"],
            ["--pids-limit", "18"],
            ["--cpus", "0.5"],
            ["--tmpfs", "/home/work:rw,exec,nosuid,nodev,mode=1777,size=5000,nr_inodes=50"],
            ["--label", f"toolyard.server={origin.mine()}"],
        ):
            at = command.index(options[0]) if options[0] != "--tmpfs" else command.index(options[1]) - 1
            assert command[at : at + 2] == options
        assert {"--rm", "--init", "--read-only", "--interactive"} < set(command)
        assert command[-2:] == ["image", "cat"]
        assert not [part for part in command if "volume" in part or "privileged" in part or part == "-v"]


async def test_podman_is_not_told_what_it_does_not_understand(stand_in):
    async with started(stand_in.backend("podman")) as backend, await backend.open() as box:
        assert backend.name == box.report().backend == "podman"
        assert not [part for part in stand_in.commands("run")[-1] if "nr_inodes" in part]


async def test_no_container_sees_the_servers_environment(stand_in, monkeypatch):
    monkeypatch.setenv("SECRET_OF_THE_SERVER", "a-secret-word")
    async with started(stand_in.backend()) as backend, await backend.open() as box:
        assert b"a-secret-word" not in (await box.run(["env"], env={"A": "1"})).stdout
        assert not [part for command in stand_in.commands("exec") for part in command if "a-secret-word" in part]


async def test_an_engine_leaves_its_files_in_a_folder_of_ours(stand_in, tmp_path, monkeypatch):
    """Podman writes one where it runs, when a program needed too much memory: not into the operator's folder."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    async with started(stand_in.backend()) as backend, await backend.open() as box:
        assert (await box.run(["true"])).exit_code == 0
        assert (backend._folder / "oom").exists()
    assert [*here.iterdir()] == []


async def test_an_engine_that_isolates_nothing_is_found_out(stand_in):
    """The stand-in isolates nothing, and the level says so: programs find out by trying, whatever its name."""
    async with started(stand_in.backend()) as backend:
        report = backend.report()
        assert report.level == "L0"
        assert {missing.feature for missing in report.missing} >= {"files", "network", "processes", "memory"}
        assert all(missing.fix for missing in report.missing)


async def test_an_engine_that_cannot_be_reached_is_refused_with_its_own_words(stand_in):
    stand_in.stop()
    with pytest.raises(SandboxUnavailable, match=r"docker cannot be reached: Cannot connect to the .*\. Is the docker"):
        await stand_in.backend().start()


async def test_an_engine_that_is_not_there_is_refused(tmp_path):
    backend = StandIn.__new__(StandIn)
    backend.program = tmp_path / "absent"
    with pytest.raises(SandboxUnavailable, match="there is no program"):
        await StandIn.backend(backend).start()


async def test_an_image_that_is_not_there_is_refused_and_nothing_is_left(stand_in):
    with pytest.raises(SandboxUnavailable, match=r"docker has no image 'missing'.*: docker pull missing ") as refused:
        await stand_in.backend(image="missing").start()
    assert stand_in.containers() == []
    assert "Error: missing: No such image" in str(refused.value), "the engine's words, on one line"
    assert stand_in.commands("run") == [], "nothing is tried that could pull it"


async def test_no_container_is_started_in_a_way_that_could_pull_an_image(stand_in):
    async with started(stand_in.backend()) as backend, await backend.open():
        for arguments in stand_in.commands("run"):
            assert arguments[:2] == ["--pull", "never"]
    assert {command[0] for command in stand_in.all_commands()} <= {"version", "image", "ps", "run", "exec", "rm"}


async def test_a_container_that_ends_by_itself_is_a_lost_sandbox(stand_in):
    async with started(stand_in.backend()) as backend, await backend.open() as box:
        await box.exec("x = 1")
        (name,) = stand_in.containers()
        first = int((stand_in.directory / "containers" / name / "first").read_text())
        os.kill(first, signal.SIGKILL)
        assert await until(lambda: not stand_in.containers())
        for attempt in (lambda: box.exec("x"), lambda: box.run(["true"]), lambda: box.shell("true")):
            with pytest.raises(SandboxLost, match="the sandbox is gone"):
                await attempt()


async def test_closing_removes_the_container(stand_in):
    async with started(stand_in.backend()) as backend:
        box = await backend.open()
        assert len(stand_in.containers()) == 1
        await box.close()
        assert stand_in.containers() == []
        assert stand_in.commands("rm")[-1][0] == "--force"


async def test_containers_of_servers_that_are_gone_are_removed_and_no_others(stand_in):
    _, moment, namespace, boot = origin.mine().split("-")
    labels = {"gone": f"4194305-{moment}-{namespace}-{boot}", "mine": origin.mine(), "elsewhere": "1-1-1-feedfeedfeed"}
    for name, label in labels.items():
        container = stand_in.directory / "containers" / name
        container.mkdir()
        (container / "label").write_text(f"toolyard.server={label}")
    async with started(stand_in.backend()):
        assert stand_in.containers() == ["elsewhere", "mine"]


async def test_a_profile_that_the_image_lacks_is_refused(stand_in, monkeypatch):
    async with started(stand_in.backend()) as backend:
        monkeypatch.setattr("toolyard.sandboxes.containers.ContainerRoom.python", ("python3", "-I", "-S"))
        with pytest.raises(SandboxUnavailable, match="'ipython' needs IPython, which the image 'image' lacks"):
            await backend.open(profile="ipython")
        assert stand_in.containers() == []


async def test_limits_of_one_program_are_within_those_of_its_sandbox(stand_in):
    show = ["sh", "-c", "ulimit -n; ulimit -f; ulimit -d"]
    small = Limits(open_files=100, file_bytes=512 * 1000, memory_bytes=200 * 2**20)
    for backend in (SubprocessBackend(), backends.bubblewrap(), stand_in.backend()):
        async with started(backend), await backend.open(small) as box:
            wide = (await box.run(show, limits=Limits(open_files=200, file_bytes=10**9))).stdout.split()
            assert wide[:2] == [b"100", b"1000"]
            narrow = replace(small, open_files=70, memory_bytes=100 * 2**20)
            assert (await box.run(show, limits=narrow)).stdout.split() == [b"70", b"1000", b"102400"]


# The end of a room.


async def test_who_closes_a_sandbox_a_second_time_waits_until_it_is_closed(temporary):
    async with started(SubprocessBackend()) as backend:
        box = await backend.open()
        await box.start(["sleep", f"1234.25{os.getpid()}"])
        first = asyncio.ensure_future(box.close())
        await asyncio.sleep(0)
        await box.close()
        assert sleeping(f"1234.25{os.getpid()}") == []
        assert os.listdir(temporary) == []
        await first


async def test_a_program_that_cannot_be_ended_does_not_keep_its_room(temporary, monkeypatch):
    async with started(SubprocessBackend()) as backend:
        box = await backend.open()
        running = asyncio.ensure_future(box.run(["sleep", f"1234.5{os.getpid()}"]))
        assert await until(lambda: sleeping(f"1234.5{os.getpid()}"))
        kill = box._room.kill

        async def fails_once(program):
            monkeypatch.setattr(box._room, "kill", kill)
            raise OSError("it does not end")

        monkeypatch.setattr(box._room, "kill", fails_once)
        with pytest.raises(OSError, match="it does not end"):
            await box.close()
        assert os.listdir(temporary) == []
        await asyncio.gather(running, return_exceptions=True)
        assert await until(lambda: not sleeping(f"1234.5{os.getpid()}"))
