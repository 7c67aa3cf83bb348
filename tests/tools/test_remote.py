"""Tools and remote servers: which answers are accepted, and what happens to connections; through search_retrieval."""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.tools.acting import Trainer
from tests.tools.loopback import serving
from toolyard.testing import running
from toolyard.tools import http, remote, search_retrieval

pytestmark = pytest.mark.anyio

PEM = Path(__file__).with_name("loopback.pem")
FOUND = b'{"result": [[{"contents": "T\\ntext"}]]}'
SEEN = "\n\n<information>Doc 1(Title: T) text</information>\n\n"


@pytest.fixture
async def trainer() -> AsyncIterator[Trainer]:
    with running([], tools="search_retrieval") as served:
        async with Trainer(served.url) as client:
            yield client


@contextmanager
def saying(*answers: bytes, hung_up: threading.Semaphore | None = None) -> Iterator[str]:
    """A server that reads a request on each connection, sends these bytes, and closes."""
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]

    def serve() -> None:
        for answer in answers:
            try:
                connection, _ = listening.accept()
            except OSError:  # the test is over
                return
            with connection:
                connection.settimeout(10)
                received = b""
                while b'"queries"' not in received:
                    received += connection.recv(65536)
                connection.sendall(answer)
            if hung_up is not None:
                hung_up.release()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}/retrieve"
    finally:
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(10)
        listening.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(FOUND), FOUND),
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n%b" % FOUND,
        b"HTTP/1.0 200 OK\r\n\r\n%b" % FOUND,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n%b\r\n%x\r\n%b\r\n0\r\n\r\n"
        % (FOUND[:5], len(FOUND) - 5, FOUND[5:]),
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(FOUND), FOUND),
    ],
    ids=["with its length", "until it hangs up", "HTTP/1.0", "in chunks", "after a 100"],
)
async def test_an_answer_is_understood_however_it_is_framed(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    with saying(answer) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        assert (await trainer.act("<search>x</search>")).text == SEEN


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"", "it cannot be reached: Server disconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{", "it cannot be reached: peer closed connection"),
        (b"SSH-2.0-OpenSSH\r\n", "it cannot be reached: Server disconnected"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", "it cannot be reached: bad Content-Length"),
        (b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /\r\nContent-Length: 0\r\n\r\n", "it answered 307"),
    ],
)
async def test_an_answer_that_is_none_is_told_apart(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, answer: bytes, problem: str
) -> None:
    with saying(answer) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        seen = await trainer.act("<search>x</search>")
    assert problem in seen.observation["error"]
    assert seen.observation["reason"] == "lost"


@pytest.mark.parametrize("url", ["", "retriever", "ftp://127.0.0.1/", "http://", "http://127.0.0.1:x/", "http://[::1"])
async def test_an_address_that_is_none_is_named(trainer: Trainer, monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("RETRIEVER_URL", url)
    seen = await trainer.act("<search>x</search>")
    assert f"{url!r} is not the address of an HTTP server" in seen.observation["error"]


async def answering(request: Request) -> Response:
    asked = (await request.json())["queries"][0]
    return JSONResponse({"result": [[{"contents": f"{request.url.query}\n{asked}"}]]})


APP = Starlette(routes=[Route("/{any:path}", answering, methods=["POST"])])


async def test_the_whole_address_is_asked_and_any_text_arrives(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(APP) as url:
        monkeypatch.setenv("RETRIEVER_URL", f"{url}/a b/é?index=1&k=2")
        seen = await trainer.act("<search>Zürich 東京 \U0001f600 \x00\r\nContent-Length: 0</search>")
    expected = "index=1&k=2) Zürich 東京 \U0001f600 \x00\r\nContent-Length: 0"
    assert seen.text == f"\n\n<information>Doc 1(Title: {expected}</information>\n\n"


async def test_no_proxy_stands_before_a_plain_server(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with serving(APP) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        assert "x</information>" in (await trainer.act("<search>x</search>")).text


async def test_a_server_with_tls_is_asked_if_its_certificate_is_trusted(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(APP, ssl_certfile=str(PEM), ssl_keyfile=str(PEM), loop="asyncio") as url:
        assert url.startswith("https:")
        monkeypatch.setenv("RETRIEVER_URL", url)
        http.tls.cache_clear()
        seen = await trainer.act("<search>x</search>", "t-untrusted")
        assert "certificate verify failed" in seen.observation["error"]
        await trainer.finish("t-untrusted")
        http.tls.cache_clear()
        monkeypatch.setenv("SSL_CERT_FILE", str(PEM))
        for _ in range(3):
            assert "x</information>" in (await trainer.act("<search>x</search>", "t-trusted")).text
        await trainer.finish("t-trusted")
    http.tls.cache_clear()


async def test_waiting_that_was_given_up_does_not_mix_up_answers(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trajectory ends while its search runs; the next search must not get the late answer."""
    late = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def slow(request: Request) -> Response:
        asked = (await request.json())["queries"][0]
        if asked == "slow":
            loop.call_soon_threadsafe(late.set)
            await asyncio.sleep(0.5)
        return JSONResponse({"result": [[{"contents": f"T\n{asked}"}]]})

    with serving(Starlette(routes=[Route("/", slow, methods=["POST"])])) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        async with anyio.create_task_group() as group:
            group.start_soon(trainer.act, "<search>slow</search>", "t-slow")
            await late.wait()
            await trainer.finish("t-slow")
            for n in range(10):
                seen = await trainer.act(f"<search>{n}</search>", "t-next")
                assert seen.text == f"\n\n<information>Doc 1(Title: T) {n}</information>\n\n"


async def test_who_waits_for_a_connection_has_not_asked_yet(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch larger than the concurrent requests to a server: its last query waits long, though every answer is
    fast."""

    async def answer(request: Request) -> Response:
        await asyncio.sleep(0.4)
        return Response(FOUND)

    monkeypatch.setattr(remote, "_AT_ONCE", 1)
    monkeypatch.setattr(search_retrieval, "SECONDS", 2)
    with serving(Starlette(routes=[Route("/", answer, methods=["POST"])])) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        seen = await asyncio.gather(*(trainer.act("<search>x</search>") for _ in range(8)))
    assert [one.observation for one in seen] == [SEEN] * 8


KEPT = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(FOUND), FOUND)


@contextmanager
def dying(answered: int, asked: list[int]) -> Iterator[str]:
    """A server that answers so many requests of a connection, and closes after reading one more."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(0)
        while asked[-1] <= answered:
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().partition(b"content-length: ")[2].split()[0]))
            asked[-1] += 1
            if asked[-1] <= answered:
                writer.write(KEPT)
        writer.close()

    with start_blocking_portal() as portal:
        server = portal.call(partial(asyncio.start_server, serve, "127.0.0.1", 0))
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/retrieve"
        portal.call(server.close)


async def test_what_was_sent_is_not_sent_again_when_a_kept_connection_dies(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server may have done the work, and died of it. That is its failure, and no answer to the agent."""
    asked: list[int] = []
    with dying(1, asked) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        assert (await trainer.act("<search>x</search>", "t-kept")).observation == SEEN
        seen = await trainer.act("<search>x</search>", "t-kept")
        assert "cannot be reached" in seen.why_lost()
        assert asked == [2]
        assert (await trainer.act("<search>x</search>", "t-kept")).observation == SEEN
        await trainer.finish("t-kept")
        assert asked == [2, 1]


async def test_a_connection_that_was_closed_while_nobody_used_it_hinders_nobody(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    hung_up = threading.Semaphore(0)
    with saying(KEPT, KEPT, KEPT, hung_up=hung_up) as url:  # it does not announce that
        monkeypatch.setenv("RETRIEVER_URL", url)
        for _ in range(3):
            assert (await trainer.act("<search>x</search>", "t-closed")).observation == SEEN
            assert await asyncio.to_thread(hung_up.acquire, timeout=10)
        await trainer.finish("t-closed")


async def test_when_no_session_is_left_no_connection_is(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(APP) as url:
        monkeypatch.setenv("RETRIEVER_URL", url)
        await trainer.act("<search>x</search>", "t-open")
        gc.collect()
        assert [one.sessions for one in remote._connections.values() if one.servers] == [1]
        await trainer.finish("t-open")
        assert [one for one in remote._connections.values() if one.servers or one.sessions] == []
