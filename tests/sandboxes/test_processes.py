"""Background programs, beyond the contract: concurrent reads and writes, and cancelled ones."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator

import pytest

from tests.sandboxes import backends
from toolyard.core.errors import ProcessError, SandboxLost
from toolyard.sandboxes import process as process_module
from toolyard.sandboxes.base import Backend, Limits, Process, Sandbox
from toolyard.sandboxes.pipes import Capture
from toolyard.sandboxes.process import Backlog

pytestmark = pytest.mark.anyio


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["native", "subprocess"])
async def box(request, tmp_path, anyio_backend) -> AsyncIterator[Sandbox]:
    backend: Backend = backends.backend(request.param, tmp_path)
    await backend.start()
    try:
        async with await backend.open(Limits(output_bytes=20_000)) as box:
            yield box
    finally:
        await backend.close()


async def everything(process: Process) -> bytes:
    whole = bytearray()
    while (came := await process.read(10)) != (b"", b""):
        whole += came[0]
    return bytes(whole)


async def test_the_time_of_a_program_counts_while_nobody_looks(box):
    running = asyncio.ensure_future(box.run(["sleep", "0.3"]))
    for _ in range(5):
        await asyncio.sleep(0)  # requested, but not begun
    time.sleep(0.6)  # noqa: ASYNC251  # as a loop that is held up; that it began and that it ended is heard at once
    assert (await running).usage.wall_seconds >= 0.3


async def test_several_readers_get_each_byte_once(box):
    process = await box.start(["seq", "30000"])
    parts = await asyncio.gather(*(everything(process) for _ in range(4)))
    assert sum(map(len, parts)) == len("".join(f"{n}\n" for n in range(1, 30_001)))
    lines = [line for part in parts for line in part.split(b"\n")]
    assert set(range(1000)) - {0} <= {int(line) for line in lines if line}
    assert process.exit_code == 0


async def test_who_gives_up_reading_has_taken_nothing(box):
    process = await box.start(["cat"])
    whole = b""
    for _ in range(20):
        reading = asyncio.ensure_future(process.read(10))
        await asyncio.sleep(0)
        await process.write(b"x")
        reading.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            whole += (await reading)[0]  # on a busy machine it may be done by then
    async with asyncio.timeout(30):
        while len(whole) < 20:
            whole += (await process.read(10))[0]
    assert whole == b"x" * 20


async def test_what_several_write_at_once_is_not_mixed(box):
    process = await box.start(["cat"])
    pieces = [bytes([65 + n]) * 150_000 for n in range(4)]
    writing = [asyncio.ensure_future(process.write(piece + b"\n")) for piece in pieces]
    whole = bytearray()
    async with asyncio.timeout(60):
        while len(whole) < 4 * 150_001:
            whole += (await process.read(10))[0]
    await asyncio.gather(*writing)
    assert bytes(whole).split(b"\n")[:-1] == pieces


async def test_input_that_is_not_taken_is_refused(box, monkeypatch):
    monkeypatch.setattr(process_module, "_WRITE_SECONDS", 0.3)
    process = await box.start(["sleep", "60"])
    with pytest.raises(ProcessError, match="too many"):
        await process.write(b"x" * (2**20 + 1))
    with pytest.raises(ProcessError, match="has not read its input"):
        await process.write(b"x" * 2**20)
    await process.close_input()
    with pytest.raises(ProcessError, match="has been closed"):
        await process.write(b"x")


async def _write_on(process):
    """Write until that fails: the init of the program may hold its input for a moment longer than the program."""
    async with asyncio.timeout(10):
        while True:
            await process.write(b"x")


async def test_a_program_that_closes_its_input_is_seen_to(box):
    process = await box.start(["sh", "-c", "exec <&-; echo deaf; sleep 60"])
    assert await process.read(10) == (b"deaf\n", b"")
    with pytest.raises(ProcessError, match="closed its input"):
        await _write_on(process)
    assert process.exit_code is None


async def test_who_stops_waiting_for_one_to_start_leaves_nothing(box):
    for steps in range(12):
        starting = asyncio.ensure_future(box.start(["sleep", f"{4_000_000 + os.getpid()}"]))
        for _ in range(steps):
            await asyncio.sleep(0)
        starting.cancel()
        for process in await asyncio.gather(starting, return_exceptions=True):
            if not isinstance(process, BaseException):
                await process.kill()
    assert (await box.run(["echo", "on"])).stdout == b"on\n"
    async with asyncio.timeout(10):
        while box._processes:
            await asyncio.sleep(0.01)


async def test_one_that_is_started_while_its_sandbox_closes_is_gone_with_it(box):
    starting = [asyncio.ensure_future(box.start(["sleep", "60"])) for _ in range(4)]
    await asyncio.sleep(0)
    await box.close()
    for started in await asyncio.gather(*starting, return_exceptions=True):
        if isinstance(started, BaseException):
            assert isinstance(started, SandboxLost)
        else:
            assert await started.wait(10)
            assert started.exit_code == 137


async def test_twenty_at_once_are_apart(box):
    processes = [await box.start(["sh", "-c", f"read x; echo {n} $x; exit {n}"]) for n in range(20)]
    await asyncio.gather(*(process.write(b"in\n") for process in processes))
    assert await asyncio.gather(*map(everything, processes)) == [f"{n} in\n".encode() for n in range(20)]
    assert all(await asyncio.gather(*(process.wait(10) for process in processes)))
    assert [process.exit_code for process in processes] == list(range(20))
    assert not box._processes


# What is kept of a pipe.


class Pipe:
    """A pipe with a writer, and its reader."""

    def __init__(self, limit: int, mark: bytes) -> None:
        reads, self.writes = os.pipe()
        capture = Capture(reads, limit, lambda: None)
        capture.begin(limit, mark, forget=False)
        self.came = asyncio.Event()
        self.backlog = Backlog.of(capture, self.came.set)

    async def say(self, data: bytes) -> bytes:
        os.write(self.writes, data)
        await asyncio.sleep(0.02)
        return self.backlog.pull()

    def end(self) -> bytes:
        os.close(self.writes)
        self.backlog.finish()
        return self.backlog.pull()


async def test_only_what_may_begin_a_mark_is_kept_waiting():
    pipe = Pipe(1000, b"\x1emark")
    assert await pipe.say(b"plain m") == b"plain m"
    assert await pipe.say(b"a\x1e") == b"a"
    assert await pipe.say(b"ma") == b""
    assert await pipe.say(b"ny\x1em") == b"\x1emany"
    assert await pipe.say(b"ark=last words\n") == b""
    assert pipe.backlog.answer.result() == b"last words"
    assert pipe.end() == b""


async def test_the_beginning_of_a_mark_that_never_comes_is_output():
    pipe = Pipe(1000, b"\x1emark")
    assert await pipe.say(b"a\x1ema") == b"a"
    assert pipe.end() == b"\x1ema"


async def test_a_full_backlog_leaves_the_rest_in_the_pipe():
    pipe = Pipe(1000, b"")
    os.write(pipe.writes, b"a" * 30_000)
    await asyncio.wait_for(pipe.came.wait(), 10)
    taken = []
    while sum(map(len, taken)) < 30_000:
        taken.append(pipe.backlog.pull())
        await asyncio.sleep(0)
    assert max(map(len, taken)) <= 1000
    os.write(pipe.writes, b"b" * 30_000)
    assert pipe.end() == b"b" * 30_000


async def test_a_bomb_that_goes_on_is_defused_by_killing_it(tmp_path):
    backend = backends.backend("native", tmp_path)
    await backend.start()
    try:
        async with await backend.open() as box:
            bomb = await box.start(["sh", "-c", "f() { f | f & f; }; f"])
            assert not await bomb.wait(0.5) or bomb.exit_code != 0
            async with asyncio.timeout(20):
                await bomb.kill()
            assert bomb.exit_code is not None
            assert (await box.run(["echo", "on"])).stdout == b"on\n"
    finally:
        await backend.close()
