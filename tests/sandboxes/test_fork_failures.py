"""A fork that fails, at any step, leaves the session as it was, and nothing of the branches."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.sandboxes.backends import backend
from tests.sandboxes.test_blame import host_with
from tests.sandboxes.test_one_shot import children
from tests.tiers import first, thorough
from toolyard.core.errors import CannotFork, NoRoom, SandboxError, SandboxLost, SandboxUnavailable
from toolyard.sandboxes.base import Backend, Limits, Sandbox
from toolyard.sandboxes.endings import HostExhausted
from toolyard.sandboxes.native import agent_client as native_client
from toolyard.sandboxes.native import sandbox as native_sandbox
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.process_based import origin
from toolyard.sandboxes.process_based.launcher import tree

pytestmark = pytest.mark.anyio

MIB = 2**20
USUAL = Limits(memory_bytes=256 * MIB, disk_bytes=64 * MIB, processes=48)

_MANY_FILES = "import os\nos.mkdir('many')\nfor i in range(6000): open(f'many/{i}', 'w').close()"
"""Files that take long to copy, and little space."""

Break = Callable[[Sandbox], contextlib.AbstractAsyncContextManager[None]]


@dataclass(frozen=True)
class Step:
    """A step at which a fork fails. `breaks` makes it fail while it lasts."""

    breaks: Break
    error: type[BaseException]
    words: str | None = None
    limits: Limits = USUAL


def written(code: str, undo: str) -> Break:
    @contextlib.asynccontextmanager
    async def breaks(box: Sandbox) -> AsyncIterator[None]:
        assert (await box.exec(code)).error is None
        yield
        assert (await box.exec(undo)).error is None

    return breaks


def large(mebibytes: int) -> Break:
    code = f"import os\nfor i in range({mebibytes}):\n    with open(f'large{{i}}', 'wb') as f: f.write(b'x' * 2**20)"
    return written(code, f"for i in range({mebibytes}): os.unlink(f'large{{i}}')")


@contextlib.asynccontextmanager
async def many_programs(box: Sandbox) -> AsyncIterator[None]:
    """As many programs as the sandbox may have."""
    started = []
    while (process := await box.start(["sleep", "99"])).exit_code is None:
        started.append(process)
    yield
    for process in started:
        await process.kill()


@contextlib.asynccontextmanager
async def few_descriptors(box: Sandbox) -> AsyncIterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(20)]
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 4, before[1]))  # four are left, and a branch needs more
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for fd in taken:
            os.close(fd)


def meeting(number: signal.Signals, *, seconds: float = 30.0) -> Break:
    """The agent of the branch gets a signal as soon as it is there; the fork waits for it so long."""

    @contextlib.asynccontextmanager
    async def breaks(box: Sandbox) -> AsyncIterator[None]:
        usual, native_sandbox.SECONDS, native_client.SECONDS = native_sandbox.SECONDS, seconds, seconds
        try:
            async with written(_MANY_FILES, "import shutil; shutil.rmtree('many')")(box):
                sending = asyncio.ensure_future(asyncio.to_thread(send_to_new, agents(), number))
                yield
                await sending
        finally:
            native_sandbox.SECONDS = native_client.SECONDS = usual

    return breaks


def agents() -> set[int]:
    """First processes of namespaces below this process: of sandboxes, programs and branches."""
    return {pid for pid in tree(os.getpid()) if (levels := namespaces_of(pid))[1:] and levels[-1] == "1"}


def namespaces_of(pid: int) -> Sequence[str]:
    """Its pid in each of its namespaces."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return ()
    return next(line for line in lines if line.startswith("NSpid:")).split()[1:]


def send_to_new(known: set[int], number: signal.Signals, instead: int = 0) -> None:
    """Wait for a new first process of a namespace, started by a known one. It gets the signal, or `instead` does."""
    for _ in range(100_000):
        for parent in known:
            for pid in tree(parent)[1:]:
                if pid not in known and namespaces_of(pid)[-1:] == ["1"]:
                    os.kill(instead or pid, number)
                    return


STEPS: Mapping[str, Step] = {
    "memory": Step(large(60), CannotFork, "60 MiB of memory", replace(USUAL, memory_bytes=96 * MIB)),
    "memory of the second": Step(large(40), CannotFork, "MiB are left", replace(USUAL, memory_bytes=110 * MIB)),
    "space": Step(
        written(
            "import os\nopen('large', 'wb').write(b'x' * 20 * 2**20)\nfor i in range(3): os.link('large', f'again{i}')",
            "for name in os.listdir():\n    if os.path.isfile(name) and name != 'file': os.unlink(name)",
        ),
        CannotFork,
        "No space left",
    ),
    "processes": Step(many_programs, CannotFork, "more processes|48 processes"),
    "a thread": Step(
        written(
            "import threading\nover = threading.Event()\nthread = threading.Thread(target=over.wait)\nthread.start()",
            "over.set(); thread.join()",
        ),
        CannotFork,
        "1 threads",
    ),
    "a hook that raises": Step(
        written(
            "import os\nos.register_at_fork(after_in_child=lambda: bad and os._exit(3)); bad = True", "bad = False"
        ),
        CannotFork,
    ),
    "descriptors": Step(few_descriptors, NoRoom),
    "a killed branch": Step(meeting(signal.SIGKILL), SandboxError, "goes on as it was"),
    "a stuck branch": Step(meeting(signal.SIGSTOP, seconds=1.0), SandboxError, "does not (get ready|answer)"),
}


@pytest.fixture(scope="module", params=[("asyncio", {"use_uvloop": False})], ids=[""])
def anyio_backend(request):
    return request.param


@pytest.fixture(scope="module")
async def native(tmp_path_factory) -> AsyncIterator[Backend]:
    made = backend("native", tmp_path_factory.mktemp("native"))
    await made.start()
    yield made
    await made.close()


@contextlib.asynccontextmanager
async def session(made: Backend, limits: Limits) -> AsyncIterator[tuple[Sandbox, Any]]:
    """A sandbox with some state, and a background program."""
    async with await made.open(limits) as box:
        await box.exec("kept = [1]")
        await box.shell("mkdir -p place; cd place; kept=2")
        await box.write("file", b"3")
        process = await box.start(["cat"])
        await process.write(b"here\n")
        assert (await process.read(10))[0] == b"here\n"
        yield box, process


async def check_as_it_was(box: Sandbox, process: Any) -> None:
    assert (await box.exec("kept")).value == "[1]"
    done = await box.shell("echo $kept; basename $PWD")
    assert (done.stdout, done.state_lost) == (b"2\nplace\n", False)
    assert await box.read("file") == b"3"
    await process.write(b"still here\n")
    assert (await process.read(10))[0] == b"still here\n"
    (branch,) = await box.fork()
    async with branch:
        assert ((await branch.exec("kept")).value, await branch.read("file")) == ("[1]", b"3")


def descriptors() -> int:
    """The descriptors of this process, except the one that lists them."""
    count = 0
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):
            count += not os.readlink(f"/proc/self/fd/{fd}").startswith("/proc")
    return count


@pytest.mark.parametrize("step", STEPS)
async def test_a_fork_that_fails_leaves_the_session_as_it_was(step, native):
    how = STEPS[step]
    async with session(native, how.limits) as (box, process):
        async with how.breaks(box):
            before = held(native)
            with pytest.raises(how.error, match=how.words):
                await box.fork(2)
            await given_back(native, before)
        await check_as_it_was(box, process)


# A process that the session itself needs dies.

_NAMED = b"to be forked"
"""Marks the interpreter's memory, to find the process from outside."""


async def forked_while_dying(box: Sandbox, victim: int, error: type[BaseException], words: str) -> None:
    """Kill the victim as soon as the place for the branch is there. Its files take a while to copy."""
    assert (await box.exec(_MANY_FILES)).error is None
    killing = asyncio.ensure_future(asyncio.to_thread(send_to_new, agents(), signal.SIGKILL, victim))
    with pytest.raises(error, match=words):
        await box.fork(2)
    await killing


def named(name: bytes) -> int:
    (pid,) = [pid for pid in tree(os.getpid()) if Path(f"/proc/{pid}/comm").read_bytes().strip() == name]
    return pid


async def test_a_fork_whose_interpreter_is_killed_costs_its_variables_and_says_so(native):
    async with session(native, USUAL) as (box, process):
        await box.exec(f"import ctypes; ctypes.CDLL(None).prctl(15, {_NAMED!r}, 0, 0, 0)")
        before = held(native)
        await forked_while_dying(box, named(_NAMED), CannotFork, "interpreter has ended, and its variables are lost")
        executed = await box.exec("kept")
        assert (executed.state_lost, executed.error.name) == (True, "InterpreterEnded")
        await given_back(native, before)
        await box.exec("kept = [1]")
        await check_as_it_was(box, process)


@pytest.fixture
async def another(anyio_backend) -> AsyncIterator[NativeBackend]:
    """A separate backend."""
    made = NativeBackend(templates=1, ready=0)
    await made.start()
    yield made
    await made.close()


def memory_of_all(made: NativeBackend) -> int:
    """Bytes that its sandboxes use together."""
    group = next(group for group in made._groups.trees if "memory" in group.controllers)
    return int(Path(group.path, f"memory.{'usage_in_bytes' if group.version == 1 else 'current'}").read_text())


@pytest.mark.parametrize("helper", ["template", "broker"])
async def test_a_fork_whose_sandbox_loses_its_template_or_broker_is_lost_with_the_session(helper, another):
    broker = another._process.pid
    (template,) = children(broker)
    async with session(another, USUAL) as (box, _):
        await forked_while_dying(box, broker if helper == "broker" else template, SandboxLost, "sandbox is gone")
        for call in (box.exec("kept"), box.shell("echo $kept"), box.read("file"), box.fork()):
            with pytest.raises(SandboxLost):
                await call
    async with session(another, USUAL) as (box, process):
        await check_as_it_was(box, process)


async def test_a_host_that_runs_out_of_memory_while_files_are_copied_ends_the_copy_and_not_the_sandbox(another):
    """The kernel may kill the interpreter too: then no program of the session is to blame."""
    if another.report().level != "L3":
        pytest.skip("there are no control groups here")
    async with session(another, USUAL) as (box, process), large(40)(box):
        with (
            host_with(another, "memory", "memory.limit_in_bytes", memory_of_all(another) + 10 * MIB),
            pytest.raises(SandboxError, match=r"goes on as it was|its variables are lost"),
        ):
            await box.fork()
        try:
            assert (await box.exec("kept")).value == "[1]"
        except HostExhausted:
            await box.exec("import os; kept = [1]")
        await check_as_it_was(box, process)


# Cancelled forks.


async def test_a_fork_that_nobody_waits_for_leaves_no_branch(native):
    async with session(native, USUAL) as (box, process), large(40)(box):
        before = held(native)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await box.fork(2)
        await given_back(native, before)
        await check_as_it_was(box, process)


def held(made: Backend) -> tuple[int, ...]:
    """Descriptors, sandboxes, and first processes of namespaces; or all processes, where a sandbox has nothing but
    processes."""
    if isinstance(made, NativeBackend):
        return descriptors(), made.count()[0], len(agents())
    return descriptors(), len(tree(os.getpid()))


async def given_back(made: Backend, before: tuple[int, ...]) -> None:
    async with asyncio.timeout(20):
        while any(now > then for now, then in zip(held(made), before, strict=True)):
            await asyncio.sleep(0.02)


async def test_files_with_holes_are_copied_with_them(native):
    async with session(native, replace(USUAL, disk_bytes=8 * MIB)) as (box, _):
        made = """
import os
for i in range(3):
    with open(f"h{i}", "wb") as file:
        file.seek(2**25)
        file.write(b"end")
        file.truncate(2**25 + 2**20)
"""
        assert (await box.exec(made)).error is None
        (branch,) = await box.fork()
        async with branch:
            look = "f = open('h1', 'rb'); f.seek(2**25); f.read(3), os.stat('h1').st_size, os.stat('h1').st_blocks < 64"
            assert (await branch.exec(look)).value == f"(b'end', {2**25 + 2**20}, True)"


# Forks that run the code again in a copy of the files.

ROOMS = ["subprocess", "bubblewrap", "landlock", "docker"]
ROOM = Limits(memory_bytes=256 * MIB, wall_seconds=5.0)
_AGAIN = b"runs again"


@contextlib.asynccontextmanager
async def short_files(box: Sandbox) -> AsyncIterator[None]:
    """The server may write, and so copy, only short files."""
    await box.write("large", b"x" * MIB)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, usual[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)


def when_run_again(code: str) -> Break:
    first = f"import os, time, ctypes\nif os.path.exists('again'): {code}\nopen('again', 'w').close()"
    return written(first, "os.unlink('again')")


def killing(whom: Callable[[int], int]) -> Break:
    """Kill a process of a branch while it runs the session's code again: the interpreter, or its launcher."""
    names = when_run_again(f"ctypes.CDLL(None).prctl(15, {_AGAIN!r}, 0, 0, 0); time.sleep(99)")

    @contextlib.asynccontextmanager
    async def breaks(box: Sandbox) -> AsyncIterator[None]:
        async with names(box):
            killing = asyncio.ensure_future(kill())
            yield
            await killing

    async def kill() -> None:
        async with asyncio.timeout(30):
            while not (found := [pid for pid in tree(os.getpid()) if name_of(pid) == _AGAIN]):
                await asyncio.sleep(0.01)
        os.kill(whom(found[0]), signal.SIGKILL)

    return breaks


def name_of(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes().strip()
    except OSError:
        return b""


def started_by_us(pid: int) -> int:
    (found,) = [one for one in children(os.getpid()) if pid in tree(one)]
    return found


ROOM_STEPS: Mapping[str, Step] = {
    "a copy of the files": Step(short_files, CannotFork, "the workspace cannot be copied"),
    "code that fails the second time": Step(when_run_again("1 / 0"), CannotFork, r"code 2 of 2 .* ZeroDivisionError"),
    "code that never ends the second time": Step(when_run_again("time.sleep(99)"), CannotFork, "the limit wall"),
    "descriptors": Step(few_descriptors, NoRoom),
    "a killed interpreter": Step(killing(lambda pid: pid), CannotFork, "InterpreterEnded"),
    "a killed helper": Step(killing(started_by_us), SandboxError, "InterpreterEnded|goes on as it was"),
}


@pytest.fixture(scope="module", params=first(ROOMS, 1))
async def rooms(request, tmp_path_factory) -> AsyncIterator[Backend]:
    made = backend(request.param, tmp_path_factory.mktemp(request.param))
    await made.start()
    yield made
    await made.close()
    assert not [name for name in os.listdir(tempfile.gettempdir()) if origin.mine() in name]


@pytest.mark.parametrize(
    "step", [thorough(step) if step == "code that never ends the second time" else step for step in ROOM_STEPS]
)
async def test_a_fork_by_running_code_again_that_fails_leaves_the_session_as_it_was(step, rooms):
    how = ROOM_STEPS[step]
    async with session(rooms, ROOM) as (box, process):
        async with how.breaks(box):
            before = held(rooms)
            with pytest.raises(how.error, match=how.words):
                await box.fork(2)
            await given_back(rooms, before)
        await check_as_it_was(box, process)


@pytest.mark.parametrize("kind", first(ROOMS, 1))
async def test_a_fork_for_which_nothing_can_be_made_leaves_the_session_as_it_was(kind, tmp_path, monkeypatch):
    made = backend(kind, tmp_path)
    await made.start()
    async with made_to_close(made), session(made, ROOM) as (box, process):
        before = held(made)
        with monkeypatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(tmp_path / "full"))  # no directory can be made there
            (tmp_path / "full").touch()  # the engine reports the same
            with pytest.raises(SandboxUnavailable, match=r"no directory for a sandbox|no space left on device"):
                await box.fork(2)
            await given_back(made, before)
            (tmp_path / "full").unlink()
        await check_as_it_was(box, process)


async def test_a_fork_by_running_code_again_that_nobody_waits_for_leaves_no_branch(rooms):
    async with session(rooms, ROOM) as (box, process):
        before = held(rooms)
        await box.exec("import time; time.sleep(0.5)")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await box.fork(2)
        await given_back(rooms, before)
        await check_as_it_was(box, process)


@contextlib.asynccontextmanager
async def made_to_close(made: Backend) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await made.close()
