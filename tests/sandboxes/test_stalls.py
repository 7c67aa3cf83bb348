"""A server that stalls: the time of its programs counts by their own clocks, on every backend."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator

import pytest

from tests.sandboxes import backends
from toolyard.sandboxes.base import Backend, Limits, Sandbox
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.subprocess import SubprocessBackend
from toolyard.sandboxes.watching import Watch

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


def blocking(seconds: float, begun: float = 0.3) -> None:
    asyncio.get_running_loop().call_later(begun, time.sleep, seconds)


@contextlib.asynccontextmanager
async def opened(backend: Backend) -> AsyncIterator[Sandbox]:
    await backend.start()
    try:
        async with await backend.open(Limits(wall_seconds=2)) as box:
            yield box
    finally:
        await backend.close()


@pytest.fixture(params=["native", *backends.others("subprocess", "bubblewrap")])
async def box(request, anyio_backend) -> AsyncIterator[Sandbox]:
    made = {"native": lambda: NativeBackend(templates=1, ready=0), "subprocess": SubprocessBackend}
    backend = backends.bubblewrap() if request.param == "bubblewrap" else made[request.param]()
    async with opened(backend) as box:
        await box.exec("1")
        await box.shell("true")
        yield box


async def test_what_ended_in_time_while_the_server_was_blocked_is_no_time_out(box: Sandbox) -> None:
    blocking(2.5)
    executed, ran, shelled = await asyncio.gather(
        box.exec("import time; time.sleep(0.8); print('done')"),
        box.run(["sh", "-c", "sleep 0.8; echo done"]),
        box.shell("sleep 0.8; echo done"),
    )
    assert (executed.killed_by, executed.stdout) == (None, "done\n")
    assert (ran.killed_by, ran.exit_code, ran.stdout) == (None, 0, b"done\n")
    assert (shelled.killed_by, shelled.exit_code, shelled.stdout) == (None, 0, b"done\n")


async def test_a_program_that_waited_for_a_blocked_server_gets_that_time_again(box: Sandbox) -> None:
    blocking(2.5, begun=0.1)
    much = b"x" * 2**20  # more than a pipe holds
    ran = await box.run(["sh", "-c", "sleep 0.5; wc -c"], stdin=much)
    assert (ran.killed_by, ran.stdout.split()) == (None, [b"1048576"])


async def test_what_goes_on_after_its_time_is_ended_although_the_server_was_blocked(box: Sandbox) -> None:
    blocking(2.5)
    executed, ran = await asyncio.gather(box.exec("while True: pass"), box.run(["sleep", "60"]))
    assert (executed.killed_by, ran.killed_by) == ("wall", "wall")


async def test_what_took_too_long_while_the_server_was_blocked_is_a_time_out_by_its_own_clock(anyio_backend) -> None:
    async with opened(NativeBackend(templates=1, ready=0)) as box:
        blocking(3.5)
        executed, ran = await asyncio.gather(
            box.exec("import time; time.sleep(2.6)"), box.run(["sh", "-c", "sleep 2.6; echo done"])
        )
    assert executed.killed_by == "wall"
    assert (ran.killed_by, ran.exit_code) == ("wall", 124)


async def test_the_kernels_signal_for_processor_time_counts_although_it_reports_less_than_the_limit_afterwards():
    watch = Watch(Limits(cpu_seconds=1), timeout=None, memory_enforced=True)
    assert watch.by_signal(-signal.SIGXCPU, 1.0) == watch.by_signal(-signal.SIGXCPU, 0.6) == "cpu"
    assert watch.by_signal(-signal.SIGXCPU, 0.01) is None  # the program sent it itself
    assert watch.by_signal(-signal.SIGKILL, 0.6) is None
