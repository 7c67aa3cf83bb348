"""An agent with a token, without a key, and with access to both ports, that tries to get more than its session's tools.

Everything that it receives is searched for what only trainers may read.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import re
import secrets
import signal
import socket
import string
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.command import TOOLYARD, Command
from tests.tiers import first
from tests.wires.agent_wire import KEY, Agent, Trainer, failure, is_shut
from tests.wires.vault import SECRETS, Other, Vault
from tests.wires.wire import until
from toolyard import Server
from toolyard.runtime.owners import Owners

pytestmark = pytest.mark.anyio

WORLD = Path(__file__).with_name("vault.py")
VICTIM = "victims-session"
VICTIMS_NOTE = "victims-note"
FORBIDDEN = [*SECRETS, b"Open vault 3", VICTIMS_NOTE.encode(), KEY.encode()]


class Yard(Command):
    """`toolyard serve` as operators with agents start it."""

    def __init__(self, gateways: int) -> None:
        flags = ["--gateways", str(gateways), "--port", "0", "--agent-port", "0", "--log-level", "debug"]
        super().__init__([TOOLYARD, "serve", str(WORLD), *flags], env={"TOOLYARD_API_KEY": KEY})
        self.owners = Owners(0, gateways)
        self.until("Stop with Ctrl-C", 60)
        self.url = self.until(r"on (http://127\.0\.0\.1:\d+)")[1]
        self.agent_url = self.until(r"agents: (http://127\.0\.0\.1:\d+)")[1]

    def gateways(self) -> list[int]:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        return list(map(int, children))

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.wait()


@dataclass
class Attacker:
    """Has a token, and keeps everything that it receives."""

    yard: Yard
    token: str
    sid: str = ""
    """The id of its own session, which it should not know."""
    victim: str = ""
    """The id of another session, which it should not know either."""
    seen: list[bytes] = field(default_factory=list)

    @property
    def ports(self) -> list[str]:
        return [self.yard.url, self.yard.agent_url]

    def says(self, url: str, *pieces: bytes) -> list[int]:
        """Send bytes unchanged, in these segments, and read to the end. Returns the statuses of all answers."""
        where = urlsplit(url)
        with socket.create_connection((where.hostname, where.port), timeout=10) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            received = b""
            try:
                for piece in pieces:
                    sock.sendall(piece)
                while data := sock.recv(65536):
                    received += data
            except (ConnectionError, TimeoutError):
                received += b""  # the server refused it early, or waits for more
        self.seen.append(received)
        return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", received)]

    def asks(self, url: str, method: str, path: str, body: bytes = b"", **headers: str) -> int:
        """Send one request, its target unchanged. In names of headers `_` stands for `-`."""
        lines = [f"{method} {path} HTTP/1.1", "Host: localhost", f"Content-Length: {len(body)}", "Connection: close"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        (status,) = self.says(url, "\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return status

    @property
    def last(self) -> bytes:
        """The body of the last answer."""
        return self.seen[-1].partition(b"\r\n\r\n")[2]


@pytest.fixture(scope="module", params=["one gateway", "three gateways"])
def yard(request: pytest.FixtureRequest) -> Iterator[Yard]:
    server = Yard(1 if request.param == "one gateway" else 3)
    yield server
    server.end()


@pytest.fixture
async def attacker(yard: Yard) -> AsyncIterator[Attacker]:
    async with Trainer(yard.url) as trainer:
        victim = await trainer.opened(f"{VICTIM}-{secrets.token_hex(4)}", number=3)
        await trainer.call(victim, "note", {"text": VICTIMS_NOTE}, env="vault")
        mine = await trainer.opened()
        one = Attacker(yard, (await trainer.token(mine))["token"], mine, victim)
        yield one
        seen = b"\n".join(one.seen)
        for secret in FORBIDDEN:
            assert secret not in seen
        after = await trainer.call(victim, "note", {"text": "after"}, env="vault")
        assert after.text == f"{VICTIMS_NOTE} after", "nobody has been in the other session"
        assert one.token not in yard.output, "no log line has a token"


def trainers_paths() -> list[str]:
    """Every path of every wire, on a server like the attacked one."""
    routes = Server([Vault, Other])._gate._app._routes  # type: ignore[attr-defined]
    named = sorted({path for route in routes for path in route.paths})
    assert {"/vault/task", "/create", "/get_observation", "/execute_tool", "/metrics", "/vault/agent", "/mcp"} <= {
        *named
    }
    return [
        *named,
        f"/mcp/s/{VICTIM}",
        f"/sessions/{VICTIM}/outcome",
        "/verl/health",
        "/toolserver/get_cookie",
        "/",
        "",
    ]


# Trainers' routes.


async def test_no_route_of_a_trainer_opens_to_a_token(yard, attacker):
    """Over connections that stay open, like a client's."""
    body = json.dumps({"split": "train", "index": 3, "name": "note", "input": {"text": "in"}}).encode()
    for url, wanted in zip(attacker.ports, (401, 404), strict=True):
        with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)) as connection:
            for path in trainers_paths():
                for method in ("GET", "POST", "DELETE", "PUT", "HEAD"):
                    headers = {
                        "X-Session-ID": attacker.victim,
                        "X-API-Key": attacker.token,
                        "Authorization": f"Bearer {attacker.token}",
                        "Cookie": f"node_id={attacker.victim}; token={attacker.token}",
                        "Content-Type": "application/json",
                    }
                    connection.request(method, path, body, headers)
                    answer = connection.getresponse()
                    attacker.seen.append(answer.read())
                    is_open = path == "/health" and url == yard.url
                    assert answer.status in ((200, 405) if is_open else (wanted,)), (method, path)


@pytest.mark.parametrize(
    "headers",
    first(
        [
            {"X_API_Key": "{token}"},
            {"Authorization": "Bearer {token}"},
            {"Authorization": "Basic {token}"},
            {"X_API_Key": ""},
            {"X_API_Key": "", "Authorization": "Bearer "},
            {"Cookie": "X-API-Key={token}; key={token}"},
            {"X_Session_ID": "{victim}", "X_Forwarded_For": "127.0.0.1"},
            {"X_Forwarded_Prefix": "/agent/{token}", "X_Original_URL": "/agent/{token}/prompt"},
            {"X_Rewrite_URL": "/agent/{token}/prompt"},
            {"X_Toolyard_Passed": "1", "Toolyard_Passed": "True", "toolyard.passed": "1"},
            {"Forwarded": "for=127.0.0.1;host=localhost;proto=http"},
            {"Referer": "http://localhost/agent/{token}/prompt"},
            {"Agent_Token": "{token}", "X_Agent_Token": "{token}"},
        ]
    ),
)
async def test_no_header_opens_a_route_of_a_trainer(yard, attacker, headers):
    given = {name: value.format(token=attacker.token, victim=attacker.victim) for name, value in headers.items()}
    for path in ("/vault/task", "/vault/call", "/create", "/vault/agent"):
        assert attacker.asks(yard.url, "POST", path, b'{"split": "train", "index": 0}', **given) == 401
        assert attacker.asks(yard.agent_url, "POST", path, b'{"split": "train", "index": 0}', **given) == 404


# Headers at the agent's own paths.


async def test_no_header_or_query_leads_from_an_own_path_to_anything_else(yard, attacker):
    tricks = {
        "X-Session-ID": attacker.victim,
        "Mcp-Session-Id": attacker.victim,
        "X-API-Key": "wrong",
        "Cookie": f"node_id={attacker.victim}",
        "X-Forwarded-For": "127.0.0.1",
        "X-Forwarded-Host": "evil.example",
        "X-Forwarded-Prefix": "/vault/task",
        "X-Forwarded-Uri": "/vault/task",
        "X-Original-URL": "/vault/task",
        "X-Rewrite-URL": "/vault/task",
        "X-HTTP-Method-Override": "DELETE",
        "X-Method-Override": "DELETE",
        "X-Deployment": "someone/other",
        "X-Secrets": "e30=",
        "User-Agent": "openreward/1",
        "Accept": "text/event-stream",
    }
    headers = {name.replace("-", "_"): value for name, value in tricks.items()}
    path = f"/agent/{attacker.token}"
    for url in attacker.ports:
        for query in ("", "?session_id=" + attacker.victim, "?sid=x&task_spec=1&reward=1&errors=stacktrace"):
            assert attacker.asks(url, "GET", f"{path}/prompt{query}", **headers) == 200
            assert attacker.last == b'[{"type":"text","text":"Open vault 0."}]'
            assert attacker.asks(url, "GET", f"{path}/tools{query}", **headers) == 200
            assert attacker.asks(url, "POST", f"{path}/call{query}", b'{"name": "refuse"}', **headers) == 200
            assert attacker.asks(url, "POST", f"{path}/call{query}", b'{"name": "boom"}', **headers) == 500
            assert attacker.asks(url, "POST", f"{path}/call{query}", b'{"name": "lose"}', **headers) == 502
        for method in ("POST", "DELETE", "PUT", "PATCH", "OPTIONS", "TRACE", "PROPFIND"):
            assert attacker.asks(url, method, f"{path}/prompt", **headers) == 405
            assert attacker.asks(url, method, path, **headers) == 404
        for method in ("GET", "DELETE", "PUT", "HEAD"):
            assert attacker.asks(url, method, f"{path}/call", **headers) == 405
            assert attacker.asks(url, method, f"{path}/mcp", **headers) == 405


GUESS = {"answer": "sesame", "last": False}
HELLO = {"capabilities": {}, "clientInfo": {"name": "a", "version": "1"}}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("tools/list", {}),
    ("tools/call", {"name": "guess", "arguments": GUESS}),
    ("tools/call", {"name": "guess", "arguments": GUESS, "_meta": {"progressToken": 1, "toolyard/callId": "x"}}),
    ("tools/call", {"name": "boom", "arguments": {}}),
    ("tools/call", {"name": "lose", "arguments": {}}),
    ("tools/call", {"name": "refuse", "arguments": {}}),
    ("tools/call", {"name": "nope", "arguments": {}}),
    ("prompts/list", {}),
    ("prompts/get", {"name": "task"}),
    ("resources/list", {}),
    ("resources/templates/list", {}),
    ("resources/read", {"uri": "toolyard://task"}),
    ("resources/read", {"uri": f"toolyard://sessions/{VICTIM}/task"}),
    ("completion/complete", {}),
    ("server/discover", {}),
    ("initialize", {"protocolVersion": "2025-11-25", **HELLO}),
]
"""Requests that MCP allows."""
UNANSWERED = ("resources/read", "completion/complete")


async def test_a_result_has_nothing_of_reward_end_or_task_over_either_protocol(yard, attacker):
    for url in attacker.ports:
        path = f"/agent/{attacker.token}"
        body = json.dumps({"name": "guess", "input": GUESS}).encode()
        assert attacker.asks(url, "POST", f"{path}/call", body) == 200
        assert json.loads(attacker.last) == {"ok": True, "blocks": [{"type": "text", "text": "click"}], "error": None}
        for asked in ASKED:
            answers = [speak(attacker, url, *asked, modern=modern) for modern in (False, True)]
            assert (
                any("result" in answer for answer in answers)
                or asked[0] in ("resources/read", "completion/complete")
                or (asked[1].get("name") in ("boom", "lose", "nope"))
            ), (asked, answers)


def speak(attacker: Attacker, url: str, method: str, params: dict[str, Any], *, modern: bool) -> dict[str, Any]:
    """Send one request of MCP, in one of its eras."""
    headers = {"Content_Type": "application/json", "X_Session_ID": attacker.victim, "Mcp_Session_Id": attacker.victim}
    if modern:
        about = {f"io.modelcontextprotocol/{key}": value for key, value in MODERN.items()}
        params = {**params, "_meta": {**params.get("_meta", {}), **about}}
        headers |= {"MCP_Protocol_Version": "2026-07-28", "Mcp_Method": method}
        headers |= {"Mcp_Name": str(params.get("name") or params.get("uri"))}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}).encode()
    attacker.asks(url, "POST", f"/agent/{attacker.token}/mcp", body, **headers)
    answer: dict[str, Any] = json.loads(attacker.last)
    return answer


MODERN = {"protocolVersion": "2026-07-28", "clientCapabilities": {}}


@pytest.mark.parametrize("input", [{}, {"code": 1}, {"code": None, "more": 1}, {"code": "x", "answer": 1, "task": {}}])
async def test_words_about_wrong_arguments_hold_none_that_the_task_gave(yard, attacker, input):
    """A tool may have parameters that the task fills in, such as the tests of a program."""
    for url in attacker.ports:
        body = json.dumps({"name": "judge", "input": input}).encode()
        assert attacker.asks(url, "POST", f"/agent/{attacker.token}/call", body) == 200
        told = json.loads(attacker.last)
        if told["ok"]:
            assert told["blocks"] == [{"type": "text", "text": "False"}], "it cannot say what the task says"
        else:
            assert told["error"]["reason"] == "bad_arguments"
        for modern in (False, True):
            speak(attacker, url, "tools/call", {"name": "judge", "arguments": input}, modern=modern)


HOOKS = [
    "setup",
    "teardown",
    "get_prompt",
    "list_tasks",
    "list_splits",
    "score_group",
    "fork",
    "workspace",
]
MORE = [
    "__init__",
    "__class__",
    "_definition",
    "secrets",
    "Note",
    " note",
    "note ",
    "vault/note",
    "../note",
    "",
    "note\u0000",
]


@pytest.mark.parametrize("name", first([*HOOKS, *MORE], 8))
async def test_only_tools_can_be_called(yard, attacker, name):
    for url in attacker.ports:
        body = json.dumps({"name": name, "input": {}}).encode()
        status = attacker.asks(url, "POST", f"/agent/{attacker.token}/call", body)
        reason = json.loads(attacker.last)["error"]["reason"]
        assert (status, reason) in ((200, "no_such_tool"), (422, "bad_request"))
        assert "error" in speak(attacker, url, "tools/call", {"name": name, "arguments": {}}, modern=False)


# Paths.

TRICKS = [
    "/agent/{token}/../../vault/task",
    "/agent/{token}/../../../vault/prompt",
    "/agent/{token}/..%2f..%2fvault/task",
    "/agent/{token}/%2e%2e/%2e%2e/vault/task",
    "/agent/{token}/.%2e/%2e./vault/task",
    "/agent/{token}/..;/..;/vault/task",
    "/agent/{token}/..\\..\\vault\\task",
    "/agent/{token}/%5c..%5c..%5cvault%5ctask",
    "/agent/{token}/%252e%252e%252f%252e%252e%252fvault/task",
    "/agent/{token}/call/../../../vault/task",
    "/agent/{token}/prompt/../../../vault/task",
    "/agent/{token}//vault/task",
    "/agent/{token}/vault/task",
    "/agent/{token}/mcp/s/{victim}",
    "/agent/{token}/mcp/",
    "/agent/{token}/mcp/vault",
    "/agent/{token}/sessions/{victim}/outcome",
    "/agent/{token}/prompt/",
    "/agent/{token}/prompt%00",
    "/agent/{token}/prompt;x",
    "/agent/{token}/PROMPT",
    "/agent/{token}/",
    "/agent/{token}",
    "/agent/",
    "/agent/..",
    "/agent/../vault/task",
    "/agent/%2e%2e/vault/task",
    "/agent/../agent/{token}/../vault/task",
    "/agent//{token}/prompt",
    "/agent/{token}%00/prompt",
    "/agent/{token}%20/prompt",
    "/agent/%20{token}/prompt",
    "/agent/{victim}/prompt",
    "/agent/%2a/prompt",
    "/agent/*/prompt",
    "/agent/{token},{token}/prompt",
    "/agent/undefined/prompt",
    "/agent/%c0%ae%c0%ae/vault/task",
    "/agent/%ff%fe/prompt",
    "/agent%2f..%2fvault%2ftask/../x",
    "/%61gent/../vault/task",
    "/agent/{token}/%ed%a0%80",
]
"""Paths that begin like an agent's, and are not one."""
FOREIGN = [
    "//agent/{token}/../vault/task",
    "/./agent/{token}/../../vault/task",
    "/AGENT/{token}/prompt",
    "/vault/task/../../agent/{token}/prompt",
    "/vault/../agent/{token}/prompt",
    "/agent",
    "/%61gent",
    "/agents/{token}/prompt",
    "/vault/prompt?x=/agent/{token}/prompt",
    "/vault/prompt;/agent/{token}/prompt",
    "//vault/task",
    "/health/../vault/task",
    "/health%2f..%2fvault%2ftask",
    "/health/",
    "http://localhost/vault/task",
    "http://localhost/agent/../vault/task/",
    "http://agent/{token}/vault/task",
]
"""Paths that do not begin like an agent's: at the main port they belong to trainers, who have a key."""


@pytest.mark.parametrize("path", first(TRICKS, 12))
async def test_a_path_that_is_not_exactly_one_of_the_door_is_none(yard, attacker, path):
    asked = path.format(token=attacker.token, victim=attacker.victim)
    for url in attacker.ports:
        for method in ("GET", "POST"):
            assert attacker.asks(url, method, asked, b"", X_Session_ID=attacker.victim) == 404
            assert b"there is nothing here" in attacker.last


@pytest.mark.parametrize("path", first(FOREIGN, 8))
async def test_a_path_that_only_looks_like_one_of_the_door_needs_a_key_or_is_not_there(yard, attacker, path):
    asked = path.format(token=attacker.token, victim=attacker.victim)
    for method in ("GET", "POST"):
        main = attacker.asks(yard.url, method, asked, X_Session_ID=attacker.victim)
        assert main in (400, 401) or (main == 404 and "/agent/" in asked.removeprefix("http://localhost")[:8]), asked
        assert attacker.asks(yard.agent_url, method, asked, X_Session_ID=attacker.victim) in (400, 404)


async def test_absolute_targets_and_encoded_letters_are_the_same_path_and_no_other(yard, attacker):
    for url in attacker.ports:
        for path in (
            f"http://localhost/agent/{attacker.token}/prompt",
            f"http://evil.example:99/agent/{attacker.token}/prompt",
            f"/%61gent/{attacker.token}/prompt",
            f"/agent/{attacker.token}/%70rompt",
            f"/agent%2f{attacker.token}%2fprompt",
        ):
            assert attacker.asks(url, "GET", path) == 200
            assert attacker.last == b'[{"type":"text","text":"Open vault 0."}]'


# Tokens.


async def test_tokens_that_are_none_are_answered_all_alike(yard, attacker):
    """Guessed, cut, changed in one letter, long, strange, of another gateway: no answer reveals how close they were."""
    token = attacker.token
    letters = string.ascii_letters + string.digits + "-_"
    near = [token[:-1] + letter for letter in letters if letter != token[-1]]
    others = [token[:-1], token + "A", token.swapcase(), token[4:], "agt-", "agt-" + "A" * 32, token * 2, token[::-1]]
    long = ["A" * 5_000, "agt-" + "A" * 50_000, token + "%00" * 2_000]
    guessed = ["agt-" + secrets.token_urlsafe(24) for _ in range(100)]
    assert {yard.owners.of(one) for one in guessed} == {*range(yard.owners.count)}, "of every gateway"
    bodies = set()
    for url in attacker.ports:
        for one in [*near, *others, *long, *guessed]:
            assert attacker.asks(url, "GET", f"/agent/{one}/prompt") == 404
            head, _, body = attacker.seen[-1].partition(b"\r\n\r\n")
            bodies.add((re.sub(rb"date: [^\r]*\r\n", b"", head), body))
    assert len(bodies) == 1


async def test_a_token_is_found_over_every_connection_and_leads_to_its_own_session_alone(yard, attacker):
    async with Trainer(yard.url) as trainer:
        tokens = {}
        for number in range(6):
            sid = await trainer.opened(number=number % 3)
            tokens[(await trainer.token(sid))["token"]] = f"Open vault {number % 3}."
        for _ in range(4):
            for url in attacker.ports:
                for token, prompt in tokens.items():
                    async with Agent(url, token) as agent:
                        assert await agent.prompt() == prompt
        for token in tokens:
            assert token not in yard.output


async def test_requests_of_two_agents_over_one_connection_are_kept_apart(yard, attacker):
    """The server reuses the parsed form of a request that repeats the last one, except for its length."""
    async with Trainer(yard.url) as trainer:
        other = (await trainer.token(await trainer.opened()))["token"]
        for url in attacker.ports:
            with closing(http.client.HTTPConnection(urlsplit(url).netloc, timeout=10)) as connection:
                for token, text in (
                    (attacker.token, "a"),
                    (attacker.token, "a"),
                    (other, "b"),
                    (attacker.token, "a"),
                ) * 2:
                    body = json.dumps({"name": "note", "input": {"text": text}})
                    connection.request("POST", f"/agent/{token}/call", body)
                    answer = connection.getresponse()
                    (block,) = json.loads(answer.read())["blocks"]
                    assert set(block["text"].split()) == {text}


async def test_a_token_opens_nothing_after_it_was_revoked_or_its_session_ended_and_no_call_is_left(yard, attacker):
    async with Trainer(yard.url) as trainer:
        sid = await trainer.opened()
        revoked, ended = [(await trainer.token(sid))["token"] for _ in range(2)]
        doors = [Agent(url, token) for url in attacker.ports for token in (revoked, ended)]
        assert (await doors[0].asks("note", "mine", text="a")).status_code == 200
        await trainer.revoke(sid, token=revoked)
        assert [await is_shut(door) for door in doors] == [True, False, True, False]
        await trainer.end(sid)
        assert [await is_shut(door) for door in doors] == [True, True, True, True]
        assert (await doors[1].asks("note", "mine", text="a")).status_code == 404
        await trainer.opened(sid)
        assert [await is_shut(door) for door in doors] == [True, True, True, True]
        for door in doors:
            await door.aclose()


async def test_an_agent_cannot_hand_out_or_revoke_tokens(yard, attacker):
    for url, wanted in zip(attacker.ports, (401, 404), strict=True):
        for sid in (attacker.sid, attacker.victim):
            for method in ("POST", "DELETE", "GET"):
                assert attacker.asks(url, method, "/vault/agent", X_Session_ID=sid) == wanted
                assert attacker.asks(url, method, f"/agent/{attacker.token}/agent", X_Session_ID=sid) == 404
                assert attacker.asks(url, method, "/agent/agent", X_Session_ID=sid) == 404


# Smuggling.


async def test_no_request_is_smuggled_past_the_door(yard, attacker):
    token, victim = attacker.token, attacker.victim
    smuggled = (
        f"POST /vault/task HTTP/1.1\r\nHost: localhost\r\nX-Session-ID: {victim}\r\nContent-Length: 31\r\n\r\n"
        '{"split": "train", "index": 3} '
    ).encode()
    own = f"POST /agent/{token}/call HTTP/1.1\r\nHost: localhost\r\n".encode()
    length = b"Content-Length: %d\r\n" % len(smuggled)
    chunked = b"Transfer-Encoding: chunked\r\n"
    as_chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (len(smuggled), smuggled)
    alone = [
        [own + length + b"Connection: Upgrade\r\nUpgrade: h2c\r\n\r\n", smuggled],
        [own + length + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n" + smuggled],
        [own + chunked + b"Connection: Upgrade\r\nUpgrade: TLS/1.0\r\n\r\n", as_chunk],
        [own + b"Expect: 100-continue\r\n" + length + b"\r\n", smuggled],
        [own + chunked + b"\r\n0\r\nX-API-Key: " + KEY.encode()[:3] + b"\r\nX-Session-ID: x\r\n\r\n"],
    ]
    refused = [
        [own + length + chunked + b"\r\n", as_chunk],
        [own + b"Content-Length: 0\r\n" + length + b"\r\n", smuggled],
        [own + b"Content-Length: +5\r\n\r\n", smuggled],
        [own + b"Transfer-Encoding: xchunked\r\n\r\n", smuggled],
        [own + b"Transfer-Encoding: chunked, identity\r\n\r\n", as_chunk],
        [own + b"Transfer-Encoding : chunked\r\n\r\n", as_chunk],
        [own + b"X: y\r\n continued: x\r\n" + length + b"\r\n", smuggled],
        [b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + smuggled],
        [f"GET /agent/{token}/prompt\r\n".encode()],
        [f"CONNECT localhost:80 HTTP/1.1\r\nHost: /agent/{token}/\r\n\r\n".encode() + smuggled],
        [f"GET /agent/{token}/prompt HTTP/1.1 GET /vault/task HTTP/1.1\r\n\r\n".encode()],
    ]
    last = b"GET /agent/x/prompt HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for url, other in zip(attacker.ports, (401, 404), strict=True):
        for pieces in alone:
            statuses = attacker.says(url, *pieces, last)
            assert [status for status in statuses if status != 100] in ([422, 404], [422]), pieces
        for pieces in refused:
            statuses = attacker.says(url, *pieces, last)
            assert set(statuses) <= {400, 404, 422, other}, pieces
        prompt = f"GET /agent/{token}/prompt HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        told = attacker.says(url, prompt + smuggled + prompt + last)
        assert told == [200, other, 200, 404], "each goes through its own door"


@pytest.mark.parametrize("path", ["/vault/call", "/openenv/vault/ws", "/agent/{token}/call", "/agent/{token}/ws"])
async def test_no_other_protocol_is_spoken_to_an_agent(yard, attacker, path):
    for url, other in zip(attacker.ports, (401, 404), strict=True):
        upgrade = {
            "Upgrade": "websocket",
            "Sec_WebSocket_Version": "13",
            "Sec_WebSocket_Key": "AAAAAAAAAAAAAAAAAAAAAA==",
        }
        wanted = other if "{token}" not in path else 405 if path.endswith("call") else 404
        assert attacker.asks(url, "GET", path.format(token=attacker.token), **upgrade) == wanted


async def test_line_ends_in_a_target_make_no_header(yard, attacker):
    for url in attacker.ports:
        path = f"/agent/x%0d%0aX-API-Key:%20{KEY[:3]}/prompt"
        assert attacker.asks(url, "GET", path) == 404


# Web pages.


async def test_pages_of_other_sites_are_kept_out_of_both_ports_and_only_the_main_one_asks_for_its_name(yard, attacker):
    path = f"/agent/{attacker.token}/prompt"
    for url in attacker.ports:
        assert attacker.asks(url, "GET", path, Origin="http://evil.example") == 403
        assert attacker.asks(url, "GET", path, Sec_Fetch_Site="cross-site") == 403
        assert attacker.asks(url, "GET", path, Origin="null") == 403
        assert attacker.asks(url, "GET", path) == 200
    host = f"GET {path} HTTP/1.1\r\nHost: agents.internal\r\nConnection: close\r\n\r\n".encode()
    assert attacker.says(yard.agent_url, host) == [200]


# Losses.


@pytest.mark.thorough
async def test_an_agent_whose_gateway_dies_hears_of_trouble_and_then_of_nothing(tmp_path):
    server = Yard(3)
    try:
        async with Trainer(server.url) as trainer:
            token = (await trainer.token(await trainer.opened()))["token"]
            calls = [asyncio.create_task(wait(server, token, tmp_path, over)) for over in ("call", "mcp") * 12]
            await until(lambda: len(list(tmp_path.glob("k-came-*"))) == 24)
            (owner,) = {int(came.name.split("-")[3]) for came in tmp_path.glob("k-came-*")}
            os.kill(owner, signal.SIGKILL)
            told = [answer for answer in await asyncio.gather(*calls) if answer is not None]
            plain, rpc = ([answer for answer in told if answer.url.path.endswith(over)] for over in ("call", "mcp"))
            assert plain, "those that another gateway has passed on"
            assert rpc
            for answer in plain:
                error = failure(answer, 502)
                assert (error["reason"], error["retryable"]) == ("lost", True)
            for answer in rpc:
                assert (answer.status_code, answer.json()["id"]) == (200, 7)
                assert answer.json()["error"]["data"]["reason"] == "lost"
            await until(lambda: len({*server.gateways()} - {owner}) == 3, 20)
            attacker = Attacker(server, token)
            for url in attacker.ports:
                for _ in range(6):
                    assert attacker.asks(url, "GET", f"/agent/{token}/prompt") in (404, 502)
    finally:
        server.end()


async def wait(server: Yard, token: str, folder: Path, over: str) -> httpx2.Response | None:
    """A call that waits for its gate, over its own connection; None if that connection ends."""
    input = {"folder": str(folder), "key": "k"}
    rpc = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "wait", "arguments": input}}
    async with Agent(server.agent_url, token) as agent:
        try:
            return await agent.post(f"/{over}", json=rpc if over == "mcp" else {"name": "wait", "input": input})
        except httpx2.TransportError:
            return None
