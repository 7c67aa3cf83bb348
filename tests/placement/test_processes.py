"""Sessions in other processes: what stays the same, and what happens to those that hang, crash or are killed."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import anyio
import httpx2
import pytest

from tests.forks import refusing
from tests.placement.worlds import Counting, Forking, Repeating
from tests.wires.wire import H, Wire, until
from toolyard import AsyncClient, Client, tool
from toolyard.client.errors import RequestRefused, ToolLost
from toolyard.core.output import as_output
from toolyard.placement.base import SessionSpec, Task
from toolyard.placement.fork_server import ProcessLimits
from toolyard.placement.process import PoolPlacement
from toolyard.placement.worker_side import Served
from toolyard.runtime.session import Session
from toolyard.sandboxes import execute
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

PLACES = ["process", "pool"]


@pytest.fixture(scope="module", params=PLACES)
def served(request: pytest.FixtureRequest) -> Iterator[Running]:
    options = {"placement": request.param, "call_seconds": 1.0, "sweep_seconds": 0.05, "pool_processes": 2}
    with running([Counting, Repeating, Forking], **options) as server:
        yield server


async def value(wire: Wire, sid: str, name: str, env: str = "counting", **input: object) -> str:
    return (await wire.call(sid, name, input, env=env)).text


async def lost(wire: Wire, sid: str, name: str, env: str = "counting", **input: object) -> str:
    return (await wire.call(sid, name, input, env=env)).error


async def late(wire: Wire, sid: str, name: str, **input: object) -> str:
    failure = (await wire.call(sid, name, input, env="counting")).failure
    assert failure["reason"] == "timed_out"
    return failure["error"]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# What stays the same.


async def test_a_session_keeps_its_state_in_another_process_and_shares_it_with_nobody(wire):
    first, second = await wire.open(task_spec={"start": 5}), await wire.open(task_spec={})
    assert [await value(wire, first, "add"), await value(wire, second, "add", n=3)] == ["6", "3"]
    assert [await value(wire, first, "add_in_a_thread"), await value(wire, second, "add_in_a_thread")] == ["7", "4"]
    assert int(await value(wire, first, "where")) not in (os.getpid(), int(await value(wire, second, "where")))
    for sid in (first, second):
        await wire.end(sid)


async def test_prompt_tools_secrets_reward_and_teardown_come_through(wire, tmp_path):
    told = tmp_path / "told"
    sid = await wire.open(task_spec={"start": 2, "tell": str(told)}, secrets={"key": "k"})
    assert (await wire.get("/counting/prompt", headers=H(sid))).json()[0]["text"] == "count from 2"
    listed = (await wire.get("/counting/task_tools", headers=H(sid))).json()["tools"]
    assert {"add", "finish"} <= {tool["name"] for tool in listed}
    assert await value(wire, sid, "secret") == "k"
    output = (await wire.call(sid, "finish", env="counting")).output
    assert (output["reward"], output["finished"]) == (2.0, True)
    assert "finished" in (await wire.call(sid, "add", env="counting")).failure["error"]
    await wire.end(sid)
    assert told.read_text() == "2\n"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("none", ""),
        ("pair", '[1, "a"]'),
        ("dict", '{"é": [1.5, null]}'),
        ("bytes", "data:application/octet-stream;base64,AP8="),
        ("text", "ü\ud800"),
    ],
)
async def test_any_value_comes_through(wire, kind, text):
    sid = await wire.open(task_spec={})
    assert await value(wire, sid, "value", kind=kind) == text
    await wire.end(sid)


async def test_what_an_author_raises_is_told_as_it_is_here(wire):
    sid = await wire.open(task_spec={})
    assert (await wire.call(sid, "refuse", env="counting")).failure["error"] == "Tool 'refuse' failed: not today"
    assert await lost(wire, sid, "boom") == "boom"
    assert "validation error" in (await wire.call(sid, "add", {"n": "x"}, env="counting")).failure["error"]
    unknown = (await wire.call(sid, "nope", env="counting")).failure
    assert unknown["error"].startswith("'nope' is not a valid tool. The tools are: add, ")
    assert unknown["metadata"]["tools"][0] == "add"
    await wire.end(sid)
    failed = await wire.open(task_spec={"fail": True})
    response = await wire.get("/counting/prompt", headers=H(failed))
    assert (response.status_code, response.json()["detail"]) == (500, "ValueError: setup boom")
    await wire.end(failed)


async def test_a_result_that_is_no_json_is_the_tools_fault_and_nobody_waits_for_it(wire):
    sid = await wire.open(task_spec={})
    assert "cannot be written as JSON" in await lost(wire, sid, "no_json")
    assert await value(wire, sid, "add") == "1"
    await wire.end(sid)


async def test_numbers_that_json_does_not_have_come_through(served):
    async with AsyncClient(served.url) as client:
        environment = client.environments.get("counting")
        async with environment.session({"number": float("-inf")}) as session:
            output = await session.call_tool("tell_kind", {"number": float("nan")})
    assert output.blocks[0].text == "nan -inf"


@pytest.mark.parametrize("placement", ["local", "pool"])
async def test_a_session_that_is_given_up_in_its_constructor_is_torn_down_when_that_is_over(placement, tmp_path):
    told = tmp_path / "told"
    with running([Counting], placement=placement, pool_processes=1, setup_seconds=1) as server:
        async with Wire(server.url) as wire:
            body = {"task_spec": {"slow": 2, "tell": str(told)}}
            response = await wire.post("/create", headers=H("s"), json=body)
            assert "the constructor took more than 1 s" in response.json()["detail"]
            await until(told.exists)
    assert told.read_text() == "0\n"


@pytest.mark.parametrize("again", [{}, {"slow": 1.5}])
async def test_one_that_is_opened_again_under_the_same_id_has_nothing_to_do_with_what_was_given_up(again, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    with running([Counting], placement="pool", pool_processes=1, setup_seconds=1) as server:
        async with Wire(server.url) as wire:
            given_up = {"task_spec": {"slow": 2, "start": 1, "tell": str(first)}}
            assert "took more than 1 s" in (await wire.post("/create", headers=H("s"), json=given_up)).text
            response = await wire.post("/create", headers=H("s"), json={"task_spec": {**again, "tell": str(second)}})
            assert response.status_code == (500 if again else 200), response.text
            await until(first.exists)
            if not again:
                assert await value(wire, "s", "add") == "1"
                await wire.end("s")
            await until(second.exists)
    assert (first.read_text(), second.read_text()) == ("0\n", "0\n" if again else "1\n")


async def test_one_that_is_opened_under_the_id_of_another_that_is_about_to_end_is_not_torn_down_with_it(tmp_path):
    pool = PoolPlacement(Served({"counting": Counting}, {}, 4, lambda: None), ProcessLimits(), size=1)
    told = [tmp_path / "first", tmp_path / "second"]
    try:
        first, second = [await pool.place(SessionSpec("s", Counting, Task({"tell": str(path)}))) for path in told]
        await second.call("add", {}, {})
        await first.teardown()
        assert await second.call("add", {}, {}) == as_output(2)
        await second.teardown()
    finally:
        await pool.stop()
    assert [path.read_text() for path in told] == ["0\n", "2\n"]


@pytest.mark.parametrize("placement", PLACES)
async def test_a_constructor_that_never_returns_and_lets_nothing_else_run_keeps_nobody(placement):
    with running([Counting], placement=placement, pool_processes=1, setup_seconds=0.3) as server:
        async with Wire(server.url) as wire:
            with anyio.fail_after(20):
                response = await wire.post("/create", headers=H("s"), json={"task_spec": {"never": True}})
            assert "the constructor took more than 0.3 s" in response.json()["detail"]


@pytest.mark.parametrize("placement", PLACES)
def test_what_is_printed_is_written_once_although_processes_are_forked_and_killed(placement):
    script = textwrap.dedent(f"""
        from tests.placement.worlds import Counting
        from toolyard import Client
        from toolyard.testing import running
        print("loading")
        with running([Counting], placement={placement!r}) as server, Client(server.url) as client:
            for text in ("one", "two"):
                with client.environments.get("counting").session({{}}) as session:
                    session.call_tool("say", {{"text": text}})
                    if {placement!r} == "process":
                        session.fork()[0].close()
    """)
    command = [sys.executable, "-c", script]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    told = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], env=environment, timeout=60, check=True
    )
    assert sorted(told.stdout.split()) == ["loading", "one", "two"]


# Hangs, crashes and kills.


@pytest.mark.parametrize("tool", ["wait", "hang"])
async def test_a_call_past_its_deadline_is_reported_as_timed_out(wire, tool):
    sid, other = await wire.open(task_spec={}), await wire.open(task_spec={})
    assert "no answer within 1 s" in await late(wire, sid, tool, seconds=600)
    assert await value(wire, other, "add") == "1"
    for each in (sid, other):
        await wire.end(each)


async def test_a_process_that_does_not_stop_is_killed_and_only_its_session_is_lost(served, wire):
    if served.server.settings.placement == "pool":
        return  # there it would end others too: see the next test
    for how in ("hang", "spin"):
        sid, other = await wire.open(task_spec={}), await wire.open(task_spec={})
        pid = int(await value(wire, sid, "where"))
        assert "no answer within 1 s" in await late(wire, sid, how)
        await until(lambda pid=pid: not is_alive(pid))
        assert f"{how!r} did not stop in time" in await lost(wire, sid, "add")
        assert await value(wire, other, "add") == "1"
        for each in (sid, other):
            await wire.end(each)


async def test_a_pool_goes_round_a_process_in_which_something_hangs(served, wire):
    if served.server.settings.placement == "process":
        return  # there it is killed
    sid = await wire.open(task_spec={})
    pid = await value(wire, sid, "where")
    assert "no answer within 1 s" in await late(wire, sid, "hang")
    assert await value(wire, sid, "add") == "1"
    others = [await wire.open(task_spec={}) for _ in range(4)]
    assert pid not in [await value(wire, other, "where") for other in others]
    for each in (sid, *others):
        await wire.end(each)
    await until(lambda: not is_alive(int(pid)))


@pytest.mark.parametrize(
    ("how", "words"),
    [("exit", "by itself, with exit code 3"), ("kill", "by signal SIGKILL"), ("segfault", "by signal SIGSEGV")],
)
async def test_a_crash_is_reported_as_lost_and_new_sessions_work(wire, how, words):
    sid = await wire.open(task_spec={})
    assert words in await lost(wire, sid, "crash", how=how)
    assert words in await lost(wire, sid, "add")
    response = await wire.get("/counting/prompt", headers=H(sid))
    assert (response.status_code, words in response.json()["detail"]) == (500, True)
    await wire.end(sid)
    again = await wire.open(task_spec={})
    assert await value(wire, again, "add") == "1"
    await wire.end(again)


async def test_what_a_session_started_ends_with_it(served, wire):
    if served.server.settings.placement == "pool":
        return  # its processes serve others too
    sid = await wire.open(task_spec={})
    child = int(await value(wire, sid, "start_a_child"))
    assert is_alive(child)
    await wire.end(sid)
    await until(lambda: not is_alive(child))


@pytest.mark.thorough
async def test_hundreds_of_sessions_live_while_others_are_killed(served, wire):
    count = 200 if served.server.settings.placement == "process" else 300
    sids = [await wire.open(task_spec={"start": n}) for n in range(count)]
    pids = [int(await value(wire, sid, "where")) for sid in sids]
    victims = set(pids[: count // 10]) if served.server.settings.placement == "process" else {pids[0]}
    async with anyio.create_task_group() as group:
        results: dict[str, list[str]] = {sid: [] for sid in sids}

        async def play(sid: str) -> None:
            for _ in range(5):
                answer = await wire.call(sid, "add", env="counting")
                results[sid].append(answer.events[-1].name)

        for sid in sids:
            group.start_soon(play, sid)
        for pid in victims:
            os.kill(pid, signal.SIGKILL)
    for sid, pid in zip(sids, pids, strict=True):
        if pid in victims:
            assert results[sid][-1] == "error"
        else:
            assert results[sid] == ["end"] * 5
    again = await wire.open(task_spec={})
    assert await value(wire, again, "add") == "1"
    async with anyio.create_task_group() as group:
        for sid in (*sids, again):
            group.start_soon(wire.end, sid)
    await until(lambda: not any(map(is_alive, pids)) or served.server.settings.placement == "pool")


async def test_limits_of_memory_and_processor_time_hold():
    with running([Counting], placement="process", process_memory_bytes=200 * 2**20, process_cpu_seconds=1) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            assert await value(wire, sid, "take", megabytes=50) == f"{50 * 2**20} bytes"
            assert "MemoryError" in await lost(wire, sid, "take", megabytes=500)
            assert await value(wire, sid, "add") == "1"
            assert "by signal SIGXCPU" in await lost(wire, sid, "burn", seconds=30)
            await wire.end(sid)


async def test_a_limit_of_less_than_a_second_lets_a_session_begin():
    with running([Counting], placement="process", process_cpu_seconds=0.9) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            assert int(await value(wire, sid, "burn", seconds=0.2)) > 0
            await wire.end(sid)


async def test_a_template_that_was_killed_is_replaced():
    with running([Counting], placement="process") as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={})
            pid = int(await value(wire, sid, "where"))
            os.kill(parent_of(pid), signal.SIGKILL)
            await until(lambda: not is_alive(pid))
            assert "fork server" in await lost(wire, sid, "add")
            await wire.end(sid)
            several = [f"again{n}" for n in range(8)]
            async with anyio.create_task_group() as group:  # and with one key for all
                for again in several:
                    group.start_soon(wire.open, again)
            pids = [int(await value(wire, again, "where")) for again in several]
            assert len({parent_of(pid) for pid in pids}) == 1
            for again in several:
                await wire.end(again)


async def test_a_pool_has_as_many_processes_as_it_should_however_many_come_at_once():
    pool = PoolPlacement(Served({"counting": Counting}, {}, 4, lambda: None), ProcessLimits(), size=4)
    try:
        pool.prepare()
        async with anyio.create_task_group() as group:
            for i in range(12):
                group.start_soon(pool.place, SessionSpec(f"s{i}", Counting, Task({})))
        assert pool.processes == 4
    finally:
        await pool.stop()


async def test_a_pool_that_cannot_be_filled_makes_do_with_what_it_has(monkeypatch):
    monkeypatch.setattr(os, "fork", refusing(range(4, 100)))  # allow a guard, a fork server and one worker
    with running([Counting], placement="pool", pool_processes=3) as server:
        async with Wire(server.url) as wire:
            sids = [await wire.open(task_spec={}) for _ in range(4)]
            assert len({await value(wire, sid, "where") for sid in sids}) == 1
            for sid in sids:
                await wire.end(sid)


async def test_a_system_without_room_for_processes_is_told_to_who_wants_one(monkeypatch):
    monkeypatch.setattr(os, "fork", refusing(range(3, 100)))
    with running([Counting], placement="process") as server:
        async with Wire(server.url) as wire:
            response = await wire.post("/create", headers=H("s"), json={"task_spec": {}})
            assert response.status_code == 503
            assert os.strerror(errno.EAGAIN) in response.json()["detail"]


def test_a_template_that_ends_as_soon_as_it_is_started_keeps_nobody_waiting():
    script = textwrap.dedent("""
        from tests.placement.worlds import Counting
        from toolyard.testing import running
        from urllib.request import Request, urlopen
        from urllib.error import HTTPError
        import os
        os.register_at_fork(after_in_child=lambda: os._exit(7))
        with running([Counting], placement="process") as server:
            try:
                urlopen(Request(server.url + "/create", b'{"task_spec": {}}', {"X-Session-ID": "s"}))
            except HTTPError as error:
                print(error.code, error.read().decode())
    """)
    command = [sys.executable, "-c", script]
    told = subprocess.run(
        command, capture_output=True, text=True, cwd=Path(__file__).parents[2], timeout=60, check=False
    )
    assert told.stdout.startswith("503 "), told.stderr
    assert "its fork server ends as soon as it is started" in told.stdout


@pytest.mark.parametrize("placement", PLACES)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_is_left_when_the_server_ends(placement, number, tmp_path):
    script = textwrap.dedent(f"""
        from tests.placement.worlds import Counting
        from toolyard import Client
        from toolyard.testing import running
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        with running([Counting], placement={placement!r}, drain_seconds=1) as server, Client(server.url) as client:
            environment = client.environments.get("counting")
            with environment.session(split="train", index=0) as one, environment.session(split="train", index=1) as two:
                print(one.call_tool("where").text, two.call_tool("where").text, flush=True)
                two.call_tool("hang", {{"seconds": 600}})
    """)
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2]
    )
    assert process.stdout is not None
    pids = [int(pid) for pid in process.stdout.readline().split()]
    assert len(pids) == 2
    time.sleep(0.2)  # so that the call that hangs has begun
    process.send_signal(number)
    process.wait(30)
    process.stdout.close()
    deadline = time.monotonic() + 10
    while any(map(is_alive, pids)):
        assert time.monotonic() < deadline
        time.sleep(0.02)


# Forks and recovery.


def test_a_session_is_forked_with_its_process(served):
    with Client(served.url) as client, client.environments.get("counting").session({"start": 5}) as session:
        session.call_tool("add")
        session.call_tool("add_in_a_thread")
        if served.server.settings.placement == "pool":
            with pytest.raises(RequestRefused, match=r"has no fork\(\).*replayable = True"):
                session.fork()
            return
        forks = session.fork(3)
        assert len({session.sid, *(fork.sid for fork in forks)}) == 4
        assert (session.forked_by, {fork.forked_by for fork in forks}) == ("", {"process"})
        assert len({one.call_tool("where").text for one in (session, *forks)}) == 4
        for n, fork in enumerate(forks):
            with fork:
                assert fork.call_tool("add", {"n": n}).text == str(7 + n)
                assert fork.call_tool("add_in_a_thread", {"n": 10}).text == str(17 + n)
                with fork.fork()[0] as branch:
                    assert branch.call_tool("add").text == str(18 + n)
        assert session.call_tool("add").text == "8"


class Opening(Counting):
    """Inspects the descriptors of its process, and uses them up."""

    @tool
    async def compute(self, code: str) -> str:
        return (await execute(code)).value or ""

    @tool
    def sockets(self) -> str:
        links = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
        return " ".join(name for link in links if (name := os.path.realpath(link).rpartition("/")[2])[:6] == "socket")

    @tool
    async def leave_one(self) -> str:
        """Descriptor free."""
        self.taken: list[int] = []
        with contextlib.suppress(OSError):
            while True:
                self.taken.append(os.open(os.devnull, os.O_RDONLY))
        os.close(self.taken.pop())
        return "left"

    @tool
    async def leave_all(self) -> str:
        while self.taken:
            os.close(self.taken.pop())
        return "left"


def test_a_fork_shares_no_line_of_its_origin_even_if_that_ran_code_in_a_sandbox_a_moment_ago():
    shared: list[int] = []
    with running([Opening], placement="process") as server, Client(server.url) as client:
        for runs_code in (False, True):
            with client.environments.get("opening").session({}) as session:
                if runs_code:
                    assert session.call_tool("compute", {"code": "1 + 1"}).text == "2"
                with session.fork()[0] as branch:
                    ours, theirs = (set(one.call_tool("sockets").text.split()) for one in (session, branch))
                    shared.append(len(ours & theirs))
                    assert branch.call_tool("compute", {"code": "2 + 2"}).text == "4"
                    assert session.call_tool("compute", {"code": "3 + 3"}).text == "6"
    assert shared == [2, 2]  # those of the origin's event loop


def test_a_fork_for_which_its_process_may_open_too_few_files_leaves_the_session_as_it_was():
    with (
        running([Opening], placement="process") as server,
        Client(server.url) as client,
        client.environments.get("opening").session({}) as session,
    ):
        session.call_tool("leave_one")
        headers = {"X-Session-ID": session.sid}
        answer = httpx2.post(f"{server.url}/opening/fork", headers=headers, json={"count": 1}, timeout=60)
        assert (answer.status_code, answer.json()["error"]) == (
            503,
            "no process for a fork could be started: Too many open files",
        )
        session.call_tool("leave_all")
        assert session.call_tool("add").text == "1"
        with session.fork()[0] as branch:
            assert branch.call_tool("add").text == "2"


async def test_a_fork_outlives_the_session_that_it_is_of(served):
    async with AsyncClient(served.url) as client:
        async with client.environments.get("repeating").session({"start": 1}) as session:
            await session.call_tool("add")
            (fork,) = await session.fork()
        assert (await fork.call_tool("add")).text == "3"
        await fork.close()


async def test_how_it_was_forked_is_told(served, wire):
    strategies = {"process": ["process", "process", "process"], "pool": [None, "replay", "hook"]}
    for env, expected in zip(
        ("counting", "repeating", "forking"), strategies[served.server.settings.placement], strict=True
    ):
        sid = await wire.open(env_name=env, task_spec={"start": 2})
        assert await value(wire, sid, "add", env=env) == "3"
        response = await wire.post(f"/{env}/fork", headers=H(sid), json={"count": 2})
        assert response.json().get("strategy") == expected
        for new in response.json().get("sids", []):
            assert await value(wire, new, "add", env=env) == "4"
            await wire.end(new)
        await wire.end(sid)


async def test_a_session_with_a_child_process_says_why_it_cannot_be_forked(served, wire):
    if served.server.settings.placement == "pool":
        return
    sid = await wire.open(task_spec={})
    await value(wire, sid, "start_a_child")
    response = await wire.post("/counting/fork", headers=H(sid), json={})
    assert (response.status_code, "it has child processes" in response.json()["detail"]) == (409, True)
    assert await value(wire, sid, "add") == "1"
    await wire.end(sid)


@pytest.mark.parametrize("after", [0, 1])
async def test_a_session_that_the_system_does_not_let_fork_says_so_and_goes_on(served, wire, after):
    if served.server.settings.placement == "pool":
        return
    sid = await wire.open(task_spec={})
    await value(wire, sid, "forbid_forks", after=after)
    response = await wire.post("/counting/fork", headers=H(sid), json={})
    assert (response.status_code, os.strerror(errno.EAGAIN) in response.json()["detail"]) == (503, True)
    assert await value(wire, sid, "add") == "1"
    await wire.end(sid)


async def test_a_fork_whose_process_ends_at_once_keeps_nobody_waiting(served, wire):
    if served.server.settings.placement == "pool":
        return
    sid = await wire.open(task_spec={})
    await value(wire, sid, "end_copies")
    with anyio.fail_after(20):
        response = await wire.post("/counting/fork", headers=H(sid), json={})
    assert (response.status_code, "ended at once" in response.json()["detail"]) == (409, True)
    assert await value(wire, sid, "add") == "1"
    await wire.end(sid)


@pytest.mark.parametrize("body", [{"count": 0}, {"count": -1}, {"count": 10**6}, {"count": "x"}, {"more": 1}, []])
async def test_a_fork_that_makes_no_sense_is_refused(wire, body):
    sid = await wire.open(env_name="repeating", task_spec={})
    assert (await wire.post("/repeating/fork", headers=H(sid), json=body)).status_code == 422
    assert (await wire.post("/repeating/fork", headers=H("nobody"), json={})).status_code == 404
    await wire.end(sid)


async def test_a_replayable_session_is_made_again_when_its_process_dies(wire):
    sid = await wire.open(env_name="repeating", task_spec={"start": 10})
    for n in (1, 2, 3):
        await value(wire, sid, "add", env="repeating", n=n)
    told = await lost(wire, sid, "crash", env="repeating", how="exit")
    assert "as before this call" in told
    assert "not known" in told
    assert await value(wire, sid, "add", env="repeating") == "17"
    os.kill(int(await value(wire, sid, "where", env="repeating")), signal.SIGKILL)
    with anyio.fail_after(10):
        while (answer := await wire.call(sid, "add", env="repeating")).events[-1].name == "error":
            await anyio.sleep(0.01)
    assert answer.text == "18"
    assert (await wire.get("/repeating/prompt", headers=H(sid))).json()[0]["text"] == "count from 18"
    await wire.end(sid)


async def test_a_call_that_is_lost_again_when_it_is_repeated_is_no_reason_for_a_reward(wire, tmp_path):
    trap = tmp_path / "trap"
    sid = await wire.open(env_name="repeating", task_spec={})
    assert await value(wire, sid, "lean_on", env="repeating", path=str(trap)) == "held"
    trap.touch()
    assert await lost(wire, sid, "crash", env="repeating", how="exit")
    told = await wire.call(sid, "finish", env="repeating")
    assert "'lean_on' could not be repeated" in str(told.events[-1].data)
    assert "reward" not in str(told.events[-1].data)
    trap.unlink()
    assert await value(wire, sid, "add", env="repeating") == "1"
    await wire.end(sid)


async def test_one_that_was_made_again_for_nobody_is_made_again_once_more_when_its_process_dies(served, wire, tmp_path):
    slow = tmp_path / "slow"
    sid = await wire.open(env_name="repeating", task_spec={})
    session = served.server.runtime.sessions[sid]
    await value(wire, sid, "add", env="repeating")
    await value(wire, sid, "doze", env="repeating", path=str(slow))
    slow.touch()
    await kill(wire, sid, session)
    assert (await wire.call(sid, "add", env="repeating")).failure["reason"] == "timed_out"
    await until(lambda: session.condition == "ready")
    slow.unlink()
    await kill(wire, sid, session)
    assert await value(wire, sid, "add", env="repeating") == "2"
    await wire.end(sid)


async def test_one_that_is_closed_as_soon_as_it_is_made_again_is_closed_for_who_waited(served, wire):
    runtime, sid = served.server.runtime, await wire.open(env_name="repeating", task_spec={})
    await kill(wire, sid, runtime.sessions[sid])
    runtime.journal.rebuilt.append(lambda spec: runtime.close_soon(spec.session_id))
    try:
        answer = await wire.get("/repeating/prompt", headers=H(sid))
    finally:
        runtime.journal.rebuilt.pop()
    assert answer.status_code == 410, answer.text


async def kill(wire: Wire, sid: str, session: Session) -> None:
    os.kill(int(await value(wire, sid, "where", env="repeating")), signal.SIGKILL)
    await until(lambda: session.condition == "lost")


async def test_a_call_that_was_stopped_half_way_ends_what_can_be_repeated(served, wire):
    sid = await wire.open(env_name="repeating", task_spec={})
    assert (await wire.call(sid, "wait", {"seconds": 600}, env="repeating")).failure["reason"] == "timed_out"
    assert await value(wire, sid, "add", env="repeating") == "1"
    assert await lost(wire, sid, "crash", env="repeating", how="exit")
    assert await lost(wire, sid, "finish", env="repeating")
    await wire.end(sid)


async def test_one_that_is_not_replayable_is_not(wire):
    sid = await wire.open(task_spec={})
    await lost(wire, sid, "crash", how="exit")
    with pytest.raises(AssertionError):
        await value(wire, sid, "add")
    await wire.end(sid)


def test_a_lost_call_is_an_infrastructure_failure_for_the_client(served):
    with Client(served.url) as client:
        session = client.environments.get("counting").session({})
        with session, pytest.raises(ToolLost):
            session.call_tool("crash", {"how": "kill"})
