"""Which backend is chosen, and how the code of environments and scripts gets its sandboxes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import httpx2
import pytest

from tests.sandboxes.worlds import ByToolset, Commands, Declared, PlainThroughout, Runner
from toolyard import Server
from toolyard.client import Client, InfrastructureError, Session, ToolCallFailed
from toolyard.core.errors import SandboxLost, SandboxUnavailable
from toolyard.sandboxes import (
    BACKENDS,
    Executed,
    Finished,
    Limits,
    Provider,
    blocking,
    close_sandboxes,
    in_force,
    open_sandbox,
    start,
    tool_output,
    usual_limits,
)
from toolyard.sandboxes.base import LEVELS, PythonError, Usage, at_least
from toolyard.sandboxes.choice import make
from toolyard.settings import Settings
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


def brokers() -> list[int]:
    """The helper processes of native backends that this process has started and that still run."""
    found = []
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            parent = re.search(r"^PPid:\t(\d+)$", status.read_text(), re.MULTILINE)
            command = (status.parent / "cmdline").read_bytes()
        except OSError:  # it has ended
            continue
        if parent and int(parent[1]) == os.getpid() and b"native.broker" in command:
            found.append(int(status.parent.name))
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    before = set(brokers())
    yield
    assert set(brokers()) <= before


@contextmanager
def playing(environment: type, **settings) -> Iterator[tuple[Running, Session]]:
    with (
        running([environment], **settings) as server,
        Client(server.url, patience=0) as client,
        client.environment(environment.name()).session(split="train", index=0) as session,
    ):
        yield server, session


# Which backend.


async def test_without_a_name_the_native_one_is_taken_where_it_works():
    backend = await start("auto", "L3-nolimit")
    try:
        assert backend.name == "native"
        assert at_least(backend.report().level, "L3-nolimit")
    finally:
        await backend.close()


async def test_if_none_is_good_enough_all_that_were_tried_are_named_with_what_they_lack():
    with pytest.raises(SandboxUnavailable) as refused:
        await start("auto", "L4")
    said = str(refused.value)
    for name in ("native: it reaches L3", "bubblewrap: ", "docker: ", "podman: "):
        assert name in said
    assert "subprocess: " not in said
    assert "\n" not in said
    assert "--min-isolation" in said


async def test_one_that_is_named_is_taken_or_refused_and_no_other_instead():
    with pytest.raises(SandboxUnavailable) as refused:
        await start("native", "L4")
    assert "native: it reaches L3" in str(refused.value)
    assert "bubblewrap: " not in str(refused.value)


@pytest.mark.parametrize("minimum", LEVELS[1:])
async def test_no_isolation_is_had_only_for_who_asks_for_none(minimum):
    with pytest.raises(SandboxUnavailable, match="subprocess: it reaches L0 here"):
        await start("subprocess", minimum)


async def test_no_isolation_is_had_by_its_name_and_the_lowest_level():
    async with Provider("subprocess", "L0") as sandboxes:
        assert (await sandboxes.start()).level == "L0"
        async with await sandboxes.open() as box:
            assert (await box.exec("6 * 7")).value == "42"


async def test_automatically_it_is_never_the_one_that_isolates_nothing():
    async with Provider("auto", "L0") as sandboxes:
        assert (await sandboxes.start()).backend != "subprocess"


def test_a_name_that_is_none_is_said_at_once_with_those_that_there_are():
    with pytest.raises(SandboxUnavailable, match="there is no sandbox 'jail'; there are auto, native, bubblewrap"):
        Provider("jail")
    with pytest.raises(SandboxUnavailable, match="there is no sandbox 'jail'"):
        Server([Runner], settings=Settings(sandbox="jail"))


@pytest.mark.parametrize("name", BACKENDS)
async def test_each_in_the_table_is_of_the_name_that_it_has_there(name):
    assert make(name).name == name


# In a script.


async def test_two_who_ask_first_at_once_share_one_backend(caplog):
    caplog.set_level(logging.INFO, "toolyard.sandbox")
    try:
        first, second = await asyncio.gather(open_sandbox(), open_sandbox())
        assert first is not second
        assert first.report() is second.report()
        assert len(brokers()) == 1
        (line,) = [record.getMessage() for record in caplog.records if "isolation" in record.getMessage()]
        assert re.match(r"sandboxes: native, isolation L3\S* \(files: .*; network: .*memory: ", line)
    finally:
        await close_sandboxes()
    with pytest.raises(SandboxLost):
        await first.exec("1")


async def test_one_who_gives_up_waiting_for_the_start_does_not_spoil_it_for_others():
    async with Provider() as sandboxes:
        hasty, patient = (asyncio.ensure_future(sandboxes.open()) for _ in range(2))
        await asyncio.sleep(0)
        hasty.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hasty
        assert (await (await patient).exec("1 + 1")).value == "2"


async def test_closing_while_it_starts_ends_the_start_and_tells_who_waits():
    sandboxes = Provider()
    waiting = asyncio.ensure_future(sandboxes.open())
    while not brokers():
        await asyncio.sleep(0.001)
    await sandboxes.close()
    with pytest.raises(SandboxLost):
        await waiting
    assert brokers() == []


async def test_who_needs_a_sandbox_once_goes_on_before_that_is_gone():
    async with Provider("native", ready=0) as sandboxes:
        async with sandboxes.open_once() as box:
            assert (await box.exec("1 + 1")).value == "2"
        assert sandboxes.count == (1, 0)
        async with asyncio.timeout(10):
            while sandboxes.count != (0, 0):
                await asyncio.sleep(0.001)
        with pytest.raises(SandboxLost):
            await box.exec("1")


async def test_who_is_faster_than_sandboxes_end_waits_for_them():
    there = []

    async def work(sandboxes: Provider) -> None:
        async with sandboxes.open_once():
            there.append(sandboxes.count[0])

    async with Provider("native", ready=0, at_once=4) as sandboxes:
        await sandboxes.start()
        await asyncio.gather(*(work(sandboxes) for _ in range(40)))
    assert len(there) == 40
    assert max(there) <= 4, "those that are ending count too"


async def test_a_sandbox_that_cannot_be_closed_in_the_end_is_in_the_log_and_not_in_the_result(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("toolyard"), "propagate", True)

    async def broken() -> None:
        raise SandboxLost("it does not end")

    async with Provider("native", ready=0) as sandboxes:
        async with sandboxes.open_once() as box:
            monkeypatch.setattr(box, "close", broken)
            assert (await box.exec("1 + 1")).value == "2"
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        monkeypatch.undo()
    assert [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR] == [
        "a sandbox could not be closed"
    ]


async def test_a_refused_start_is_tried_again_for_who_asks_again():
    async with Provider("native", "L4") as sandboxes:
        for _ in range(2):
            with pytest.raises(SandboxUnavailable):
                await sandboxes.open()
        assert sandboxes.report is None


async def test_inside_a_provider_its_choice_is_the_one_in_force_and_before_and_after_it_none():
    assert in_force() is None
    async with Provider("native", limits=Limits(processes=17)):
        async with await open_sandbox() as box:
            assert box.limits.processes == usual_limits().processes == 17
        async with await open_sandbox(replace(usual_limits(), wall_seconds=3)) as box:
            assert (box.limits.processes, box.limits.wall_seconds) == (17, 3)
        assert in_force() is box.report()
    assert in_force() is None
    assert usual_limits() == Limits()


def test_each_event_loop_has_its_own_and_another_one_after_it():
    values = []

    async def main() -> None:
        box = await open_sandbox()
        try:
            values.append((await box.exec("import os; os.getpid()")).value)
        finally:
            await close_sandboxes()

    threads = [threading.Thread(target=asyncio.run, args=(main(),)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    asyncio.run(main())
    assert len(values) == 3


def test_a_plain_script_is_told_what_to_write():
    with pytest.raises(RuntimeError, match=r"use asyncio\.run"):
        blocking(open_sandbox())


# In a server.


def test_a_server_whose_environments_do_not_say_so_starts_nothing_until_somebody_asks():
    with playing(Runner) as (server, session):
        assert server.server.sandboxes.report is None
        assert brokers() == []
        assert session.call_tool("python", {"code": "x = 20"}).metadata["isolation"].startswith("L3")
        assert session.call_tool("python", {"code": "x + 1"}).text == "21"
        assert len(brokers()) == 1
        assert server.server.sandboxes.report.backend == "native"
    assert brokers() == []


@pytest.mark.parametrize("environment", [Declared, ByToolset])
def test_a_server_whose_environment_says_so_has_it_before_anybody_asks(environment: type):
    with running([environment]) as server:
        assert server.server.sandboxes.report.backend == "native"
        assert len(brokers()) == 1


def test_a_toolset_that_clients_may_ask_for_counts_as_well():
    with running([Runner], toolsets=[Commands]) as server:
        assert server.server.sandboxes.report is not None


@pytest.mark.parametrize("environment", [Declared, ByToolset])
def test_below_the_minimum_such_a_server_does_not_start(environment: type):
    with pytest.raises(SandboxUnavailable, match="native: it reaches L3"), running([environment], min_isolation="L4"):
        raise AssertionError("it answered")


def test_below_the_minimum_another_server_starts_and_its_tools_get_no_sandbox_and_no_reward():
    with playing(Runner, sandbox="native", min_isolation="L4") as (server, session):
        with pytest.raises(InfrastructureError, match="native: it reaches L3"):
            session.call_tool("python", {"code": "1"})
        assert httpx2.get(f"{server.url}/health").json() == {"status": "ok"}


async def test_another_asgi_server_is_told_why_it_cannot_start():
    sent = []

    async def receive():
        return {"type": "lifespan.startup"}

    async def send(message):
        sent.append(message)

    app = Server([Declared], settings=Settings(sandbox="native", min_isolation="L4")).app
    await app({"type": "lifespan"}, receive, send)
    (message,) = sent
    assert message["type"] == "lifespan.startup.failed"
    assert "native: it reaches L3" in message["message"]


async def test_an_app_that_is_called_in_process_has_sandboxes_too():
    server = Server([Runner], settings=Settings())
    transport = httpx2.ASGITransport(app=server.app)
    try:
        async with httpx2.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"X-Session-ID": "s"}
            await client.post("/create", headers=headers, json={"split": "train", "index": 0})
            call = {"name": "python", "input": {"code": "6 * 7"}}
            answer = await client.post("/runner/call", headers=headers, json=call)
            assert '"text":"42"' in answer.text
            await client.post("/delete", headers=headers)
    finally:
        await server.sandboxes.close()


def test_two_servers_in_one_process_do_not_share():
    with running([Declared]) as first, running([Declared], sandbox_processes=33) as second:
        assert len(brokers()) == 2
        for server, processes in ((first, 64), (second, 33)):
            with (
                Client(server.url) as client,
                client.environment("declared").session(split="train", index=0) as session,
            ):
                assert session.call_tool("limits").text == f'{{"usual": {processes}, "given": {processes}}}'


def test_a_plain_function_waits_for_a_sandbox_and_another_loop_is_refused():
    with playing(Runner) as (_, session):
        with pytest.raises(ToolCallFailed, match=r"belong to the event loop of their server.*blocking\("):
            session.call_tool("in_a_loop_of_its_own")
        assert session.call_tool("plainly", {"code": "2 ** 10"}).text == "1024"
        with pytest.raises(ToolCallFailed, match="write `await` instead"):
            session.call_tool("blocks_the_loop")


def test_sessions_of_plain_functions_are_torn_down_also_when_the_server_stops():
    with running([PlainThroughout]) as server, Client(server.url) as client:
        session = client.environment("plainthroughout").session(split="train", index=0)
        session.__enter__()
        assert session.call_tool("python", {"code": "'here'"}).text == "'here'"
    assert brokers() == []


def test_a_path_that_is_not_there_is_for_the_agent_and_a_lost_sandbox_is_not():
    with playing(Runner) as (_, session):
        with pytest.raises(ToolCallFailed, match="no/such/file") as failed:
            session.call_tool("read", {"path": "no/such/file"})
        assert failed.value.reason == "tool_failed"
        with pytest.raises(ToolCallFailed, match="passwd"):
            session.call_tool("read", {"path": "/etc/passwd"})
        with pytest.raises(InfrastructureError, match="the sandbox is closed"):
            session.call_tool("use_a_closed_one")
        assert session.call_tool("python", {"code": "'goes on'"}).text == "'goes on'"


# What a model reads.


def executed(**given) -> Executed:
    values = {"stdout": "", "stderr": "", "value": None, "error": None, "killed_by": None}
    return Executed(**{**values, "usage": Usage(2.04), "isolation": "L3", **given})


def finished(**given) -> Finished:
    values = {"exit_code": 0, "stdout": b"", "stderr": b"", "killed_by": None}
    return Finished(**{**values, "usage": Usage(2.04), "isolation": "L3", **given})


@pytest.mark.parametrize(
    ("result", "text", "metadata"),
    [
        (executed(), "[no output]", {}),
        (executed(stdout="a\n", stderr="b\n", value="3"), "a\nb\n3", {}),
        (executed(error=PythonError("E", "m", "Traceback …\nE: m\n")), "Traceback …\nE: m", {}),
        (
            executed(stdout="a", killed_by="wall"),
            "a\n[stopped after 2.0 s: it took longer than it may]",
            {"killed_by": "wall"},
        ),
        (
            executed(killed_by="memory", state_lost=True),
            "[stopped after 2.0 s: it needed more memory than it may]\n"
            "[the interpreter starts afresh: variables are gone, files are kept]",
            {"killed_by": "memory", "state_lost": True},
        ),
        (finished(stdout=b"\xff\n"), "\ufffd", {"exit_code": 0}),
        (finished(exit_code=3, stderr=b"no\n"), "no\n[exit code 3]", {"exit_code": 3}),
        (
            finished(exit_code=137, killed_by="output", stdout=b"yyy"),
            "yyy\n[stopped after 2.0 s: it wrote more output than it may, and the rest is not shown]",
            {"exit_code": 137, "killed_by": "output"},
        ),
    ],
)
def test_a_model_reads_what_was_written_and_how_it_ended(result, text, metadata):
    output = tool_output(result)
    assert output.text == text
    assert output.metadata == {"isolation": "L3", **metadata}
    assert output.reward is None


@pytest.mark.parametrize(("backend", "usual"), [("native", "network namespace"), ("subprocess", "none")])
async def test_a_sandbox_with_the_hosts_network_says_so_and_others_of_its_server_do_not(
    backend, usual, caplog, monkeypatch
):
    monkeypatch.setattr(logging.getLogger("toolyard"), "propagate", True)
    async with Provider(backend, "L0", ready=0) as sandboxes:
        async with await sandboxes.open() as box:
            assert box.report().layers["network"] == usual
        assert not [record for record in caplog.records if "this host's network" in record.getMessage()]
        for _ in range(2):
            async with await sandboxes.open(Limits(network="host")) as box:
                assert box.report().layers["network"] == "none, all that this host reaches"
        assert sandboxes.report.layers["network"] == usual
    assert len([record for record in caplog.records if "this host's network" in record.getMessage()]) == 1
