"""Long calls over the ToolServer's wire: answered when they end, or deferred, and never lost or repeated."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import anyio
import httpx2
import pytest

from tests.wires.toolserver_wire import Node
from tests.wires.wire import strict_json, until
from toolyard import ToolError, Toolset, tool
from toolyard.core.output import AskAgain
from toolyard.testing import Running, running
from toolyard.tools.environment import ToolsEnvironment

pytestmark = pytest.mark.anyio


class Gate(Toolset):
    prefixed = True

    def __init__(self, env) -> None:
        super().__init__(env)
        self.opened = asyncio.Event()
        self.passed = 0

    @tool(concurrent=True)
    async def go_through(self, how: str = "") -> str | AskAgain:
        await self.opened.wait()
        self.passed += 1
        match how:
            case "fall":
                raise ToolError("it fell")
            case "break":
                raise RuntimeError("it broke")
            case "again":
                return AskAgain("go_through", {"how": "well"})
            case "large":
                return "x" * 3000
        return "through"

    @tool(concurrent=True)
    async def open(self) -> str:
        self.opened.set()
        return "opened"

    @tool(concurrent=True)
    async def count(self) -> int:
        return self.passed


class Gated(ToolsEnvironment):
    toolsets = (Gate,)


@pytest.fixture(scope="module")
def served() -> Iterator[Running]:
    with running([Gated], toolserver_wait_seconds=0.2, output_bytes=2000) as server:
        yield server


@pytest.fixture(scope="module")
def patient() -> Iterator[Running]:
    with running([Gated], toolserver_wait_seconds=30, output_bytes=2000) as server:
        yield server


@pytest.fixture
async def node(served: Running) -> AsyncIterator[Node]:
    async for node in node_of(served):
        yield node


@pytest.fixture
async def patient_node(patient: Running) -> AsyncIterator[Node]:
    async for node in node_of(patient):
        yield node


async def node_of(served: Running) -> AsyncIterator[Node]:
    async with Node(served.url) as node:
        await node.cookie()
        yield node
        await node.post("/release_session")
    await until(lambda: not served.server.runtime.sessions)
    await until(lambda: not served.server.runtime.calls)


OUTCOMES = [
    ("well", 200, "through"),
    ("fall", 500, "it fell"),
    ("break", 500, "it broke"),
    ("again", 450, {"type": "retry", "next_calling": "Gate_go_through", "arguments": {"how": "well"}}),
]


@pytest.mark.parametrize(("how", "status", "told"), OUTCOMES)
async def test_what_ends_in_time_is_told_at_once(patient_node, how, status, told):
    node = patient_node
    async with anyio.create_task_group() as group:
        answers: list[httpx2.Response] = []

        async def ask() -> None:
            answers.append(await node.asked("Gate_go_through", how=how))

        group.start_soon(ask)
        await node.execute("Gate_open")
    answer = strict_json(answers[0].content)
    assert (answers[0].status_code, answer if status == 200 else answer["detail"]) == (status, told)
    assert await node.execute("Gate_count") == 1


@pytest.mark.parametrize(("how", "status", "told"), OUTCOMES)
async def test_what_takes_longer_is_told_to_who_comes_back(node, how, status, told):
    detail = await node.detail("Gate_go_through", 450, how=how)
    assert detail["next_calling"] == "wait_for_call"
    await node.execute("Gate_open")
    response = await node.asked(detail["next_calling"], **detail["arguments"])
    answer = strict_json(response.content)
    assert (response.status_code, answer if status == 200 else answer["detail"]) == (status, told)
    assert await node.execute("Gate_count") == 1


async def test_a_result_that_is_too_large_is_cut_whenever_it_comes(node):
    detail = await node.detail("Gate_go_through", 450, how="large")
    await node.execute("Gate_open")
    late = await node.execute(detail["next_calling"], **detail["arguments"])
    in_time = await node.execute("Gate_go_through", how="large")
    for told in (late, in_time):
        parts = [told] if isinstance(told, str) else told["data"]
        assert "[cut here: 3,000 characters" in str(parts)


async def test_a_call_goes_on_when_its_client_hangs_up(node):
    with pytest.raises(httpx2.ReadTimeout):
        await node.post("/execute_tool", json={"tool_name": "Gate_go_through", "arguments": {}}, timeout=0.05)
    await node.execute("Gate_open")
    with anyio.fail_after(5):
        while await node.execute("Gate_count") == 0:
            await anyio.sleep(0.01)


async def test_one_connection_is_enough_to_go_on_with_a_call(node, served):
    reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(served.url).port)

    async def ask(name: str, arguments: object) -> tuple[str, object]:
        body = json.dumps({"tool_name": name, "arguments": arguments})
        head = f"POST /execute_tool HTTP/1.1\r\nHost: localhost\r\nCookie: node_id={node.node_id}\r\n"
        head += f"Content-Length: {len(body)}"
        writer.write(f"{head}\r\n\r\n{body}".encode())
        answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
        length = int(answered.partition("content-length: ")[2].partition("\r\n")[0])
        return answered.split()[1], json.loads(await reader.readexactly(length))

    status, put_off = await ask("Gate_go_through", {})
    assert status == "450"
    assert await ask("Gate_open", {}) == ("200", "opened")
    assert await ask(put_off["detail"]["next_calling"], put_off["detail"]["arguments"]) == ("200", "through")
    assert await ask("Gate_count", {}) == ("200", 1)
    writer.close()


async def test_a_server_that_stops_does_not_wait_for_a_call_that_it_put_off():
    with running([Gated], toolserver_wait_seconds=0.05, drain_seconds=0.1) as server:
        async with Node(server.url) as node:
            await node.cookie()
            await node.detail("Gate_go_through", 450)
            began = time.monotonic()
            await anyio.to_thread.run_sync(server.server.stop)
            await until(lambda: not server.server.runtime.sessions)
    assert time.monotonic() - began < 5
