"""A repeated request is not parsed again. The difference does not show: our protocol answers the same bytes exactly as
uvicorn's own does."""

from __future__ import annotations

import json
import random
import re
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import pytest
import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from toolyard.connections import ConnectionLimits, Connections
from toolyard.http_protocol import GatheringProtocol
from toolyard.serving import listen
from toolyard.settings import Settings
from toolyard.web_socket import NO_UPGRADES

Address = tuple[str, int]


class Counting(GatheringProtocol):
    taken = 0

    def _take(self, length: bytes, body: bytes) -> None:
        Counting.taken += 1
        super()._take(length, body)


async def echo(scope, receive, send):
    """Returns everything that it received."""
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
def serving(protocol: Any) -> Iterator[Address]:
    opened = listen("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(echo, http=protocol, ws="none", lifespan="off", log_config=None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
    thread.start()
    yield opened.getsockname()
    server.should_exit = True
    thread.join()


@pytest.fixture(scope="module")
def ours() -> Iterator[Address]:
    everyone = Connections(Settings().pick(ConnectionLimits))
    with serving(partial(Counting, everyone=everyone, upgrades=NO_UPGRADES)) as address:
        yield address


@pytest.fixture(scope="module")
def original() -> Iterator[Address]:
    with serving(HttpToolsProtocol) as address:
        yield address


Piece = tuple[bytes, int]
"""Bytes to send at once, and how many answers there are to them and to all before."""
_QUIET_SECONDS = 1.0
"""Time to wait after odd bytes, which may get no answer."""


def answered(address: Address, pieces: Sequence[Piece], odd: bytes = b"") -> Sequence[object]:
    """The answers. Each piece is sent when the one before is answered, the odd bytes last."""
    received = b""
    with socket.create_connection(address, timeout=10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece, answers in pieces:
            sock.sendall(piece)
            while len(_answers(received)) < answers:
                received += sock.recv(2**20)
        if odd:
            sock.sendall(odd)
            sock.settimeout(_QUIET_SECONDS)
            with suppress(TimeoutError, ConnectionError):
                received += sock.recv(2**20)
    return _answers(received)


def _answers(received: bytes) -> Sequence[object]:
    found = re.findall(rb"\{.*?\}(?=HTTP|$)|HTTP/1.1 4\d\d", received)
    return [json.loads(one) if one.startswith(b"{") else one for one in found]


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
]
SPECIAL = [b"Expect: 100-continue", b"Upgrade: websocket", b"Transfer-Encoding: chunked", b"Content-Length: 5"]
ODD = [
    b"GET /last HTTP/1.1\r\nHost: x\r\n\r\n",
    b"GET /last HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    *(post(b"hello", lines=[line]) for line in SPECIAL),
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


def numbered(pieces: Sequence[bytes]) -> Sequence[Piece]:
    return [(piece, number) for number, piece in enumerate(pieces, start=1)]


def test_a_request_like_the_last_is_not_parsed_and_is_answered_as_if_it_were(ours: Address, original: Address):
    bodies = [b"hello", b"hello", b"", b"longer than that", b"\r\ncontent-length: 3\r\n\r\nabc", b"GET / HTTP/1.1"]
    pieces = numbered([post(body, lines=[b"Connection: keep-alive", b"X-Session-ID: one"]) for body in bodies])
    before = Counting.taken
    told = answered(ours, pieces)
    assert Counting.taken == before + len(pieces) - 1
    assert [one["body"].encode() for one in told] == bodies
    assert told == answered(original, pieces)


def test_another_head_is_parsed(ours: Address):
    first, second = (post(b"hello", lines=[b"X-Session-ID: %b" % name]) for name in (b"one", b"two"))
    before = Counting.taken
    told = answered(ours, numbered([first, second, first]))
    assert Counting.taken == before
    assert [dict(one["headers"]).get("x-session-id") for one in told] == ["one", "two", "one"]


@pytest.mark.parametrize("seed", range(40))
def test_any_stream_of_requests_is_answered_as_uvicorn_does(ours: Address, original: Address, seed: int):
    chance = random.Random(seed)
    lines, length = chance.choice(LINES), chance.choice(LENGTHS)
    pieces: list[Piece] = []
    answers = 0
    for _ in range(chance.randint(2, 12)):
        answers += 1
        match chance.randrange(10):
            case 0:
                another = post(chance.choice(BODIES), lines=chance.choice(LINES), length=chance.choice(LENGTHS))
                pieces.append((another, answers))
            case 1:  # in two
                whole = post(chance.choice(BODIES), lines=lines, length=length)
                cut = chance.randint(1, len(whole) - 1)
                pieces += [(whole[:cut], answers - 1), (whole[cut:], answers)]
            case 2:  # together
                answers += 1
                two = [post(chance.choice(BODIES[:6]), lines=lines, length=length) for _ in range(2)]
                pieces.append((b"".join(two), answers))
            case _:
                pieces.append((post(chance.choice(BODIES), lines=lines, length=length), answers))
    odd = chance.choice(ODD)
    assert answered(ours, pieces, odd) == answered(original, pieces, odd)
