"""Calls that wait for a place: they end, leave, and stay distinct from programs that take too long."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from tests.wires.verl_wire import Observed, Trainer
from tests.wires.wire import Wire, until
from tests.worlds import OneTask
from toolyard import tool
from toolyard.sandboxes.provider import execute, interpreter_once
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

came, let_go = threading.Event(), threading.Event()


class Holding(OneTask):
    """Takes the only place in its setup, which has its own time limit, and keeps it."""

    async def setup(self):
        if self.task_spec.get("hold"):
            async with interpreter_once():
                came.set()
                while not let_go.is_set():
                    await asyncio.sleep(0.005)

    @tool
    async def run(self, code: str) -> str:
        """Run Python once."""
        return (await execute(code)).value or ""


@contextmanager
def one_place(**settings: object) -> Iterator[Running]:
    came.clear()
    let_go.clear()
    more = {
        "sandbox": "subprocess",
        "min_isolation": "L0",
        "allow_visible_source": True,
        "sandboxes_at_once": 1,
        "sweep_seconds": 0.05,
    }
    with running([Holding], tools="python_code", **more, **settings) as server:
        try:
            yield server
        finally:
            let_go.set()


@asynccontextmanager
async def held(server: Running) -> AsyncIterator[None]:
    """A session holds the only place, and gives it back at the end."""
    async with Wire(server.url) as other:
        holding = asyncio.ensure_future(other.open(env_name="holding", task_spec={"hold": True}))
        await asyncio.to_thread(came.wait, 20)
        try:
            yield
        finally:
            let_go.set()
            await holding


def check_blames_nobody(one: Observed) -> None:
    assert (one.observation["reason"], one.observation["reward"]) == ("timed_out", None)
    assert one.observation["retryable"] is True
    assert not one.valid


async def act(trainer: Trainer, name: str, code: str) -> Observed:
    return await trainer.act(name, f"<python>{code}</python>", is_last_step=[True])


async def test_an_action_whose_time_ends_in_the_queue_is_nobodys_fault_and_leaves_the_queue(anyio_backend):
    with one_place(call_seconds=0.5) as server:
        async with Trainer(server.url) as trainer:
            async with held(server):
                ids = ["a", "b", "c"]
                for one in await trainer.batch(ids, ["<python>print(1)</python>"] * 3, is_last_step=[True] * 3):
                    check_blames_nobody(one)
            assert "42" in await eventually(trainer)


async def eventually(trainer: Trainer) -> str:
    """One of a few tries: on a busy machine half a second may be too short."""
    for number in range(20):
        if isinstance((one := await act(trainer, f"again-{number}", "print(6 * 7)")).observation, str):
            return one.text
    raise AssertionError("a place has leaked")


async def test_a_program_whose_time_ends_in_the_queue_is_the_sandboxs_fault_for_a_client_of_fusion(anyio_backend):
    with one_place(call_seconds=0.5) as server:
        async with Wire(server.url) as client:
            async with held(server):
                answer = (await client.post("/run_code", json={"code": "print(1)", "language": "python"})).json()
            assert answer["status"] == "SandboxError"
            assert answer["message"].startswith("no answer within 0.5 s")
            assert answer["run_result"] is None
        async with Trainer(server.url) as trainer:
            assert "42" in await eventually(trainer)


async def test_a_program_whose_client_hangs_up_in_the_queue_never_runs(tmp_path, anyio_backend):
    ran = tmp_path / "ran"
    with one_place() as server:
        async with held(server):
            asked = {"code": f"open({str(ran)!r}, 'a').write('x')", "language": "python"}
            async with Wire(server.url) as client:
                posts = [asyncio.ensure_future(client.post("/run_code", json=asked)) for _ in range(3)]
                await asyncio.wait(posts, timeout=0.3)  # long enough for one of them to be in the queue
                for post in posts:
                    post.cancel()
                await asyncio.wait(posts)
        async with Trainer(server.url) as trainer:
            assert "42" in (await act(trainer, "after", "print(6 * 7)")).text
    assert not ran.exists()


async def test_a_program_whose_client_hangs_up_while_it_runs_is_ended(tmp_path, anyio_backend):
    began = tmp_path / "began"
    code = f"import time; open({str(began)!r}, 'w').close(); time.sleep(60)"
    with one_place() as server:
        async with Wire(server.url) as client:
            post = asyncio.ensure_future(
                client.post("/run_code", json={"code": code, "language": "python", "run_timeout": 60})
            )
            await until(began.exists)
            post.cancel()
            await asyncio.wait((post,))
        async with Trainer(server.url) as trainer, asyncio.timeout(20):
            assert "42" in (await act(trainer, "after", "print(6 * 7)")).text


async def test_a_session_that_is_closed_while_its_call_waits_leaves_the_queue(tmp_path, anyio_backend):
    ran = tmp_path / "ran"
    with one_place() as server:
        async with held(server), Wire(server.url) as client:
            sid = await client.open(env_name="holding")
            code = f"open({str(ran)!r}, 'w').close()"
            calling = asyncio.ensure_future(client.call(sid, "run", {"code": code}, env="holding"))
            await asyncio.wait((calling,), timeout=0.3)
            assert not calling.done()
            await client.post("/delete", headers={"X-Session-ID": sid})
            async with asyncio.timeout(20):
                assert "the session ended before the call did" in (await calling).error
        async with Trainer(server.url) as trainer:
            assert "42" in (await act(trainer, "after", "print(6 * 7)")).text
    assert not ran.exists()
