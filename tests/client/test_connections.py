"""What clients promise, whatever happens to the connections beneath them. Both of them, in the same tests."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
import time
import uuid
from contextlib import ExitStack

import anyio
import pytest

from tests.client.kinds import Awaited, Plain, kind_of
from tests.client.processes import in_a_process
from tests.client.proxy import proxied
from tests.client.scripted import Asked, answer, scripted
from tests.client.waiting import eventually, eventually_async
from tests.worlds import MathEnv, ran
from toolyard import AsyncClient, Client
from toolyard.client import ConnectionLost, RequestRefused, ServerFailed, ToolLost
from toolyard.testing import running

RESULT = b'{"ok": true, "output": {"blocks": [{"type": "text", "text": "done"}]}}'


@pytest.fixture(params=[Plain, Awaited])
def kind(request):
    return request.param


def opened(asked: Asked) -> bytes | None:
    """What a session needs, and nothing else."""
    path = asked.line.split()[1]
    if path == "/create_session":
        return answer(b'{"sid": "s"}')
    return answer(b"{}") if path in ("/create", "/delete", "/delete_session", "/ping") else None


def listing(_: Asked) -> bytes:
    return answer(b'["mathenv"]')


# Connections that are kept.


def test_requests_one_after_the_other_share_a_connection(kind):
    with scripted(listing) as server, kind_of(kind, server.url) as client:
        assert [client.list() for _ in range(5)] == [["mathenv"]] * 5
        assert server.made == 1


def test_a_call_leaves_its_connection_for_the_next_request(kind, served):
    with proxied(served.url) as proxy, kind_of(kind, proxy.url) as client, client.session() as call:
        for _ in range(5):
            call("noparam")
        assert proxy.connections == 1


def test_a_server_that_closes_idle_connections_is_asked_over_new_ones(kind):
    key = uuid.uuid4().hex
    with ExitStack() as stack:
        server = stack.enter_context(running([MathEnv], keep_alive_seconds=0.2))
        proxy = stack.enter_context(proxied(server.url))
        call = stack.enter_context(stack.enter_context(kind_of(kind, proxy.url)).session())
        for _ in range(3):
            call("slow", {"seconds": 0, "key": key})
            before = proxy.ended
            eventually(lambda before=before: proxy.ended > before)
    assert ran[key] == 3


@pytest.mark.parametrize("offset", [0, 40, 200])
def test_a_kept_connection_that_breaks_under_a_call_runs_it_once(kind, served, offset):
    first, second = uuid.uuid4().hex, uuid.uuid4().hex
    with proxied(served.url) as proxy, kind_of(kind, proxy.url) as client, client.session() as call:
        call("slow", {"seconds": 0, "key": first})
        proxy.plans = [offset]
        call("slow", {"seconds": 0.05, "key": second})
    assert (ran[first], ran[second]) == (1, 1)


def test_an_answer_that_says_close_is_the_last_on_its_connection(kind):
    with scripted(lambda _: answer(b'["mathenv"]', "Connection: close")) as server:
        with kind_of(kind, server.url) as client:
            assert [client.list() for _ in range(3)] == [["mathenv"]] * 3
        assert server.made == 3


def test_bytes_after_an_answer_are_not_taken_for_the_next_one(kind):
    twice = answer(b'["mathenv"]') + answer(b'["evil"]')
    with scripted(lambda _: twice) as server, kind_of(kind, server.url) as client:
        for _ in range(4):
            assert client.list() == ["mathenv"]
            time.sleep(0.02)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_client_that_nobody_closed_leaves_no_connection(kind):
    with scripted(listing) as server:
        driver = {Client: Plain, AsyncClient: Awaited}[kind](server.url)
        driver.list()
        assert server.open
        del driver.client
        if kind is AsyncClient:
            driver.runner.close()
        eventually(lambda: not server.open)


def test_a_client_that_was_closed_says_so(kind, served):
    client = kind(served.url)
    client.list()
    client.client.close() if kind is Plain else client.runner.run(client.client.aclose())
    with pytest.raises(RuntimeError, match="closed"):
        client.list()
    client.close()


# What is said.


def test_the_client_says_who_it_is(kind):
    with scripted(listing) as server, kind_of(kind, server.url, api_key="k") as client:
        client.list()
        (asked,) = server.asked
    assert asked.headers["user-agent"].startswith("toolyard/")
    assert asked.headers["x-api-key"] == "k"


def test_a_path_and_a_password_in_the_url_are_in_every_request(kind):
    with scripted(listing) as server:
        with kind_of(kind, server.url.replace("//", "//ann:p%40ss@") + "/behind a/proxy/") as client:
            client.list()
        (asked,) = server.asked
    assert asked.line == "GET /behind%20a/proxy/list_environments HTTP/1.1"
    assert asked.headers["authorization"] == "Basic YW5uOnBAc3M="


def test_cookies_of_a_load_balancer_are_sent_back(kind):
    with scripted(lambda _: answer(b'["mathenv"]', "Set-Cookie: node=7; Path=/; HttpOnly")) as server:
        with kind_of(kind, server.url) as client:
            client.list()
            client.list()
        first, second = server.asked
    assert "cookie" not in first.headers
    assert second.headers["cookie"] == "node=7"


def test_a_packed_answer_is_unpacked(kind):
    packed = answer(gzip.compress(b'["mathenv"]'), "Content-Encoding: gzip")
    with scripted(lambda _: packed) as server, kind_of(kind, server.url) as client:
        assert client.list() == ["mathenv"]


def test_what_only_announces_an_answer_is_not_taken_for_it(kind):
    early = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + answer(b'["mathenv"]')
    with scripted(lambda _: early) as server, kind_of(kind, server.url) as client:
        assert [client.list(), client.list()] == [["mathenv"]] * 2


def test_an_answer_that_ends_with_its_connection_is_whole(kind):
    told = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n["mathenv"]'
    with scripted(lambda _: told, hangs_up=True) as server, kind_of(kind, server.url) as client:
        assert client.list() == ["mathenv"]


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "307 Temporary", "308 Permanent"])
def test_a_redirect_is_not_followed(kind, status):
    with scripted(lambda _: answer(b"", "Location: /elsewhere", status=status)) as server:
        with kind_of(kind, server.url) as client, pytest.raises(RequestRefused, match="sends us on to /elsewhere"):
            client.list()
        assert len(server.asked) == 1


@pytest.mark.parametrize("key", ["two\nlines", "tail\n", "ключ"])
def test_a_key_that_no_header_can_have_is_refused_at_once(kind, key):
    with pytest.raises(ValueError, match="the key of the server"):
        kind("http://127.0.0.1:9", api_key=key).close()


# Servers that do not behave.


@pytest.mark.parametrize(
    "told",
    [
        b"",
        b"\r\n\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 12\r\nConnection: close\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: -5\r\nConnection: close\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\nConnection: close\r\n\r\n[",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\nzz\r\n[]\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n2\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\nConnection: close\r\n\r\n[]",
        b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 9\r\nConnection: close\r\n\r\n"
        + gzip.compress(b"[]")[:9],
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 100_000,
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 600_000,
        b"HTTP/1.1 200 OK\r\n\xff\xfe: \x00\r\nConnection: close\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=range(15),
)
def test_an_answer_that_is_none_is_the_connections_failure_or_the_servers(kind, told):
    with (
        scripted(
            lambda _: told + (b"" if b"Connection: close" in told else b"\r\nConnection: close\r\n\r\n")
        ) as server,
        kind_of(kind, server.url, patience=0.3) as client,
        pytest.raises((ConnectionLost, ServerFailed)),
    ):
        client.list()


@pytest.mark.parametrize("sid", ["a\r\nX-Evil: 1", "é", "", "x\x00"])
def test_a_session_id_that_no_header_can_have_is_the_servers_failure(kind, sid):
    def script(asked: Asked) -> bytes | None:
        return answer(json.dumps({"sid": sid}).encode())

    with scripted(script) as server, kind_of(kind, server.url, patience=0.3) as client:
        with pytest.raises(ServerFailed, match="session id"), client.session():
            pass
        assert [asked.line for asked in server.asked] == ["POST /create_session HTTP/1.1"]


def test_a_stream_that_falls_silent_is_left_for_another(kind, served, monkeypatch):
    monkeypatch.setattr("toolyard.client.talk.SILENCE", 0.5)
    key = uuid.uuid4().hex
    with proxied(served.url) as proxy, kind_of(kind, proxy.url) as client, client.session() as call:
        proxy.silent = True
        proxy.plans = [250]
        call("slow", {"seconds": 0.05, "key": key})
        assert proxy.calls == 2
    assert ran[key] == 1


def test_a_body_that_nobody_takes_is_sent_again_over_another_connection(kind, monkeypatch):
    monkeypatch.setattr("toolyard.client.talk.SILENCE", 0.3)

    def script(asked: Asked) -> bytes | None:
        if "/call" not in asked.line:
            return opened(asked)
        calls.append(asked)
        if len(calls) > 1:
            return answer(b"event: end\ndata: " + RESULT + b"\n\n", kind="text/event-stream")
        server.reads_bodies = True
        released.wait(60)
        return None

    calls: list[Asked] = []
    released = threading.Event()
    with scripted(script) as server, kind_of(kind, server.url) as client, client.session() as call:
        server.reads_bodies = False
        assert call("submit", {"answer": "x" * 30_000_000}).text == "done"
        released.set()
        eventually(lambda: len(server.open) <= 1)
    first, second = calls
    assert first.connection != second.connection
    assert json.loads(second.body)["input"] == {"answer": "x" * 30_000_000}


def test_a_large_body_arrives_whole(kind, served):
    with kind_of(kind, served.url) as client, client.session() as call:
        text = "é0123456" * 200_000
        assert call("submit", {"answer": text}).text == f"ok {text}"


def test_a_body_that_is_too_large_is_said_so_and_the_session_goes_on(kind):
    with ExitStack() as stack:
        small = stack.enter_context(running([MathEnv], body_bytes=100_000))
        proxy = stack.enter_context(proxied(small.url))
        call = stack.enter_context(stack.enter_context(kind_of(kind, proxy.url)).session())
        with pytest.raises(RequestRefused, match="larger than 100000 bytes"):
            call("submit", {"answer": "x" * 20_000_000})
        assert call("noparam").text == "nothing"
        eventually(lambda: proxy.connections - proxy.ended <= 1)


def test_a_call_on_a_server_without_ids_is_not_repeated_when_its_connection_breaks(kind):
    """The one case in which asking again could run it twice."""

    def script(asked: Asked) -> bytes | None:
        if "/call" not in asked.line:
            return opened(asked)
        body = json.loads(asked.body)
        calls.append(body)
        if "task_id" in body:
            return answer(b"event: error\ndata: unknown task_id\n\n", kind="text/event-stream")
        return None

    calls: list[dict] = []
    with ExitStack() as stack:
        client = stack.enter_context(kind_of(kind, stack.enter_context(scripted(script)).url, patience=2))
        call = stack.enter_context(client.session())
        with pytest.raises(ToolLost):
            call("go")
    assert ["task_id" in body for body in calls] == [True, False]


# Many at once, and processes that fork.


def test_a_thousand_sessions_at_once_share_the_connections_that_there_are(served):
    """It may open 256 files. Half become connections, requests beyond wait for one, and pings take 64 at most."""
    program = """
        import asyncio, os, resource, sys
        from toolyard import AsyncClient

        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))

        async def episode(environment, number, opened):
            async with environment.session({"q": str(number)}) as session:
                await opened.wait()
                slept = await session.call_tool("slow", {"seconds": 0.1})
                answer = (await session.get_prompt())[0].text
                files.append(len(os.listdir("/proc/self/fd")))
                return (await session.call_tool("submit", {"answer": answer})).text

        async def main():
            async with AsyncClient(sys.argv[1]) as client:
                opened = asyncio.Barrier(1000)
                environment = client.environment("mathenv")
                texts = await asyncio.gather(*(episode(environment, n, opened) for n in range(1000)))
            assert texts == [f"ok {n}" for n in range(1000)], texts

        files = []
        asyncio.run(main())
        print(max(files))
    """
    assert 100 < int(in_a_process(program, served.url)) < 128 + 64 + 20


def test_a_forked_process_makes_connections_of_its_own(served):
    """On those of its parent, either would read the answers of the other."""
    program = """
        import os, sys
        from toolyard import Client

        client = Client(sys.argv[1])
        with client.environment("mathenv").session({"q": "parent"}) as session:
            child = os.fork()
            name = "parent" if child else "child"
            mine = session if child else client.environment("mathenv").session({"q": name}).__enter__()
            for _ in range(200):
                assert mine.get_prompt()[0].text == name
            if not child:
                mine.close()
                os._exit(0)
            _, status = os.waitpid(child, 0)
        sys.exit(os.waitstatus_to_exitcode(status))
    """
    in_a_process(program, served.url)


@pytest.mark.anyio
async def test_a_cancelled_call_leaves_no_task_and_no_connection(served):
    before = asyncio.all_tasks()
    with proxied(served.url) as proxy:
        async with AsyncClient(proxy.url) as client, client.environment("mathenv").session({"q": "x"}) as session:
            connections = proxy.connections
            for _ in range(5):
                with anyio.move_on_after(0.1) as scope:
                    await session.call_tool("slow", {"seconds": 60})
                assert scope.cancelled_caught
                assert asyncio.all_tasks() == before
            await eventually_async(lambda: proxy.connections - proxy.ended <= 1)
            assert proxy.connections == connections + 4
            assert (await session.call_tool("noparam")).text == "nothing"


def test_event_loops_in_several_threads_may_share_a_client(served):
    async def play(number: int) -> None:
        async with client.environment("mathenv").session({"q": str(number)}) as session:
            for _ in range(20):
                texts.append((await session.get_prompt())[0].text)
        await client.aclose()

    texts: list[str] = []
    client = AsyncClient(served.url)
    threads = [threading.Thread(target=asyncio.run, args=(play(number),)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(texts) == sorted(str(number) for number in range(4) for _ in range(20))
