"""A repeated request: the server performs it once, and the last requester gets the answer."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.wires.verl_wire import Steps, Trainer, answered, call, gate, observed
from tests.wires.wire import connect, request_bytes, until
from toolyard.protocols.verl import repeats
from toolyard.protocols.verl.repeats import Repeats
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def steps() -> Iterator[Running]:
    with running([Steps]) as server:
        yield server


@pytest.fixture
async def trainer(steps: Running) -> AsyncIterator[Trainer]:
    gate.opened.clear()
    async with Trainer(steps.url) as trainer:
        yield trainer
    gate.opened.set()


@pytest.fixture
def key() -> str:
    return uuid.uuid4().hex


def request(key: str, text: str | None = None) -> bytes:
    return json.dumps({"trajectory_ids": [key], "actions": [text or call("wait", key=key)]}).encode()


async def hang_up(url: str, body: bytes, came: Any) -> None:
    """Send a request, wait until the server performs it, and disconnect."""
    with connect(url) as sock:
        sock.sendall(request_bytes("POST", "/get_observation", {"Content-Type": "application/json"}, body))
        await until(came)


async def cached(trainer: Trainer) -> int:
    return (await trainer.get("/verl/metrics")).json()["cached_responses"]


async def asked(trainer: Trainer, count: int) -> None:
    """Wait until the server has so many requests."""
    async with asyncio.timeout(10):
        while (await trainer.get("/verl/health")).json()["concurrent_requests"] < count:
            await asyncio.sleep(0.01)


async def post(trainer: Trainer, body: bytes) -> Any:
    return observed(await trainer.post("/get_observation", content=body), 1)[0]


async def test_whoever_hangs_up_and_asks_again_while_it_runs_gets_the_one_answer(trainer, steps, key):
    await hang_up(steps.url, request(key), lambda: gate.came[key])
    again = asyncio.ensure_future(post(trainer, request(key)))
    await asked(trainer, 2)
    gate.opened.set()
    assert await again == (answered(f"{key} came 1 times"), False, True)
    assert await post(trainer, request(key)) == (answered(f"{key} came 2 times"), False, True), "that was a new one"


async def test_whoever_hangs_up_and_asks_again_when_it_is_done_gets_the_one_answer(trainer, steps, key):
    await hang_up(steps.url, request(key), lambda: gate.came[key])
    await asyncio.sleep(0.1)  # an immediate answer is not kept: clients do not give up so soon
    gate.opened.set()
    async with asyncio.timeout(10):
        while not await cached(trainer):
            await asyncio.sleep(0.01)
    assert await post(trainer, request(key)) == (answered(f"{key} came 1 times"), False, True)
    assert await cached(trainer) == 0, "it is given once"
    assert await post(trainer, request(key)) == (answered(f"{key} came 2 times"), False, True)


async def test_a_text_that_is_repeated_after_its_answer_is_carried_out_again(trainer, key):
    body = request(key, "<note>more</note>")
    texts = [(await post(trainer, body)).text for _ in range(3)]
    assert texts == [f"\n<notes>{' '.join(['more'] * n)}</notes>\n" for n in (1, 2, 3)]


async def test_a_request_that_differs_in_one_character_is_another(trainer, key):
    gate.opened.set()
    bodies = [request(key), request(key) + b" "]
    await asyncio.gather(*(post(trainer, body) for body in bodies))
    assert gate.came[key] == 2


async def test_after_408_the_same_request_joins_what_goes_on(key):
    gate.opened.clear()
    with running([Steps], verl_request_seconds=0.3) as server:
        async with Trainer(server.url) as trainer:
            for _ in range(2):
                late = await trainer.post("/get_observation", content=request(key))
                assert late.status_code == 408
            gate.opened.set()
            assert await post(trainer, request(key)) == (answered(f"{key} came 1 times"), False, True)
            assert await post(trainer, request(key)) == (answered(f"{key} came 2 times"), False, True)


async def test_after_408_an_answer_that_nobody_waited_for_is_kept(key):
    gate.opened.clear()
    with running([Steps], verl_request_seconds=0.2) as server:
        async with Trainer(server.url) as trainer:
            assert (await trainer.post("/get_observation", content=request(key))).status_code == 408
            gate.opened.set()
            async with asyncio.timeout(10):
                while not await cached(trainer):
                    await asyncio.sleep(0.01)
            assert await post(trainer, request(key)) == (answered(f"{key} came 1 times"), False, True)


async def test_without_repeats_every_request_is_carried_out(key):
    gate.opened.clear()
    with running([Steps], verl_repeat_seconds=0) as server:
        async with Trainer(server.url) as trainer:
            assert (await trainer.get("/verl/metrics")).json()["config"]["hashing_enabled"] is False
            bodies = [asyncio.ensure_future(post(trainer, request(key))) for _ in range(2)]
            await asked(trainer, 2)
            gate.opened.set()
            await asyncio.gather(*bodies)
            assert gate.came[key] == 2


async def test_many_who_ask_at_once_are_all_answered_and_it_is_done_once(trainer, key):
    asking = [asyncio.ensure_future(post(trainer, request(key))) for _ in range(20)]
    await asked(trainer, 20)
    gate.opened.set()
    assert set(await asyncio.gather(*asking)) == {(answered(f"{key} came 1 times"), False, True)}


async def test_what_goes_wrong_goes_wrong_for_all_who_wait():
    kept = Repeats(30)
    started = asyncio.Event()

    async def broken() -> bytes:
        started.set()
        await asyncio.sleep(0.01)
        raise ValueError("it broke")

    first = asyncio.ensure_future(kept.answer(b"x", broken))
    await started.wait()
    second = asyncio.ensure_future(kept.answer(b"x", broken))
    for one in (first, second):
        with pytest.raises(ValueError, match="it broke"):
            await one


async def test_kept_answers_are_forgotten_in_time_and_when_there_are_too_many(monkeypatch):
    async def work() -> bytes:
        return b"new"

    brief = Repeats(0.01)
    brief.keep(b"x", b"old")
    await asyncio.sleep(0.02)
    assert await brief.answer(b"x", work) == (b"new", True)
    monkeypatch.setattr(repeats, "_BYTES_MOST", 10)
    small = Repeats(30)
    for body in (b"1", b"2", b"3", b"3"):
        small.keep(body, b"1234")
    assert len(small) == 2
    assert await small.answer(b"1", work) == (b"new", True)
    assert await small.answer(b"3", work) == (b"1234", True)
