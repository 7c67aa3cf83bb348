"""Gateways that die, a supervisor that dies, and all of them told to stop."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import time
from collections import Counter
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2
import pytest

from tests.gateways.several import Several, alive, at
from tests.tiers import thorough
from tests.wires.verl_wire import Trainer, call
from tests.wires.wire import H, Wire, until
from toolyard import AsyncClient
from toolyard.client import ConnectionLost, InfrastructureError, SessionGone, ToolLost

pytestmark = pytest.mark.anyio

SESSIONS = 150


def batch(ids: list[str], text: str) -> bytes:
    return json.dumps({"trajectory_ids": ids, "actions": [text] * len(ids)}).encode()


async def pid_of(several: Several, number: int) -> int:
    async with at(several, number) as wire:
        sid = next(f"pid-{n}" for n in range(1000) if several.owner(f"pid-{n}") == number)
        await wire.open(sid)
        told = await wire.call(sid, "tell", {"text": "x"}, env="yard")
        await wire.end(sid)
        pid: int = told.output["metadata"]["pid"]
        return pid


@pytest.mark.thorough
async def test_when_a_gateway_is_killed_under_load_only_its_sessions_are_lost_and_it_is_replaced(start):
    several = start("--log-level", "warning").started()
    victim = await pid_of(several, 1)
    outcomes: Counter[tuple[bool, str]] = Counter()
    stop = asyncio.Event()
    working = 0

    async def work(client: AsyncClient) -> None:
        """Call until the session is lost, or until told to stop."""
        nonlocal working
        async with client.environments.get("yard").session(split="train", index=0) as session:
            first = await session.call_tool("tell", {"text": "0"})
            had_it = first.metadata["pid"] == victim
            working += 1
            calls = 1
            try:
                while not stop.is_set():
                    told = await session.call_tool("tell", {"text": str(calls)})
                    calls += 1
                    assert len(told.text.split()) == calls, "no call is lost or made twice"
                    await asyncio.sleep(0.05)
            except InfrastructureError as error:
                outcomes[had_it, type(error).__name__] += 1
            else:
                outcomes[had_it, "fine"] += 1

    async with AsyncClient(several.url) as client:
        workers = [asyncio.ensure_future(work(client)) for _ in range(SESSIONS)]
        await until(lambda: working == SESSIONS, 60)
        os.kill(victim, signal.SIGKILL)
        several.until("gateway 1 .* has ended by signal 9")
        await until(lambda: len(several.gateways()) == several.count)
        await asyncio.sleep(1)
        stop.set()
        await asyncio.gather(*workers)

        assert outcomes[False, "fine"] > SESSIONS / 3
        assert {had_it for had_it, _ in outcomes} == {True, False}
        assert all(how in ("SessionGone", "ToolLost") for had_it, how in outcomes if had_it), outcomes
        assert all(how == "fine" for had_it, how in outcomes if not had_it), outcomes

        working = 0
        stop.clear()
        workers = [asyncio.ensure_future(work(client)) for _ in range(60)]
        await until(lambda: working == 60, 60)
        stop.set()
        await asyncio.gather(*workers)
    assert outcomes[False, "fine"] > SESSIONS / 3 + 60 - 1
    assert await pid_of(several, 1) in several.gateways()
    assert victim not in several.gateways()


@pytest.mark.thorough
async def test_a_gateway_that_cannot_be_replaced_at_once_is_replaced_later_and_the_others_serve(start):
    variables = {"YARD_FORKS_REFUSED": "4", "PYTHONPATH": str(Path(__file__).parents[2])}
    several = start("--log-level", "warning", **variables).started()
    os.kill(await pid_of(several, 1), signal.SIGKILL)
    several.until("gateway 1 could not be started again: .*unavailable")
    async with at(several, 0) as wire:
        assert (await wire.get("/health")).status_code == 200
    async with at(several, 1):  # it serves
        assert len(several.gateways()) == several.count


async def test_a_gateway_that_was_replaced_tells_when_it_was_started_itself(start):
    several = start("--log-level", "warning").started()
    before = await started_at(several)
    os.kill(await pid_of(several, 1), signal.SIGKILL)
    several.until("gateway 1 .* has ended by signal 9")
    await until(lambda: len(several.gateways()) == several.count)
    async with at(several, 1):  # it serves
        after = await started_at(several)
    assert after[0] == before[0]
    assert before[1] < after[1] <= time.time()


async def started_at(several: Several) -> dict[int, float]:
    async with at(several, 0) as wire:
        text = (await wire.get("/metrics")).text
    return {int(n): float(at) for n, at in re.findall(r'process_start_time_seconds\{gateway="(\d)"\} (\S+)', text)}


async def test_what_is_under_way_in_a_gateway_that_dies_is_told_to_be_lost_and_nothing_else(start):
    several = start("--log-level", "warning").started()
    victim = await pid_of(several, 1)
    mine, other = (next(f"s{n}" for n in range(99) if several.owner(f"s{n}") == number) for number in (1, 2))
    node = ""
    while several.owner(node) != 1:
        async with Wire(several.url) as wire:
            node = (await wire.post("/get_cookie")).cookies["node_id"]
    async with AsyncExitStack() as stack:
        ors, trainer, tools, unharmed = [await stack.enter_async_context(at(several, 0)) for _ in range(4)]
        await ors.open(mine)
        await unharmed.open(other)
        tools.headers["Cookie"] = f"node_id={node}"
        stream = await stack.enter_async_context(ors.follow(mine, "wait", {"key": "k"}, env="yard"))
        await stream.event()
        asked = {
            "trainer": trainer.post("/get_observation", content=batch([mine], call("wait", key="k"))),
            "tools": tools.post("/execute_tool", json={"tool_name": "wait", "arguments": {"key": "k"}}),
            "unharmed": unharmed.call(other, "wait", {"key": "k"}, env="yard"),
        }
        told = {name: asyncio.ensure_future(work) for name, work in asked.items()}
        await until(lambda: several.came("k") == 4)
        os.kill(victim, signal.SIGKILL)
        with pytest.raises(httpx2.RemoteProtocolError):  # the answer had begun, and breaks off
            await stream.rest()
        lost = json.loads((await told["trainer"]).content)
        assert (lost["dones"], lost["valids"]) == ([True], [False])
        assert (lost["observations"][0]["reason"], lost["observations"][0]["reward"]) == ("lost", None)
        assert ((await told["tools"]).status_code, (await told["tools"]).json()["reason"]) == (502, "lost")
        assert not told["unharmed"].done()
        several.go("k")
        assert (await told["unharmed"]).text.startswith("k came")
    async with Wire(several.url) as wire:
        assert not await wire.alive(mine)
        assert (await wire.post("/execute_tool", headers={"Cookie": f"node_id={node}"})).status_code == 403
        assert await wire.alive(other)


async def test_trajectories_of_a_gateway_that_dies_are_lost_without_a_reward_and_others_are_not(start):
    several = start("--log-level", "warning").started()
    victim = await pid_of(several, 1)
    ids = [f"t{n}" for n in range(30)]
    assert several.owner(ids[0]) != 1, "another one sees to the batch"
    async with at(several, several.owner(ids[0])) as wire:
        asking = asyncio.ensure_future(wire.post("/get_observation", content=batch(ids, call("wait", key="k"))))
        await until(lambda: several.came("k") == len(ids))
        os.kill(victim, signal.SIGKILL)
        several.go("k")
        told = json.loads((await asking).content)
    for name, one, done, valid in zip(ids, told["observations"], told["dones"], told["valids"], strict=True):
        if several.owner(name) == 1:
            assert (one["reason"], one["reward"], one["retryable"], done, valid) == ("lost", None, True, True, False)
        else:
            assert "came" in one
            assert (done, valid) == (False, True)
    async with Trainer(several.url) as trainer:
        again = await trainer.batch(ids, [call("tell", text="x")] * len(ids))
        assert all(one.valid for one in again), "those that were lost began again"


async def test_our_client_is_told_that_its_session_is_gone(start):
    several = start("--log-level", "warning", count=2).started()
    async with AsyncClient(several.url) as client:
        async with client.environments.get("yard").session(split="train", index=0) as session:
            pid = (await session.call_tool("tell", {"text": "x"})).metadata["pid"]
            running = asyncio.ensure_future(session.call_tool("wait", {"key": "k"}))
            await until(lambda: several.came("k"))
            os.kill(pid, signal.SIGKILL)
            with pytest.raises((SessionGone, ToolLost)):
                await running
            with pytest.raises(SessionGone):
                await session.get_prompt()
        async with client.environments.get("yard").session(split="train", index=0) as session:
            assert (await session.call_tool("tell", {"text": "new"})).text == "new"


@pytest.mark.thorough
async def test_a_gateway_that_keeps_dying_is_started_again_and_again_but_not_at_once(start):
    several = start("--log-level", "warning", count=2).started()
    for _ in range(3):
        known = set(several.gateways())
        os.kill(min(known), signal.SIGKILL)
        await until(lambda known=known: set(several.gateways()) - known)
    async with Wire(several.url) as wire:
        await until(lambda: len(several.gateways()) == 2)
        for n in range(10):
            await wire.open(f"s{n}")


async def test_when_the_supervisor_is_killed_no_process_is_left(start):
    several = start().started()
    async with Wire(several.url) as wire:
        for n in range(10):
            await wire.open(f"s{n}")
    pids = several.gateways()
    several.process.kill()
    several.wait()
    await until(lambda: not any(map(alive, pids)))


@pytest.mark.parametrize(
    "pause",
    [0.5, thorough(11)],  # the second is longer than an idle server waits for its connections
)
async def test_sigterm_lets_calls_end_wherever_they_are_and_closes_every_session(start, pause):
    several = start().started()
    ids = [f"s{n}" for n in range(12)]
    wires = []
    for sid in ids:
        async with Wire(several.url) as wire:
            await wire.open(sid)
    called = []
    for sid in ids:  # over connections to any gateway
        wires.append(Wire(several.url))
        called.append(asyncio.ensure_future(wires[-1].call(sid, "wait", {"key": sid}, env="yard")))
    await until(lambda: all(map(several.came, ids)))
    pids = several.gateways()
    several.process.send_signal(signal.SIGTERM)
    await until(lambda: several.output.count("stopping: ") == several.count)
    assert not any(one.done() for one in called)
    last = [sid for sid in ids if several.owner(sid) == several.owner(ids[0])]
    for sid in ids:
        if sid not in last:
            several.go(sid)
    await asyncio.sleep(pause)
    for sid in last:
        several.go(sid)
    assert [one.text for one in await asyncio.gather(*called)] == [f"{sid} came 1 times" for sid in ids]
    assert several.wait() == -signal.SIGTERM
    assert several.ended() == len(ids)
    assert not any(map(alive, pids))
    assert "Traceback" not in several.output
    for wire in wires:
        await wire.aclose()


async def test_interrupting_twice_stops_calls_but_still_closes_every_session(start):
    several = start().started()
    async with Wire(several.url) as wire:
        for n in range(6):
            await wire.open(f"s{n}")
        called = asyncio.ensure_future(wire.call("s0", "wait", {"key": "k"}, env="yard"))
        await until(lambda: several.came("k"))
        began = time.monotonic()
        several.process.send_signal(signal.SIGINT)
        await until(lambda: several.output.count("stopping: ") == several.count)
        several.process.send_signal(signal.SIGINT)
        assert "was stopped" in (await called).error
    assert several.wait() == 130
    assert several.ended() == 6
    assert time.monotonic() - began < 20
    assert "Traceback" not in several.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_that_comes_while_gateways_start_ends_them_all(start, number):
    several = start()
    pids: list[int] = []
    await until(lambda: pids.extend(several.gateways()) or pids)
    several.process.send_signal(number)
    assert several.wait(10) == (130 if number == signal.SIGINT else -signal.SIGTERM)
    assert not any(map(alive, pids))
    assert "Stop with Ctrl-C" not in several.output


def test_what_keeps_a_gateway_from_starting_is_said_once_in_one_paragraph(start):
    several = start(YARD_NEEDS_SANDBOX="1", TOOLYARD_MIN_ISOLATION="L4")
    assert several.wait() == 2
    said = " ".join(several.output.split())
    assert said.startswith("toolyard serve: "), "and nothing else is said"
    assert "L4" in said
    assert "Traceback" not in said
    assert "Stop with Ctrl-C" not in said


def test_a_port_that_another_server_has_is_refused_also_by_several(start):
    first = start(count=2).started()
    port = first.url.rpartition(":")[2]
    second = start("--port", port, count=2)
    assert second.wait() == 2
    assert f"cannot listen on 127.0.0.1 port {port}" in " ".join(second.output.split())


async def test_limits_are_of_all_gateways_together(start):
    several = start("--max-sessions", "8", "--log-level", "warning", count=2).started()
    refused = 0
    async with Wire(several.url) as wire:
        for n in range(40):
            answer = await wire.post("/create", headers=H(f"s{n}"), json={"task_spec": {}})
            refused += answer.status_code == 503
    assert refused == 32


async def test_a_key_is_asked_for_by_all_and_batches_are_spread_with_it(start):
    several = start("--api-key", "s3cret", "--log-level", "warning", count=2).started()
    ids = [f"t{n}" for n in range(20)]
    body = {"trajectory_ids": ids, "actions": [call("tell", text="x")] * len(ids)}
    for _ in range(8):
        async with Wire(several.url) as wire:
            for path, more in (("/get_observation", {"json": body}), ("/ping", {"headers": H("t1")})):
                assert (await wire.post(path, **more)).status_code == 401
            wire.headers["X-API-Key"] = "s3cret"
            assert set((await wire.post("/get_observation", json=body)).json()["valids"]) == {True}
            assert (await wire.post("/ping", headers=H("t1"))).status_code == 404


async def test_sessions_in_processes_of_their_own_work_with_several_gateways(start):
    several = start("--placement", "process", "--log-level", "warning", count=2).started()
    pids = several.gateways()
    async with AsyncClient(several.url) as client:

        async def episode(n: int) -> int:
            async with client.environments.get("yard").session(split="train", index=0) as session:
                return (await session.call_tool("tell", {"text": "x"})).metadata["pid"]

        places = await asyncio.gather(*map(episode, range(10)))
        assert len(set(places)) == 10
        assert not set(places) & set(pids)
    several.end()
    await until(lambda: not any(map(alive, [*places, *pids])))
    with pytest.raises((ConnectionLost, httpx2.ConnectError)):
        httpx2.get(f"{several.url}/health", trust_env=False)


async def test_processes_of_a_gateway_that_is_killed_end_with_it_and_those_of_others_go_on(start):
    several = start("--placement", "process", "--log-level", "warning", count=2).started()
    async with Wire(several.url) as wire:
        places = {}
        for n in range(8):
            await wire.open(f"s{n}")
            places[f"s{n}"] = (await wire.call(f"s{n}", "tell", {"text": "x"}, env="yard")).output["metadata"]["pid"]
        victim = several.gateways()[0]
        os.kill(victim, signal.SIGKILL)
        await until(lambda: victim not in several.gateways() and len(several.gateways()) == 2)
    async with Wire(several.url) as wire:
        kept = [sid for sid in places if await wire.alive(sid)]
        lost = [sid for sid in places if sid not in kept]
        assert kept
        assert lost
        assert len({several.owner(sid) for sid in kept}) == len({several.owner(sid) for sid in lost}) == 1
        await until(lambda: not any(alive(places[sid]) for sid in lost))
        assert (await wire.call(kept[0], "tell", {"text": "y"}, env="yard")).text == "x y"


async def test_sessions_that_are_forked_are_found_over_connections_that_lead_anywhere(start):
    several = start("--placement", "process", "--log-level", "warning", count=2).started()
    async with Wire(several.url) as wire:
        await wire.open("parent.of.many")
        await wire.call("parent.of.many", "tell", {"text": "before"}, env="yard")
        ids = (await wire.post("/yard/fork", headers=H("parent.of.many"), json={"count": 6})).json()["sids"]
    assert {sid.partition(".")[0] for sid in ids} == {"parent"}, "a balancer that looks at this finds them"
    for n, sid in enumerate(ids):
        async with Wire(several.url) as wire:
            assert (await wire.call(sid, "tell", {"text": str(n)}, env="yard")).text == f"before {n}"
