"""`mcp_interface`, against real MCP servers of the official SDK, behind one gateway address."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import math
import re
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from tests.tools.acting import Trainer
from tests.tools.loopback import serving
from tests.tools.mcp_gateway import PIXEL, Gateway
from tests.wires.wire import until
from toolyard.core.errors import DefinitionError
from toolyard.testing import Running, running
from toolyard.tools import mcp_connection, mcp_interface, mcp_resources
from toolyard.tools.mcp_interface import McpForm

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def gateway() -> Gateway:
    return Gateway()


@pytest.fixture(scope="module")
def address(gateway: Gateway) -> Iterator[str]:
    with serving(gateway.app) as url:
        yield url


@pytest.fixture(scope="module")
def yard(address: str) -> Iterator[Running]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MCP_GATEWAY_ADDRESS", address + "/")
        with running([], tools="mcp_interface,python_code") as server:
            yield server


@pytest.fixture
async def trainer(yard: Running) -> AsyncIterator[Trainer]:
    async with Trainer(yard.url) as client:
        yield client


def call(name: str, tag: str = "tool_call", **more: Any) -> str:
    return f"I ask. <{tag}>{json.dumps({'name': name, **more})}</{tag}>"


def wrapped(text: str) -> str:
    return f"\n<mcp_response>\n```result\n{text}\n```\n</mcp_response>\n"


def unwrapped(text: str) -> str:
    before, after = wrapped("|").split("|")
    assert text.startswith(before)
    assert text.endswith(after)
    return text.removeprefix(before).removesuffix(after)


ADD = {"arguments": {"a": 2, "b": 3}, "server": "math"}


@pytest.mark.parametrize(
    "text",
    [
        call("add", **ADD),
        call("add", tag="mcp_call", **ADD),
        call("add", arguments='{"a": 2, "b": 3}', server_name="math"),
        call("add", arguments={"a": 2, "b": 3}, server_label="math"),
        json.dumps({"tool": "add", **ADD}),
        json.dumps({"thought": "hm", "action": {"tool": "add", **ADD}}),
    ],
)
async def test_a_tool_of_a_server_is_called_however_the_call_is_written(trainer, text):
    assert await trainer.act(text) == (wrapped("5"), False, True)


@pytest.mark.parametrize(
    "text", ["", "add 2 and 3", "<tool_call>{}</tool_call>", "<tool_call>add</tool_call>", '{"tool": "add"}', "[1]"]
)
async def test_text_that_calls_nothing_is_no_action(trainer, text):
    assert await trainer.act(text) == ("", False, False)


async def test_other_tools_are_asked_first_also_when_they_are_called_as_json(trainer):
    assert "\n7\n" in (await trainer.act("<python>print(3 + 4)</python>")).text
    seen = await trainer.act(call("python_code", arguments={"code": "print(3 + 4)"}))
    assert seen.text == "\n<tool_response>\n```result\n7\n```\n</tool_response>\n"


async def test_the_server_is_the_only_one_that_the_task_allows(trainer):
    seen = await trainer.act(call("add", arguments={"a": 1, "b": 1}), mcp_servers=["math"])
    assert seen == (wrapped("2"), False, True)
    seen = await trainer.act(call("upper", arguments={"text": "x"}), mcp_servers=[{"name": "text", "url": "elsewhere"}])
    assert seen == (wrapped("X"), False, True)


async def test_the_server_is_found_by_the_tools_that_it_has(trainer):
    seen = await trainer.act(call("upper", arguments={"text": "found"}), mcp_servers=["math", {"name": "text"}])
    assert seen == (wrapped("FOUND"), False, True)


async def test_the_server_is_the_default_one(trainer, monkeypatch):
    monkeypatch.setenv("MCP_DEFAULT_SERVER", "text")
    assert (await trainer.act(call("upper", arguments={"text": "x"}))).text == wrapped("X")


async def test_the_server_is_one_that_the_trajectory_has_used(trainer):
    await trainer.act(call("add", **ADD), "used")
    assert (await trainer.act(call("add", arguments={"a": 4, "b": 4}), "used")).text == wrapped("8")


@pytest.mark.parametrize(
    ("asked", "extra", "problem"),
    [
        ({}, {}, "No MCP servers configured for this task."),
        ({}, {"use_specified_server": True}, "No MCP servers configured for this task."),
        ({"server": "text"}, {"mcp_servers": ["math"]}, "Server 'text' not allowed for this task. Allowed: ['math']"),
        ({"server": "text"}, {"use_specified_server": True}, "Server 'text' not allowed for this task. Allowed: []"),
        (
            {},
            {"mcp_servers": ["text", "math"]},
            "Tool 'same' is available on multiple servers ['math', 'text']; please specify which one to use.",
        ),
        ({"server": "../admin"}, {}, "Server '../admin' cannot be a server: a name has letters, digits, ., _ and -"),
    ],
)
async def test_when_it_is_unclear_who_is_to_be_asked_the_trajectory_ends(trainer, asked, extra, problem):
    seen = await trainer.act(call("same", arguments={"text": "x"}, **asked), **extra)
    assert seen == ({"obs": "", "error": problem, "tool": "same"}, True, False)


async def test_a_tool_that_no_server_has_is_not_guessed(trainer):
    seen = await trainer.act(call("fly"), mcp_servers=["text", "math"])
    assert seen.observation["error"] == "Unable to locate tool 'fly'. Specify one of the servers: ['math', 'text']"
    assert (seen.done, seen.valid) == (True, False)


async def test_a_tool_that_may_be_of_a_server_that_does_not_answer_costs_the_agent_no_reward(trainer):
    problem = (await trainer.act(call("fly"), mcp_servers=["math", "nosuch"])).why_lost()
    assert "which MCP server has the tool 'fly'? nosuch did not answer" in problem
    seen = await trainer.act(call("add", arguments={"a": 1, "b": 1}), mcp_servers=["math", "nosuch"])
    assert seen == (wrapped("2"), False, True)


async def test_what_the_server_says_went_wrong_is_for_the_model(trainer):
    assert (await trainer.act(call("boom", server="math"))).text == wrapped("Error executing tool boom")
    seen = await trainer.act(call("add", arguments={"a": "many"}, server="math"))
    assert seen.text.startswith("\n<mcp_response>\n```result\n")
    assert (seen.done, seen.valid) == (False, True)
    seen = await trainer.act(call("fly", server="math"))
    assert "fly" in unwrapped(seen.text)
    assert (seen.done, seen.valid) == (False, True)


async def test_arguments_that_are_no_object_are_invalid(trainer):
    seen = await trainer.act(call("add", arguments="2 and 3", server="math"))
    assert "arguments" in seen.text
    assert (seen.done, seen.valid) == (False, False)


async def test_a_server_that_does_not_exist_is_an_error_that_says_so(trainer):
    seen = await trainer.act(call("add", arguments={}, server="nobody"))
    error = json.loads(unwrapped(seen.text))
    assert error.keys() == {"error", "error_type", "server", "tool"}
    assert (error["error_type"], error["server"], error["tool"]) == ("HTTPStatusError", "nobody", "add")
    assert "404" in error["error"]
    assert (seen.done, seen.valid) == (False, True)


async def test_a_server_that_the_trainer_named_and_the_gateway_does_not_have_costs_the_agent_no_reward(trainer):
    problem = (await trainer.act(call("add", arguments={}), mcp_servers=["nobody"])).why_lost()
    assert "the MCP server 'nobody' failed: " in problem
    assert "404" in problem


async def test_a_host_that_only_the_agent_has_named_is_its_mistake_and_one_of_the_trainer_is_not(trainer, monkeypatch):
    monkeypatch.setenv("MCP_GATEWAY_ADDRESS", "http://{server}.invalid/mcp")
    seen = await trainer.act(call("add", **ADD))
    assert json.loads(unwrapped(seen.text))["error_type"] == "ConnectError"
    assert (seen.done, seen.valid) == (False, True)
    assert "'math' failed" in (await trainer.act(call("add", **ADD), mcp_servers=["math"])).why_lost()


async def test_a_gateway_that_is_not_there_costs_the_agent_no_reward(trainer, monkeypatch):
    monkeypatch.setenv("MCP_GATEWAY_ADDRESS", "http://127.0.0.1:9")
    problem = (await trainer.act(call("add", **ADD))).why_lost()
    assert (
        problem == "Tool 'mcp_interface' could not be run: the MCP server 'math' failed: All connection attempts failed"
    )
    async with trainer.session(mcp_servers=["math"]) as sid:
        answer = await trainer.call(sid, "mcp_interface", {"name": "add", "arguments": {}}, env="toolbox")
        assert answer.error == problem


@pytest.mark.parametrize("status", [500, 502, 503, 429, 401])
async def test_a_gateway_that_answers_with_trouble_of_its_own_costs_the_agent_no_reward(trainer, monkeypatch, status):
    with serving(PlainTextResponse("no", status)) as url:
        monkeypatch.setenv("MCP_GATEWAY_ADDRESS", url)
        assert str(status) in (await trainer.act(call("add", **ADD))).why_lost()


async def test_a_server_that_takes_connections_and_says_nothing_is_given_up(trainer, monkeypatch):
    monkeypatch.setattr(mcp_connection, "CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setenv("MCP_GATEWAY_ADDRESS", f"http://127.0.0.1:{silent.getsockname()[1]}")
        problem = (await trainer.act(call("add", **ADD))).why_lost()
    assert problem.endswith("the MCP server 'math' failed: it could not be connected to within 0.5 seconds")


async def test_a_call_that_takes_too_long_is_given_up_and_the_next_one_works(trainer, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(mcp_interface, "SECONDS", 1)
        problem = (await trainer.act(call("sleep", server="math"), "slow")).why_lost()
    assert problem.endswith("the MCP server 'math' failed: it took longer than 1 seconds")
    assert (await trainer.act(call("add", **ADD), "slow")).text == wrapped("5")


@pytest.mark.parametrize("way", ["", "/{server}/mcp"])
async def test_arguments_that_cannot_be_sent_are_no_failure_of_the_server(trainer, address, monkeypatch, way):
    """An agent must not be able to imitate a server that is down."""
    monkeypatch.setenv("MCP_GATEWAY_ADDRESS", address + way)
    for arguments in ({"text": "\ud800"}, {"text": math.nan}, {"uri": "\ud800"}, {"uri": "::"}):
        for name in ("same", "mcp.read_resource", "\ud800"):
            seen = await trainer.act(call(name, arguments=arguments, server="text"))
            assert not (isinstance(seen.observation, dict) and seen.observation.get("retryable")), seen


async def test_long_results_are_cut(trainer):
    seen = await trainer.act(call("same", arguments={"text": "x" * 30_000}, server="math"))
    assert unwrapped(seen.text) == "x" * 20_000 + "\n... (truncated)"


async def test_tools_and_resources_can_be_listed(trainer):
    listed = unwrapped((await trainer.act(call("mcp.list_tools", server="math"))).text)
    assert listed.startswith("Available tools:\n- add: Add two numbers.\n- same: Say the same.\n- boom: Fail.")
    listed = unwrapped((await trainer.act(call("mcp.list_resources", server="math"))).text)
    assert listed == "Available resources:\n- notes://today: What is to be done."
    assert unwrapped((await trainer.act(call("mcp.sing", server="math"))).text) == "Unknown mcp helper: mcp.sing"


async def test_pictures_come_as_pictures_if_the_trainer_reads_them(trainer):
    seen = await trainer.act(call("draw", server="math"))
    assert seen.observation == wrapped("ab")
    seen = await trainer.act(call("draw", server="math"), images=[])
    assert seen.observation == {
        "obs": wrapped("ab"),
        "image": f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}",
    }


async def test_beside_a_lone_picture_there_is_a_line_of_text(trainer):
    seen = await trainer.act(call("sketch", server="text"))
    assert seen.observation == wrapped("[an image: image/png]")


PICTURE = f"data:image/png;base64,{base64.b64encode(PIXEL).decode()}"
BITS = "[notes://bits: application/octet-stream, about 3 bytes that are not shown]"


async def test_a_link_to_a_resource_keeps_its_address_and_says_how_to_read_it(trainer):
    seen = await trainer.act(call("point", server="text"), images=[])
    link = "[resource notes://long: long, text/plain; mcp.read_resource reads it]"
    assert seen.observation == {"obs": wrapped(f"see {link}{BITS}"), "image": PICTURE}


async def test_a_resource_is_read_by_its_address_on_the_connection_of_its_server(trainer, gateway):
    async def read(uri: Any, **more: Any) -> Any:
        asked = call("mcp.read_resource", arguments={"uri": uri}, server="text")
        return await trainer.act(asked, "reads-resources", **more)

    before = gateway.opened["/text/sse"]
    assert unwrapped((await read("notes://long")).text) == "x" * 20_000 + "\n... (truncated)"
    assert unwrapped((await read("notes://bits")).text) == BITS
    seen = await read("notes://pixel", images=[])
    assert seen.observation == {"obs": wrapped("[notes://pixel: image/png]"), "image": PICTURE}
    assert "notes://nowhere" in unwrapped((await read("notes://nowhere")).text)
    for wrong in (None, 3, ""):
        assert "needs the argument uri" in unwrapped((await read(wrong)).text)
    assert gateway.opened["/text/sse"] == before + 1
    await trainer.finish("reads-resources")


async def test_pictures_of_a_resource_that_are_too_large_are_named_and_not_shown(trainer, monkeypatch):
    monkeypatch.setattr(mcp_resources, "PICTURES_MOST", 10)
    asked = call("mcp.read_resource", arguments={"uri": "notes://pixel"}, server="text")
    seen = await trainer.act(asked, images=[])
    assert re.fullmatch(r"\[notes://pixel: image/png, about \d+ bytes that are not shown\]", unwrapped(seen.text))


async def test_a_trajectory_keeps_one_connection_to_a_server_and_closes_it_in_the_end(trainer, gateway):
    opened, gone = gateway.opened["/text/sse"], gateway.gone["/text/sse"]
    for word in ("a", "b", "c"):
        action = call("upper", arguments={"text": word}, server="text")
        assert (await trainer.act(action, "kept")).text == wrapped(word.upper())
    seen = await asyncio.gather(
        *(trainer.act(call("upper", arguments={"text": f"{i}"}, server="text"), "kept") for i in range(5))
    )
    assert [one.text for one in seen] == [wrapped(f"{i}") for i in range(5)]
    assert gateway.opened["/text/sse"] == opened + 1
    await trainer.finish("kept")
    await until(lambda: gateway.gone["/text/sse"] == gone + 1)


async def test_many_trajectories_at_once_each_get_their_own_answer(trainer):
    async def go(i: int) -> str:
        action = call("add", arguments={"a": i, "b": i}, server="math")
        text = (await trainer.act(action, f"many-{i}")).text
        await trainer.finish(f"many-{i}")
        return unwrapped(text)

    assert await asyncio.gather(*map(go, range(20))) == [f"{2 * i}" for i in range(20)]


@contextlib.contextmanager
def gateway_process(port: int) -> Iterator[None]:
    """A gateway that the test can kill."""
    process = subprocess.Popen([sys.executable, "-m", "tests.tools.mcp_gateway", f"{port}"])
    try:
        deadline = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", port)).close()
                break
            except OSError:
                assert time.monotonic() < deadline
                time.sleep(0.05)
        yield
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port: int = unused.getsockname()[1]
        return port


@pytest.mark.parametrize("way", ["", "/{server}/mcp"], ids=["sse", "streamable"])
async def test_after_a_lost_connection_the_next_call_makes_a_new_one(monkeypatch, tmp_path, way):
    port = free_port()
    monkeypatch.setenv("MCP_GATEWAY_ADDRESS", f"http://127.0.0.1:{port}{way}")
    with running([], tools="mcp_interface") as server:
        async with Trainer(server.url) as trainer:
            with gateway_process(port):
                assert (await trainer.act(call("add", **ADD), "t")).text == wrapped("5")
                slow = call("sleep", arguments={"mark": f"{tmp_path}/begun"}, server="math")
                waiting = asyncio.ensure_future(trainer.act(slow, "t"))
                await until((tmp_path / "begun").exists)
            assert (await waiting).why_lost().endswith("the MCP server 'math' failed: Connection closed")
            absent = await trainer.act(call("add", **ADD), "t")
            assert absent.why_lost().endswith("the MCP server 'math' failed: All connection attempts failed")
            with gateway_process(port):
                assert (await trainer.act(call("add", **ADD), "t")).text == wrapped("5")
                await trainer.finish("t")


async def test_streamable_http_is_spoken_where_the_address_says_so(address, monkeypatch):
    monkeypatch.setenv("MCP_GATEWAY_ADDRESS", address + "/{server}/mcp")
    with running([], tools="mcp_interface") as server:
        async with Trainer(server.url) as trainer:
            for _ in range(2):
                assert (await trainer.act(call("add", **ADD), "t")).text == wrapped("5")
            listed = unwrapped((await trainer.act(call("mcp.list_tools", server="text"), "t")).text)
            assert listed.startswith("Available tools:\n- upper: In capitals.")
            seen = await trainer.act(call("add", arguments={}, server="nobody"), "t")
            assert json.loads(unwrapped(seen.text))["server"] == "nobody"
            await trainer.finish("t")


async def test_it_is_a_tool_over_ors(trainer):
    tools = (await trainer.get("/toolbox/tools")).json()["tools"]
    tool = next(tool for tool in tools if tool["name"] == "mcp_interface")
    assert [*tool["input_schema"]["properties"]] == ["name", "arguments", "server"]
    async with trainer.session(mcp_servers=["math"]) as sid:
        answer = await trainer.call(sid, "mcp_interface", {"name": "add", "arguments": {"a": 1, "b": 2}}, env="toolbox")
        assert answer.text == "3"
        answer = await trainer.call(sid, "mcp_interface", {"name": "draw"}, env="toolbox")
        assert [block["type"] for block in answer.output["blocks"]] == ["text", "image"]
        answer = await trainer.call(sid, "mcp_interface", {"name": "upper", "server": "text"}, env="toolbox")
        assert answer.text == "Server 'text' not allowed for this task. Allowed: ['math']"


def test_without_a_gateway_the_tool_is_not_served(monkeypatch):
    monkeypatch.delenv("MCP_GATEWAY_ADDRESS", raising=False)
    refused = "the tool 'mcp_interface' cannot be used here: MCP_GATEWAY_ADDRESS is not set"
    with pytest.raises(DefinitionError, match=refused), running([], tools="mcp_interface"):
        pass


def test_without_the_sdk_the_tool_says_what_to_install():
    code = "import sys; sys.modules['mcp'] = None\n"
    code += "from toolyard.tools.mcp_interface import McpInterface; print(McpInterface.missing())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "the MCP SDK is not installed: pip install 'toolyard[mcp]'\n"


def test_the_first_call_of_a_text_counts():
    text = call("a", server="x") + call("b", server="y")
    assert McpForm().read(text) == {"name": "a", "arguments": {}, "server": "x"}


def test_the_cause_of_a_group_is_its_first_error():
    inner = ValueError("x")
    assert mcp_connection.cause(ExceptionGroup("a", [ExceptionGroup("b", [inner, OSError()])])) is inner
