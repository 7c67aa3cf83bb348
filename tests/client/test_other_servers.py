"""Servers that are not ours: ids of calls are theirs to make, and parts of the protocol may be missing."""

from __future__ import annotations

import pytest

from tests.client.reference import reference
from toolyard import Client
from toolyard.client import RequestRefused, SessionGone, ToolLost


@pytest.fixture
def server():
    with reference() as server:
        yield server


@pytest.fixture
def client(server):
    with Client(server.url) as client:
        yield client


def episode(client):
    return client.environment("refenv").session(split="train", index=0)


def test_a_whole_episode(server, client):
    assert client.environments.list() == ["refenv"]
    assert client.environment("refenv").list_splits() == ["train", "odd"]
    with episode(client) as session:
        assert session.sid in server.sessions
        assert session.get_prompt()[0].text == "hello"
        assert session.get_messages()[0].blocks[0].text == "hello"
        assert [tool.name for tool in session.list_tools()] == ["go"]
        assert session.terminal_tool() is None
        assert session.call_tool("go").text == "run 1"
        with pytest.raises(RequestRefused, match="no terminal tool"):
            session.call_terminal_tool("bye")
        with pytest.raises(RequestRefused, match="does not compare"):
            session.score_group([])
    assert not server.sessions


def test_the_environment_is_always_named(server, client):
    with episode(client):
        assert server.created == [{"env_name": "refenv", "split": "train", "index": 0}]


def test_that_it_takes_no_ids_is_found_out_once(server, client):
    with episode(client) as session:
        assert [session.call_tool("go").text for _ in range(3)] == ["run 1", "run 2", "run 3"]
    with episode(client) as session:
        session.call_tool("go")
    assert ["task_id" in body for body in server.asked] == [True, False, False, False, False]


@pytest.mark.parametrize("drops", [1, 3])
def test_a_call_that_was_named_is_picked_up_again(server, client, drops):
    with episode(client) as session:
        session.call_tool("go")
        server.drop_after_the_name = drops
        assert session.call_tool("go").text == "run 2"
    assert server.ran == 2


def test_a_call_that_was_not_named_is_lost_and_not_repeated(server, client):
    with episode(client) as session:
        session.call_tool("go")
        server.drop_before_the_name = 1
        with pytest.raises(ToolLost) as caught:
            session.call_tool("go")
        assert caught.value.reason == "lost"
        assert server.ran == 2
        assert session.call_tool("go").text == "run 3"


def test_call_ids_of_the_callers_own_are_refused_before_anything_runs(server, client):
    with episode(client) as session:
        with pytest.raises(ToolLost):
            session.call_tool("go", call_id="mine")
        session.call_tool("go")
        with pytest.raises(RequestRefused, match="leave call_id out"):
            session.call_tool("go", call_id="mine")
    assert server.ran == 1


def test_a_server_that_ignores_ids_is_believed_when_it_names_the_call(server, client):
    server.ignores_ids = True
    with episode(client) as session:
        assert session.call_tool("go").text == "run 1"
        assert session.call_tool("go").text == "run 2"
    assert "task_id" not in server.asked[1]


def test_a_session_that_it_forgot_is_gone(server, client):
    with episode(client) as session:
        server.sessions.clear()
        for ask in (session.get_prompt, session.get_messages, session.list_tools, lambda: session.call_tool("go")):
            with pytest.raises(SessionGone):
                ask()
