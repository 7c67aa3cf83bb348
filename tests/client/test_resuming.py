"""Streams that are cut, servers that fall silent or restart: a tool runs once, and its result arrives."""

from __future__ import annotations

import threading
import uuid
from contextlib import ExitStack

import anyio
import httpx2
import pytest

from tests.client.proxy import proxied
from tests.client.waiting import eventually
from tests.worlds import MathEnv, ran
from toolyard import AsyncClient, Client
from toolyard.client import ConnectionLost, InfrastructureError, SessionGone, ToolLost
from toolyard.testing import running

OFFSETS = [0, 1, 17, 60, 120, 150, 170, 190, 200, 210, 220, 230, 240, 260, 280, 300, 340, 380, 420, 460]
"""Through head, `task_id`, and the result of a short call; the last ones lie beyond its end."""


@pytest.fixture
def proxy(served):
    with proxied(served.url) as proxy:
        yield proxy


@pytest.fixture
def client(proxy):
    with Client(proxy.url) as client:
        yield client


def episode(client):
    return client.environment("mathenv").session(split="train", index=0)


@pytest.mark.parametrize("offset", OFFSETS)
def test_a_stream_cut_at_any_byte_runs_the_tool_once(proxy, client, offset):
    key = uuid.uuid4().hex
    with episode(client) as session:
        proxy.plans = [offset]
        output = session.call_tool("slow", {"seconds": 0.05, "key": key})
    assert output.text == "slept 0.05"
    assert ran[key] == 1
    assert proxy.calls == 2 or offset > 300


@pytest.mark.anyio
async def test_streams_cut_again_and_again_run_each_tool_once(served):
    async def one(offset: int) -> None:
        key = uuid.uuid4().hex
        with proxied(served.url) as proxy:
            async with AsyncClient(proxy.url) as client, episode(client) as session:
                proxy.plans = [offset, 0, offset]
                output = await session.call_tool("slow", {"seconds": 0.05, "key": key})
        assert output.text == "slept 0.05"
        assert ran[key] == 1

    async with anyio.create_task_group() as group:
        for offset in OFFSETS[:-6]:
            group.start_soon(one, offset)


@pytest.mark.parametrize("offset", [0, 200, 5_000, 70_000, 150_000, 260_000])
def test_a_long_result_cut_in_the_middle_arrives_whole(proxy, client, offset):
    with episode(client) as session:
        proxy.plans = [offset]
        output = session.call_tool("big", {"n": 100_000, "fill": " é"})
    assert output.text == " é" * 100_000
    assert proxy.calls == 2


def test_a_session_whose_creation_is_answered_into_the_void_is_there_all_the_same(proxy, client, served):
    proxy.marker = b"/create HTTP/1.1"
    proxy.plans = [0, 30]
    with episode(client) as session:
        assert proxy.calls == 3
        assert list(served.server.runtime.sessions) == [session.sid]
        assert session.get_prompt()[0].text == "0"
    assert not served.server.runtime.sessions


def test_a_request_that_never_arrives_is_sent_again(proxy, client):
    key = uuid.uuid4().hex
    with episode(client) as session:
        proxy.before_the_request = True
        proxy.plans = [0, 0]
        session.call_tool("slow", {"seconds": 0, "key": key})
    assert ran[key] == 1
    assert proxy.calls == 3


def test_a_stream_that_falls_silent_is_left_for_another(proxy, client, monkeypatch):
    monkeypatch.setattr("toolyard.client.talk.SILENCE", 0.5)
    key = uuid.uuid4().hex
    with episode(client) as session:
        proxy.silent = True
        proxy.plans = [250]
        session.call_tool("slow", {"seconds": 0.05, "key": key})
    assert ran[key] == 1
    assert proxy.calls == 2


def test_a_connection_that_never_holds_is_lost_after_a_while(proxy):
    key = uuid.uuid4().hex
    with Client(proxy.url, patience=1.5) as client, episode(client) as session:
        proxy.plans = [100] * 1000
        with pytest.raises(ConnectionLost, match=r"again and again|no connection"):
            session.call_tool("slow", {"seconds": 0, "key": key})
    assert ran[key] == 1


def test_a_call_outlives_many_streams(proxy, client):
    key = uuid.uuid4().hex
    with episode(client) as session:
        proxy.plans = [250] * 4
        session.call_tool("slow", {"seconds": 1, "key": key})
    assert ran[key] == 1
    assert proxy.calls == 5


def test_the_same_call_id_again_runs_nothing(client):
    key = uuid.uuid4().hex
    with episode(client) as session:
        first = session.call_tool("slow", {"seconds": 0, "key": key}, call_id="mine")
        again = session.call_tool("slow", {"seconds": 0, "key": key}, call_id="mine")
    assert first == again
    assert ran[key] == 1


def test_a_result_that_the_server_no_longer_keeps_is_lost_and_not_computed_again():
    key = uuid.uuid4().hex
    with ExitStack() as stack:
        server = stack.enter_context(running([MathEnv], replay_seconds=0, sweep_seconds=0.05))
        session = stack.enter_context(episode(stack.enter_context(Client(server.url))))
        session.call_tool("slow", {"seconds": 0, "key": key}, call_id="mine")
        eventually(lambda: not len(server.server.runtime.shared.replays))
        with pytest.raises(ToolLost):
            session.call_tool("slow", {"seconds": 0, "key": key}, call_id="mine")
    assert ran[key] == 1


def test_a_session_does_not_survive_a_restart_and_says_so():
    with ExitStack() as stack, ExitStack() as first:
        second = stack.enter_context(running([MathEnv]))
        proxy = stack.enter_context(proxied(first.enter_context(running([MathEnv])).url))
        client = stack.enter_context(Client(proxy.url))
        session = stack.enter_context(episode(client))
        assert session.get_prompt()[0].text == "0"
        first.close()
        proxy.target = second.url
        for ask in (session.get_prompt, session.get_messages, session.list_tools):
            with pytest.raises(SessionGone):
                ask()
        with pytest.raises(SessionGone):
            session.call_tool("noparam")
        with episode(client) as another:
            assert another.call_tool("noparam").text == "nothing"


def test_a_server_that_restarts_is_waited_for():
    with ExitStack() as stack, ExitStack() as first:
        second = stack.enter_context(running([MathEnv]))
        proxy = stack.enter_context(proxied(first.enter_context(running([MathEnv])).url))
        client = stack.enter_context(Client(proxy.url))
        assert client.environments.list() == ["mathenv"]
        first.close()

        def back_again():
            proxy.target = second.url

        later = threading.Timer(0.5, back_again)
        later.start()
        assert client.environments.list() == ["mathenv"]
        assert proxy.target == second.url
        later.join()


def test_a_call_that_the_server_gives_up_is_not_the_agents_fault():
    key = uuid.uuid4().hex
    with ExitStack() as stack:
        server = stack.enter_context(running([MathEnv], drain_seconds=0.2))
        session = stack.enter_context(episode(stack.enter_context(Client(server.url, patience=1))))
        stopping = threading.Timer(0.3, server.server.stop)
        stopping.start()
        with pytest.raises(InfrastructureError):
            session.call_tool("slow", {"seconds": 60, "key": key})
        stopping.join()
    assert ran[key] == 1


def test_a_call_beyond_its_deadline_has_no_reward_and_no_output():
    with ExitStack() as stack:
        server = stack.enter_context(running([MathEnv], call_seconds=0.2, sweep_seconds=0.05))
        session = stack.enter_context(episode(stack.enter_context(Client(server.url))))
        with pytest.raises(ToolLost) as caught:
            session.call_tool("slow", {"seconds": 60})
        assert caught.value.reason == "timed_out"
        assert session.call_tool("noparam").text == "nothing"


def test_a_call_whose_session_is_closed_under_it_is_lost(served):
    caught = []

    def call(session):
        try:
            session.call_tool("slow", {"seconds": 60, "key": session.sid})
        except InfrastructureError as error:
            caught.append(error)

    with Client(served.url) as client, episode(client) as session:
        calling = threading.Thread(target=call, args=(session,))
        calling.start()
        eventually(lambda: ran[session.sid])
        httpx2.post(f"{served.url}/delete", headers={"X-Session-ID": session.sid}).raise_for_status()
        calling.join(10)
    assert [type(error) for error in caught] == [ToolLost]
    assert caught[0].reason == "cancelled"
