"""Sessions on a real Ray cluster of several nodes: where they run, and what happens to them when nodes go."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest
from ray.cluster_utils import Cluster

from tests.placement.worlds import Counting, Forking, Repeating
from tests.wires.wire import H, Wire, until
from toolyard import Client
from toolyard.client.errors import ToolLost
from toolyard.core.errors import DefinitionError
from toolyard.placement.ray.actor import Actor
from toolyard.placement.ray.handshake import NotProven, admit, connect, listen
from toolyard.testing import Running, running

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

NODE = {"num_cpus": 1, "object_store_memory": 80 * 2**20}
HEAD = {**NODE, "include_dashboard": False}
NODES, EACH = 2, 2


class Special(Counting):
    """Needs a resource that one node alone has."""

    resources = {"CPU": 0.5, "special": 1}


class Nowhere(Counting):
    """Needs a resource that no node has."""

    resources = {"moon": 1}


class Fatal(Counting):
    def __init__(self, task_spec={}, secrets={}):
        if task_spec.get("crash"):
            os._exit(3)
        super().__init__(task_spec, secrets)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(initialize_head=True, head_node_args={**HEAD, "resources": {"special": 1}})
    made.add_node(**NODE)
    yield made
    made.shutdown()


@pytest.fixture(scope="module")
def served(cluster: Cluster) -> Iterator[Running]:
    options = {"ray_address": cluster.address, "ray_actors": EACH, "call_seconds": 1.0, "sweep_seconds": 0.05}
    with running([Counting, Repeating, Forking, Special, Nowhere, Fatal], placement="ray", **options) as server:
        yield server


@pytest.fixture
async def wire(served: Running) -> AsyncIterator[Wire]:
    await until(lambda: len(actors(served)) == NODES * EACH + 1, 60)
    async with Wire(served.url) as wire:
        yield wire
        for sid in list(served.server.runtime.sessions):
            await wire.end(sid)


def actors(served: Running) -> list[Actor]:
    return list(served.server.runtime.placement._pool.actors)  # type: ignore[attr-defined]


async def text(wire: Wire, sid: str, name: str, env: str = "counting", **input: object) -> str:
    return (await wire.call(sid, name, input, env=env)).text


async def open_many(wire: Wire, count: int) -> list[str]:
    return await asyncio.gather(*(wire.open(task_spec={"start": n}) for n in range(count)))


async def pids_of(wire: Wire, sids: list[str]) -> dict[str, int]:
    return dict(zip(sids, map(int, await asyncio.gather(*(text(wire, sid, "where") for sid in sids))), strict=True))


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


# Where sessions run.


async def test_many_sessions_are_spread_evenly_over_nodes_and_actors_and_each_keeps_its_state(served, wire):
    sids = await open_many(wire, 120)
    per_actor = Counter((await pids_of(wire, sids)).values())
    ordinary = {actor.pid: actor.node.id for actor in actors(served) if actor.pid in per_actor}
    assert per_actor == dict.fromkeys(ordinary, 120 // (NODES * EACH))
    assert set(Counter(ordinary.values()).values()) == {EACH}
    for total in (1, 2):
        counts = await asyncio.gather(*(text(wire, sid, "add") for sid in sids))
        assert counts == [str(n + total) for n in range(120)]


async def test_prompt_secrets_reward_and_teardown_come_through(wire, tmp_path):
    sid = await wire.open(task_spec={"start": 2, "tell": str(tmp_path / "told")}, secrets={"key": "k"})
    assert (await wire.get("/counting/prompt", headers=H(sid))).json()[0]["text"] == "count from 2"
    assert await text(wire, sid, "secret") == "k"
    assert (await wire.call(sid, "boom", env="counting")).error == "boom"
    output = (await wire.call(sid, "finish", env="counting")).output
    assert (output["reward"], output["finished"]) == (2.0, True)
    await wire.end(sid)
    assert (tmp_path / "told").read_text() == "2\n"


async def test_an_environment_lives_only_where_its_resources_are(served, wire):
    sids = [await wire.open(env_name="special", task_spec={}) for _ in range(4)]
    pids = {int(await text(wire, sid, "where", env="special")) for sid in sids}
    (actor,) = [actor for actor in actors(served) if actor.pid in pids]
    assert actor.node.resources["special"] == 1
    assert pids == {actor.pid}


async def test_an_environment_that_no_node_can_have_is_refused_at_once(wire):
    response = await wire.post("/create", headers=H("lunar"), json={"env_name": "nowhere", "task_spec": {}})
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")
    assert "no node of the cluster has {'moon': 1}" in response.json()["detail"]


async def test_a_session_forks_by_its_own_hook_or_by_repeating_its_calls(wire):
    for env, strategy in (("forking", "hook"), ("repeating", "replay")):
        sid = await wire.open(env_name=env, task_spec={"start": 5})
        assert await text(wire, sid, "add", env=env) == "6"
        forked = (await wire.post(f"/{env}/fork", headers=H(sid), json={"count": 2})).json()
        assert forked["strategy"] == strategy
        assert [await text(wire, each, "add", env=env) for each in (*forked["sids"], sid)] == ["7", "7", "7"]


# Hangs, crashes and kills.


async def test_a_call_past_its_deadline_is_timed_out_and_its_session_goes_on(wire):
    sid = await wire.open(task_spec={})
    failure = (await wire.call(sid, "wait", {"seconds": 600}, env="counting")).failure
    assert failure["reason"] == "timed_out"
    assert await text(wire, sid, "add") == "1"


async def test_an_actor_in_which_something_hangs_gets_no_new_sessions_and_is_replaced(served, wire):
    sid = await wire.open(task_spec={})
    hung = (await pids_of(wire, [sid]))[sid]
    assert (await wire.call(sid, "hang", {"seconds": 600}, env="counting")).failure["reason"] == "timed_out"
    assert await text(wire, sid, "add") == "1"
    others = await open_many(wire, 2 * NODES * EACH)
    assert hung not in (await pids_of(wire, others)).values()
    await wire.end(sid)
    await until(lambda: not is_alive(hung))


async def test_a_crash_ends_the_sessions_of_its_actor_and_no_others(served, wire):
    sids = await open_many(wire, 4 * NODES * EACH)
    pids = await pids_of(wire, sids)
    with Client(served.url) as client, client.environments.get("counting").session({}) as session:
        crashed = int(session.call_tool("where").text)
        with pytest.raises(ToolLost, match="its actor has ended"):
            session.call_tool("crash", {"how": "exit"})
    for sid in sids:
        answer = await wire.call(sid, "add", env="counting")
        assert (answer.events[-1].name == "error") == (pids[sid] == crashed)
    again = await open_many(wire, NODES * EACH)
    assert await asyncio.gather(*(text(wire, sid, "add") for sid in again)) == [str(n + 1) for n in range(len(again))]


async def test_a_session_whose_actor_ends_while_it_is_opened_may_be_opened_again(wire):
    body = {"env_name": "fatal", "task_spec": {"crash": True}}
    response = await wire.post("/create", headers=H("crashing"), json=body)
    assert (response.status_code, response.headers["retry-after"]) == (503, "1")
    assert "could not be started: its actor has ended" in response.json()["detail"]
    assert await wire.open("crashing", env_name="fatal", task_spec={}) == "crashing"


async def test_a_replayable_session_goes_on_in_another_actor(served, wire):
    sid = await wire.open(env_name="repeating", task_spec={"start": 10})
    for n in (1, 2, 3):
        await text(wire, sid, "add", env="repeating", n=n)
    before = int(await text(wire, sid, "where", env="repeating"))
    assert "as before this call" in (await wire.call(sid, "crash", {"how": "kill"}, env="repeating")).error
    assert await text(wire, sid, "add", env="repeating") == "17"
    assert int(await text(wire, sid, "where", env="repeating")) != before


class Load:
    """Sessions with continuous calls: what each counted, and the error when it failed."""

    def __init__(self, sids: list[str], pids: dict[str, int]) -> None:
        self.sids = sids
        self.pids = pids
        self.calls = dict.fromkeys(sids, 0)
        self.failed: dict[str, str] = {}

    async def call(self, wire: Wire, sid: str, ended: asyncio.Event) -> None:
        start = self.sids.index(sid)
        while not ended.is_set() and sid not in self.failed:
            answer = await wire.call(sid, "add", env="counting")
            if answer.events[-1].name == "error":
                self.failed[sid] = answer.error
            else:
                self.calls[sid] += 1
                assert answer.text == str(start + self.calls[sid])
                assert answer.output["reward"] is None
            await asyncio.sleep(0.02)

    def lost_with(self, pids: set[int]) -> set[str]:
        return {sid for sid in self.sids if self.pids[sid] in pids}


@asynccontextmanager
async def loaded(wire: Wire, count: int) -> AsyncIterator[Load]:
    sids = await open_many(wire, count)
    load, ended = Load(sids, await pids_of(wire, sids)), asyncio.Event()
    async with anyio.create_task_group() as group:
        for sid in sids:
            group.start_soon(load.call, wire, sid, ended)
        await until(lambda: all(load.calls.values()), 30)
        yield load
        # Every session that is left gets a call again, after whatever happened.
        before = dict(load.calls)
        await until(lambda: all(load.calls[sid] > before[sid] + 1 or sid in load.failed for sid in sids), 30)
        ended.set()


async def test_an_actor_that_is_killed_under_load_takes_only_its_own_sessions_and_is_replaced(served, wire):
    async with loaded(wire, 200) as load:
        actor = next(actor for actor in actors(served) if actor.pid in load.pids.values())
        os.kill(actor.pid, signal.SIGKILL)
        hosted = load.lost_with({actor.pid})
        await until(lambda: len(load.failed) == len(hosted), 30)
        new = await open_many(wire, 20)
        assert await asyncio.gather(*(text(wire, sid, "add") for sid in new)) == [str(n + 1) for n in range(20)]
    assert load.failed.keys() == hosted
    assert all("its actor has ended" in told for told in load.failed.values())
    await until(lambda: not is_alive(actor.pid))


async def test_a_node_that_is_lost_under_load_takes_only_its_own_sessions(cluster, served, wire):
    (removed,) = cluster.worker_nodes
    async with loaded(wire, 200) as load:
        gone = {actor.pid for actor in actors(served) if actor.node.id == removed.node_id}
        assert len(gone) == EACH
        await anyio.to_thread.run_sync(cluster.remove_node, removed, False)
        hosted = load.lost_with(gone)
        await until(lambda: len(load.failed) == len(hosted), 30)
        new = await open_many(wire, 20)
        assert not gone & set((await pids_of(wire, new)).values())
    assert load.failed.keys() == hosted
    await until(lambda: not any(map(is_alive, gone)))
    cluster.add_node(**NODE)  # must run in the main thread
    await until(lambda: len({actor.node.id for actor in actors(served)}) == NODES, 60)


async def test_when_the_process_that_asks_ray_is_killed_there_is_another_one(served, wire):
    keeper = served.server.runtime.placement._cluster._process
    keeper.kill()
    await until(lambda: served.server.runtime.placement._cluster._process is not keeper, 30)
    await until(lambda: len(actors(served)) == NODES * EACH + 1, 30)
    assert await text(wire, await wire.open(task_spec={}), "add") == "1"


async def test_the_server_outlives_its_cluster_and_joins_the_one_that_takes_its_place(caplog):
    first = Cluster(initialize_head=True, head_node_args=HEAD)
    options, port = {"ray_address": first.address, "ray_actors": 1}, int(first.address.rpartition(":")[2])
    with running([Counting], placement="ray", **options) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            assert await text(wire, sid, "add") == "1"
            first.shutdown()
            assert "its actor has ended" in (await wire.call(sid, "add", env="counting")).error
            assert (await wire.get("/health")).status_code == 503
            await until(lambda: "cannot join the Ray cluster" in caplog.text, 60)  # it goes on trying
            second = Cluster(initialize_head=True, head_node_args={**HEAD, "gcs_server_port": port})
            await until(lambda: actors(server), 60)
            again = await wire.open(task_spec={})
            assert await text(wire, again, "add") == "1"
            assert (await wire.get("/health")).status_code == 200
    second.shutdown()


async def test_without_the_raylet_that_it_joined_by_the_server_says_so_and_comes_back_with_another_one(caplog):
    cluster = Cluster(initialize_head=True, head_node_args=HEAD)
    with running([Counting], placement="ray", ray_address=cluster.address, ray_actors=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            assert await text(wire, sid, "add") == "1"
            with caplog.at_level("INFO", logger="toolyard.placement"):
                cluster.head_node.kill_raylet()  # the head itself goes on
                await until(lambda: "raylet by which the server had joined Ray has ended" in caplog.text, 30)
                await until(lambda: not actors(server))
                assert "its actor has ended" in (await wire.call(sid, "add", env="counting")).error
                health = await wire.get("/health")
                assert health.status_code == 503
                gone = "the raylet by which the server had joined Ray has ended"
                assert f"no actor of the cluster is ready: {gone}" in health.json()["reasons"]
                cluster.add_node(**NODE)
                await until(lambda: actors(server), 60)
                assert "the Ray cluster answers again" in caplog.text
            assert await text(wire, await wire.open(task_spec={}), "add") == "1"
            assert (await wire.get("/health")).status_code == 200
    cluster.shutdown()


# Processes within actors, and what is left at the end.


async def test_with_a_process_for_each_session_a_crash_or_a_hang_is_nothing_to_the_others(cluster, served):
    options = {"ray_address": cluster.address, "ray_inside": "process", "call_seconds": 1.0, "sweep_seconds": 0.05}
    with running([Counting, Repeating], placement="ray", **options) as server:
        async with Wire(server.url) as wire:
            sids = await open_many(wire, 6)
            pids = await pids_of(wire, sids)
            assert len(set(pids.values())) == 6
            hosts = [actor.pid for actor in actors(server)]
            assert len(hosts) == NODES
            crash = await wire.call(sids[0], "crash", {"how": "exit"}, env="counting")
            assert "exit code 3" in crash.error
            hang = await wire.call(sids[1], "hang", env="counting")
            assert hang.failure["reason"] == "timed_out"
            await until(lambda: not is_alive(pids[sids[1]]))
            assert [await text(wire, sid, "add") for sid in sids[2:]] == ["3", "4", "5", "6"]
            assert [actor.pid for actor in actors(server)] == hosts
            forked = (await wire.post("/counting/fork", headers=H(sids[2]), json={})).json()
            assert forked["strategy"] == "process"
            assert await text(wire, forked["sids"][0], "add") == "4"
            repeating = await wire.open(env_name="repeating", task_spec={"start": 1})
            await wire.call(repeating, "crash", {"how": "exit"}, env="repeating")
            assert await text(wire, repeating, "add", env="repeating") == "2"
    await until(lambda: not any(map(is_alive, [*hosts, *pids.values()])))
    assert all(is_alive(actor.pid) for actor in actors(served))  # of another server on the same cluster


TARGET = """
    import os
    from toolyard import Environment, tool
    from beside import double

    class Doubling(Environment):
        @classmethod
        def list_splits(cls):
            return ["train"]

        @classmethod
        def list_tasks(cls, split):
            return [{}]

        def get_prompt(self):
            return "double"

        @tool
        async def twice(self, n: int) -> str:
            return f"{double(n)} in {os.getpid()}"
"""


@pytest.mark.parametrize(("number", "inside"), [(signal.SIGTERM, "pool"), (signal.SIGKILL, "process")])
async def test_a_file_is_served_on_a_cluster_of_its_own_of_which_nothing_is_left(number, inside, tmp_path):
    (tmp_path / "target.py").write_text(TARGET.replace("\n    ", "\n"))
    (tmp_path / "beside.py").write_text("def double(n):\n    return 2 * n\n")
    with serving(tmp_path, "target.py", "--ray-inside", inside, "--port", "0") as server:
        url = next(line for line in server.stdout if " on http" in line).split()[-1]
        async with Wire(url) as wire:
            sid = await wire.open()
            answer, _, pid = (await text(wire, sid, "twice", env="doubling", n=21)).split()
        started = descendants(server.pid)
        server.send_signal(number)
    assert (answer, int(pid) in started) == ("42", True)
    await until(lambda: not any(map(is_alive, started)), 20)


def serving(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "toolyard", "serve", "--placement", "ray", *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)


def descendants(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    return [*children, *(each for child in children for each in descendants(child))]


# Refusals.


def test_a_cluster_that_is_not_there_is_said_so(tmp_path):
    with serving(tmp_path, "--port", "0", "--ray-address", "127.0.0.1:1") as server:
        assert "cannot join the Ray cluster '127.0.0.1:1'" in server.stdout.read()
    assert server.returncode == 2


class Unsendable(Counting):
    lock = socket.socket


def test_what_cannot_be_sent_to_the_cluster_is_said_before_anybody_is_served():
    Unsendable.lock = socket.socket()  # type: ignore[assignment,misc]
    with (
        Unsendable.lock,
        pytest.raises(DefinitionError, match="unsendable cannot be sent"),
        running([Unsendable], placement="ray"),
    ):
        pass


async def test_only_who_has_the_key_is_let_in():
    listener = listen("127.0.0.1")
    with listener:
        admitted = asyncio.ensure_future(admit(listener, b"k" * 32))
        with pytest.raises((NotProven, ConnectionError)):
            await connect(listener.getsockname(), b"x" * 32)
        with await connect(listener.getsockname(), b"k" * 32) as ours, await admitted as theirs:
            assert ours.getpeername() == theirs.getsockname()


async def test_a_host_that_sends_back_what_it_was_sent_proves_nothing():
    listener = listen("127.0.0.1")
    loop = asyncio.get_running_loop()

    async def echo() -> None:
        sock, _ = await loop.sock_accept(listener)
        with sock:
            for _ in range(2):
                await loop.sock_sendall(sock, await loop.sock_recv(sock, 32))

    with listener:
        echoing = asyncio.ensure_future(echo())
        with pytest.raises(NotProven):
            await connect(listener.getsockname(), b"k" * 32)
        await echoing
