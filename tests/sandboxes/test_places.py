"""One-shot executions beyond a few queue, in order, whoever runs them; none is lost or blamed for the wait."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import httpx2
import pytest

from tests.wires.verl_wire import Observed, Trainer
from toolyard import Client, Environment, Split, TextBlock, ToolOutput, tool
from toolyard.core.errors import SandboxLost
from toolyard.sandboxes.base import Limits
from toolyard.sandboxes.places import OwnPlaces, usual
from toolyard.sandboxes.provider import Provider, execute, interpreter_once, open_once, open_sandbox
from toolyard.testing import running

pytestmark = pytest.mark.anyio

NAP = "import time\nbegan = time.monotonic()\ntime.sleep({seconds})\nprint(began, time.monotonic())"
"""Prints when it ran, by a clock that all processes of the machine share."""

COMPUTE = NAP.replace("time.sleep({seconds})", "while time.process_time() < {seconds}: pass")


def at_once(lives: Sequence[tuple[float, float]]) -> int:
    """The most that ran at the same time."""
    turns = sorted([(began, 1) for began, _ in lives] + [(ended, -1) for _, ended in lives])
    count = most = 0
    for _, turn in turns:
        count += turn
        most = max(most, count)
    return most


def life(text: str) -> tuple[float, float]:
    began, ended = map(float, text.replace("<result>", "").replace("</result>", "").split())
    return began, ended


async def batch(trainer: Trainer, count: int, code: str) -> list[Observed]:
    ids = [f"{count}-{i}" for i in range(count)]
    return await trainer.batch(ids, [f"<python>{code}</python>"] * count, is_last_step=[True] * count)


# Whoever runs them.


@pytest.mark.thorough
@pytest.mark.parametrize(
    "settings", [{}, {"placement": "process"}, {"placement": "pool", "pool_processes": 3}], ids=str
)
@pytest.mark.parametrize("sandbox", ["native", "subprocess"])
async def test_no_more_run_at_once_than_there_are_places_wherever_their_sessions_live(settings, sandbox):
    more = {"sandbox": sandbox, "min_isolation": "L0", "sandboxes_at_once": 2}
    with running([], tools="python_code", **more, **settings) as server:
        async with Trainer(server.url) as trainer:
            seen = await batch(trainer, 8, NAP.format(seconds=0.1))
    assert at_once([life(one.text) for one in seen]) <= 2


async def test_programs_of_the_fusion_wire_have_the_same_places(anyio_backend):
    with running([], tools="python_code", sandboxes_at_once=2) as server:
        async with httpx2.AsyncClient(base_url=server.url, timeout=60) as client:
            asked = {"code": NAP.format(seconds=0.1), "language": "python"}
            answers = await asyncio.gather(*(client.post("/run_code", json=asked) for _ in range(8)))
    assert at_once([life(answer.json()["run_result"]["stdout"]) for answer in answers]) <= 2


FEW_FILES = """
import asyncio, sys
from tests.sandboxes.test_places import batch
from tests.wires.verl_wire import Trainer
from toolyard.testing import running
async def main(url):
    async with Trainer(url) as trainer:
        return await batch(trainer, 300, "print(6 * 7)")
with running([], tools="python_code") as server:
    print(sum("42" in one.text for one in asyncio.run(main(server.url))))
"""


@pytest.mark.thorough
def test_a_batch_far_beyond_what_the_server_can_open_loses_none():
    command = ["bash", "-c", 'ulimit -Sn 256; exec "$0" -c "$1"', sys.executable, FEW_FILES]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "300\n", done.stderr[-2000:]


@pytest.mark.thorough
@pytest.mark.alone
@pytest.mark.timeout(180)
async def test_an_action_among_many_costs_the_server_what_one_among_few_does(anyio_backend):
    """In processor time of this process, the server; what programs take is the same for all of them."""
    with running([], tools="python_code") as server:
        async with Trainer(server.url) as trainer:
            await batch(trainer, 32, "print(6 * 7)")
            few = min([await cost(trainer, 64) for _ in range(3)])
            many = await cost(trainer, 768)
    assert many < 1.5 * few


async def cost(trainer: Trainer, count: int) -> float:
    began = time.process_time()
    seen = await batch(trainer, count, "print(6 * 7)")
    assert all("42" in one.text for one in seen)
    return (time.process_time() - began) / count


# Waiting.


async def test_waiting_is_no_part_of_a_programs_time(anyio_backend):
    async with Provider("native", ready=0, at_once=1):
        ran = await asyncio.gather(*(execute(NAP.format(seconds=0.4), timeout=1.2) for _ in range(5)))
    assert [one.killed_by for one in ran] == [None] * 5
    lives = [life(one.stdout) for one in ran]
    assert max(ended for _, ended in lives) - min(began for began, _ in lives) > 1.2


async def test_who_came_first_is_served_first(anyio_backend):
    async with Provider("native", ready=0, at_once=1):
        ran = await asyncio.gather(*(execute("import time; print(time.monotonic())") for _ in range(8)))
    times = [float(one.stdout) for one in ran]
    assert times == sorted(times)


@pytest.mark.alone  # processors must be idle for the waiting ones
async def test_programs_that_sleep_do_not_hold_up_the_others_while_processors_are_idle(anyio_backend):
    async with Provider("native", ready=0):
        asleep = [asyncio.ensure_future(execute("import time; time.sleep(25)", timeout=30)) for _ in range(usual() + 4)]
        try:
            async with asyncio.timeout(20):
                assert (await execute("6 * 7")).value == "42"
            assert not any(one.done() for one in asleep)
        finally:
            for one in asleep:
                one.cancel()
            await asyncio.wait(asleep)


@pytest.mark.thorough
@pytest.mark.alone
async def test_programs_that_compute_get_no_more_places_than_usual(anyio_backend):
    """Otherwise each would use up its time limit while it waits for the others."""
    async with Provider("native", ready=0):
        ran = await asyncio.gather(*(execute(COMPUTE.format(seconds=0.15)) for _ in range(2 * usual())))
    assert at_once([life(one.stdout) for one in ran]) <= 1.5 * usual() + 1  # processors may be idle at first


async def test_places_that_were_given_beyond_the_usual_are_not_given_again(anyio_backend):
    places = OwnPlaces(share=1)
    for _ in range(usual()):
        await places.take()
    waiting = [asyncio.ensure_future(places.take()) for _ in range(4)]
    await asyncio.sleep(0)
    places._admit(usual() + 2)
    await asyncio.sleep(0)
    assert [one.done() for one in waiting] == [True, True, False, False]
    waiting.pop().cancel()
    for _ in range(2):
        places.give_back()
    await asyncio.sleep(0)
    assert not waiting[-1].done()
    places.give_back()
    async with asyncio.timeout(5):
        await waiting[-1]


@pytest.mark.parametrize("opens", [interpreter_once, open_once])
async def test_who_gives_up_waiting_takes_no_place_with_him(opens, anyio_backend):
    async with Provider("subprocess", "L0", at_once=1):
        async with opens():
            waiting = [asyncio.ensure_future(execute("1")) for _ in range(3)]
            await asyncio.sleep(0)
            waiting[0].cancel()
            await asyncio.wait(waiting[:1])
        waiting[1].cancel()  # it may just have got the place
        async with asyncio.timeout(30):
            assert (await waiting[2]).value == "1"
            assert (await execute("2")).value == "2"


async def test_work_within_work_never_waits_for_a_place_of_its_own(anyio_backend):
    async with Provider("subprocess", "L0", at_once=2):

        async def judge() -> str | None:
            async with interpreter_once(), open_once() as second, await open_sandbox() as third:
                await execute("1")
                return (await second.exec("6 * 7")).value or (await third.exec("1")).value

        async with asyncio.timeout(60):
            assert await asyncio.gather(*(judge() for _ in range(4))) == ["42"] * 4
            assert (await execute("2")).value == "2"


async def test_a_sandbox_that_could_not_be_opened_leaves_its_place(anyio_backend):
    async with Provider("native", ready=0, at_once=1) as provider:
        await provider.start()
        for opens in (provider.open_once, provider.interpreter_once):
            with pytest.raises(SandboxLost, match="could not be set up"):
                async with opens(Limits(disk_bytes=-1)):  # a file system of an impossible size
                    pass
        async with asyncio.timeout(30):
            assert (await execute("1")).value == "1"


# Processes with sessions share their server's places.


class Leaving(Environment):
    uses_sandbox = True

    @classmethod
    def list_splits(cls) -> list[Split]:
        return [Split(name="train", type="train")]

    @classmethod
    def list_tasks(cls, split: str) -> list[dict[str, object]]:
        return [{}]

    def get_prompt(self) -> list[TextBlock]:
        return [TextBlock(text="Go.")]

    @tool
    async def leave(self) -> ToolOutput:
        """End the process, while it has a place."""
        async with interpreter_once():
            os._exit(1)

    @tool
    async def stay(self) -> ToolOutput:
        """Run a program."""
        return ToolOutput(blocks=[TextBlock(text=(await execute("6 * 7")).value or "")])


def test_a_process_that_ends_with_a_place_gives_it_back():
    with running([Leaving], placement="process", sandboxes_at_once=1) as server:
        environment = Client(server.url).environments.get("leaving")
        for _ in range(2):
            with (
                environment.session(split="train", index=0) as session,
                pytest.raises(Exception, match="process ended"),
            ):
                session.call_tool("leave", {})
        with environment.session(split="train", index=0) as session:
            assert session.call_tool("stay", {}).blocks[0].text == "42"
