"""We speak HTTP/1.1 only. A client that prefers another protocol gets the same answers as any other, and its body
belongs to its request wherever the segments end."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import time
from collections.abc import Sequence
from urllib.parse import urlsplit

import pytest

from toolyard.testing import Running

SMUGGLED = b"DELETE /nobody HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
WISH = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n"
FRAMES = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"


def connected(served: Running) -> socket.socket:
    url = urlsplit(served.url)
    sock = socket.create_connection((url.hostname, url.port), timeout=10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def answers(sock: socket.socket, count: int) -> Sequence[tuple[bytes, bytes]]:
    """Status and body of so many answers, each with a length."""
    reader = sock.makefile("rb")
    found = []
    for _ in range(count):
        status = reader.readline().split(b" ", 2)[1]
        length = 0
        while line := reader.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        found.append((status, reader.read(length)))
    return found


def post(body: bytes, *, wish: bytes = WISH, more: bytes = b"") -> bytes:
    return b"POST /search_nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Length: %d\r\n%b\r\n%b" % (
        wish,
        len(body),
        more,
        body,
    )


NEXT = b"GET /list_environments HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
SPLIT = b"POST /mathenv/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n%bContent-Length: %d\r\n\r\n%b"
"""A route that reads its body, and answers 422 if there is none."""


def tasks(body: bytes, wish: bytes = WISH) -> bytes:
    return SPLIT % (wish, len(body), body)


BODY = json.dumps({"split": "train"}).encode()


def test_the_body_of_a_request_that_asks_for_an_upgrade_is_its_body_wherever_it_is_cut(served: Running):
    with connected(served) as sock:
        sock.sendall(tasks(BODY, wish=b""))
        [plain] = answers(sock, 1)
    assert plain[0] == b"200"
    whole = tasks(BODY)
    for cut in range(1, len(whole)):
        with connected(served) as sock:
            sock.sendall(whole[:cut])
            time.sleep(0.002)
            sock.sendall(whole[cut:] + NEXT)
            first, second = answers(sock, 2)
        assert first == plain, cut
        assert second[0] == b"200"


def test_it_is_its_body_byte_by_byte_and_twice_in_one_segment(served: Running):
    with connected(served) as sock:
        for at in range(len(tasks(BODY))):
            sock.sendall(tasks(BODY)[at : at + 1])
        sock.sendall(tasks(BODY) + tasks(BODY) + NEXT)
        assert [status for status, _ in answers(sock, 4)] == [b"200"] * 4


def test_a_request_hidden_in_the_body_of_another_is_never_run(served: Running):
    with connected(served) as sock:
        sock.sendall(post(SMUGGLED)[: -len(SMUGGLED)])
        time.sleep(0.05)
        sock.sendall(SMUGGLED + NEXT)
        hidden, following = answers(sock, 2)
    assert hidden[0] == b"404"
    assert b"mathenv" in following[1].lower()


def test_chunked_bodies_and_continue_work_with_a_wish_to_upgrade(served: Running):
    framing = b"Transfer-Encoding: chunked\r\nExpect: 100-continue\r\n"
    head = b"POST /mathenv/tasks HTTP/1.1\r\nHost: 127.0.0.1\r\n%b%b\r\n" % (WISH, framing)
    with connected(served) as sock:
        sock.sendall(head)
        assert sock.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) + NEXT)
        assert [status for status, _ in answers(sock, 2)] == [b"200", b"200"]


def test_a_wish_does_not_keep_a_connection_open_that_is_to_be_closed(served: Running):
    with connected(served) as sock:
        sock.sendall(tasks(BODY, b"Connection: close, Upgrade\r\nUpgrade: h2c\r\n"))
        assert b"connection: close" in b"".join(iter(lambda: sock.recv(65536), b""))


@pytest.mark.parametrize("cut", [len(FRAMES), 3, 16, 20, 24])
def test_http_2_without_asking_is_a_400_and_the_end(served: Running, cut: int):
    with connected(served) as sock:
        sock.sendall(FRAMES[:cut])
        time.sleep(0.02)
        sock.sendall(FRAMES[cut:])
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


def test_we_are_no_proxy(served: Running):
    with connected(served) as sock:
        sock.sendall(b"CONNECT example.org:80 HTTP/1.1\r\nHost: example.org\r\n\r\n" + NEXT)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 400 ")
    assert answer.count(b"HTTP/1.1") == 1


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@pytest.mark.parametrize("size", [0, 100_000])
def test_curl_that_would_rather_speak_http_2_gets_its_answer(served: Running, size: int):
    body = BODY.decode() + " " * size
    asked = ["curl", "-sS", "--max-time", "20", "--noproxy", "*", "--http2", "-w", "\n%{http_code}", "-d", "@-"]
    asked.append(f"{served.url}/mathenv/tasks")
    done = subprocess.run(asked, input=body, capture_output=True, text=True, check=False)
    if "does not support" in done.stderr or "Unsupported" in done.stderr:
        pytest.skip("this curl speaks no HTTP/2")
    assert done.stdout.splitlines()[-1] == "200", done
