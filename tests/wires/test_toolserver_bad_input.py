"""Invalid requests to the ToolServer. Each gets a clear answer, and the node goes on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.toolserver_wire import Node, Toolbox
from tests.wires.wire import strict_json
from toolyard.testing import Running, running
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.sandboxed import SessionSandbox

pytestmark = pytest.mark.anyio

JSON_PATHS = (
    "/execute_tool",
    "/retrieving_tools",
    "/get_json_schema_for_tools",
    "/get_json_schema_for_envs",
    "/register_new_tool",
    "/download_file",
)
OTHER_PATHS = ("/upload_file", "/get_available_tools", "/get_cookies")
BODILESS = ("/download_workspace", "/get_workspace_structure", "/")
BODIES = {
    "nothing": b"",
    "half": b'{"tool_name": "x", ',
    "no text": b"\xff\xfe\x00",
    "a number": b"7",
    "null": b"null",
    "a text": b'"tool_name"',
    "a list of numbers": b"[1, 2, 3]",
    "an empty object": b"{}",
    "nested too deeply": b"[" * 100_000,
    "wrong types": b'{"tool_name": [], "arguments": 1, "question": {}, "top_k": "x", "tools": 5, "file_path": [], "code": 1}',  # noqa: E501
    "a long number": b'{"question": "x", "top_k": ' + b"9" * 5000 + b"}",
    "odd characters": rb'{"tool_name": "\ud800\u0000", "arguments": {"\ud800": "\u0000"}}',
}


class Mixed(Toolbox):
    toolsets = [*Toolbox.toolsets, FileSystemEnv]

    def workspace(self):
        return SessionSandbox.of(self)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([Mixed], body_bytes=2**20) as server:
        yield server


@pytest.fixture
async def node(served: Running) -> AsyncIterator[Node]:
    async with Node(served.url) as node:
        await node.cookie()
        yield node
        assert await node.execute("stand_alone", n=5) == 5
        await node.post("/release_session")


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
@pytest.mark.parametrize("path", JSON_PATHS)
async def test_a_body_that_makes_no_sense_is_refused_and_nothing_breaks(node, path, body):
    response = await node.post(path, content=body, headers={"content-type": "application/json"})
    wanted = {422, 404} if b"ud800" in body else {422}
    assert response.status_code in wanted, response.text
    assert strict_json(response.content)["detail"]


@pytest.mark.parametrize("path", [*JSON_PATHS, *OTHER_PATHS])
async def test_a_body_that_is_too_large_is_413(node, path):
    assert (await node.post(path, content=b" " * (2**20 + 1))).status_code == 413


@pytest.mark.parametrize("path", BODILESS)
async def test_where_no_body_is_wanted_none_is_looked_at(node, path):
    for body in (b" " * (2**20 + 1), b"\xff", b"{"):
        assert (await node.post(path, content=body)).status_code == 200


@pytest.mark.parametrize(
    "header",
    ["node_id", "node_id=", "node_id=;", "=;=;", "node_id=a b c", 'node_id="a\\"b"', "node_id=" + "f" * 5000, "é=1"],
)
async def test_a_cookie_that_makes_no_sense_is_no_cookie(served, header):
    async with Node(served.url) as node:
        response = await node.post("/get_available_tools", headers={"cookie": header.encode()})
        assert response.status_code == 403
        assert response.json()["detail"].startswith("invalid node_id: ")
        assert len(response.content) < 1000


@pytest.mark.parametrize("name", ["x" * 100_000, "../../etc/passwd", "", "Values_", "_value", "Values.value", "\n"])
async def test_a_name_that_makes_no_sense_names_no_tool(node, name):
    detail = await node.detail(name, 404)
    assert detail.startswith(f"The tool {name[:200]} is not found! ")
    assert len(detail) < 2000


async def test_thousands_of_names_are_answered_but_not_any_number(node):
    names = [f"name_{n}" for n in range(20_000)]
    assert (await node.answer("/get_json_schema_for_tools", names))["missing_tools"] == names
    assert (await node.answer("/get_json_schema_for_envs", names))["missing_envs"] == names
    for path in ("/get_json_schema_for_tools", "/get_json_schema_for_envs"):
        response = await node.post(path, json=["x"] * 50_001)
        assert response.status_code == 422
        assert "at most 50000 names" in response.json()["detail"][0]["msg"]


async def test_what_is_not_there_is_not_told_at_full_length(served):
    async with Node(served.url) as node:
        for body in ({"environment": "x" * 10**6}, {"environment": "toolbox", "split": "x" * 10**6, "index": 0}):
            response = await node.post("/get_cookies", json=body)
            assert response.status_code in (400, 404), response.text[:200]
            assert len(response.content) < 1000


@pytest.mark.parametrize("question", ["", " ", "\x00", "a " * 100_000, "🙂" * 1000, "' OR 1=1 --", ".*("])
async def test_any_text_is_a_question(node, question):
    found = await node.answer("/retrieving_tools", {"question": question, "top_k": 10**9})
    assert len(found["retrieved_tools"]) == len(found["tools_json"])


@pytest.mark.parametrize("path", ["a\x00b", "\x00", "a" * 300, "a/" * 2000 + "b", ".", "/", "", "..", "~", "-rf"])
async def test_odd_paths_get_an_answer(node, path):
    for tool, more in (("read_from_file", {}), ("write_to_file", {"content": "x"})):
        response = await node.asked(f"FileSystemEnv_{tool}", filepath=path, **more)
        assert response.status_code in (200, 500)
    response = await node.post("/download_file", json={"file_path": path})
    assert response.status_code in (200, 400, 404, 422)
