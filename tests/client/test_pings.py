"""Sessions stay alive whatever the caller does, and nothing stays behind when they end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from contextlib import ExitStack

import pytest

from tests.client.proxy import proxied
from tests.client.waiting import eventually
from tests.worlds import MathEnv
from toolyard import AsyncClient, Client
from toolyard.client import SessionGone
from toolyard.testing import running

IDLE = 2.0


@pytest.fixture(scope="module")
def impatient():
    """A server that closes a session after two seconds without a sign of life."""
    with running([MathEnv], idle_seconds=IDLE, sweep_seconds=0.05, api_key="key") as server:
        yield server


@pytest.fixture
def often(monkeypatch):
    monkeypatch.setattr("toolyard.client.pings.SECONDS", 0.2)


def threads():
    return [thread for thread in threading.enumerate() if thread.name == "toolyard-pings"]


def episode(client):
    return client.environment("mathenv").session({"q": "alive"})


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_a_blocked_event_loop_does_not_lose_the_session(impatient):
    async with AsyncClient(impatient.url, api_key="key") as client, episode(client) as session:
        time.sleep(1.5 * IDLE)  # noqa: ASYNC251  # this is what the test is about
        assert (await session.get_prompt())[0].text == "alive"


@pytest.mark.usefixtures("often")
def test_a_blocked_thread_does_not_lose_the_session(impatient):
    with Client(impatient.url, api_key="key") as client, episode(client) as session:
        time.sleep(1.5 * IDLE)
        assert session.call_tool("noparam").text == "nothing"


@pytest.mark.usefixtures("often")
def test_a_session_that_is_opened_again_is_kept_alive_too(impatient):
    with Client(impatient.url, api_key="key") as client:
        session = episode(client)
        with session:
            pass
        with session:
            time.sleep(1.5 * IDLE)
            assert session.get_prompt()[0].text == "alive"


@pytest.mark.anyio
@pytest.mark.usefixtures("often")
async def test_an_awaited_session_that_is_opened_again_is_kept_alive_too(impatient):
    async with AsyncClient(impatient.url, api_key="key") as client:
        session = episode(client)
        async with session:
            pass
        async with session:
            await asyncio.sleep(1.5 * IDLE)
            assert (await session.get_prompt())[0].text == "alive"


def test_without_pings_the_session_would_have_been_lost(impatient):
    with Client(impatient.url, api_key="key") as client, episode(client) as session:
        eventually(lambda: not impatient.server.runtime.sessions)
        with pytest.raises(SessionGone):
            session.call_tool("noparam")


@pytest.mark.usefixtures("often")
def test_one_thread_serves_all_sessions_and_ends_with_the_last(impatient):
    eventually(lambda: not threads())
    with Client(impatient.url, api_key="key") as client:
        with episode(client):
            (thread,) = threads()
            with episode(client), episode(client):
                assert threads() == [thread]
            assert threads() == [thread]
            assert thread.daemon
        eventually(lambda: not threads())
        with episode(client):
            assert len(threads()) == 1
    eventually(lambda: not threads())


@pytest.mark.usefixtures("often")
def test_sessions_that_come_and_go_are_each_kept_as_long_as_they_last(impatient):
    def one(number: int) -> None:
        with Client(impatient.url, api_key="key") as client, episode(client) as session:
            time.sleep(0.2 * (number % 17))
            texts.append(session.get_prompt()[0].text)

    texts: list[str] = []
    workers = [threading.Thread(target=one, args=(number,)) for number in range(40)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(30)
    assert texts == ["alive"] * 40
    eventually(lambda: not threads())


@pytest.mark.usefixtures("often")
def test_a_server_that_does_not_answer_does_not_keep_others_from_being_pinged(impatient):
    with ExitStack() as stack:
        proxy = stack.enter_context(proxied(impatient.url))
        for _ in range(3):
            stack.enter_context(episode(stack.enter_context(Client(proxy.url, api_key="key"))))
        session = stack.enter_context(episode(stack.enter_context(Client(impatient.url, api_key="key"))))
        proxy.flowing.clear()
        time.sleep(1.5 * IDLE)
        assert session.get_prompt()[0].text == "alive"
        proxy.flowing.set()


@pytest.mark.usefixtures("often")
def test_a_session_that_is_gone_is_not_pinged_any_more(impatient, caplog):
    with Client(impatient.url, api_key="key") as client, episode(client) as session:
        impatient.server.runtime.sessions.pop(session.sid)
        eventually(lambda: "is gone from the server" in caplog.text)


def test_a_forked_process_keeps_its_own_sessions_alive(impatient):
    program = f"""
        import os, sys, threading, time
        from toolyard import Client
        from toolyard.client import pings

        pings.SECONDS = 0.2

        def live():
            with Client({impatient.url!r}, api_key="key") as client:
                with client.environment("mathenv").session({{"q": "alive"}}) as session:
                    time.sleep({1.5 * IDLE})
                    return session.get_prompt()[0].text == "alive"

        with Client({impatient.url!r}, api_key="key") as client:
            with client.environment("mathenv").session({{"q": "parent"}}) as session:
                child = os.fork()
                if not child:
                    os._exit(0 if live() else 1)
                _, status = os.waitpid(child, 0)
                assert session.get_prompt()[0].text == "parent"
                sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
