"""A request that is like the one before it is not parsed again. Nobody can tell: what uvicorn's own protocol answers to
the same bytes, ours does."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolyard.http_protocol import GatheringProtocol
from toolyard.server import listen

Address = tuple[str, int]


class Counting(GatheringProtocol):
    taken = 0

    def _take(self, length: bytes, body: bytes) -> None:
        Counting.taken += 1
        super()._take(length, body)


async def echo(scope, receive, send):
    """Everything that it was told."""
    body = b""
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body"):
            break
    told = {name: scope[name] for name in ("method", "path", "http_version", "state")}
    told |= {name: scope[name].decode("latin-1") for name in ("raw_path", "query_string")}
    told["headers"] = [[name.decode("latin-1"), value.decode("latin-1")] for name, value in scope["headers"]]
    scope["headers"].append((b"x-left", b"behind"))
    scope["path"] = "/elsewhere"
    answer = json.dumps({**told, "body": body.decode("latin-1")}).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(answer))]},
    )
    await send({"type": "http.response.body", "body": answer})


@contextmanager
def serving(protocol: type[HttpToolsProtocol]) -> Iterator[Address]:
    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(echo, http=protocol, ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    yield opened.getsockname()
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def ours() -> Iterator[Address]:
    with serving(Counting) as address:
        yield address


@pytest.fixture(scope="module")
def original() -> Iterator[Address]:
    with serving(HttpToolsProtocol) as address:
        yield address


LAST = b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"


def answered(address: Address, pieces: Sequence[bytes]) -> Sequence[object]:
    """The answers, when each piece has been sent after that to the one before, or after a while."""
    received = b""
    with socket.create_connection(address, timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            sock.settimeout(0.05)
            try:
                sock.sendall(piece)
                received += sock.recv(2**20)
            except TimeoutError:
                continue
            except ConnectionError:
                break
        sock.settimeout(10)
        try:
            sock.sendall(LAST)
            received += b"".join(iter(lambda: sock.recv(2**20), b""))
        except ConnectionError:
            pass
    return [
        json.loads(one) if one.startswith(b"{") else one
        for one in re.findall(rb"\{.*?\}(?=HTTP|$)|HTTP/1.1 4\d\d", received)
    ]


def post(
    body: bytes, *, lines: Sequence[bytes] = (), length: bytes = b"content-length: %d", path: bytes = b"/a?b=1"
) -> bytes:
    head = [b"POST %b HTTP/1.1" % path, b"Host: x", length % len(body) if b"%d" in length else length, *lines]
    return b"\r\n".join([*head, b"", body])


BODIES = [
    b"",
    b"x",
    b"hello",
    b"y" * 1000,
    b"\r\ncontent-length: 3\r\n\r\nabc",
    b"GET / HTTP/1.1\r\n\r\n",
    b"z" * 70_000,
]
LENGTHS = [
    b"content-length: %d",
    b"Content-Length: %d",
    b"CONTENT-LENGTH:%d",
    b"content-length:  %d",
    b"content-length: 00%d",
]
LINES: list[list[bytes]] = [
    [],
    [b"Connection: keep-alive"],
    [b"X-Session-ID: one"],
    [b"X-Session-ID: two", b"X-Other: content-length: 5"],
    [b"Accept: */*", b"User-Agent: test"],
    [b"Expect: 100-continue"],
    [b"Upgrade: websocket"],
    [b"Transfer-Encoding: chunked"],
    [b"Content-Length: 5"],
]
ODD = [
    LAST.replace(b"close", b"keep-alive"),
    post(b"hello", length=b"content-length: +5"),
    post(b"hello", length=b"content-length: 5x"),
    post(b"hello", length=b"content-length: 4"),
    post(b"hello", length=b"x-length: 5"),
    post(b"hello").replace(b"\r\n", b"\n", 1),
    post(b"hello").replace(b"HTTP/1.1", b"HTTP/1.0"),
    b"\r\n" + post(b"hello"),
    post(b"hello")[:-2],
    b"nonsense\r\n\r\n",
]


def test_a_request_like_the_last_is_not_parsed_and_is_answered_as_if_it_were(ours: Address, original: Address):
    bodies = [b"hello", b"hello", b"", b"longer than that", b"\r\ncontent-length: 3\r\n\r\nabc", b"x" * 50_000]
    pieces = [post(body, lines=[b"Connection: keep-alive", b"X-Session-ID: one"]) for body in bodies]
    before = Counting.taken
    told = answered(ours, pieces)
    assert Counting.taken == before + len(pieces) - 1
    assert [one["body"].encode() for one in told] == [*bodies, b""]
    assert told == answered(original, pieces)


def test_another_head_is_parsed(ours: Address):
    first, second = (post(b"hello", lines=[b"X-Session-ID: %b" % name]) for name in (b"one", b"two"))
    before = Counting.taken
    told = answered(ours, [first, second, first])
    assert Counting.taken == before
    assert [dict(one["headers"]).get("x-session-id") for one in told] == ["one", "two", "one", None]


@pytest.mark.parametrize("seed", range(40))
def test_any_stream_of_requests_is_answered_as_uvicorn_does(ours: Address, original: Address, seed: int):
    chance = random.Random(seed)
    lines, length = chance.choice(LINES[:5]), chance.choice(LENGTHS)
    pieces: list[bytes] = []
    for _ in range(chance.randint(2, 12)):
        match chance.randrange(10):
            case 0:
                pieces.append(chance.choice(ODD))
            case 1:
                pieces.append(post(chance.choice(BODIES), lines=chance.choice(LINES), length=chance.choice(LENGTHS)))
            case 2:  # in two
                whole = post(chance.choice(BODIES), lines=lines, length=length)
                cut = chance.randint(1, len(whole) - 1)
                pieces += [whole[:cut], whole[cut:]]
            case 3:  # together
                pieces.append(b"".join(post(chance.choice(BODIES[:6]), lines=lines, length=length) for _ in range(2)))
            case _:
                pieces.append(post(chance.choice(BODIES), lines=lines, length=length))
    assert answered(ours, pieces) == answered(original, pieces)
