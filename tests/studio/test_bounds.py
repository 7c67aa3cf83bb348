"""What the live feed keeps of a session, and what it costs when nobody watches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.studio.world import Counter
from toolyard import Server
from toolyard.placement.base import SessionSpec
from toolyard.runtime.runtime import Runtime
from toolyard.runtime.session import Session
from toolyard.studio import feed as feeds
from toolyard.studio.feed import Feed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def runtime() -> AsyncIterator[Runtime]:
    async with Server([Counter]).living() as runtime:
        yield runtime


async def opened(runtime: Runtime, name: str = "one") -> Session:
    return await runtime.open(SessionSpec(name, Counter, await runtime.tasks(Counter).at("train", 0)))


async def test_nothing_listens_until_a_session_is_watched_and_nothing_after(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feeds, "_KEPT_SECONDS", -1.0)
    journal, feed = runtime.journal, Feed(runtime.journal)
    before = [*journal.closed], [*journal.swept]
    session = await opened(runtime)
    await session.start("weigh", {"n": 1}).finished()
    assert journal.listener is None
    log = feed.follow(session)
    assert journal.listener is feed
    await session.start("weigh", {"n": 2}).finished()
    assert [step.number for step in log.steps] == [2]
    feed._sweep(0)
    assert journal.listener is None
    assert ([*journal.closed], [*journal.swept]) == before


async def test_a_log_keeps_the_newest_steps_within_its_bounds(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_WATCHED_MOST", 5)
    session = await opened(runtime)
    log = Feed(runtime.journal).follow(session)
    for number in range(12):
        await session.start("weigh", {"n": number}).finished()
    assert [step.number for step in log.steps] == [8, 9, 10, 11, 12]
    assert log.dropped == 7
    log.most = 1000
    for _ in range(4):
        await session.start("weigh", {"n": 1, "x": "y" * 600}).finished()
    assert [step.number for step in log.steps] == [16]
    assert log.size == sum(step.size for step in log.steps)


async def test_a_call_that_is_dropped_while_it_runs_does_no_harm(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_WATCHED_MOST", 2)
    session = await opened(runtime)
    log = Feed(runtime.journal).follow(session)
    waiting = session.start("wait", {"seconds": 0.2})
    for number in range(4):
        await session.start("weigh", {"n": number}).finished()
    await waiting.finished()
    assert len(log.steps) == 2
    assert log.size == sum(step.size for step in log.steps)


async def test_only_so_many_sessions_are_followed_at_once(runtime: Runtime, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(feeds, "_LOGS_MOST", 3)
    feed = Feed(runtime.journal)
    sessions = [await opened(runtime, f"s{number}") for number in range(6)]
    for session in sessions:
        feed.follow(session)
    assert [feed.find(session.id) is not None for session in sessions] == [False] * 3 + [True] * 3
    for session in sessions[3:]:
        feed.follow(session).viewers += 1
    with pytest.raises(Exception, match="watched already"):
        feed.follow(sessions[0])


async def test_a_message_is_bounded_however_fast_a_session_is(runtime: Runtime):
    session = await opened(runtime)
    log = Feed(runtime.journal).follow(session, pinned=True)
    for number in range(300):
        await session.start("add", {"n": 0, "note": "y" * 20_000 + str(number)}).finished()
    budget = feeds.Budget()
    steps = [step.as_json("/here", budget) for step in log.newer(0)]
    assert len(steps) == 100
    assert sum(len(str(step)) for step in steps) < 1_000_000
    await asyncio.sleep(0)


async def test_a_fork_remembers_what_happened_before_it(runtime: Runtime):
    feed, session = Feed(runtime.journal), await opened(runtime)
    log = feed.follow(session)
    await session.start("add", {"n": 1}).finished()
    await runtime.fork(session, ["two"])
    forked = feed.continue_in(log, runtime.session("two"))
    await runtime.session("two").start("add", {"n": 1}).finished()
    assert [(step.number, step.inherited) for step in forked.steps] == [(1, True), (2, False)]
    assert [step.number for step in log.steps] == [1]


async def test_a_page_that_comes_back_after_its_log_was_forgotten_hears_of_new_calls(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(feeds, "_KEPT_SECONDS", -1.0)
    feed, session = Feed(runtime.journal), await opened(runtime)
    log = feed.follow(session)
    for number in range(9):
        await session.start("weigh", {"n": number}).finished()
    seen = log.revision
    feed._sweep(0)
    again = feed.follow(session)
    assert again is not log
    await session.start("weigh", {"n": 1}).finished()
    assert [step.number for step in again.newer(seen)] == [10]


async def test_a_session_that_is_faster_than_its_page_has_gaps_and_goes_on_after_the_next_message(runtime: Runtime):
    session = await opened(runtime)
    log = Feed(runtime.journal).follow(session)
    for number in range(130):
        await session.start("weigh", {"n": number}).finished()
    assert [step.number for step in log.newer(0)] == list(range(1, 101))
    log.fresh = 0  # as a message does
    await session.start("weigh", {"n": 1}).finished()
    assert log.steps[-1].number == 131
    assert log.steps[-1].outcome == "ok"
