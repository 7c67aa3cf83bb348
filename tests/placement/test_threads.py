"""Plain functions in threads: bursts, blockades, and functions that never come back."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import threading
import weakref
from collections.abc import Callable

import anyio
import pytest

from toolyard import Environment, tool
from toolyard.core.errors import ServiceUnavailable
from toolyard.core.output import ToolFailure
from toolyard.placement.local import LocalEnvironment, LocalPlacement
from toolyard.placement.threads import Threads

pytestmark = pytest.mark.anyio

word: contextvars.ContextVar[str] = contextvars.ContextVar("word", default="")


@pytest.fixture
def threads():
    pool = Threads(100)
    yield pool
    pool.close()


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(10):
        while not condition():
            await anyio.sleep(0.005)


class Held:
    """A function that does not return until it is released."""

    def __init__(self) -> None:
        self.begun, self.released = threading.Event(), threading.Event()

    def __call__(self) -> bool:
        self.begun.set()
        return self.released.wait(20)


async def test_what_a_function_returns_or_raises_comes_back(threads):
    assert await threads.run(lambda: threading.current_thread().name) == "toolyard-plain"
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 / 0)
    with pytest.raises(RuntimeError, match="StopIteration"):
        await threads.run(lambda: next(iter(())))


async def test_a_function_that_comes_while_another_hangs_and_a_thread_is_idle_does_not_wait_for_the_hanging_one(
    threads,
):
    held = Held()
    hanging = asyncio.ensure_future(threads.run(held))
    await until(held.begun.is_set)
    with anyio.fail_after(10):
        for number in range(5):
            assert await threads.run(lambda number=number: number) == number
            await anyio.sleep(0.02)  # its thread is idle by now
    held.released.set()
    assert await hanging


async def test_a_function_sees_the_context_of_its_caller(threads):
    word.set("here")
    assert await threads.run(word.get) == "here"


async def test_functions_that_block_do_not_hold_up_the_others(threads):
    release = threading.Event()
    blocked = [asyncio.ensure_future(threads.run(release.wait)) for _ in range(80)]
    with anyio.fail_after(5):
        assert await threads.run(lambda: "through") == "through"
    release.set()
    assert await asyncio.gather(*blocked) == [True] * 80


async def test_a_burst_of_quick_functions_needs_few_threads():
    threads = Threads(256)
    assert await asyncio.gather(*(threads.run(lambda n=n: n) for n in range(2000))) == list(range(2000))
    assert threads._alive <= 32
    threads.close()


async def test_functions_that_never_come_back_cost_only_their_own_threads():
    pool = Threads(2)
    release = threading.Event()
    for _ in range(4):
        with anyio.move_on_after(0.05):
            await pool.run(release.wait)
    with anyio.fail_after(5):
        assert await pool.run(lambda: "still here") == "still here"
    release.set()
    with anyio.fail_after(5):
        while pool._hung:
            await anyio.sleep(0.01)
    assert pool._alive <= 2
    pool.close()


async def test_a_function_that_was_given_up_before_it_began_never_begins():
    pool = Threads(1)
    release, ran = threading.Event(), threading.Event()
    first = asyncio.ensure_future(pool.run(release.wait))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(pool.run(ran.set))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run(lambda: None)
    assert not ran.is_set()
    pool.close()


async def test_a_function_behind_one_that_was_given_up_gets_a_thread_of_its_own():
    pool = Threads(1)
    release = threading.Event()
    first = asyncio.ensure_future(pool.run(release.wait))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(pool.run(lambda: "through"))
    await asyncio.sleep(0.05)
    first.cancel()
    with anyio.fail_after(5):
        assert await second == "through"
    release.set()
    pool.close()


async def test_what_must_always_run_runs_even_if_nobody_waits_any_more():
    pool = Threads(1)
    release, ran = threading.Event(), threading.Event()
    first = asyncio.ensure_future(pool.run(release.wait))
    await asyncio.sleep(0.05)
    second = asyncio.ensure_future(pool.run(ran.set, always=True))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.wait([second])
    release.set()
    await first
    await pool.run(lambda: None)
    assert ran.is_set()
    pool.close()


class Kept:
    def work(self) -> str:
        return "done"

    def fail(self) -> str:
        raise ValueError("no")


async def test_what_was_run_is_kept_by_nobody(threads):
    """Not even until the garbage collector runs: batches are large, and there are many."""
    gc.disable()
    try:
        kept = Kept()
        gone = weakref.ref(kept)
        await asyncio.gather(*(threads.run(kept.work) for _ in range(3)))
        await threads.run(kept.work)
        with pytest.raises(ValueError, match="no"):
            await threads.run(kept.fail)
        del kept
        with anyio.fail_after(10):
            while gone() is not None:  # the thread drops it once it has reported
                await anyio.sleep(0.005)
    finally:
        gc.enable()


async def test_slow_functions_run_side_by_side():
    threads = Threads(32)
    barrier = threading.Barrier(20, timeout=10)  # passes only when all are there
    assert sorted(await asyncio.gather(*(threads.run(barrier.wait) for _ in range(20)))) == list(range(20))
    threads.close()


async def test_functions_that_are_given_up_together_starve_nobody():
    threads = Threads(2)
    held = [Held() for _ in range(3)]
    assert await threads.run(lambda: "quick") == "quick"
    given_up = [asyncio.ensure_future(threads.run(one)) for one in held]
    await until(lambda: len(threads._jobs) == 1)  # both threads hang, and one function waits
    for one in given_up:
        one.cancel()
    await asyncio.wait(given_up)
    with anyio.fail_after(10):
        assert await threads.run(lambda: "another") == "another"
    for one in held:
        one.released.set()
    threads.close()


def test_threads_go_on_in_another_loop_when_the_first_was_closed_before_one_was_woken(threads):
    first = asyncio.new_event_loop()
    left = first.create_task(threads.run(lambda: "never asked for"))
    first.call_soon(first.stop)
    first.run_forever()  # one turn: the function is queued, and no thread is woken
    first.close()
    assert asyncio.run(asyncio.wait_for(threads.run(lambda: "through"), 5)) == "through"
    assert not left.done()


async def test_a_thread_is_woken_although_work_keeps_coming(threads):
    """Each turn of the loop brings another function; the first one must not wait for the last."""
    done = asyncio.Event()
    first = asyncio.ensure_future(threads.run(lambda: "through"))
    first.add_done_callback(lambda _: done.set())
    others = []
    with anyio.fail_after(5):
        while not done.is_set():
            others.append(asyncio.ensure_future(threads.run(lambda: None)))
            await asyncio.sleep(0)
    await asyncio.gather(*others)


def test_a_loop_hears_of_its_functions_although_one_of_another_loop_ends_meanwhile(threads):
    """The other loop is not closed: it might go on, and then its caller wants the result too."""
    other = asyncio.new_event_loop()
    first, second = Held(), Held()
    left = other.create_task(threads.run(first))
    other.run_until_complete(until(first.begun.is_set))

    async def go_on() -> bool:
        going_on = asyncio.ensure_future(threads.run(second))
        await until(second.begun.is_set)
        first.released.set()
        await until(lambda: threads._performed == 1)  # its thread has woken its waiters
        second.released.set()
        return await asyncio.wait_for(going_on, 5)

    assert asyncio.run(go_on())
    assert other.run_until_complete(asyncio.wait_for(left, 5))
    other.close()


async def test_a_function_that_was_given_up_and_came_back_leaves_no_thread_too_many():
    pool = Threads(1)
    held = [Held() for _ in range(3)]
    given_up = asyncio.ensure_future(pool.run(held[0]))
    await until(held[0].begun.is_set)
    others = [asyncio.ensure_future(pool.run(one)) for one in held[1:]]
    given_up.cancel()
    await until(held[1].begun.is_set)
    assert pool._alive == 2
    held[0].released.set()
    await until(lambda: pool._alive == 1 and not pool.hung)
    assert not held[2].begun.is_set()
    others.append(asyncio.ensure_future(pool.run(lambda: True)))
    for one in held:
        one.released.set()
    assert await asyncio.gather(*others) == [True] * 3
    last = Held()
    with anyio.move_on_after(0.05):
        await pool.run(last)
    with anyio.fail_after(5):
        assert await pool.run(lambda: "through") == "through"
    last.released.set()
    pool.close()


async def test_what_was_asked_for_before_the_end_is_done():
    pool = Threads(100)
    await pool.run(lambda: None)
    await until(lambda: pool._idle == 1)
    asked = asyncio.ensure_future(pool.run(lambda: "done", always=True))
    await asyncio.sleep(0)  # it is queued, and no thread is woken
    pool.close()
    with anyio.fail_after(5):
        assert await asked == "done"


async def test_when_no_thread_can_be_started_that_is_told_and_later_ones_can():
    pool = Threads(2)
    ran, never = threading.Event(), threading.Event()
    threading.stack_size(2**46)  # more memory than there is
    try:
        with anyio.fail_after(5), pytest.raises(ServiceUnavailable, match="no thread can be started"):
            await pool.run(ran.set, always=True)
        with anyio.fail_after(5), pytest.raises(ServiceUnavailable, match="no thread can be started"):
            await pool.run(never.set)
    finally:
        threading.stack_size(0)
    with anyio.fail_after(5):
        assert await pool.run(lambda: "through") == "through"
    assert ran.is_set()
    assert not never.is_set()
    pool.close()


class Plain(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return ""

    @tool
    def answer(self) -> str:
        return "42"


async def test_a_call_for_which_there_is_no_thread_is_lost_and_no_failure_of_its_tool(monkeypatch):
    def refused(self):
        raise RuntimeError("can't start new thread")

    place = LocalPlacement(2)
    placed = LocalEnvironment(Plain(), place)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        told = await placed.call("answer", {}, {})
    assert isinstance(told, ToolFailure)
    assert (told.reason, told.retryable) == ("lost", True)
    assert await placed.call("answer", {}, {}) == "42"
    place.close()
