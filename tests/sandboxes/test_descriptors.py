"""What the server writes to a program reaches no other file: a closed number may mean another file at once."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator

import pytest

from tests.sandboxes import backends
from toolyard.core.errors import ProcessError
from toolyard.sandboxes import Provider, open_sandbox
from toolyard.sandboxes.base import Backend, Limits, Sandbox

pytestmark = pytest.mark.anyio


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@pytest.fixture(params=["native", "subprocess"])
async def box(request, tmp_path, anyio_backend) -> AsyncIterator[Sandbox]:
    backend: Backend = backends.backend(request.param, tmp_path)
    await backend.start()
    try:
        async with await backend.open(Limits()) as box:
            yield box
    finally:
        await backend.close()


async def test_a_write_that_comes_as_the_program_ends_is_refused(box):
    async def writes(process, told: list[str]) -> None:
        with contextlib.suppress(ProcessError):
            while process.exit_code is None:
                await process.write(b"x")
                told.append("")

    for _ in range(40):
        process = await box.start(["sleep", "0.01"])
        await asyncio.gather(*(writes(process, []) for _ in range(8)))  # an OSError of a closed file would be our error
        await process.kill()


class Opener:
    """Opens pipes as fast as it can, with the lowest free numbers, and waits until it can write to each."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    async def go_on(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            pipes = [os.pipe2(os.O_NONBLOCK) for _ in range(4)]
            events = [asyncio.Event() for _ in pipes]
            try:
                for (_, writes), event in zip(pipes, events, strict=True):
                    loop.add_writer(writes, event.set)
                async with asyncio.timeout(5):
                    await asyncio.gather(*(event.wait() for event in events))
                for reads, writes in pipes:
                    loop.remove_writer(writes)
                    with contextlib.suppress(BlockingIOError):
                        self.problems.append(f"there came {os.read(reads, 100)!r}")
            except OSError as error:  # TimeoutError too: another task has removed the writer
                self.problems.append(repr(error))
            finally:
                for fd in (fd for pipe in pipes for fd in pipe):
                    os.close(fd)


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["its time is over", "the sandbox is closed"])
async def test_a_command_that_is_cut_off_while_it_is_sent_is_sent_to_nobody_else(box, how):
    opener = Opener()
    opening = asyncio.ensure_future(opener.go_on())
    try:
        await box.shell(":")
        command = f"sleep 30; ( : ); {': ;' * 900_000}"
        sending = asyncio.ensure_future(box.shell(command, timeout=0.3 if how == "its time is over" else 20))
        if how == "the sandbox is closed":
            await asyncio.sleep(0.3)
            await box.close()
        await asyncio.wait((sending,))
        await asyncio.sleep(0.1)
    finally:
        opening.cancel()
        await asyncio.wait((opening,))
    sending.exception()
    assert opener.problems == []


async def test_a_sandbox_that_is_closed_in_the_same_moment_as_its_last_branch_is_freed_once():
    async with Provider("native"):
        box = await open_sandbox()
        (branch,) = await box.fork()
        await branch.close()
        closing = asyncio.ensure_future(box.close())
        await asyncio.sleep(0)  # it has begun, and has freed nothing
        await box._lose(branch)
        await closing
