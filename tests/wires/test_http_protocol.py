"""The differences between our HTTP protocol and uvicorn's must not show outside."""

import asyncio
import contextlib
import gc
import re
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from toolyard.asgi import ANSWER, Request
from toolyard.serving import listen, protocol_of
from toolyard.settings import Settings

IDLE = 0.4


async def app(scope, receive, send):
    """`/slow` answers after a while, `/stream` in pieces, `/inject` with a header that would begin another."""
    fast = ANSWER in scope
    request = Request(scope, receive, send, None)
    match scope["path"]:
        case "/slow":
            await asyncio.sleep(2 * IDLE)
            await request.answer(200, (), b"slow")
        case "/stream":
            await request.start(((b"content-type", b"text/plain"),))
            await request.write(b"one ")
            await request.write(b"two", last=True)
        case "/inject":
            await request.answer(200, ((b"x-evil", b"a\r\nset-cookie: b"),), b"")
        case "/close":
            await request.answer(200, ((b"connection", b"close"),), b"closing")
        case _:
            await request.answer(200, ((b"content-type", b"text/plain"),), b"offered" if fast else b"not offered")


@pytest.fixture(scope="module")
def address() -> Iterator[tuple[str, int]]:
    opened = listen("127.0.0.1", 0)
    http = protocol_of(Settings(keep_alive_seconds=IDLE, head_seconds=IDLE))
    config = uvicorn.Config(app, http=http, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    yield opened.getsockname()
    server.should_exit = True
    thread.join()


@contextlib.contextmanager
def connection(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=10) as sock:
        yield sock


def get(path: str, *lines: str, method: str = "GET") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: x", *lines, "", ""]).encode()


def rest(sock: socket.socket) -> bytes:
    """Everything until the server closes."""
    return b"".join(iter(lambda: sock.recv(65536), b""))


def test_a_whole_answer_has_its_length_and_date_once(address):
    with connection(address) as sock:
        sock.sendall(get("/"))
        head, body = sock.recv(65536).split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert body == b"offered"
    names = re.findall(rb"(?m)^([a-z-]+): ", head)
    assert sorted(names) == [b"content-length", b"content-type", b"date", b"server"]
    assert b"content-length: 7" in head


def test_whole_and_streamed_answers_mix_on_one_connection_and_in_a_pipeline(address):
    with connection(address) as sock:
        sock.sendall(get("/") + get("/stream") + get("/") + get("/stream") + get("/", "Connection: close"))
        answers = rest(sock)
    assert re.findall(rb"offered|one |two", answers) == [
        b"offered",
        b"one ",
        b"two",
        b"offered",
        b"one ",
        b"two",
        b"offered",
    ]
    assert answers.count(b"HTTP/1.1 200 OK") == 5
    assert answers.count(b"connection: close") == 1


def test_head_is_answered_without_a_body(address):
    with connection(address) as sock:
        sock.sendall(get("/", "Connection: close", method="HEAD"))
        answer = rest(sock)
    assert b"content-length: 7\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


def test_a_header_cannot_begin_another(address):
    with connection(address) as sock:
        sock.sendall(get("/inject"))
        answer = rest(sock)
    assert answer == b""  # uvicorn refuses it


def test_an_answer_may_end_the_connection(address):
    with connection(address) as sock:
        sock.sendall(get("/close") + get("/"))
        answer = rest(sock)
    assert answer.endswith(b"\r\n\r\nclosing")
    assert answer.count(b"connection: close") == 1


def test_an_idle_connection_is_closed_when_its_time_is_over(address):
    with connection(address) as sock:
        sock.sendall(get("/"))
        assert b"offered" in sock.recv(65536)
        began = time.monotonic()
        assert sock.recv(1) == b""
        assert IDLE * 0.9 < time.monotonic() - began < IDLE * 5


def test_a_connection_in_use_stays_open_longer_than_its_idle_time(address):
    with connection(address) as sock:
        for _ in range(6):
            time.sleep(IDLE / 2)
            sock.sendall(get("/"))
            assert b"offered" in sock.recv(65536)


def test_an_answer_that_takes_longer_than_the_idle_time_arrives_and_the_connection_then_closes(address):
    with connection(address) as sock:
        sock.sendall(get("/"))
        assert b"offered" in sock.recv(65536)
        sock.sendall(get("/slow"))
        assert sock.recv(65536).endswith(b"slow")
        sock.sendall(get("/"))
        assert b"offered" in sock.recv(65536)
        assert sock.recv(1) == b""


def test_a_request_that_stops_in_its_head_is_not_waited_for_forever(address):
    with connection(address) as sock:
        sock.sendall(get("/"))
        assert b"offered" in sock.recv(65536)
        sock.sendall(b"GET / HT")
        assert rest(sock).startswith(b"HTTP/1.1 408 ")


def test_requests_leave_nothing_for_the_garbage_collector(address):
    with connection(address) as sock:
        sock.sendall(get("/") + get("/stream"))
        sock.recv(65536)
        gc.collect()
        gc.disable()
        try:
            for _ in range(1000):  # enough to outweigh what others leave behind
                sock.sendall(get("/") + get("/stream"))
                received = b""
                while not received.endswith(b"0\r\n\r\n"):
                    received += sock.recv(65536)
            assert gc.collect() < 1000
        finally:
            gc.enable()
