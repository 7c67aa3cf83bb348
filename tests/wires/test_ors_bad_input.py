"""Bad input for ORS: the server refuses each clearly, and the session goes on as if nothing had happened."""

from __future__ import annotations

import json
import re
import socket
import struct
import time
import uuid
from collections.abc import AsyncIterator

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire, call_body, connect, request_bytes, strict_json, talk, until
from tests.worlds import MathEnv, OtherEnv, ran, torn_down
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio


@pytest.fixture
async def sid(wire: Wire) -> AsyncIterator[str]:
    """A session that must have lost nothing by the end of the test."""
    sid = await wire.open(task_spec={"q": "still here"})
    before = (await wire.call(sid, "half", {"number": 2})).id
    yield sid
    assert await wire.alive(sid)
    assert (await wire.get("/mathenv/prompt", headers=H(sid))).json()[0]["text"] == "still here"
    assert (await wire.call(sid, "noparam")).text == "nothing"
    assert (await wire.call(sid, "boom", task_id=before)).text == "1.0"


def status(answer: bytes) -> int:
    found = re.match(rb"HTTP/1\.1 (\d{3}) ", answer)
    assert found, answer[:100]
    return int(found[1])


def head(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[0]


def body(answer: bytes) -> bytes:
    return answer.partition(b"\r\n\r\n")[2]


POSTS = ["/create", "/mathenv/tasks", "/mathenv/num_tasks", "/mathenv/task", "/mathenv/task_range", "/mathenv/call"]
"""All routes that read their body; score_group has its own test."""


# Not JSON.


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"nul", b"[1,]", b"{'a':1}", b"\x00", b'{"a":1}}', b"{} {}", b'"\\x"', b"\xff", b'{"a":"\xc3("}'],
    ids=repr,
)
async def test_what_is_no_json_is_422_and_says_where(wire: Wire, sid: str, path: str, content: bytes):
    response = await wire.post(path, headers=H(sid if "call" in path else "new"), content=content)
    assert response.status_code == 422
    (problem,) = response.json()["detail"]
    assert (problem["type"], problem["loc"][0]) == ("json_invalid", "body")
    assert problem["ctx"]["error"]


@pytest.mark.parametrize("depth", [201, 1000, 5000, 100_000])
@pytest.mark.parametrize("path", POSTS)
async def test_deep_nesting_is_422(wire: Wire, sid: str, path: str, depth: int):
    for content in (b"[" * depth, b"[" * depth + b"]" * depth, b'{"a":' * depth + b"1" + b"}" * depth):
        response = await wire.post(path, headers=H(sid if "call" in path else "new"), content=content)
        assert response.status_code == 422


@pytest.mark.parametrize("depth", [50, 150])
async def test_reasonable_nesting_is_fine_in_input_and_comes_back_in_errors(wire: Wire, sid: str, depth: int):
    deep = json.loads("[" * depth + "]" * depth)
    assert (await wire.call(sid, "noparam", {"deep": deep})).text == "nothing"
    assert "Tool input validation error" in (await wire.call(sid, "submit", {"answer": deep})).failure["error"]
    response = await wire.post("/mathenv/tasks", json={"split": deep})
    assert (response.status_code, response.json()["detail"][0]["input"]) == (422, deep)


async def test_deep_nesting_beside_a_broken_character_is_422(wire: Wire, sid: str):
    content = '{"split":["\\ud800",' + "[" * 900 + "]" * 900 + "]}"
    response = await wire.post("/mathenv/tasks", content=content)
    assert response.status_code == 422
    assert response.json()["detail"]


async def test_numbers_of_thousands_of_digits_are_422(wire: Wire, sid: str):
    for number in (b"1" * 5000, b"-" + b"9" * 100_000):
        response = await wire.post("/mathenv/task", content=b'{"split":"train","index":%b}' % number)
        assert response.status_code == 422


# NaN is accepted, and never sent.


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_taken_and_never_given(wire: Wire, sid: str, number: str):
    content = f'{{"name":"half","input":{{"number":{number}}}}}'
    answer = Answer.of(await wire.post("/mathenv/call", headers=H(sid), content=content))
    assert answer.text in ("nan", "inf", "-inf")
    content = f'{{"name":"noparam","input":{{"a":[{number}]}}}}'
    assert Answer.of(await wire.post("/mathenv/call", headers=H(sid), content=content)).text == "nothing"
    other = f"nan {uuid.uuid4()}"
    response = await wire.post("/create", headers=H(other), content=f'{{"task_spec":{{"q":"hi","x":{number}}}}}')
    assert response.status_code == 200
    response = await wire.post("/mathenv/tasks", content=f'{{"split":[{number}]}}')
    assert response.status_code == 422
    assert strict_json(response.content)["detail"][0]["input"] == [None]


async def test_a_broken_character_is_taken_and_given_back(wire: Wire, sid: str):
    response = await wire.post("/mathenv/call", headers=H(sid), content=b'{"name":"\\ud800","input":{"\\udfff":1}}')
    assert Answer.of(response).failure["error"].startswith("'\\ud800' is not a valid tool. ")
    for content in (b'{"split":"\\ud800"}', b'{"split":["\\ud800"]}', b'{"\\ud800":1}'):
        response = await wire.post("/mathenv/tasks", content=content)
        assert response.status_code in (400, 422)
        strict_json(response.content)
    response = await wire.post("/create", headers=H("x"), content=b'{"task_spec":{},"env_name":"\\ud800"}')
    assert response.status_code == 404


# Wrong types, missing and unknown fields.


@pytest.mark.parametrize("path", POSTS)
@pytest.mark.parametrize("content", ["null", "true", "1", "1.5", '"text"', "[]", "[{}]"])
async def test_a_body_that_is_no_object_is_422(wire: Wire, sid: str, path: str, content: str):
    response = await wire.post(path, headers=H(sid if "call" in path else "new"), content=content)
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body"]


@pytest.mark.parametrize(
    ("path", "given", "where"),
    [
        ("/mathenv/tasks", {"split": 1}, "split"),
        ("/mathenv/tasks", {"split": None}, "split"),
        ("/mathenv/num_tasks", {"split": ["train"]}, "split"),
        ("/mathenv/num_tasks", {}, "split"),
        ("/mathenv/num_tasks", {"split": "train", "index": 1}, "index"),
        ("/mathenv/task", {"split": "train"}, "index"),
        ("/mathenv/task", {"split": "train", "index": "one"}, "index"),
        ("/mathenv/task", {"split": "train", "index": 1.5}, "index"),
        ("/mathenv/task", {"split": "train", "index": None}, "index"),
        ("/mathenv/task", {"split": "train", "index": 1, "x": 1}, "x"),
        ("/mathenv/task_range", {"split": "train", "start": "first"}, "start"),
        ("/mathenv/task_range", {"split": "train", "stop": []}, "stop"),
        ("/mathenv/call", {"input": {}}, "name"),
        ("/mathenv/call", {"name": None, "input": {}}, "name"),
        ("/mathenv/call", {"name": 1, "input": {}}, "name"),
        ("/mathenv/call", {"name": "noparam", "input": {}, "task_id": 1}, "task_id"),
        ("/mathenv/call", {"name": "noparam", "input": {}, "arguments": {}}, "arguments"),
        ("/create", {"task_spec": [], "env_name": "mathenv"}, "task_spec"),
        ("/create", {"task_spec": {}, "env_name": 1}, "env_name"),
        ("/create", {"task_spec": {}, "secrets": []}, "secrets"),
        ("/create", {"task_spec": {}, "secrets": {"k": {"value": "v"}}}, "secrets"),
        ("/create", {"task_spec": {}, "toolset_name": {}}, "toolset_name"),
        ("/create", {"split": "train", "index": "first"}, "index"),
        ("/create", {"split": 1, "index": 1}, "split"),
        ("/create", {"task_spec": {}, "unknown": 1}, "unknown"),
    ],
    ids=str,
)
async def test_a_wrong_field_is_422_and_is_named(wire: Wire, sid: str, path: str, given: dict, where: str):
    response = await wire.post(path, headers=H(sid if "call" in path else "new"), json=given)
    assert response.status_code == 422
    assert [problem["loc"][:2] for problem in response.json()["detail"]] == [["body", where]]
    assert not await wire.alive("new")


async def test_an_error_does_not_quote_a_long_body(wire: Wire, sid: str):
    response = await wire.post("/mathenv/tasks", json={"split": ["x" * 100_000]})
    assert response.status_code == 422
    assert len(response.content) < 10_000


async def test_a_body_may_be_labelled_as_anything(wire: Wire, sid: str):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "nonsense"):
        headers = {"Content-Type": kind}
        response = await wire.post("/mathenv/num_tasks", headers=headers, content=b'{"split":"train"}')
        assert response.json() == {"num_tasks": 5}
    bom = b"\xef\xbb\xbf" + b'{"split":"train"}'
    assert (await wire.post("/mathenv/num_tasks", content=bom)).json() == {"num_tasks": 5}


# Size.


def chunked(*pieces: bytes) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def chunked_request(path: str, sid: str, *pieces: bytes) -> bytes:
    lines = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: {sid}\r\nTransfer-Encoding: chunked\r\n\r\n"
    return lines.encode() + chunked(*pieces)


def first_status(url: str, data: bytes) -> int:
    with connect(url) as sock:
        sock.sendall(data)
        return status(sock.recv(65536))


async def test_a_body_over_the_limit_is_413_however_it_comes():
    with running([MathEnv], body_bytes=1000) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open()
            fits = json.dumps(call_body("noparam", {"x": "y" * 900})).encode()
            exactly = fits + b" " * (1000 - len(fits))
            over = exactly + b" "
            assert (await wire.post("/mathenv/call", headers=H(sid), content=exactly)).status_code == 200
            response = await wire.post("/mathenv/call", headers=H(sid), content=over)
            assert response.status_code == 413
            assert "1000 bytes" in response.json()["detail"]
            pieces = [over[at : at + 100] for at in range(0, len(over), 100)]
            for sent in ([over], pieces, [*pieces, b" " * 100_000]):
                assert first_status(server.url, chunked_request("/mathenv/call", sid, *sent)) == 413
            answer = request_bytes("POST", "/mathenv/call", H(sid), exactly).replace(b"Content-Length: 1000", b"")
            assert status(talk(server.url, answer)) in (400, 422)  # without a length there is no body
            with connect(server.url) as sock:
                sock.sendall(chunked_request("/mathenv/call", sid, exactly))
                assert status(sock.recv(65536)) == 200
            assert (await wire.call(sid, "noparam")).text == "nothing"


@pytest.mark.parametrize("expect", ["", "Expect: 100-continue\r\n"])
async def test_a_body_announced_too_large_is_refused_before_it_is_sent(sid: str, pair: Running, expect: str):
    lines = (
        f"POST /mathenv/call HTTP/1.1\r\nHost: [::1]\r\nX-Session-ID: {sid}\r\n{expect}Content-Length: {10**12}\r\n\r\n"
    )
    assert first_status(pair.url, lines.encode()) == 413


async def test_a_client_may_ask_first_whether_to_send_its_body(sid: str, pair: Running):
    content = json.dumps(call_body("noparam")).encode()
    first, rest = request_bytes("POST", "/mathenv/call", H(sid) | {"Expect": "100-continue"}, content).split(
        b"\r\n\r\n"
    )
    with connect(pair.url) as sock:
        sock.sendall(first + b"\r\n\r\n")
        assert sock.recv(1000) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(rest)
        assert status(sock.recv(65536)) == 200


@pytest.mark.parametrize("size", [1, 100, 4096, 16_384])
async def test_a_session_id_may_be_long(wire: Wire, pair: Running, size: int):
    long = uuid.uuid4().hex[:1] * size
    await wire.open(long)
    assert (await wire.call(long, "noparam")).text == "nothing"
    await wire.end(long)


@pytest.mark.parametrize(
    "start",
    [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b"GET /health HTTP/1.1\r\n" + b"A: b\r\n" * 1000],
    ids=["header", "path", "many"],
)
async def test_a_head_without_end_is_refused(sid: str, pair: Running, start: bytes):
    with connect(pair.url) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**16)  # what is sent was read, or nearly
        sock.sendall(start)
        sent = 0
        try:
            while sent < 2**22:
                sent += sock.send(b"a" * 4096)
            answer = sock.recv(1000)
        except (ConnectionError, BrokenPipeError):
            answer = b""  # it hung up while we were still talking
        assert sent < 2**22
        assert answer == b"" or status(answer) == 400


async def test_the_body_of_one_request_does_not_count_as_the_head_of_the_next(sid: str, pair: Running):
    content = json.dumps(call_body("noparam", {"padding": "a" * 100_000})).encode()
    first = request_bytes("POST", "/mathenv/call", H(sid), content, close=False)
    with connect(pair.url) as sock:
        sock.sendall(first + b"GET /health HT")
        assert status(sock.recv(65536)) == 200
        sock.sendall(b"TP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        received = b""
        while piece := sock.recv(65536):
            received += piece
    assert b"HTTP/1.1 200 OK" in received
    assert b"HTTP/1.1 400" not in received


# Ids, paths and headers that pose as something else.


@pytest.mark.parametrize(
    "path",
    [
        "/%0d%0aX-Injected:%20yes/splits/",
        "/splits/%0d%0aX-Injected:%20yes/",
        "/splits?a=%0d%0aX-Injected:%20yes",
        "/math%0aenv/%0d%0a%0d%0a<script>/",
        "/%0d%0a/",
        "//evil.example/%2e%2e/",
        "/%2f%2fevil.example/",
        "/%5cevil.example/",
        "/%E2%80%A8x/",
        "/%00/",
        "/%ff%fe/tools/",
    ],
)
async def test_no_path_can_write_headers_or_send_the_client_elsewhere(sid: str, pair: Running, path: str):
    answer = talk(pair.url, request_bytes("GET", path))
    assert status(answer) in (307, 308)
    lines = head(answer).split(b"\r\n")
    assert b"\n" not in b"".join(lines)
    names = [line.split(b":")[0].lower() for line in lines[1:]]
    assert sorted(names) == [b"connection", b"content-length", b"date", b"location"]
    (location,) = [line.split(b": ", 1)[1] for line in lines if line.lower().startswith(b"location")]
    assert re.fullmatch(rb"/[!-~]*", location)
    assert not location.startswith((b"//", b"/\\"))


@pytest.mark.parametrize("name", ["%0d%0aX:%20y", "%00", "%ff", "%E2%80%A8", "'", '"', "%3Cb%3E", "..", "%2e%2e", "😀"])
async def test_an_odd_environment_name_is_404_and_quoted_safely(sid: str, pair: Running, wire: Wire, name: str):
    response = await wire.get(f"{pair.url}/{name}/tools".replace("/../", "/..%00/"))
    assert response.status_code == 404
    assert response.json()["detail"].startswith("unknown environment ")
    assert response.json()["detail"].isprintable()
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    "value",
    [b"a\rX-Injected: b", b"a\nX-Injected b", b"a\x00b", b"a\r\n folded", b"a\x7fb\x01"],
    ids=["cr", "lf", "nul", "fold", "control"],
)
async def test_a_session_id_with_control_characters_is_refused_as_http(sid: str, pair: Running, value: bytes):
    answer = talk(
        pair.url,
        b"POST /ping HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: " + value + b"\r\nConnection: close\r\n\r\n",
    )
    assert status(answer) == 400
    assert b"Injected" not in answer


async def test_a_header_after_the_session_id_is_only_another_header(wire: Wire, sid: str, pair: Running):
    answer = talk(pair.url, request_bytes("POST", "/ping", H(f"{sid}\r\nX-Injected: yes")))
    assert status(answer) == 200
    assert b"Injected" not in answer


@pytest.mark.parametrize(
    "lines",
    [
        b"POST /ping HTTP/1.1\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        b"POST /ping HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /ping HTTP/1.1\r\nContent-Length: 1" + b"0" * 50 + b"\r\n\r\n",
        b"POST /create HTTP/1.1\r\nX-Session-ID: a\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /health HTTP/9.9\r\n\r\n",
        b"GET /\xc3\xa9/tools HTTP/1.1\r\n\r\n",
        b"GET /splits?a=\x01 HTTP/1.1\r\n\r\n",
        b"GET http://elsewhere HTTP/1.1\r\n\r\n",
        b"CONNECT elsewhere:80 HTTP/1.1\r\n\r\n",
        b"FOO / HTTP/1.1\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
    ],
    ids=ascii,
)
async def test_what_is_no_http_is_400_and_the_connection_is_closed(sid: str, pair: Running, lines: bytes):
    answer = talk(pair.url, lines)
    assert status(answer) == 400
    assert b"connection: close" in head(answer)


async def test_head_is_answered_as_get_is_but_without_a_body(sid: str, pair: Running):
    async with Wire(pair.url) as wire:
        for path in ("/health", "/metrics", "/list_environments", "/mathenv/tools", "/", "/verl/health", "/nowhere"):
            whole, bare = await wire.get(path), await wire.request("HEAD", path)
            assert (bare.status_code, bare.content) == (whole.status_code, b""), path
            assert bare.headers["content-type"] == whole.headers["content-type"]
            assert int(bare.headers["content-length"]) > 0
        assert (await wire.request("HEAD", "/mathenv/prompt", headers=H(sid))).status_code == 200
        nodes = len(pair.server.runtime.sessions)
        for path in ("/mathenv/call", "/create", "/get_cookie", "/get_cookies"):
            assert (await wire.request("HEAD", path, headers=H(sid))).status_code == 405
        assert len(pair.server.runtime.sessions) == nodes
    both = talk(pair.url, request_bytes("HEAD", "/health", close=False) + request_bytes("GET", "/list_environments"))
    assert both.count(b"HTTP/1.1 200") == 2, "what comes after it is not taken for its body"
    assert both.count(b"mathenv") == 1


@pytest.mark.parametrize("method", ["PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
async def test_methods_that_ors_does_not_have_are_405(sid: str, pair: Running, method: str):
    for path, allowed in (("/health", b"GET"), ("/mathenv/call", b"POST"), ("/create", b"POST")):
        answer = talk(pair.url, request_bytes(method, path, H(sid)))
        assert status(answer) == 405
        assert b"allow: " + allowed in head(answer)
    assert status(talk(pair.url, request_bytes("OPTIONS", "*"))) == 404


async def test_a_websocket_is_not_opened(sid: str, pair: Running):
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    key = {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert first_status(pair.url, request_bytes("GET", "/mathenv/call", upgrade | key, close=False)) == 405


# Clients that leave, or do not read.


async def quiet(server: Running) -> None:
    """Wait until the server handles no request: it waits for no client that has left."""
    state = server.server._uvicorn.server_state
    await until(lambda: not state.tasks, 5)


def reset(sock: socket.socket) -> None:
    """Reset the connection: the server sees an error, not an end."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@pytest.mark.parametrize("rude", [False, True], ids=["closed", "reset"])
async def test_a_client_that_leaves_in_the_middle_of_its_request_starts_nothing(rude: bool):
    with running([MathEnv]) as server:
        async with Wire(server.url) as wire:
            sid, once = await wire.open(), f"left {uuid.uuid4()}"
            content = json.dumps(call_body("slow", {"seconds": 0, "key": once})).encode()
            whole = request_bytes("POST", "/mathenv/call", H(sid), content)
            pieces = chunked_request("/mathenv/call", sid, content[:10], content[10:])
            for data in (whole, pieces):
                for cut in range(0, len(data), 7):
                    sock = connect(server.url)
                    sock.sendall(data[:cut])
                    if rude:
                        reset(sock)
                    else:
                        sock.close()
            await quiet(server)
            assert ran[once] == 0
            assert (await wire.call(sid, "slow", {"seconds": 0, "key": once})).text == "slept 0.0"
            assert ran[once] == 1


@pytest.mark.parametrize("rude", [False, True], ids=["closed", "reset"])
async def test_a_client_that_leaves_while_its_session_is_made_leaves_a_session_that_can_be_deleted(rude: bool):
    with running([MathEnv, OtherEnv]) as server:
        async with Wire(server.url) as wire:
            for number in range(20):
                content = json.dumps({"task_spec": {"q": "left"}}).encode()
                sock = connect(server.url)
                sock.sendall(request_bytes("POST", "/create", H(f"left {number}"), content))
                if rude:
                    reset(sock)
                else:
                    sock.close()
            await quiet(server)
            for number in range(20):
                await wire.end(f"left {number}")
            assert server.server.runtime.sessions == {}


async def test_clients_that_never_read_disturb_nobody_and_their_sessions_can_be_deleted():
    with running([MathEnv], output_bytes=8_000_000) as server:
        async with Wire(server.url) as wire:
            deaf, socks = [await wire.open() for _ in range(5)], []
            healthy = await wire.open()
            for sid in deaf:
                content = json.dumps(call_body("big", {"n": 4_000_000, "fill": "ab"}, task_id="big")).encode()
                sock = connect(server.url, receive_buffer=4096)
                sock.sendall(request_bytes("POST", "/mathenv/call", H(sid), content))
                socks.append(sock)
            slow = connect(server.url, receive_buffer=4096)
            content = json.dumps(call_body("big", {"n": 100_000, "fill": "ab"})).encode()
            slow.sendall(request_bytes("POST", "/mathenv/call", H(healthy), content))
            received = b""
            for _ in range(20):  # a client that reads a little at a time
                with anyio.fail_after(1):
                    assert (await wire.call(healthy, "noparam")).text == "nothing"
                    assert await wire.alive(healthy)
                received += slow.recv(1000)
            while piece := slow.recv(65536):
                received += piece
            assert received.endswith(b"\n\n")
            assert b"event: end\n" in received
            for sid in deaf:
                assert (
                    len((await wire.call(sid, "big", {"n": 4_000_000, "fill": "ab"}, task_id="big")).text) == 8_000_000
                )
                with anyio.fail_after(2):
                    await wire.end(sid)
            for sock in [*socks, slow]:
                sock.close()
            await quiet(server)
            assert list(server.server.runtime.sessions) == [healthy]


@pytest.mark.thorough
async def test_a_client_that_never_reads_does_not_keep_the_server_from_stopping():
    question = f"deaf at the end {uuid.uuid4()}"
    with running([MathEnv], output_bytes=8_000_000) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"q": question})
        sock = connect(server.url, receive_buffer=4096)
        content = json.dumps(call_body("big", {"n": 4_000_000, "fill": "ab"})).encode()
        sock.sendall(request_bytes("POST", "/mathenv/call", H(sid), content))
        await until(lambda: len(server.server.runtime.shared.replays) == 1)
        stopping = time.monotonic()
    assert time.monotonic() - stopping < 20  # the client has ten seconds to read
    assert torn_down.count(question) == 1
    sock.close()


# Other ways to speak HTTP.


async def test_pipelined_requests_are_answered_in_order(sid: str, pair: Running):
    content = json.dumps(call_body("slow", {"seconds": 0.3})).encode()
    requests = [
        request_bytes("POST", "/ping", H(sid), close=False),
        request_bytes("POST", "/mathenv/call", H(sid), content, close=False),
        request_bytes("POST", "/ping", H("nobody"), close=False),
        request_bytes("POST", "/mathenv/num_tasks", H(sid), b'{"split":"train"}', close=False),
        request_bytes("GET", "/health"),
    ]
    answers = talk(pair.url, b"".join(requests))
    assert re.findall(rb"HTTP/1\.1 (\d+) ", answers) == [b"200", b"200", b"404", b"200", b"200"]
    order = [b'{"status":"ok"}', b"slept 0.3", b"Active environment not found", b'{"num_tasks":5}', b'{"status":"ok"}']
    at = -1
    for text in order:
        at = answers.index(text, at + 1)


async def test_a_request_may_come_one_byte_at_a_time(sid: str, pair: Running):
    data = request_bytes("POST", "/mathenv/call", H(sid), json.dumps(call_body("noparam")).encode())
    with connect(pair.url) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for at in range(len(data)):
            sock.sendall(data[at : at + 1])
        answer = sock.recv(65536)
        assert status(answer) == 200
        assert b'"text":"nothing"' in answer


async def test_http_1_0_is_answered_whole_and_the_connection_closed(sid: str, pair: Running):
    content = json.dumps(call_body("noparam")).encode()
    for method, path, given in (("GET", "/health", b""), ("POST", "/mathenv/call", content), ("GET", "/nosuch", b"")):
        for keep in ({}, {"Connection": "keep-alive"}):
            request = request_bytes(method, path, H(sid) | keep, given, close=False).replace(b"HTTP/1.1", b"HTTP/1.0")
            answer = talk(pair.url, request)
            assert b"connection: close" in head(answer)
            assert b"transfer-encoding" not in head(answer)
            found = re.search(rb"content-length: (\d+)", head(answer))
            assert found
            assert int(found[1]) == len(body(answer))
