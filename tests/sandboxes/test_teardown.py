"""The end of sandboxes, wanted or not: nothing is left, whichever process dies first and whatever was running."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import json
import os
import random
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.sandboxes import backends, hostile
from toolyard.core.errors import CannotFork, SandboxError, SandboxLost, SandboxUnavailable, WorkspaceError
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.channel import Answer, Channel
from toolyard.sandboxes.native.sandbox import NativeSandbox

pytestmark = pytest.mark.thorough

_SOON = 10.0
"""The limit for operations that must not hang, on a busy machine."""
_GONE_SECONDS = 2.0
"""The limit for the processes of a killed server to go. They take some 20 ms; 50 are the target."""
_OTHER = replace(Limits(), wall_seconds=60.0)
"""Limits for which no spare sandboxes are made."""


# ---- A killed server

_BUSY = """
import os, subprocess, time
subprocess.Popen(["sleep", "1000"])
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(0.01)
    os._exit(0)
while True:
    pass
"""


async def _keep_busy(backend: NativeBackend) -> None:
    """Programs, daemons, branches, a shell and a bomb, in a few sandboxes."""
    sandboxes = [await backend.open() for _ in range(3)]
    branches = await sandboxes[0].fork(2)
    for sandbox in (*sandboxes, *branches):
        _in_background(sandbox.exec(_BUSY, timeout=60))
        _in_background(sandbox.run(["sh", "-c", "sleep 1000 & sleep 1000"], timeout=60))
        await sandbox.start(["sh", "-c", "setsid sleep 1000 & yes"])
    _in_background(sandboxes[1].run(["sh", "-c", "while :; do sleep 1000 & done"], timeout=60))
    _in_background(sandboxes[2].shell("sleep 1000", timeout=60))
    await asyncio.sleep(0.1)


async def _keep_opening(backend: NativeBackend, *, fork: bool = False) -> None:
    while True:
        sandboxes = await asyncio.gather(*(backend.open(_OTHER) for _ in range(3)))
        if fork:
            await asyncio.gather(*(sandbox.fork(2) for sandbox in sandboxes))
        await asyncio.gather(*(sandbox.close_family() for sandbox in sandboxes))


_background: set[asyncio.Future[Any]] = set()


def _in_background(work: Awaitable[Any]) -> None:
    _background.add(asyncio.ensure_future(work))


async def _serve(scenario: str) -> None:
    backend = NativeBackend()
    print("starting", flush=True)
    await backend.start()
    try:
        match scenario:
            case "running" | "interrupted":
                await _keep_busy(backend)
                print("ready", flush=True)
                await asyncio.sleep(60)
            case "opening" | "forking":
                print("ready", flush=True)
                await _keep_opening(backend, fork=scenario == "forking")
            case "starting":
                await asyncio.sleep(60)
            case "closing":
                await _keep_busy(backend)
                print("ready", flush=True)
                await backend.close()
                await asyncio.sleep(60)
    finally:
        await backend.close()


def serve(scenario: str) -> None:
    """Be the server, until the test ends it."""
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_serve(scenario))


@dataclass
class _Server:
    process: subprocess.Popen[str]
    folder: Path

    def wait_for(self, word: str) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.strip() == word:
                return
        raise AssertionError(f"the server ended before it was {word}")

    def descendants(self) -> set[int]:
        return _below({self.process.pid}) | {self.process.pid}

    def broker(self) -> int:
        (broker,) = _children(self.process.pid)
        return broker

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture(params=hostile.modes())
def start(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], _Server]]:
    """Starts a server in its own process group. Processes that it leaves behind become our children."""
    libc = ctypes.CDLL(None, use_errno=True)
    set_child_subreaper = 36
    assert libc.prctl(set_child_subreaper, 1, 0, 0, 0) == 0
    servers: list[_Server] = []
    stranger = request.param == "rootless" and os.geteuid() == 0
    packages = sysconfig.get_paths()["purelib"]

    def start(scenario: str) -> _Server:
        folder = Path(tempfile.mkdtemp(dir="/tmp", prefix="toolyard-teardown-"))
        folder.chmod(0o777)
        process = subprocess.Popen(
            [
                hostile.rootless_python() if stranger else sys.executable,
                "-c",
                f"from tests.sandboxes.test_teardown import serve; serve({scenario!r})",
            ],
            env={
                "PATH": os.defpath,
                "PYTHONPATH": os.pathsep.join([str(hostile.ROOT), str(hostile.ROOT / "src"), packages]),
                "PYTHONDONTWRITEBYTECODE": "1",
                "TMPDIR": str(folder),
            },
            cwd="/",
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
            **({"user": hostile.STRANGER, "group": hostile.STRANGER, "extra_groups": []} if stranger else {}),
        )
        servers.append(_Server(process, folder))
        return servers[-1]

    try:
        yield start
    finally:
        for server in servers:
            server.kill()
            assert server.process.stdout is not None
            server.process.stdout.close()
            if server.folder.exists():
                for left in server.folder.iterdir():
                    left.unlink()
                server.folder.rmdir()
        libc.prctl(set_child_subreaper, 0, 0, 0, 0)


def _parents() -> dict[int, int]:
    """The living processes, each with its parent."""
    found = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                state, parent = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[:2]
                if state not in "ZX":
                    found[int(name)] = int(parent)
    return found


def _children(pid: int) -> list[int]:
    return [child for child, parent in _parents().items() if parent == pid]


def _below(roots: set[int]) -> set[int]:
    parents = _parents()
    found = set(roots)
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - roots


def _groups_of(*brokers: int) -> set[str]:
    """The cgroups of these brokers. There may be other brokers on this machine."""
    return {
        f"{folder}/{name}"
        for folder, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith("toolyard-") and name.count("-") == 3 and int(name.split("-")[2]) in brokers
    }


def _reap(orphans: set[int]) -> None:
    """Reap those that have become our children."""
    for pid in orphans:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, os.WNOHANG)


def _brokers() -> list[int]:
    """Brokers of backends in this process."""
    found = []
    for pid in _children(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if b"native.broker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                found.append(pid)
    return found


def _mounts() -> list[str]:
    """All mounts but those that a container engine makes for other tests."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return [line for line in lines if "/storage/overlay" not in line]


def _check_gone(before: set[int], ours: set[int], mounts: list[str]) -> tuple[float, float]:
    """Wait until only the earlier processes are left, and no groups of ours. Returns how long that took."""
    began = time.monotonic()
    while left := _below({os.getpid()}) - before:
        assert time.monotonic() - began < _GONE_SECONDS, {
            pid: Path(f"/proc/{pid}/status").read_text().splitlines()[:8] for pid in left
        }
        ours |= left
        _reap(ours)
    processes = time.monotonic() - began
    while groups := _groups_of(*ours):
        assert time.monotonic() - began < _GONE_SECONDS, groups
    _reap(ours)
    assert _mounts() == mounts
    return processes, time.monotonic() - began


def _wait_for_end_of(pid: int) -> None:
    began = time.monotonic()
    while Path(f"/proc/{pid}").exists():
        assert time.monotonic() - began < _GONE_SECONDS
        _reap({pid})


_MOMENTS = ["starting"] * 5 + ["opening", "forking", "forking", "running", "closing", "closing"]


def test_a_server_that_is_killed_at_any_moment_leaves_nothing(
    start: Callable[[str], _Server], capsys: pytest.CaptureFixture[str]
) -> None:
    chance = random.Random(7)
    told = []
    for scenario in _MOMENTS:
        before, mounts = _below({os.getpid()}), _mounts()
        server = start(scenario)
        server.wait_for("starting" if scenario == "starting" else "ready")
        delay = chance.uniform(0, 0.05 if scenario == "closing" else 0.4)
        time.sleep(delay)  # at any moment
        ours = server.descendants()
        server.kill()
        gone, swept = _check_gone(before, ours, mounts)
        told.append(
            f"{scenario}, {delay:.2f} s: {len(ours)} processes gone in {gone * 1000:.0f} ms, all in {swept:.3f} s"
        )
        assert not list(server.folder.iterdir()), "it has left a file"
    with capsys.disabled():
        print("\n" + "\n".join(told))


def test_a_server_that_is_killed_with_its_broker_leaves_nothing_for_long(start: Callable[[str], _Server]) -> None:
    """Their processes end all the same. The next server that starts removes the groups."""
    before, mounts = _below({os.getpid()}), _mounts()
    server = start("running")
    server.wait_for("ready")
    broker = server.broker()
    made = _groups_of(broker)
    os.kill(broker, signal.SIGSTOP)  # so that it cannot clean up
    server.process.kill()
    os.kill(broker, signal.SIGKILL)
    server.process.wait()
    _wait_for_end_of(broker)  # otherwise its groups would count as left behind
    _check_gone(before, set(), mounts)
    assert _groups_of(broker) <= made  # unless another server has started since
    successor = start("running")
    successor.wait_for("ready")
    assert not _groups_of(broker)
    ours = successor.descendants()
    successor.kill()
    _check_gone(before, ours, mounts)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupt_of_the_whole_group_leaves_nothing(
    start: Callable[[str], _Server], number: signal.Signals
) -> None:
    before, mounts = _below({os.getpid()}), _mounts()
    server = start("interrupted")
    server.wait_for("ready")
    ours = server.descendants()
    os.killpg(server.process.pid, number)
    server.process.wait(_SOON)
    _check_gone(before, ours, mounts)
    assert server.process.returncode in (0, -number)


# ---- A backend in this process


_ON_BOTH_LOOPS = pytest.mark.parametrize("anyio_backend", backends.LOOPS)


_KEPT_MOST = 32
"""Spare groups that a template keeps."""


def _in_use(parent: str) -> list[str]:
    """Groups of sandboxes, except spare ones, which are empty and few."""
    groups = [f"{parent}/{name}" for name in os.listdir(parent) if name.isdigit()]
    in_use = [group for group in groups if not hostile.is_at_rest(group)]
    kept = len(groups) - len(in_use)
    assert kept <= _KEPT_MOST * max(1, len(_helpers()[1])), f"{kept} groups are kept"
    return in_use


@dataclass(frozen=True)
class _Seen:
    descriptors: int
    tasks: int
    processes: int
    groups: int
    """Groups with processes or children. Some others are kept as spares."""
    memory: int

    @classmethod
    def now(cls) -> _Seen:
        gc.collect()
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        own = _groups_of(*_brokers())
        return cls(
            len(os.listdir("/proc/self/fd")),
            len(asyncio.all_tasks()),
            len(_below({os.getpid()})),
            sum(len(_in_use(path)) for path in own),
            resident,
        )

    async def check(self) -> None:
        """Nothing has been added since."""
        deadline = time.monotonic() + _SOON
        while (now := _Seen.now()).descriptors > self.descriptors or (
            now.tasks > self.tasks or now.processes > self.processes or now.groups > self.groups
        ):
            assert time.monotonic() < deadline, f"{self} before, {now} now"
            await asyncio.sleep(0.02)


@pytest.fixture
async def backend() -> AsyncIterator[NativeBackend]:
    """A backend of which nothing is left at the end."""
    descriptors = len(os.listdir("/proc/self/fd"))
    backend = NativeBackend(ready=0)
    await backend.start()
    brokers = set(_brokers())
    try:
        yield backend
    finally:
        brokers |= set(_brokers())
        async with asyncio.timeout(_SOON):
            await backend.close()
    assert not _brokers()
    assert not _groups_of(*brokers)
    assert len(os.listdir("/proc/self/fd")) <= descriptors


async def _lost(work: Awaitable[Any]) -> str:
    """The message for a caller that waits for something in a sandbox that ends."""
    async with asyncio.timeout(_SOON):
        try:
            await work
        except (SandboxLost, CannotFork) as error:
            return str(error)
    return ""


def _under_way(sandbox: NativeSandbox) -> list[asyncio.Future[Any]]:
    """One of each operation that takes time."""
    return [
        asyncio.ensure_future(work)
        for work in (
            sandbox.exec("while True: pass", timeout=60),
            sandbox.exec("1 + 1", timeout=60),
            sandbox.run(["sleep", "1000"], timeout=60),
            sandbox.run(["cat"], stdin=bytes(10_000_000), timeout=60, limits=replace(Limits(), output_bytes=10**8)),
            sandbox.shell("sleep 1000", timeout=60),
            sandbox.shell("echo later", timeout=60),
            sandbox.fork(2),
            sandbox.write("file", bytes(5_000_000)),
        )
    ]


async def _each_is_told(waiting: Sequence[asyncio.Future[Any]]) -> None:
    """No caller waits for ever: each gets a result, or an exception that the sandbox is gone."""
    async with asyncio.timeout(_SOON):
        for told in await asyncio.gather(*waiting, return_exceptions=True):
            if isinstance(told, BaseException):
                assert isinstance(told, SandboxLost | CannotFork | WorkspaceError), repr(told)
            elif isinstance(told, list):
                for branch in told:
                    await branch.close()


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_closing_a_sandbox_tells_everybody_who_waits(backend: NativeBackend) -> None:
    await (await backend.open()).close()
    before = _Seen.now()
    for delay in (0.0, 0.001, 0.005, 0.02, 0.1):
        sandbox = await backend.open()
        waiting = _under_way(sandbox)
        await asyncio.sleep(delay)
        async with asyncio.timeout(_SOON):
            await asyncio.gather(sandbox.close(), sandbox.close())
        await _each_is_told(waiting)
        with pytest.raises(SandboxLost):
            await sandbox.exec("1")
        for work in (
            sandbox.run(["true"]),
            sandbox.shell("true"),
            sandbox.read("x"),
            sandbox.write("x", b""),
            sandbox.list(),
        ):
            with pytest.raises(SandboxLost):
                await work
        with pytest.raises(SandboxLost):
            await sandbox.fork()
    await before.check()


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_who_stops_waiting_leaves_a_sandbox_that_works(backend: NativeBackend) -> None:
    """Any operation, cancelled at any moment, ends, and the sandbox still works."""
    sandbox = await backend.open()
    await sandbox.exec("kept = 1")
    await sandbox.shell("kept=1")
    await sandbox.write("file", bytes(3_000_000))
    before = _Seen.now()
    works: list[Callable[[], Awaitable[Any]]] = [
        lambda: sandbox.exec("while True: pass"),
        lambda: sandbox.exec("kept"),
        lambda: sandbox.exec("#" * 2_000_000),
        lambda: sandbox.run(["sleep", "1000"]),
        lambda: sandbox.run(["cat"], stdin=bytes(1_000_000)),
        lambda: sandbox.shell("sleep 1000"),
        lambda: sandbox.shell("echo $kept"),
        lambda: sandbox.read("file"),
        lambda: sandbox.write("other", bytes(3_000_000)),
        sandbox.list,
        lambda: sandbox.fork(2),
    ]
    chance = random.Random(11)
    for work in works:
        for longest in (0.0, 0.001, 0.004, 0.016, 0.03):
            task = asyncio.ensure_future(work())
            await asyncio.sleep(chance.uniform(0, longest))
            task.cancel()
            (told,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(told, list) and told and isinstance(told[0], NativeSandbox):
                await asyncio.gather(*(branch.close() for branch in told))
            async with asyncio.timeout(_SOON):
                assert (await sandbox.exec("kept")).value == "1"
                assert (await sandbox.shell("echo $kept")).stdout == b"1\n"
                assert (await sandbox.run(["echo", "hello"])).stdout == b"hello\n"
                assert await sandbox.read("file") == bytes(3_000_000)
    await before.check()
    inside = await sandbox.exec("import os; [name for name in os.listdir('/proc') if name.isdigit()]")
    assert inside.value is not None
    assert len(json.loads(inside.value.replace("'", '"'))) <= 4, inside.value  # agent, interpreter, shell and its init
    (branch,) = await sandbox.fork()
    assert (await branch.exec("kept")).value == "1"
    await branch.close()
    await sandbox.close()


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_what_code_starts_before_the_server_has_the_processor_again_ends_with_it(
    backend: NativeBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = Channel.begin

    def and_then_be_held_up(channel: Channel, op: str, payload: bytes) -> asyncio.Future[Answer]:
        answer = begin(channel, op, payload)
        time.sleep(0.2)
        return answer

    async with await backend.open() as sandbox:
        await sandbox.exec("import os, time")
        monkeypatch.setattr(Channel, "begin", and_then_be_held_up)
        executed = await sandbox.exec("if os.fork() == 0: time.sleep(1000)\nwhile True: pass", timeout=0.3)
        monkeypatch.undo()
        assert executed.timed_out
        assert (await sandbox.exec("os.waitpid(-1, 0)[1]")).value == "9"


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_who_stops_waiting_for_a_sandbox_leaves_nothing() -> None:
    backend = NativeBackend(ready=0)
    early = asyncio.ensure_future(backend.start())
    await asyncio.sleep(0.05)
    early.cancel()
    await asyncio.gather(early, return_exceptions=True)
    assert not _brokers()
    backend = NativeBackend(ready=2)
    await backend.start()
    try:
        before = _Seen.now()
        chance = random.Random(3)
        for longest in [0.0, 0.002, 0.005, 0.01, 0.02, 0.04] * 4:
            task = asyncio.ensure_future(backend.open(_OTHER))
            await asyncio.sleep(chance.uniform(0, longest))
            task.cancel()
            (told,) = await asyncio.gather(task, return_exceptions=True)
            if isinstance(told, NativeSandbox):
                await told.close()
        await before.check()
        sandbox = await backend.open()
        assert (await sandbox.exec("1 + 1")).value == "2"
        await sandbox.close()
        closing = asyncio.ensure_future((await backend.open(_OTHER)).close())
        await asyncio.sleep(0)
        closing.cancel()
        await asyncio.gather(closing, return_exceptions=True)
    finally:
        await backend.close()
    assert not _brokers()


@pytest.mark.anyio
async def test_the_first_one_to_wait_for_a_template_may_stop_waiting(backend: NativeBackend) -> None:
    """Starting a template takes long. A cancelled caller leaves no half-started one."""
    before = len(_below({os.getpid()}))
    for delay in (0.01, 0.1, 0.2):
        for broker in _brokers():
            for template in _children(broker):
                os.kill(template, signal.SIGKILL)
        await asyncio.sleep(0.05)
        task = asyncio.ensure_future(backend.open())
        await asyncio.sleep(delay)
        task.cancel()
        (told,) = await asyncio.gather(task, return_exceptions=True)
        if isinstance(told, NativeSandbox):
            await told.close()
    sandbox = await backend.open()
    assert (await sandbox.exec("1 + 1")).value == "2"
    await sandbox.close()
    deadline = time.monotonic() + _SOON
    while len(_below({os.getpid()})) > before:
        assert time.monotonic() < deadline, "templates that nobody knows"
        await asyncio.sleep(0.02)


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_who_needs_a_template_that_is_there_does_not_wait_for_one_that_is_loading(backend: NativeBackend) -> None:
    await (await backend.open()).close()
    (broker,) = _brokers()
    before = set(_children(broker))
    loading = asyncio.ensure_future(backend.open(profile="ipython"))
    deadline = time.monotonic() + _SOON
    while not (fresh := set(_children(broker)) - before):
        assert time.monotonic() < deadline, "no template is started"
        await asyncio.sleep(0.001)
    for template in fresh:
        os.kill(template, signal.SIGSTOP)  # as if it had much to load
    try:
        async with asyncio.timeout(_SOON), await backend.open(Limits(wall_seconds=9)) as sandbox:
            assert (await sandbox.exec("6 * 7")).value == "42"
        assert not loading.done()
    finally:
        for template in fresh:
            os.kill(template, signal.SIGCONT)
    await (await loading).close()


@_ON_BOTH_LOOPS
@pytest.mark.anyio
async def test_closing_the_backend_ends_everything_that_is_busy() -> None:
    descriptors, tasks = len(os.listdir("/proc/self/fd")), len(asyncio.all_tasks())
    for delay in (0.0, 0.02, 0.2):
        backend = NativeBackend()
        await backend.start()
        brokers = _brokers()
        sandboxes = [await backend.open() for _ in range(3)]
        branches = [*await sandboxes[0].fork(2), *await sandboxes[1].fork(1)]
        branches += await branches[0].fork(1)
        await sandboxes[1].close()  # its branch lives on
        waiting = [work for sandbox in (sandboxes[0], sandboxes[2], *branches) for work in _under_way(sandbox)]
        opening = [asyncio.ensure_future(backend.open(limits)) for limits in (None, _OTHER, None)]
        await asyncio.sleep(delay)
        async with asyncio.timeout(2 * _SOON):
            await asyncio.gather(backend.close(), backend.close())
        await _each_is_told(waiting)
        for told in await asyncio.gather(*opening, return_exceptions=True):
            if isinstance(told, NativeSandbox):
                assert await _lost(told.exec("1"))
                await told.close()
            else:
                assert isinstance(told, SandboxError), repr(told)
        await backend.close()
        for sandbox in (*sandboxes, *branches):
            assert await _lost(sandbox.exec("1"))
            await sandbox.close()
        with pytest.raises(SandboxUnavailable):
            await backend.open()
        with pytest.raises(SandboxUnavailable):
            await backend.open(_OTHER)
        assert not _brokers()
        assert not _groups_of(*brokers)
    deadline = time.monotonic() + _SOON
    while len(os.listdir("/proc/self/fd")) > descriptors or len(asyncio.all_tasks()) > tasks:
        gc.collect()
        assert time.monotonic() < deadline, (os.listdir("/proc/self/fd"), asyncio.all_tasks())
        await asyncio.sleep(0.02)


@pytest.mark.anyio
async def test_200_sandboxes_leave_nothing(backend: NativeBackend) -> None:
    async def use(number: int) -> None:
        sandbox = await backend.open(_OTHER if number % 2 else None)
        assert (await sandbox.exec(f"{number} + 1")).value == str(number + 1)
        if number % 10 == 0:
            assert (await sandbox.run(["echo", "hello"])).stdout == b"hello\n"
            assert (await sandbox.shell("echo hello")).stdout == b"hello\n"
            (branch,) = await sandbox.fork()
            assert (await branch.exec("2 * 3")).value == "6"
            await branch.close()
        await sandbox.close()

    for number in range(10):
        await use(number)
    before = _Seen.now()
    for start in range(0, 200, 5):
        await asyncio.gather(*(use(number) for number in range(start, start + 5)))
    await before.check()
    assert _Seen.now().memory - before.memory < 8 * 2**20, (before, _Seen.now())


# ---- Killed helpers


def _helpers() -> tuple[int, list[int]]:
    """The broker of this process's backend, and its templates."""
    (broker,) = _brokers()
    return broker, _children(broker)


def _zombies_of(parent: int) -> list[str]:
    children = Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
    return [pid for pid in children if int(pid) not in _parents()]


@pytest.mark.anyio
async def test_a_broker_that_is_killed_is_replaced(backend: NativeBackend) -> None:
    sandboxes = [await backend.open() for _ in range(3)]
    (branch,) = await sandboxes[0].fork()
    waiting = _under_way(sandboxes[0]) + _under_way(branch)
    await asyncio.sleep(0.1)
    broker, _ = _helpers()
    everything = _below({os.getpid()})
    os.kill(broker, signal.SIGKILL)
    await _each_is_told(waiting)
    for sandbox in (*sandboxes, branch):
        assert await _lost(sandbox.exec("1"))
    deadline = time.monotonic() + _SOON
    while left := _below({os.getpid()}) & everything or everything & set(_parents()):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)
    fresh = await backend.open()
    assert (await fresh.exec("1 + 1")).value == "2"
    assert not _groups_of(broker), "the next broker sweeps"
    for sandbox in (*sandboxes, branch):
        await sandbox.close()
    assert (await fresh.run(["echo", "hello"])).stdout == b"hello\n"
    await fresh.close()


@pytest.mark.anyio
async def test_a_backend_whose_broker_was_killed_leaves_nothing_either(backend: NativeBackend) -> None:
    sandboxes = [await backend.open() for _ in range(2)]
    broker, _ = _helpers()
    os.kill(broker, signal.SIGKILL)
    for sandbox in sandboxes:
        assert await _lost(sandbox.run(["sleep", "1000"]))
    await sandboxes[0].close()


@contextlib.asynccontextmanager
async def _three_templates() -> AsyncIterator[NativeBackend]:
    """They start as soon as many requests come at once."""
    backend = NativeBackend(ready=0, templates=3)
    await backend.start()
    try:
        await _until_there_are_three(backend)
        yield backend
    finally:
        await backend.close()


async def _until_there_are_three(backend: NativeBackend) -> None:
    deadline = time.monotonic() + _SOON
    while len(backend._templates["plain"].alive) < 3:
        assert time.monotonic() < deadline, len(_helpers()[1])
        for sandbox in await asyncio.gather(*(backend.open() for _ in range(4))):
            await sandbox.close()


@pytest.mark.anyio
async def test_sandboxes_that_are_asked_for_at_once_come_of_all_templates(anyio_backend: str) -> None:
    async with _three_templates() as backend:
        interpreters = await asyncio.gather(*(backend.open_interpreter() for _ in range(9)))
        assert [len(_children(template)) for template in _helpers()[1]] == [3, 3, 3]
        told = await asyncio.gather(*(one.exec(f"{i} * {i}") for i, one in enumerate(interpreters)))
        assert [one.value for one in told] == [str(i * i) for i in range(9)]
        for one in interpreters:
            await one.close()


@pytest.mark.anyio
async def test_who_needs_a_sandbox_does_not_wait_for_a_template_that_is_busy(anyio_backend: str) -> None:
    async with _three_templates() as backend:
        busy = _helpers()[1][1]
        os.kill(busy, signal.SIGSTOP)
        try:
            opening = [asyncio.ensure_future(backend.open_interpreter()) for _ in range(3)]
            async with asyncio.timeout(_SOON):
                while sum(one.done() for one in opening) < 2:
                    await asyncio.wait([one for one in opening if not one.done()], return_when=asyncio.FIRST_COMPLETED)
                for _ in range(6):
                    await (await backend.open_interpreter()).close()
            assert sum(one.done() for one in opening) == 2
        finally:
            os.kill(busy, signal.SIGCONT)
        for interpreter in await asyncio.gather(*opening):
            await interpreter.close()


@pytest.mark.anyio
async def test_one_template_does_for_who_asks_for_one_sandbox_after_the_other(anyio_backend: str) -> None:
    backend = NativeBackend(ready=0, templates=3)
    await backend.start()
    try:
        for _ in range(6):
            await (await backend.open()).close()
        assert len(_helpers()[1]) == 1
    finally:
        await backend.close()


@pytest.mark.anyio
async def test_a_template_that_is_killed_is_replaced(anyio_backend: str) -> None:
    async with _three_templates() as backend:
        await _lose_a_template(backend)


async def _lose_a_template(backend: NativeBackend) -> None:
    sandboxes = [await backend.open() for _ in range(4)]
    waiting = [asyncio.ensure_future(sandbox.exec("while True: pass", timeout=60)) for sandbox in sandboxes]
    await asyncio.sleep(0.05)
    broker, templates = _helpers()
    victims = _below({templates[0]})
    os.kill(templates[0], signal.SIGKILL)
    deadline = time.monotonic() + _SOON
    while left := victims & set(_parents()):
        assert time.monotonic() < deadline, left
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    lost = [sandbox for sandbox in sandboxes if not sandbox.alive]
    assert 0 < len(lost) < 4, "its sandboxes, and no others"
    for sandbox, work in zip(sandboxes, waiting, strict=True):
        if sandbox in lost:
            assert await _lost(work)
        else:
            assert not work.done()
            work.cancel()
    more = [await backend.open() for _ in range(4)]
    for sandbox in more:
        assert (await sandbox.exec("1 + 1")).value == "2"
    await _until_there_are_three(backend)
    assert len(_helpers()[1]) == len(templates) == 3
    for sandbox in (*sandboxes, *more):
        await sandbox.close()
    deadline = time.monotonic() + _SOON
    while left_groups := [group for path in _groups_of(broker) for group in _in_use(path)]:
        assert time.monotonic() < deadline, left_groups
        await asyncio.sleep(0.02)
    assert not _zombies_of(broker)


@pytest.mark.anyio
async def test_an_agent_that_is_killed_takes_only_its_own_sandbox(backend: NativeBackend) -> None:
    known = _below({os.getpid()})
    victim = await backend.open()
    (agent,) = [pid for pid in _below({os.getpid()}) - known if _parents()[pid] in known]
    other = await backend.open()
    await other.exec("kept = 1")
    waiting = _under_way(victim)
    await asyncio.sleep(0.05)
    os.kill(agent, signal.SIGKILL)
    await _each_is_told(waiting)
    assert "gone" in await _lost(victim.exec("1"))
    assert (await other.exec("kept")).value == "1"
    await victim.close()
    family = await backend.open()
    await family.exec("kept = 2")
    known = _below({os.getpid()})
    branch, sibling = await family.fork(2)
    first = min(_below({os.getpid()}) - known)
    waiting = _under_way(branch)
    await asyncio.sleep(0.05)
    os.kill(first, signal.SIGKILL)
    await _each_is_told(waiting)
    assert await _lost(branch.exec("1"))
    assert (await sibling.exec("kept")).value == "2"
    assert (await family.exec("kept")).value == "2"
    for sandbox in (branch, sibling, family, other):
        await sandbox.close()


@pytest.mark.anyio
async def test_an_agent_that_is_stopped_is_given_up_and_ended(backend: NativeBackend) -> None:
    """A frozen sandbox does not delay its closing."""
    known = _below({os.getpid()})
    victim = await backend.open()
    (agent,) = [pid for pid in _below({os.getpid()}) - known if _parents()[pid] in known]
    os.kill(agent, signal.SIGSTOP)
    waiting = asyncio.ensure_future(victim.shell("true"))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(_SOON):
        await victim.close()
    assert await _lost(waiting)
    assert agent not in _parents()
