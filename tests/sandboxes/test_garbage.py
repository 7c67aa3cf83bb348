"""Thousands of sandboxes: a closed one is freed at once, not at Python's next search for cycles."""

from __future__ import annotations

import gc
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.sandboxes import backends
from tests.tiers import first
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.provider import Provider, execute, interpreter_once, open_sandbox

pytestmark = pytest.mark.anyio

_TIMES = 5


@pytest.fixture(params=backends.LOOPS)
def anyio_backend(request):
    return request.param


@contextmanager
def counted() -> Iterator[list[int]]:
    """How many objects only a search for cycles frees."""
    found: list[int] = []
    gc.collect()
    gc.disable()
    try:
        yield found
        found.append(gc.collect())
    finally:
        gc.enable()


async def session() -> None:
    async with await open_sandbox() as box:
        await box.exec("x = 1")
        await box.shell("echo hi")
        await box.run(["cat"], stdin=b"some")
        await box.write("file", b"some")
        assert await box.read("file") == b"some"


async def process() -> None:
    async with await open_sandbox() as box:
        program = await box.start(["cat"])
        await program.write(b"some")
        assert (await program.read(10))[0] == b"some"
        await program.kill()


async def branch() -> None:
    async with await open_sandbox() as box:
        await box.exec("x = 1")
        (branched,) = await box.fork()
        async with branched:
            assert (await branched.exec("x")).value == "1"


async def once() -> None:
    assert (await execute("print(1)")).stdout == "1\n"


async def too_long() -> None:
    assert (await execute("while True: pass", timeout=0.05)).timed_out


async def too_much() -> None:
    async with interpreter_once(Limits(output_bytes=10)) as interpreter:
        assert (await interpreter.exec("print('x' * 100)")).killed_by == "output"


@pytest.mark.parametrize("way", first([session, process, branch, once, too_long, too_much]))
async def test_no_native_sandbox_is_left_to_the_search_for_cycles(way: Callable[[], Awaitable[None]]):
    async with Provider("native", ready=0):
        await _check(way)


async def _check(way: Callable[[], Awaitable[None]]) -> None:
    await way()  # warm up: what is made once stays
    with counted() as found:
        for _ in range(_TIMES):
            await way()
    assert sum(found) < 10 * _TIMES  # a single sandbox has more
