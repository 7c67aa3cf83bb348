"""Control groups that serve several sandboxes in turn: none notices its predecessor."""

import asyncio
import dataclasses
import os
import re
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.native.sandbox import NativeSandbox

pytestmark = pytest.mark.anyio

_LITTLE = Limits(memory_bytes=64 * 2**20)
_NAME = re.compile(r"(spare-\d+-)?\d+")


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
async def backend(anyio_backend: str):
    started = NativeBackend(templates=1, ready=0)
    report = await started.start()
    try:
        if report.level != "L3":
            pytest.skip("there are no control groups here")
        yield started
    finally:
        await started.close()


def _below(parent: int) -> Iterator[int]:
    for children in Path(f"/proc/{parent}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            yield child
            yield from _below(child)


def _lines(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/cgroup").read_text().splitlines()


async def _group(sandbox: NativeSandbox) -> str:
    """The host's name for the sandbox's group."""
    inside = int((await sandbox.exec("import os; os.stat('/proc/self/ns/pid').st_ino")).value or 0)
    for pid in _below(os.getpid()):
        if os.stat(f"/proc/{pid}/ns/pid").st_ino == inside:
            return next(name for line in _lines(pid) if _NAME.fullmatch(name := line.rpartition("/")[2]))
    raise AssertionError("it is not there")


async def test_a_group_is_used_again(backend: NativeBackend):
    names = []
    for _ in range(10):  # the kernel may take a while to clear one
        async with await backend.open() as sandbox:
            names.append(await _group(sandbox))
    assert len({*names}) < len(names)


async def test_groups_are_made_before_they_are_needed(backend: NativeBackend):
    names = []
    async with AsyncExitStack() as opened:
        for _ in range(8):  # more than others left
            names.append(await _group(await opened.enter_async_context(await backend.open(_LITTLE))))
            await asyncio.sleep(0.1)
    assert len({*names}) == len(names)
    assert any(name.startswith("spare-") for name in names), names


async def test_a_group_is_not_used_for_other_limits(backend: NativeBackend):
    async with await backend.open() as first:
        name = await _group(first)
    async with await backend.open(_LITTLE) as other, await backend.open() as second:
        assert await _group(other) not in (name, await _group(second))
        filled = await other.exec("held = bytearray(b'x') * 100_000_000")
        assert filled.killed_by == "memory"
        assert (await second.exec("len(bytearray(b'x') * 100_000_000)")).value == "100000000"


async def test_a_group_that_ran_out_of_memory_is_not_used_again(backend: NativeBackend):
    async with await backend.open(_LITTLE) as first:
        name = await _group(first)
        assert (await first.exec("held = bytearray(b'x') * 100_000_000")).killed_by == "memory"
    async with await backend.open(_LITTLE) as second:
        assert await _group(second) != name
        killed = await second.run(["/bin/sh", "-c", "kill -9 $$"])
        assert (killed.exit_code, killed.killed_by) == (137, None)


async def test_a_group_that_was_throttled_is_not_used_again(backend: NativeBackend):
    slow = dataclasses.replace(_LITTLE, cpus=0.1)
    async with await backend.open(slow) as first:
        name = await _group(first)
        await first.exec("while True: pass", timeout=0.5)
    async with await backend.open(slow) as second:
        assert await _group(second) != name


async def test_what_was_in_a_workspace_is_not_counted_as_the_next_one_s(backend: NativeBackend):
    for _ in range(3):
        async with await backend.open(_LITTLE) as sandbox:
            written = await sandbox.exec("open('large', 'wb').write(bytes(40_000_000))")
            assert (written.value, written.killed_by) == ("40000000", None)
