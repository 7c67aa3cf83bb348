"""ORS under a fuzzer: whatever it sends, the server does not break, answers as documented, and goes on.

Toolyard publishes no OpenAPI document; the one here describes its surface to the fuzzer only.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.wires.wire import Answer, H, connect, read_events, strict_json
from toolyard import Environment, ToolError, tool
from toolyard.testing import Running, running
from toolyard.types import GroupScore

pytestmark = pytest.mark.thorough


class Anything(Environment):
    """Takes whatever it is given and gives it back."""

    @classmethod
    def list_splits(cls):
        return ["train", "test"]

    @classmethod
    def list_tasks(cls, split):
        return [{"n": n} for n in range(3)]

    def get_prompt(self):
        return json.dumps(dict(self.task_spec))

    async def score_group(self, candidates):
        return [GroupScore(reward=len(candidate.messages)) for candidate in candidates]

    @tool
    async def echo(self, value: Any = None) -> dict:
        """Give it back."""
        return {"value": value}

    @tool
    def typed(self, text: str, number: float, flag: bool = False, items: list[int] | None = None) -> dict:
        """Take many types, in a thread."""
        return {"text": text, "number": number, "flag": flag, "items": items}

    @tool
    async def refuse(self, why: str) -> str:
        """Fail."""
        raise ToolError(why)

    @tool
    async def crash(self, why: str) -> str:
        """Break."""
        raise RuntimeError(why)

    @tool(concurrent=True)
    async def wait(self) -> str:
        """Answer a little later."""
        await asyncio.sleep(0.001)
        return "later"


TOOLS = ["echo", "typed", "refuse", "crash", "wait", "nope"]


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Anything], call_seconds=5) as server:
        yield server


@pytest.fixture(autouse=True)
def _goes_on(server: Running) -> Iterator[None]:
    """A session that is open while the fuzzer works, and works afterwards."""
    with httpx2.Client(base_url=server.url, trust_env=False) as client:
        client.post("/create", headers=H("open"), json={"task_spec": {"n": 1}})
        yield
        call = {"name": "echo", "input": {"value": "still here"}}
        client.post("/create", headers=H("judge"), json={"task_spec": {"n": 1}})
        answer = Answer.of(client.post("/anything/call", headers=H("judge"), json=call))
        assert answer.text == '{"value": "still here"}'
        assert client.get("/health").json() == {"status": "ok"}


# With a description of the surface.

ERROR = {"type": "object", "required": ["detail"]}
BLOCK = {
    "oneOf": [
        {
            "type": "object",
            "properties": {
                "type": {"const": "text"},
                "text": {"type": "string"},
                "detail": {"type": ["object", "null"]},
            },
            "required": ["type", "text"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"type": {"const": "image"}, "data": {"type": "string"}, "mimeType": {"type": "string"}},
            "required": ["type", "data", "mimeType"],
            "additionalProperties": False,
        },
    ]
}


def closed(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def body(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": closed(required, **properties)}}}


def answers(schema: dict[str, Any] | None, *errors: int, stream: bool = False) -> dict[str, Any]:
    good = {"text/event-stream": {}} if stream else {"application/json": {"schema": schema}}
    bad = {"description": "refused", "content": {"application/json": {"schema": ERROR}}}
    return {"200": {"description": "done", "content": good}} | {str(status): bad for status in errors}


SPLIT = {"enum": ["train", "test", "nope", ""]}
SESSION = {
    "name": "X-Session-ID",
    "in": "header",
    "required": True,
    "schema": {"enum": ["made", "nobody"]},
}
OPEN = SESSION | {"schema": {"enum": ["open", "judge", "nobody"]}}
CALL_ID = {"type": ["string", "null"], "maxLength": 300}
ENV_NAME = {"enum": ["anything", "Anything", "nope", None]}
CREATE = [
    closed(["task_spec"], task_spec={"type": "object"}, env_name=ENV_NAME, toolset_name={"type": ["string", "null"]}),
    closed(["task_spec"], task_spec={"type": "object"}, secrets={"additionalProperties": {"type": "string"}}),
    closed(["split", "index"], split=SPLIT, index={"type": "integer", "minimum": -5, "maximum": 5}, env_name=ENV_NAME),
]

SURFACE = {
    "openapi": "3.1.0",
    "info": {"title": "ORS", "version": "1"},
    "paths": {
        "/health": {"get": {"responses": answers({"const": {"status": "ok"}})}},
        "/version": {"get": {"responses": answers({"type": "object", "required": ["version", "build_sha"]})}},
        "/list_environments": {"get": {"responses": answers({"const": ["anything"]})}},
        "/anything/tools": {"get": {"responses": answers({"type": "object", "required": ["tools"]})}},
        "/anything/splits": {"get": {"responses": answers({"type": "array", "minItems": 2})}},
        "/anything/tasks": {
            "post": {
                "requestBody": body(["split"], split=SPLIT),
                "responses": answers({"type": "object", "required": ["tasks", "env_name"]}, 400, 422),
            }
        },
        "/anything/num_tasks": {
            "post": {
                "requestBody": body(["split"], split=SPLIT),
                "responses": answers({"const": {"num_tasks": 3}}, 400, 422),
            }
        },
        "/anything/task": {
            "post": {
                "requestBody": body(["split", "index"], split=SPLIT, index={"type": "integer"}),
                "responses": answers({"type": "object", "required": ["task", "env_name"]}, 400, 422),
            }
        },
        "/anything/task_range": {
            "post": {
                "requestBody": body(
                    ["split"], split=SPLIT, start={"type": ["integer", "null"]}, stop={"type": ["integer", "null"]}
                ),
                "responses": answers({"type": "object", "required": ["tasks", "env_name"]}, 400, 422),
            }
        },
        "/create_session": {
            "post": {
                "requestBody": {"content": {"application/json": {"schema": {}}}},
                "responses": answers({"type": "object", "required": ["sid"]}),
            }
        },
        "/create": {
            "post": {
                "parameters": [SESSION],
                "requestBody": {"required": True, "content": {"application/json": {"schema": {"oneOf": CREATE}}}},
                "responses": answers({"type": "object", "required": ["sid"]}, 400, 404, 422),
            }
        },
        "/ping": {"post": {"parameters": [SESSION], "responses": answers({"const": {"status": "ok"}}, 400, 404)}},
        "/delete": {"post": {"parameters": [SESSION], "responses": answers({"required": ["sid"]}, 400)}},
        "/delete_session": {"post": {"parameters": [SESSION], "responses": answers({"required": ["sid"]}, 400)}},
        "/anything/prompt": {
            "get": {"parameters": [OPEN], "responses": answers({"type": "array", "items": BLOCK}, 400, 404)}
        },
        "/anything/messages": {"get": {"parameters": [OPEN], "responses": answers({"type": "array"}, 400, 404)}},
        "/anything/task_tools": {
            "get": {"parameters": [OPEN], "responses": answers({"type": "object", "required": ["tools"]}, 400, 404)}
        },
        "/anything/call": {
            "post": {
                "parameters": [OPEN],
                "requestBody": body(["name", "input"], name={"enum": TOOLS}, input={"type": "object"}, task_id=CALL_ID),
                "responses": answers(None, 400, 404, 422, stream=True),
            }
        },
        "/anything/score_group": {
            "post": {
                "parameters": [OPEN],
                "requestBody": body(
                    ["candidates"],
                    task_id=CALL_ID,
                    candidates={
                        "type": "array",
                        "maxItems": 3,
                        "items": {
                            "type": "object",
                            "required": ["messages"],
                            "additionalProperties": False,
                            "properties": {
                                "metadata": {"type": ["object", "null"]},
                                "messages": {
                                    "type": "array",
                                    "maxItems": 3,
                                    "items": {
                                        "type": "object",
                                        "required": ["role", "blocks"],
                                        "additionalProperties": False,
                                        "properties": {
                                            "role": {"enum": ["system", "user", "assistant"]},
                                            "blocks": {"type": "array", "maxItems": 3, "items": BLOCK},
                                        },
                                    },
                                },
                            },
                        },
                    },
                ),
                "responses": answers(None, 400, 404, 422, stream=True),
            }
        },
    },
}

surface = schemathesis.openapi.from_dict(SURFACE)

bounded = settings(
    max_examples=50,
    deadline=None,
    database=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture(scope="module")
def session() -> Iterator[requests.Session]:
    with requests.Session() as session:
        session.trust_env = False
        yield session


@surface.parametrize()
@bounded
def test_the_surface_is_as_described_whatever_is_sent(
    case: schemathesis.Case, server: Running, session: requests.Session
):
    checks = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    response = case.call_and_validate(base_url=server.url, session=session, checks=checks, timeout=10)
    if case.path == "/create" and response.status_code == 200:
        session.post(f"{server.url}/delete", headers=H(response.json()["sid"]))
    if response.headers["content-type"] == ["application/json"]:
        strict_json(response.content)


# Without one.

texts = st.text(st.characters(exclude_categories=()), max_size=30)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)
KEYS = ["name", "input", "task_id", "split", "index", "start", "stop", "task_spec", "env_name", "secrets", "candidates"]
likely_bodies = st.dictionaries(
    st.sampled_from(KEYS), json_values | st.sampled_from([*TOOLS, "train", 0, -1, {}, [], "anything"]), max_size=4
)
contents = st.binary(max_size=200) | (json_values | likely_bodies).map(lambda value: json.dumps(value).encode())

ENDPOINTS = ["health", "list_environments", "create", "create_session", "ping", "delete", "delete_session", "version"]
SCOPED = ["call", "prompt", "messages", "tools", "task_tools", "splits", "tasks", "task", "task_range", "score_group"]
known = st.sampled_from([f"/{name}" for name in ENDPOINTS] + [f"/anything/{name}" for name in SCOPED])
segments = st.sampled_from(["anything", "ANYTHING", *ENDPOINTS, *SCOPED]) | st.text("abz%/.?#é\x00 ", max_size=6)
paths = known | known | known | st.lists(segments, max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(
    method=st.sampled_from(["GET", "GET", "GET", "POST", "POST", "POST", "POST", "PUT", "HEAD", "OPTIONS"]),
    path=paths,
    sid=st.sampled_from(["open", "fuzz", "", "nobody"]),
    content=contents,
)
@settings(bounded, max_examples=800)
def test_no_request_gets_a_server_error(
    server: Running, session: requests.Session, *, method: str, path: str, sid: str, content: bytes
):
    response = session.request(
        method, server.url + path, headers=H(sid), data=content, timeout=10, allow_redirects=False
    )
    assert response.status_code < 500
    if response.status_code in (307, 308):
        assert re.fullmatch(r"/[!-~]*", response.headers["location"])
    elif response.headers["content-type"] == "application/json" and method != "HEAD":
        strict_json(response.content)


finite = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=20,
)


@given(value=finite)
@settings(bounded, max_examples=150)
def test_any_json_value_goes_through_a_call_unchanged(server: Running, session: requests.Session, value: object):
    sent = json.dumps({"name": "echo", "input": {"value": value}})
    response = session.post(f"{server.url}/anything/call", headers=H("open"), data=sent, timeout=10)
    assert json.loads(Answer(read_events(response.content)).text) == {"value": value}


@given(spec=st.dictionaries(texts, finite, max_size=5))
@settings(bounded, max_examples=100)
def test_any_task_reaches_its_environment_unchanged(server: Running, session: requests.Session, spec: dict):
    sent = json.dumps({"task_spec": spec})
    assert session.post(f"{server.url}/create", headers=H("spec"), data=sent, timeout=10).status_code == 200
    prompt = session.get(f"{server.url}/anything/prompt", headers=H("spec"), timeout=10)
    session.post(f"{server.url}/delete", headers=H("spec"), timeout=10)
    assert json.loads(strict_json(prompt.content)[0]["text"]) == spec


pieces = st.sampled_from(
    [
        b"GET /health HTTP/1.1\r\n",
        b"POST /anything/call HTTP/1.1\r\n",
        b"POST /create HTTP/1.1\r\n",
        b"GET / HTTP/1.0\r\n",
        b"Host: localhost\r\n",
        b"X-Session-ID: open\r\n",
        b"Content-Length: 5\r\n",
        b"Content-Length: 999999999\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: close\r\n",
        b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"\r\n",
        b"5\r\n12345\r\n",
        b"0\r\n\r\n",
        b'{"name":"echo","input":{}}',
        b"\n",
        b"\x00\xff",
        b":",
    ]
)


@given(data=st.lists(pieces | st.binary(max_size=20), max_size=12).map(b"".join))
@settings(bounded, max_examples=300)
def test_no_bytes_get_a_server_error(server: Running, data: bytes):
    with connect(server.url, 5) as sock:
        sock.sendall(data)
        sock.shutdown(1)  # send no more
        received = b""
        try:
            while piece := sock.recv(65536):
                received += piece
        except ConnectionError:
            pass  # the server closed on bytes that it could not read
    assert not re.search(rb"(?m)^HTTP/1\.1 5", received)
