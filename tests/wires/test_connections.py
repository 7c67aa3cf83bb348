"""A client that sends nothing, little or too much can make the server hold only so much; clients may wait for us."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import uvicorn

from toolyard.asgi import Disconnected, HttpError, HttpOptions, Request
from toolyard.serving import listen, protocol_of
from toolyard.settings import Settings

Address = tuple[str, int]

TIME = 0.6
SLOW = 4 * TIME
LATE = 20.0
"""Seconds that a busy machine may need for any step."""
QUICK = {"head_seconds": TIME, "body_seconds": TIME, "unread_seconds": TIME, "keep_alive_seconds": 30}
LONG = 16 * 2**20
OPTIONS = HttpOptions(**{**dict.fromkeys(HttpOptions.__dataclass_fields__, ""), "body_bytes": LONG})


class App:
    """Answers with the length of a body. `/slow` takes a while, `/block` blocks everyone, `/long` and `/stream` send
    much, `/endless` sends until its client has gone, `/refuse` reads no body, `/x-a` returns that header."""

    def __init__(self) -> None:
        self.at_once = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        self.at_once += 1
        try:
            await self.answer(scope["path"], Request(scope, receive, send, OPTIONS))
        except (Disconnected, HttpError):
            await Request(scope, receive, send, OPTIONS).answer(413, (), b"")
        finally:
            self.at_once -= 1

    async def answer(self, path: str, request: Request) -> None:
        if path == "/refuse":
            await request.answer(401, (), b"no")
            return
        body = await request.body()
        if path == "/block":
            time.sleep(1.5 * SLOW)  # noqa: ASYNC251  # as an environment may
        if path == "/slow":
            await asyncio.sleep(SLOW)
        if path == "/endless":
            await request.start(())
            while not request.is_gone():
                await request.write(b"more")
                await asyncio.sleep(TIME / 20)
            return
        if path == "/x-a":
            body = bytes(int(request.header(b"x-a")))
        if path == "/stream":
            await request.start(())
            for _ in range(64):
                await request.write(bytes(2**20))
            await request.write(b"", last=True)
            return
        await request.answer(200, (), bytes(LONG) if path == "/long" else b"%d" % len(body))


@contextmanager
def serving(app: Any, **settings: Any) -> Iterator[Address]:
    opened = listen("127.0.0.1", 0)
    config = uvicorn.Config(
        app, http=protocol_of(Settings(**{**QUICK, **settings})), ws="none", lifespan="off", log_config=None
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    try:
        yield opened.getsockname()
    finally:
        server.should_exit = server.force_exit = True
        thread.join()


@pytest.fixture(scope="module")
def app() -> App:
    return App()


@pytest.fixture(scope="module")
def address(app: App) -> Iterator[Address]:
    with serving(app) as found:
        yield found


def connected(address: Address) -> socket.socket:
    sock = socket.create_connection(address, timeout=LATE)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def head(path: str = "/", length: int = 0, method: str = "POST") -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {length}\r\n\r\n".encode()


def rest(sock: socket.socket) -> bytes:
    return b"".join(iter(lambda: sock.recv(2**20), b""))


def dripping(sock: socket.socket, drop: bytes, *, most: float = LATE) -> bytes:
    """The answer to a drop sent now and then, until the server gives up."""
    ends = time.monotonic() + most
    received = b""
    sock.settimeout(TIME / 10)
    while time.monotonic() < ends:
        try:
            sock.sendall(drop)
            piece = sock.recv(65536)
        except TimeoutError:
            continue
        except ConnectionError:
            return received
        if not piece:
            return received
        received += piece
    raise AssertionError(f"still open after {most} s, having said {received[:100]!r}")


def test_a_connection_that_says_nothing_is_closed_without_a_word(address: Address):
    with connected(address) as sock:
        began = time.monotonic()
        assert rest(sock) == b""
        assert time.monotonic() - began > TIME * 0.9


@pytest.mark.parametrize("first", [b"POST /", b"POST / HTTP/1.1\r\n", head("/") + b"POST / HTTP/1.1\r\n"])
def test_a_head_that_drips_in_is_answered_408_however_often_a_byte_comes(address: Address, first: bytes):
    with connected(address) as sock:
        sock.sendall(first)
        assert b"HTTP/1.1 408 Request Timeout\r\n" in dripping(sock, b"x")


def test_empty_lines_are_no_head(address: Address):
    with connected(address) as sock:
        dripping(sock, b"\r\n")


@pytest.mark.parametrize(
    ("start", "drop"),
    [
        (head(length=10_000) + b"half", b"x"),
        (head(length=10_000) + b"half", b""),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\nx\r\n"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n", b"A: b\r\n"),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5;", b"a"),
        (b"POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 9999\r\n\r\n", b"x"),
    ],
)
def test_a_body_that_drips_in_is_answered_408_and_its_request_ends(
    app: App, address: Address, start: bytes, drop: bytes
):
    with connected(address) as sock:
        sock.sendall(start)
        assert b"HTTP/1.1 408 Request Timeout\r\n" in dripping(sock, drop)
    eventually(lambda: app.at_once == 0)


def test_a_slow_upload_that_goes_on_is_not_cut(address: Address):
    pieces = [bytes(20_000)] * 12
    with connected(address) as sock:
        sock.sendall(head(length=sum(map(len, pieces))))
        for piece in pieces:
            time.sleep(TIME / 4)
            sock.sendall(piece)
        assert sock.recv(65536).endswith(b"240000")


def test_who_waits_for_an_answer_is_not_cut_nor_who_then_says_nothing_for_a_while(address: Address):
    with connected(address) as sock:
        for _ in range(2):
            sock.sendall(head("/slow"))
            assert sock.recv(65536).endswith(b"\r\n\r\n0")
            time.sleep(2 * TIME)


def test_who_waits_is_not_cut_for_the_half_request_that_follows(address: Address):
    with connected(address) as sock:
        sock.sendall(head("/slow") + b"POST / HT")
        time.sleep(2 * TIME)
        sock.sendall(b"TP/1.1\r\nContent-Length: 1\r\n\r\nx")
        received = b""
        while not received.endswith(b"\r\n\r\n1"):
            received += sock.recv(65536)
        assert received.count(b"HTTP/1.1 200 OK") == 2


def test_time_in_which_the_server_itself_is_held_up_is_not_the_clients():
    patient = serving(App(), head_seconds=SLOW, body_seconds=SLOW)
    with patient as address, connected(address) as slow, connected(address) as other:
        slow.sendall(head(length=8) + b"half")
        time.sleep(TIME)  # the server has checked it
        other.sendall(head("/block"))
        assert other.recv(65536).endswith(b"\r\n\r\n0")
        slow.sendall(b"half")
        assert slow.recv(65536).endswith(b"\r\n\r\n8")


@pytest.mark.parametrize("path", ["/long", "/stream"])
def test_an_answer_that_nobody_reads_is_given_up(app: App, address: Address, path: str):
    with connected(address) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.sendall(head(path))
        eventually(lambda: app.at_once == 0)
        eventually(lambda: sends_fail(sock))


def sends_fail(sock: socket.socket) -> bool:
    try:
        sock.sendall(b"\r\n")
    except ConnectionError:
        return True
    return False


def test_an_answer_that_is_read_slowly_but_on_and_on_comes_whole(address: Address):
    with connected(address) as sock:
        sock.sendall(head("/long"))
        received = 0
        ends = time.monotonic() + 3 * TIME
        while received < LONG:
            received += len(sock.recv(2**18))
            time.sleep(max(0.0, min(TIME / 20, ends - time.monotonic())))
        assert received > LONG


def test_the_rest_of_a_body_that_was_refused_is_not_taken_for_ever(address: Address):
    with connected(address) as sock:
        sock.sendall(head("/refuse", length=2**40))
        assert b"401 Unauthorized" in sock.recv(65536)
        assert dripping(sock, bytes(20_000)) == b""


@pytest.mark.parametrize(
    "flood",
    [b"A: " + b"x" * 200_000, b"A: b\r\n" * 1000],
)
@pytest.mark.parametrize(
    "start", [b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"]
)
def test_heads_and_trailers_have_an_end(address: Address, start: bytes, flood: bytes):
    with connected(address) as sock:
        sock.sendall(b"POST / HTTP/1.1\r\n" + start + flood)
        assert rest(sock).startswith(b"HTTP/1.1 400 ")


def test_a_flood_of_requests_in_a_pipeline_is_answered_in_part_and_ends(app: App, address: Address):
    with connected(address) as sock:
        threading.Thread(target=suppressed, args=(sock.sendall, b"GET / HTTP/1.1\r\n\r\n" * 200_000)).start()
        answers = suppressed(rest, sock)
    assert answers is None or 1 < answers.count(b"HTTP/1.1 200 OK") < 200


def suppressed(do: Callable[..., Any], *args: Any) -> Any:
    try:
        return do(*args)
    except OSError:
        return None


def test_an_ordinary_pipeline_is_answered_whole(address: Address):
    with connected(address) as sock:
        sock.sendall(head("/") * 49 + b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        assert rest(sock).count(b"HTTP/1.1 200 OK") == 50


def test_clients_that_reset_their_connections_leave_nothing_in_the_log(
    app: App, address: Address, caplog: pytest.LogCaptureFixture
):
    for number in range(400):
        with connected(address) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            sock.sendall(head("/") * (1 + number % 8))
            if number % 2:
                sock.recv(1)
    assert b"200 OK" in asks(address)
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == []


@pytest.mark.parametrize("next_", [b"", head("/"), head("/") * 3])
def test_a_stream_ends_when_its_client_goes_whatever_waits_behind_it(app: App, address: Address, next_: bytes):
    with connected(address) as sock:
        sock.sendall(head("/endless"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        sock.sendall(next_)
        sock.recv(65536)
        sock.recv(65536)
    eventually(lambda: app.at_once == 0)


def test_a_refusal_is_not_written_into_a_stream(app: App, address: Address):
    with connected(address) as sock:
        sock.sendall(head("/endless"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")
        sock.sendall(head("/") + b"\0\r\n\r\n")
        assert b"HTTP/1.1" not in rest(sock)
    eventually(lambda: app.at_once == 0)


def test_trailers_are_no_headers(address: Address):
    with connected(address) as sock:
        start = b"POST /x-a HTTP/1.1\r\nTransfer-Encoding: chunked\r\nX-A: 2\r\n\r\n"
        sock.sendall(start + b"1\r\nx\r\n0\r\nX-A: 77\r\n\r\n")
        assert sock.recv(65536).endswith(b"\r\n\r\n2")


# Too many connections.


def asks(address: Address) -> bytes:
    with connected(address) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n")
        return rest(sock)


def test_silent_and_idle_connections_make_room_for_one_that_asks():
    with serving(App(), max_connections=8, head_seconds=60, body_seconds=60) as address, ExitStack() as stack:
        mine = stack.enter_context(connected(address))
        mine.sendall(head("/"))
        assert b"200 OK" in mine.recv(65536)
        for said in (b"", b"POST / HT", head(length=100) + b"half"):
            for _ in range(20):
                stack.enter_context(connected(address)).sendall(said)
            assert b"200 OK" in asks(address)
            mine.sendall(head("/"))
            assert b"200 OK" in mine.recv(65536)


def test_when_all_wait_for_answers_one_more_is_told_when_to_come_again_and_none_of_them_is_cut():
    with serving(App(), max_connections=4) as address, ExitStack() as stack:
        waiting = [stack.enter_context(connected(address)) for _ in range(4)]
        for sock in waiting:
            sock.sendall(head("/slow"))
        refused = asks(address)
        assert refused.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"\r\nretry-after: " in refused
        for sock in waiting:
            assert sock.recv(65536).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "then", [b"", b"POST / HT", head(length=100) + b"half", b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"]
)
def test_clients_that_do_not_read_their_answers_keep_no_more_places_than_there_are(then: bytes):
    long = {"head_seconds": 60, "body_seconds": 60, "unread_seconds": 60}
    with serving(App(), max_connections=4, **long) as address, ExitStack() as stack:
        assert b"200 OK" in asks(address)  # it has begun, and holds what it needs
        before = open_files()
        for _ in range(80):
            sock = stack.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.connect(address)
            suppressed(sock.sendall, head("/long") + then)
            suppressed(sock.recv, 1)  # the answer is on its way
        eventually(lambda: open_files() - before - 80 <= 5)  # the connection above may have counted
        eventually(lambda: b"200 OK" in (suppressed(asks, address) or b""))


def test_who_reads_a_long_answer_on_and_on_is_not_cut_for_others():
    with serving(App(), max_connections=1, unread_seconds=3) as address, connected(address) as sock:
        sock.sendall(head("/long"))
        received, ends = len(sock.recv(1)), time.monotonic() + 7
        while time.monotonic() < ends:  # longer than a client that does not read may stay
            received += len(sock.recv(2**16))
            assert b"503 Service Unavailable" in asks(address)
            time.sleep(0.2)
        while received < LONG:
            received += len(sock.recv(2**20))


def open_files() -> int:
    """Open files of this process, which is the server and all of its clients."""
    return len(os.listdir("/proc/self/fd"))


# Memory.


def test_bodies_beyond_the_memory_for_them_wait_and_are_all_answered():
    size, count = 2**20, 12
    app = App()
    with serving(app, bodies_bytes=2 * size, body_seconds=30) as address, ExitStack() as stack:
        socks = [stack.enter_context(connected(address)) for _ in range(count)]
        for sock in socks:
            sock.sendall(head(length=size))
        sending = [threading.Thread(target=sock.sendall, args=(bytes(size),)) for sock in socks]
        for thread in sending:
            thread.start()
        for sock in socks:
            assert sock.recv(65536).endswith(b"%d" % size)
        for thread in sending:
            thread.join()


def test_bodies_that_stop_give_way_to_those_that_wait_for_memory():
    size = 2**20
    with serving(App(), bodies_bytes=size, body_seconds=60) as address, ExitStack() as stack:
        stopped = [stack.enter_context(connected(address)) for _ in range(4)]
        for sock in stopped:
            sock.setblocking(False)
            suppressed(sock.send, head(length=LONG) + bytes(size))
        with connected(address) as sock:
            sock.sendall(head(length=4 * size) + bytes(4 * size))
            assert sock.recv(65536).endswith(b"%d" % (4 * size))


def eventually(true: Callable[[], bool], seconds: float = LATE) -> None:
    ends = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < ends
        time.sleep(0.02)
