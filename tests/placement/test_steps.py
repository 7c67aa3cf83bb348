"""Work that may wait or not, done for many items at once."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.loops import counted_turns
from toolyard.placement.steps import all_of, at_once, rest_of

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


async def test_work_that_never_waits_is_done_in_one_task_and_in_order():
    seen = []

    def work(item: int) -> int:
        seen.append((item, asyncio.current_task()))
        return item * 2

    assert await all_of(range(300), work) == [item * 2 for item in range(300)]
    assert [item for item, _ in seen[:128]] == list(range(128))
    assert {task for _, task in seen[:128]} == {asyncio.current_task()}


async def test_work_that_waits_is_done_all_at_once():
    reached = asyncio.Event()
    waiting = 0

    async def work(item: int) -> int:
        nonlocal waiting
        waiting += 1
        if waiting == 200:
            reached.set()
        async with asyncio.timeout(10):
            await reached.wait()  # which nobody gets past before all are here
        return item

    assert await all_of(range(200), work) == list(range(200))


async def test_a_few_that_wait_do_not_hold_up_the_others():
    release = asyncio.Event()
    done = []

    async def slow(item: int) -> str:
        await release.wait()
        return f"slow {item}"

    def work(item: int):
        if item % 50 == 0:
            return slow(item)
        done.append(item)
        if len(done) == 98:
            release.set()
        return f"quick {item}"

    async with asyncio.timeout(10):
        results = await all_of(range(100), work)
    assert results[50] == "slow 50"
    assert results[51] == "quick 51"


async def test_others_on_the_loop_have_their_turn_between():
    def work(item: int) -> int:
        until = time.perf_counter() + 0.00002
        while time.perf_counter() < until:
            continue
        return item

    async with counted_turns() as turns:
        await all_of(range(1024), work)
        assert turns() >= 7


async def test_work_that_only_lets_others_have_their_turn_is_not_taken_for_work_that_waits():
    rested, begun, done = 0, 0, 0

    def takes_its_time(item: int) -> int:
        until = time.perf_counter() + 0.0004
        while time.perf_counter() < until:
            continue
        return item

    async def part() -> bool:
        nonlocal begun, done, rested
        begun += 1
        before = turns()
        await all_of(range(10), takes_its_time, portion=1)
        rested += turns() > before
        done += 1
        return begun == done

    async with counted_turns() as turns:
        assert all(await all_of(range(8), lambda _: at_once(part()), portion=1)), "one part after the other"
    assert rested == 8


async def test_whoever_gives_up_ends_all_of_it():
    ended = []

    async def work(item: int) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(item)

    whole = asyncio.ensure_future(all_of(range(20), work))
    async with asyncio.timeout(10):
        while not whole.done() and len(asyncio.all_tasks()) < 21:
            await asyncio.sleep(0)
    whole.cancel()
    with pytest.raises(asyncio.CancelledError):
        await whole
    await asyncio.sleep(0)
    assert sorted(ended) == list(range(20))


async def test_what_was_begun_by_hand_goes_on_in_the_same_task():
    async def work() -> str:
        begun_in = asyncio.current_task()
        began = time.monotonic()
        try:
            async with asyncio.timeout(0.05):  # which remembers the task that it was entered in
                await asyncio.sleep(60)
        except TimeoutError:
            assert time.monotonic() - began < 10
        await asyncio.sleep(0)
        return "same" if asyncio.current_task() is begun_in else "other"

    begun = work()
    waits_for = begun.send(None)
    assert await rest_of(begun, waits_for) == "same"


async def test_an_exception_reaches_what_was_begun_by_hand():
    async def work() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "told"
        return "not told"

    async def whole() -> str:
        begun = work()
        return await rest_of(begun, begun.send(None))

    task = asyncio.ensure_future(whole())
    await asyncio.sleep(0)
    task.cancel()
    assert await task == "told"


async def test_what_never_waits_is_done_at_once_and_the_rest_of_what_waits_is_awaited():
    passed = asyncio.Event()

    async def work(waits: bool) -> str:
        if waits:
            await passed.wait()
        return "done"

    assert at_once(work(False)) == "done"
    rest = at_once(work(True))
    asyncio.get_running_loop().call_soon(passed.set)
    assert await rest == "done"
