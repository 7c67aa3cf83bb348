"""Processes that sessions in other processes leave behind: they end with their session, and with no other."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from tests.placement.test_processes import PLACES, is_alive, lost, parent_of, value
from tests.placement.worlds import Counting
from tests.wires.wire import H, Wire, until
from toolyard.sandboxes import session_mark
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


class Sandboxed(Counting):
    """With its own templates."""

    async def setup(self):
        self.backend = NativeBackend(ready=0, templates=1)
        await self.backend.start()


@pytest.fixture(scope="module", params=PLACES)
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running([Counting], placement=request.param, pool_processes=2) as server:
        yield server


async def daemon(wire: Wire, sid: str, seconds: int = 600) -> list[int]:
    pids: list[int] = json.loads(await value(wire, sid, "start_a_daemon", seconds=seconds))
    return pids


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def any_alive(pids: list[int]) -> bool:
    return any(map(is_alive, pids))


async def test_a_daemon_ends_with_its_session_and_those_of_others_live_on(served, wire):
    if served.server.settings.placement == "pool":
        return  # there it ends with the process: see the next test
    one, other = await wire.open(task_spec={}), await wire.open(task_spec={})
    daemons, others = await daemon(wire, one), await daemon(wire, other)
    await wire.end(one)
    await until(lambda: not any_alive(daemons))
    assert all(map(is_alive, others))
    await wire.end(other)
    await until(lambda: not any_alive(others))


async def test_a_daemon_ends_with_a_process_that_is_killed(wire):
    one, other = await wire.open(task_spec={}), await wire.open(task_spec={})
    daemons, others = await daemon(wire, one), await daemon(wire, other)
    os.kill(int(await value(wire, one, "where")), signal.SIGKILL)
    await until(lambda: not any_alive(daemons))
    assert all(map(is_alive, others))


async def test_a_daemon_that_ends_while_its_session_goes_on_leaves_no_zombie(wire):
    sid = await wire.open(task_spec={})
    pids = await daemon(wire, sid, seconds=0)
    await until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    assert await value(wire, sid, "add") == "1"


async def test_a_crash_is_told_at_once_although_a_copy_of_the_process_lives_on(wire, tmp_path):
    sid = await wire.open(task_spec={})
    told = tmp_path / "told"
    with anyio.fail_after(20):
        assert "exit code 3" in await lost(wire, sid, "crash_with_a_copy", path=str(told))
    await until(lambda: not is_alive(int(told.read_text())))


async def test_daemons_of_a_fork_are_its_own(served, wire):
    if served.server.settings.placement == "pool":
        return  # sessions have no process of their own to fork there
    sid = await wire.open(task_spec={})
    daemons = await daemon(wire, sid)
    (fork,) = (await wire.post("/counting/fork", headers=H(sid), json={})).json()["sids"]
    others = await daemon(wire, fork)
    await wire.end(sid)
    await until(lambda: not any_alive(daemons))
    assert all(map(is_alive, others))
    assert await value(wire, fork, "add") == "1"
    await wire.end(fork)
    await until(lambda: not any_alive(others))


@pytest.mark.parametrize("placement", PLACES)
async def test_a_daemon_ends_with_a_template_that_is_killed(placement):
    with running([Counting], placement=placement, pool_processes=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            daemons = await daemon(wire, sid)
            os.kill(parent_of(int(await value(wire, sid, "where"))), signal.SIGKILL)
            await until(lambda: not any_alive(daemons))
            await wire.end(sid)


@pytest.mark.parametrize("placement", PLACES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_a_daemon_ends_with_the_server(placement, number):
    daemons = daemons_of_a_server_that_got(number, placement)
    await until(lambda: not any_alive(daemons))


def daemons_of_a_server_that_got(number: int, placement: str) -> list[int]:
    script = textwrap.dedent(f"""
        from tests.placement.worlds import Counting
        from toolyard import Client
        from toolyard.testing import running
        import signal, sys
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with running([Counting], placement={placement!r}, drain_seconds=1) as server, Client(server.url) as client:
            with client.environments.get("counting").session({{}}) as session:
                print(session.call_tool("start_a_daemon").text, flush=True)
                signal.pause()
    """)
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]) as process:
        assert process.stdout is not None
        daemons: list[int] = json.loads(process.stdout.readline())
        assert all(map(is_alive, daemons))
        process.send_signal(number)
        process.wait(30)
    return daemons


async def test_who_cleans_up_after_a_session_is_not_ended_with_it():
    with running([Sandboxed], placement="process") as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(env_name="sandboxed", task_spec={})
            worker = int(await value(wire, sid, "where", env="sandboxed"))
            (broker,) = children_of(worker)
            assert (session_mark.mark_of(worker), session_mark.mark_of(broker)) == (worker, 0)
            await wire.end(sid)
