"""ORS, the server as a service: keys, limits with a hint to retry, and a shutdown that loses nothing."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire, call_body, until
from tests.worlds import MathEnv, OtherEnv, ran, torn_down
from toolyard import Environment, tool
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


# On this machine.


def test_a_server_for_tests_is_reached_directly_whatever_proxy_is_set(monkeypatch: pytest.MonkeyPatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # no server listens there
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with running([MathEnv]) as server:
        assert server.url.startswith("http://127.0.0.1:")


# Keys.


@pytest.mark.parametrize(
    "headers",
    [{"X-API-Key": "s3cret"}, {"Authorization": "Bearer s3cret"}, {"X-API-Key": "", "Authorization": "Bearer s3cret"}],
    ids=["x-api-key", "bearer", "empty key and bearer"],
)
async def test_the_key_opens_every_door_either_way(headers: dict):
    with running([MathEnv], api_key="s3cret") as server:
        async with Wire(server.url, headers=headers) as wire:
            assert (await wire.get("/list_environments")).json() == ["mathenv"]
            sid = await wire.open()
            assert (await wire.call(sid, "noparam")).text == "nothing"
            response = await wire.get("/tools", follow_redirects=True)
            assert response.status_code == 200
            await wire.end(sid)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-API-Key": ""},
        {"X-API-Key": "wrong"},
        {"X-API-Key": "s3cre"},
        {"X-API-Key": "s3cret2"},
        {"Authorization": "Bearer wrong"},
        {"Authorization": "Basic s3cret"},
        {"X-API-Key": b"\xff\xfe"},
    ],
    ids=str,
)
async def test_without_the_key_every_door_but_health_is_closed(headers: dict):
    with running([MathEnv], api_key="s3cret") as server:
        async with Wire(server.url, headers=headers) as wire:
            for method, path in [
                ("GET", "/list_environments"),
                ("GET", "/mathenv/tools"),
                ("GET", "/tools"),
                ("GET", "/nosuch"),
                ("POST", "/create_session"),
                ("POST", "/create"),
                ("POST", "/mathenv/call"),
                ("GET", "//list_environments"),
            ]:
                response = await wire.request(method, f"{server.url}{path}")
                assert response.status_code == 401, path
                assert "API key" in response.json()["detail"]
                assert "s3cret" not in response.text
            assert (await wire.get("/health")).json() == {"status": "ok"}


# Limits.


async def test_one_session_too_many_is_503_until_another_ends():
    with running([MathEnv], max_sessions=2) as server:
        async with Wire(server.url) as wire:
            first, _ = await wire.open(), await wire.open()
            response = await wire.post("/create", headers=H("third"), json={"task_spec": {}})
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) > 0
            assert "2 sessions" in response.json()["detail"]
            assert await wire.alive(first)
            await wire.end(first)
            await wire.open("third")


async def test_one_call_too_many_is_503_and_is_not_run():
    with running([MathEnv], max_concurrent_calls=1, max_queued_calls=1) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open() for _ in range(3)]
            keys = [f"crowd {sid}" for sid in sids]
            body = call_body("slow", {"seconds": 0.5, "key": keys[2]}, task_id="mine")
            async with (
                wire.follow(sids[0], "slow", {"seconds": 0.5, "key": keys[0]}) as running_one,
                wire.follow(sids[1], "slow", {"seconds": 0, "key": keys[1]}) as waiting_one,
            ):
                await running_one.event()
                await waiting_one.event()
                response = await wire.post("/mathenv/call", headers=H(sids[2]), json=body)
                assert (response.status_code, response.headers["content-type"]) == (503, "application/json")
                assert int(response.headers["retry-after"]) > 0
                assert (ran[keys[1]], ran[keys[2]]) == (0, 0)
                assert await wire.alive(sids[2])
                assert (await running_one.event()).name == "end"
                assert (await waiting_one.event()).name == "end"
            assert Answer.of(await wire.post("/mathenv/call", headers=H(sids[2]), json=body)).id == "mine"
            assert [ran[key] for key in keys] == [1, 1, 1]


async def test_calls_beyond_the_limit_wait_for_their_turn():
    with running([MathEnv], max_concurrent_calls=2) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open() for _ in range(6)]
            started = time.monotonic()
            async with anyio.create_task_group() as group:
                for sid in sids:
                    group.start_soon(wire.call, sid, "slow", {"seconds": 0.2})
            assert 0.55 < time.monotonic() - started < 3


async def test_a_full_server_still_replays_what_it_knows():
    with running([MathEnv], max_concurrent_calls=1, max_queued_calls=0) as server:
        async with Wire(server.url) as wire:
            sid, other = await wire.open(), await wire.open()
            done = await wire.call(sid, "noparam")
            async with wire.follow(other, "slow", {"seconds": 0.5}) as stream:
                await stream.event()
                assert (await wire.post("/mathenv/call", headers=H(sid), json=call_body("noparam"))).status_code == 503
                assert await wire.call(sid, "noparam", task_id=done.id) == done
                assert (await stream.event()).name == "end"


# Shutdown.


class Leaving(Environment):
    """Takes its time to go."""

    events: list[str] = []
    torn: Counter[str] = Counter()

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return []

    def get_prompt(self):
        return "?"

    async def teardown(self):
        await asyncio.sleep(self.task_spec.get("teardown_seconds", 0))
        self.torn[self.task_spec["q"]] += 1

    @tool
    async def work(self, seconds: float) -> str:
        """Work for a while."""
        await asyncio.sleep(seconds)
        return "done"


async def stopped(server: Running) -> None:
    """Stop it and wait until it is gone, which its free port proves."""
    server.server.stop()
    async with Wire(server.url) as wire:
        with anyio.fail_after(10):
            while True:
                try:
                    await wire.get("/health")
                except Exception:
                    return
                await anyio.sleep(0.05)


async def test_a_call_that_runs_when_the_server_stops_still_gives_its_result():
    with running([Leaving]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": "drained"})
            await wire.open(task_spec={"q": "idle"})
            async with wire.follow(sid, "work", {"seconds": 1}, env="leaving") as stream:
                await stream.event()
                server.server.stop()
                await until(lambda: server.server.runtime.draining)
                for path, json in (("/create", {"task_spec": {}}), ("/leaving/call", call_body("work"))):
                    response = await wire.post(path, headers=H(sid if "call" in path else "new"), json=json)
                    assert response.status_code == 503
                    assert int(response.headers["retry-after"]) > 0
                assert (await wire.get("/health")).status_code == 503
                end = await stream.event()
            assert (end.name, '"text":"done"' in end.data) == ("end", True)
    assert (Leaving.torn["drained"], Leaving.torn["idle"]) == (1, 1)


async def test_a_call_that_does_not_end_in_time_is_told_to_its_reader():
    with running([Leaving], drain_seconds=0.3) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": "late"})
            async with wire.follow(sid, "work", {"seconds": 60}, env="leaving") as stream:
                await stream.event()
                server.server.stop()
                end = await stream.event()
            assert end.name == "error"
    assert Leaving.torn["late"] == 1


async def test_every_session_is_torn_down_before_the_server_is_gone():
    with running([MathEnv, OtherEnv]) as server:
        async with Wire(server.url) as wire:
            names = [f"shutdown {n}" for n in range(50)]
            for name in names:
                await wire.open(task_spec={"q": name})
    assert sorted(name for name in torn_down if name.startswith("shutdown ")) == sorted(names)


async def test_a_teardown_under_way_when_the_server_stops_is_finished():
    with running([Leaving], idle_seconds=0.1, sweep_seconds=0.05) as server:
        async with Wire(server.url) as wire:
            await wire.open(task_spec={"q": "idle at the end", "teardown_seconds": 0.6})
            await until(lambda: not server.server.runtime.sessions)
            assert Leaving.torn["idle at the end"] == 0
        await stopped(server)
    assert Leaving.torn["idle at the end"] == 1


async def test_a_setup_under_way_when_the_server_stops_is_cancelled():
    started = time.monotonic()
    with running([MathEnv]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": "unready", "setup_seconds": 60})
            answers = []

            async def ask() -> None:
                answers.append(await wire.get("/mathenv/prompt", headers=H(sid)))

            async with anyio.create_task_group() as group:
                group.start_soon(ask)
                await anyio.sleep(0.1)
                server.server.stop()
            assert answers[0].status_code == 410
    assert "unready" in torn_down
    assert time.monotonic() - started < 10
