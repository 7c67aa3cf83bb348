"""WebSockets among several gateways: the one that accepts a connection passes it to the one with its session."""

from __future__ import annotations

import os
import signal

import pytest

from tests.gateways.several import COUNT, Several, at
from tests.wires.openenv_wire import Closed, Error, Player
from tests.wires.wire import Wire, until

pytestmark = pytest.mark.anyio

BASE = "/openenv/yard"
WS = f"{BASE}/ws"


async def rpc(wire: Wire, method: str, **params: object) -> dict[str, object]:
    answer = await wire.post(f"{BASE}/mcp", json={"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
    assert answer.status_code == 200
    told: dict[str, object] = answer.json()
    return told


async def created(several: Several, number: int) -> str:
    async with at(several, number) as wire:
        seat: str = (await rpc(wire, "openenv/session/create"))["result"]["session_id"]
    assert several.owner(seat) == number
    return seat


async def test_sessions_of_sockets_are_found_over_other_wires_from_anywhere(several):
    owners = set()
    for _ in range(4 * COUNT):
        async with Player(several.url, WS) as player:
            await player.reset(split="train", index=1)
            await player.step("tell", text="a")
            sid = (await player.state())["session_id"]
            owners.add(several.owner(sid))
            for number in range(COUNT):
                async with at(several, number) as wire:
                    told = await wire.call(sid, "tell", {"text": str(number)}, env="yard")
                    assert told.text.startswith("a 0")
                    assert (await wire.get(f"/sessions/{sid}/outcome")).json()["calls"] == number + 2
    assert len(owners) > 1


async def test_a_socket_reaches_its_seat_whichever_gateway_accepts_it(several):
    for owner in range(COUNT):
        seat = await created(several, owner)
        for n in range(4 * COUNT):  # each has its own connection, to any gateway
            async with Player(several.url, f"{WS}?session_id={seat}") as player:
                if n == 0:
                    await player.reset(split="train", index=2)
                seen = await player.step("tell", text="x")
                assert seen.observation["result"]["data"] == " ".join("x" * (n + 1))
                await player.close()
        for number in range(COUNT):
            async with at(several, number) as wire:
                told = (await rpc(wire, "tools/call", session_id=seat, name="tell", arguments={"text": "y"}))["result"]
                assert told["data"].endswith(" ".join("y" * (number + 1)))
        async with at(several, (owner + 1) % COUNT) as wire:
            assert (await rpc(wire, "openenv/session/close", session_id=seat))["result"]["closed"]


async def test_a_connection_that_was_given_away_is_used_like_any_other(several):
    seat = await created(several, 0)
    for _ in range(2 * COUNT):
        async with Player(several.url, f"{WS}?session_id={seat}") as player:
            await player.reset()
            seen = await player.step("large", size=3 * 2**20)
            assert len(seen.observation["result"]["data"]) == 3 * 2**20
            seen = await player.step("tell", text="z" * 2**20)
            assert seen.observation["result"]["data"] == "z" * 2**20
            await player.close()


async def test_behind_a_key_a_connection_that_is_given_away_needs_it_too(start):
    several = start("--api-key", "sesame").started()
    key = {"X-API-Key": "sesame"}
    async with Wire(several.url, headers=key) as wire:
        seat = (await rpc(wire, "openenv/session/create"))["result"]["session_id"]
    for _ in range(2 * COUNT):
        with pytest.raises(Exception, match="HTTP 401"):
            await Player(several.url, f"{WS}?session_id={seat}").connected()
        async with Player(several.url, f"{WS}?session_id={seat}", key) as player:
            await player.reset()
            await player.close()


async def test_when_a_gateway_dies_its_sockets_close_and_its_seats_are_lost_and_the_others_go_on(start):
    several = start().started()
    seats = {number: await created(several, number) for number in range(COUNT)}
    players = {number: Player(several.url, f"{WS}?session_id={seat}") for number, seat in seats.items()}
    for player in players.values():
        await player.reset()
    pid = {}
    for number, player in players.items():
        sid = (await player.state())["session_id"]
        async with at(several, number) as wire:
            pid[number] = (await wire.call(sid, "tell", {"text": "a"}, env="yard")).output["metadata"]["pid"]
    os.kill(pid[1], signal.SIGKILL)
    with pytest.raises(Closed):
        await players[1].step("tell", text="b")
    for number in (0, 2):
        assert (await players[number].step("tell", text="b")).observation["result"]["data"] == "a b"
    await until(lambda: len(several.gateways()) == COUNT)
    async with Player(several.url, f"{WS}?session_id={seats[1]}") as player:
        with pytest.raises((Error, Closed)):
            await player.step("tell", text="c")
    for player in players.values():
        await player.close()
