"""A server that cannot open more files: it blames no program, leaves nothing behind, and recovers."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence

import pytest

from tests.sandboxes import backends
from tests.sandboxes.test_one_shot import children
from tests.tiers import first
from toolyard.core.errors import NoRoom, SandboxError
from toolyard.sandboxes.base import Limits, Profile, Sandbox
from toolyard.sandboxes.native import backend as native_backend
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.cgroups import name_of_broker, own_hierarchies
from toolyard.sandboxes.native.pool import SandboxPool
from toolyard.sandboxes.provider import Provider, execute, interpreter_once, open_sandbox

pytestmark = pytest.mark.anyio

_ENOUGH = 16
"""Free descriptors with which everything here works."""


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@contextlib.contextmanager
def files_left(count: int) -> Iterator[None]:
    """So many more files can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    top = max(map(int, os.listdir("/proc/self/fd")))
    filling = [os.open(os.devnull, os.O_RDONLY)]
    while filling[-1] < top:
        filling.append(os.open(os.devnull, os.O_RDONLY))
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(filling[-1], top) + 1 + count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in filling:
            os.close(fd)


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def opened(box: Sandbox) -> object:
    async with await open_sandbox() as other:
        return (await other.exec("6 * 7")).value


async def executed(box: Sandbox) -> object:
    return (await execute("6 * 7")).value


async def run(box: Sandbox) -> object:
    return (await box.run(["echo", "42"])).stdout.decode().strip()


async def shelled(box: Sandbox) -> object:
    finished = await box.shell("echo 42; exit 0")  # ends the shell, and so its pipes
    return finished.stdout.decode().strip()


async def interpreted(box: Sandbox) -> object:
    value = (await box.exec("6 * 7")).value
    await box.exec("import os; os._exit(0)")
    return value


async def started(box: Sandbox) -> object:
    process = await box.start(["echo", "42"])
    stdout, _ = await process.read(10)
    await process.wait(10)
    return stdout.decode().strip()


async def forked(box: Sandbox) -> object:
    (branch,) = await box.fork()
    async with branch:
        return (await branch.exec("6 * 7")).value


WAYS = [opened, executed, run, shelled, interpreted, started, forked]


@pytest.mark.parametrize("way", first(WAYS, 2))
async def test_what_the_native_sandbox_cannot_open_is_told_as_what_it_is(
    anyio_backend: object, way: Callable[[Sandbox], Awaitable[object]]
) -> None:
    async with Provider("native", ready=0):
        await _check_with_few_files(way)


@pytest.mark.parametrize("way", [run, shelled, interpreted, started])
async def test_what_a_program_of_its_own_needs_and_cannot_have_is_told_as_what_it_is(
    anyio_backend: object, way: Callable[[Sandbox], Awaitable[object]]
) -> None:
    async with Provider("subprocess", "L0"):
        await _check_with_few_files(way)


async def _check_with_few_files(way: Callable[[Sandbox], Awaitable[object]]) -> None:
    async with await open_sandbox() as box:
        assert await way(box) == "42"  # opens everything that stays open
        outcomes = []
        for count in range(_ENOUGH):
            before = open_files()
            with files_left(count):
                outcomes.append(await _outcome(way(box)))
            await _until(lambda before=before: open_files() <= before)
        assert {"42"} < set(outcomes) <= {"42", NoRoom, SandboxError}, outcomes
        assert NoRoom in outcomes or way not in (opened, forked)  # these are refused before anything is made
        assert await way(box) == "42"


async def _outcome(way: Awaitable[object]) -> object:
    try:
        return await way
    except NoRoom:
        return NoRoom
    except SandboxError:
        return SandboxError


async def _until(done: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not done():
            await asyncio.sleep(0.01)


async def test_limits_are_watched_again_when_files_can_be_opened(anyio_backend: object) -> None:
    limits = Limits(cpu_seconds=0.5, wall_seconds=8)
    async with Provider("native", ready=0), interpreter_once(limits) as interpreter:
        spinning = asyncio.ensure_future(interpreter.exec("while True: pass"))
        with files_left(0):
            await asyncio.wait((spinning,), timeout=0.25)  # the server measures it every tenth of a second
        assert (await spinning).killed_by == "cpu"


@contextlib.contextmanager
def files_left_to(pid: int, count: int) -> Iterator[None]:
    """Another process can open so many more files."""
    soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    taken = {int(fd) for fd in os.listdir(f"/proc/{pid}/fd")}
    most = next(itertools.islice((number for number in itertools.count() if number not in taken), count, None))
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft, hard))


async def test_a_template_without_room_for_another_sandbox_keeps_those_that_it_has(anyio_backend: object) -> None:
    others = children(os.getpid())
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    try:
        (broker,) = set(children(os.getpid())) - {*others}
        (template,) = children(broker)
        async with await backend.open() as box:
            groups = groups_of(broker)
            outcomes = []
            for count in range(_ENOUGH):
                with files_left_to(template, count):
                    outcomes.append(await _outcome(_opened_by(backend)))
            assert set(outcomes) == {"42", NoRoom}, outcomes
            assert (await box.exec("6 * 7")).value == "42"
            made = {os.path.basename(group) for group in groups_of(broker) - groups}
            ahead = {name for name in made if name.startswith("spare-")}
            assert len(made - ahead) <= 3, made  # a few are kept as spares
            assert len(ahead) <= 8, made
    finally:
        await backend.close()


async def test_a_broker_without_room_for_another_template_keeps_those_that_it_has(anyio_backend: object) -> None:
    others = children(os.getpid())
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    try:
        (broker,) = set(children(os.getpid())) - {*others}
        async with await backend.open() as box:
            with files_left_to(broker, 0):
                assert await _outcome(_opened_by(backend, "ipython")) in (NoRoom, SandboxError)
            assert (await box.exec("6 * 7")).value == "42"
        assert await _opened_by(backend, "ipython") == "42"
    finally:
        await backend.close()


async def _opened_by(backend: NativeBackend, profile: Profile = "plain") -> object:
    async with await backend.open(profile=profile) as box:
        return (await box.exec("6 * 7")).value


def groups_of(broker: int) -> set[str]:
    """Control groups of sandboxes, in all hierarchies."""
    parents = {hierarchy.own for hierarchy in own_hierarchies()}
    name = name_of_broker(broker)
    return {group.path for parent in parents for group in _directories(f"{parent}/{name}")}


def _directories(path: str) -> Sequence[os.DirEntry[str]]:
    return [entry for entry in os.scandir(path) if entry.is_dir()] if os.path.isdir(path) else []


FULL = """
import asyncio, json
from tests.wires.verl_wire import Trainer
from toolyard.testing import running
async def main(url):
    async with Trainer(url) as trainer:
        seen = await trainer.batch([str(i) for i in range(48)], ["<bash>echo 42</bash>"] * 48)
        served = [i for i, one in enumerate(seen) if isinstance(one.observation, str)]
        refused = [one.observation for one in seen if not isinstance(one.observation, str)]
        again = await trainer.batch([str(i) for i in served], ["<bash>echo 42</bash>"] * len(served))
        await trainer.batch([str(i) for i in served[:5]], [""] * 5, finish=[True] * 5)
        new = await trainer.batch(["a", "b", "c"], ["<bash>echo 42</bash>"] * 3)
        return len(served), refused, all("42" in one.text for one in again), all("42" in one.text for one in new)
with running([], tools="bash_terminal") as server:
    print(json.dumps(asyncio.run(main(server.url))))
"""


def test_sessions_that_cannot_have_a_sandbox_are_refused_before_one_is_made_and_those_that_have_one_go_on():
    command = ["bash", "-c", 'ulimit -Sn 300; exec "$0" -c "$1"', sys.executable, FULL]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    served, refused, going_on, recovered = json.loads(done.stdout)
    assert 10 < served < 30
    assert going_on
    assert recovered
    assert len(refused) == 48 - served
    for one in refused:
        assert (one["reason"], one["retryable"], one["reward"]) == ("lost", True, None)
        assert "there is no room for another sandbox now: " in one["error"]
        assert "of the 300 files that the server may open (ulimit -n)" in one["error"]


def test_a_process_that_serves_may_open_as_many_files_as_the_system_lets_it():
    program = "import resource; from toolyard.serving import tune_process; tune_process()"
    program += "; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    command = ["bash", "-c", 'ulimit -Sn 256; ulimit -Hn 1000; exec "$0" -c "$1"', sys.executable, program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "(1000, 1000)\n"


async def test_a_broker_that_does_not_end_leaves_no_groups(anyio_backend, monkeypatch):
    before = children(os.getpid())
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    (broker,) = set(children(os.getpid())) - {*before}
    paths = [f"{hierarchy.own}/{name_of_broker(broker)}" for hierarchy in own_hierarchies()]
    monkeypatch.setattr(native_backend, "_ENDING_SECONDS", 0.2)
    os.kill(broker, signal.SIGSTOP)
    await backend.close()
    assert not list(filter(os.path.exists, paths))
    assert broker not in children(os.getpid())


async def test_a_broker_that_neither_answers_nor_ends_is_replaced(anyio_backend, monkeypatch):
    before = children(os.getpid())
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    try:
        (broker,) = set(children(os.getpid())) - {*before}
        paths = [f"{hierarchy.own}/{name_of_broker(broker)}" for hierarchy in own_hierarchies()]
        os.kill(broker, signal.SIGSTOP)
        assert backend._broker is not None
        backend._broker.channel.close()
        monkeypatch.setattr(native_backend, "_ENDING_SECONDS", 0.2)
        assert await _opened_by(backend) == "42"
        assert broker not in children(os.getpid())
        assert not list(filter(os.path.exists, paths))
    finally:
        await backend.close()


async def test_a_pool_may_be_closed_by_several_at_once(anyio_backend):
    backend = NativeBackend(ready=0, templates=1)
    await backend.start()
    try:
        pool = SandboxPool(lambda: backend._make_one_shot(Limits(), "plain"), 3)
        await (await pool.take()).close()
        async with asyncio.timeout(20):
            while len(pool) < 3:
                await asyncio.sleep(0.01)
        await asyncio.gather(pool.close(), pool.close())
        assert backend.count() == (0, 0)
    finally:
        await backend.close()
