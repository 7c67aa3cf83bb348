"""Nodes of the ToolServer and trajectories of verl-tool are found over connections to any gateway."""

from __future__ import annotations

import asyncio
import io
import json
import uuid
import zipfile
from collections import Counter

import pytest

from tests.gateways.several import COUNT, Several, at
from tests.wires.toolserver_wire import Node
from tests.wires.verl_wire import Trainer, answered, call, observed
from tests.wires.wire import Wire, connect, request_bytes, until

pytestmark = pytest.mark.anyio

JSON = {"Content-Type": "application/json"}


# The ToolServer.


async def ask(several: Several, path: str, node: str | None = None, **more: object):
    async with Wire(several.url, headers={"Cookie": f"node_id={node}"} if node else {}) as wire:
        return await wire.post(path, **more)


async def execute(several: Several, node: str, tool: str, **arguments: object):
    return await ask(several, "/execute_tool", node, json={"tool_name": tool, "arguments": arguments})


async def test_a_node_is_found_over_connections_that_lead_anywhere(several):
    busy = asyncio.Semaphore(16)
    owners = set()

    async def episode(n: int) -> None:
        async with busy:
            made = await ask(several, "/get_cookie")
            node = made.cookies["node_id"]
            owners.add(several.owner(node))
            for told in ("a", "a b", "a b c"):
                assert (await execute(several, node, "tell", text=told[-1])).json() == told
            closed = await ask(several, "/close_session", node)
            assert closed.json() == f"Close session: {node}"
            assert (await execute(several, node, "tell", text="d")).status_code == 503
            assert (await ask(several, "/reconnect_session", node)).status_code == 200
            assert (await execute(several, node, "tell", text="e")).json() == "e"
            await ask(several, "/release_session", node)
            assert (await execute(several, node, "tell", text="f")).status_code == 403

    await asyncio.gather(*map(episode, range(60)))
    assert owners == set(range(COUNT))


async def test_files_of_a_node_go_in_and_out_by_any_gateway(several):
    node = (await ask(several, "/get_cookie")).cookies["node_id"]
    content = bytes(range(256)) * 4000
    for number in range(COUNT):
        async with at(several, number) as wire:
            wire.headers["Cookie"] = f"node_id={node}"
            parts = {"file": (f"{number}.bin", content), "filename": ("filename", f"{number}.bin".encode())}
            assert (await wire.post("/upload_file", files=parts)).json() == {"message": "Upload Success!"}
            found = await wire.post("/download_file", json={"file_path": "0.bin"})
            assert found.content == content
            assert found.headers["content-disposition"] == 'attachment; filename="0.bin"'
            archive = zipfile.ZipFile(io.BytesIO((await wire.post("/download_workspace")).content))
            assert len(archive.namelist()) >= number + 1
    await ask(several, "/release_session", node)


async def test_a_call_that_takes_long_is_asked_for_again_at_any_gateway(start):
    several = start("--toolserver-wait-seconds", "0.3", "--log-level", "warning").started()
    async with Node(several.url) as first:
        node = await first.cookie()
    later = await execute(several, node, "wait", key=node)
    assert later.status_code == 450
    again = later.json()["detail"]
    several.go(node)
    for _ in range(5):
        found = await execute(several, node, again["next_calling"], **again["arguments"])
        assert (found.status_code, found.json()) == (200, f"{node} came 1 times")


# verl-tool.


async def fresh(several: Several, body: bytes):
    async with Trainer(several.url) as trainer:
        return await trainer.post("/get_observation", content=body, headers=JSON)


def batch(ids: list[str], text: str) -> bytes:
    return json.dumps({"trajectory_ids": ids, "actions": [text] * len(ids)}).encode()


def spread_over_all(several: Several, count: int) -> list[str]:
    """Names of trajectories, of all gateways in turn."""
    found: list[list[str]] = [[] for _ in range(COUNT)]
    while min(map(len, found)) < count:
        name = uuid.uuid4().hex
        found[several.owner(name)].append(name)
    return [names[n] for n in range(count) for names in found]


async def test_a_batch_is_carried_out_where_its_trajectories_are_and_answered_in_order(several):
    ids = spread_over_all(several, 40)
    for step in range(1, 4):
        actions = [call("tell", text=f"{n}.{step}") for n in range(len(ids))]
        body = json.dumps({"trajectory_ids": ids, "actions": actions}).encode()
        told = observed(await fresh(several, body), len(ids))
        assert [one.text for one in told] == [
            answered(" ".join(f"{n}.{i}" for i in range(1, step + 1))) for n in range(len(ids))
        ]
        assert all(one.valid and not one.done for one in told)
    async with Trainer(several.url) as trainer:
        await trainer.finish(*ids)
        assert (await trainer.act(ids[0], call("tell", text="new"))).text == answered("new"), "it began again"
        await trainer.finish(ids[0])


async def test_new_trajectories_that_end_at_once_are_spread_over_all_gateways_and_answered_in_order(
    start,
):
    several = start().started()
    ids = [f"step-7-{n}" for n in range(60)]
    actions = [call("tell", text=f"{n}") for n in range(len(ids))]
    async with Trainer(several.url) as trainer:
        for _ in range(2):  # nothing is left of the first
            told = await trainer.batch(ids, actions, is_last_step=[True] * len(ids))
            assert [one.text for one in told] == [answered(f"{n}") for n in range(len(ids))]
    ended = Counter(file.name.split("-")[2] for file in several.folder.glob("ended-*"))  # by process
    assert sorted(ended.values()) == sorted(2 * n for n in Counter(map(several.owner, ids)).values())
    assert len(ended) == COUNT
    assert min(ended.values()) > len(ids) / COUNT, "each has about as many as the others"


async def test_trajectories_are_found_over_connections_that_lead_anywhere(several):
    async def trajectory(n: int) -> None:
        name = f"alone-{n}"
        for told in ("a", "a b", "a b c"):
            (one,) = observed(await fresh(several, batch([name], call("tell", text=told[-1]))), 1)
            assert one.text == answered(told)
        async with Trainer(several.url) as trainer:
            await trainer.finish(name)

    for some in range(0, 60, 15):
        await asyncio.gather(*map(trajectory, range(some, some + 15)))


async def test_what_is_beside_the_actions_goes_with_them(several):
    ids = spread_over_all(several, 4)
    async with Trainer(several.url) as trainer:
        extra = [{"task_spec": {"n": n}} for n in range(len(ids))]
        shown = await trainer.batch(ids, [""] * len(ids), extra_fields=extra)
        assert [one.text for one in shown] == [f"Task {n}" for n in range(len(ids))]
        last = [n % 2 == 0 for n in range(len(ids))]
        await trainer.batch(ids, [call("tell", text="x")] * len(ids), is_last_step=last)
        again = await trainer.batch(ids, [call("tell", text="y")] * len(ids))
        assert [one.text for one in again] == [answered("y" if ended else "x y") for ended in last]
        await trainer.finish(*ids)


async def test_a_batch_that_makes_no_sense_is_refused_by_any(several):
    for number in range(COUNT):
        async with at(several, number) as wire:
            for body in (b"", b"{", b"[]", b'{"trajectory_ids": ["a"]}', b'{"trajectory_ids": [], "actions": []}'):
                assert (await wire.post("/get_observation", content=body, headers=JSON)).status_code == 422
            assert (await wire.post("/verl/part", content=b"[]", headers=JSON)).status_code == 404, "it is not for them"


@pytest.mark.parametrize("wide", [False, True])
async def test_a_request_that_is_sent_again_is_carried_out_once_wherever_it_arrives(several, wide):
    ids = spread_over_all(several, 2) if wide else [uuid.uuid4().hex]
    key = uuid.uuid4().hex
    body = batch(ids, call("wait", key=key))
    asking = [asyncio.ensure_future(fresh(several, body)) for _ in range(8)]
    await until(lambda: several.came(key) == len(ids))
    several.go(key)
    answers = [observed(one, len(ids)) for one in await asyncio.gather(*asking)]
    assert all(one == answers[0] for one in answers)
    assert several.came(key) == len(ids)


@pytest.mark.parametrize("wide", [False, True])
async def test_who_hangs_up_and_asks_again_elsewhere_gets_the_one_answer(several, wide):
    ids = spread_over_all(several, 2) if wide else [uuid.uuid4().hex]
    key = uuid.uuid4().hex
    body = batch(ids, call("wait", key=key))
    far = (several.owner(ids[0]) + 1) % COUNT
    async with at(several, far) as wire:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):  # then it hangs up
                await wire.post("/get_observation", content=body, headers=JSON)
    await until(lambda: several.came(key) == len(ids))
    several.go(key)
    await asyncio.sleep(0.5)  # it ends, and its answer is not fetched
    for number in range(COUNT):
        async with at(several, number) as wire:
            told = observed(await wire.post("/get_observation", content=body, headers=JSON), len(ids))
            assert len(told) == len(ids)
            if number == 0:
                assert several.came(key) == len(ids), "that was the answer that nobody took"
    assert several.came(key) == 3 * len(ids), "and those were new ones"


async def test_who_hangs_up_at_once_harms_nobody(several):
    ids = spread_over_all(several, 3)
    body = batch(ids, call("tell", text="x"))
    for _ in range(20):
        with connect(several.url) as sock:
            sock.sendall(request_bytes("POST", "/get_observation", JSON, body))
    async with Trainer(several.url) as trainer:
        told = await trainer.batch(ids, [call("tell", text="y")] * len(ids))
        last = [one.text.removesuffix("\n</tool_response>\n").split()[-1] for one in told]
        assert last == ["y"] * len(ids), "whatever of the others was still acted on"
        await trainer.finish(*ids)
