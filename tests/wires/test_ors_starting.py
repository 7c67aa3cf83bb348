"""ORS, while setup() still runs: what answers at once, and what waits. And what OpenReward's clients get."""

from __future__ import annotations

import base64

import anyio
import pytest

from tests.wires.wire import Answer, H, Wire, call_body
from toolyard import Environment, ListToolsOutput, ToolError, Toolset, ToolSpec, tool
from toolyard.testing import running

pytestmark = pytest.mark.anyio
anywhere = pytest.mark.parametrize("placement", ["local", "process", "pool"])

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Box(Toolset):
    @tool
    async def pack(self) -> str:
        """Pack."""
        return "packed"


class Waits(Environment):
    """Its setup() waits for a file; its tools are known before."""

    toolsets = [Box]

    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    async def setup(self):
        while not await anyio.Path(self.task_spec["until"]).exists():
            await anyio.sleep(0.01)
        if self.task_spec.get("breaks"):
            raise ValueError("no luck")
        self.made = ["made"]

    def get_prompt(self):
        return "go"

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"

    @tool(shared=False)
    async def peek(self) -> str:
        """Peek."""
        return "peeked"

    @tool
    async def fail(self) -> str:
        """Fail."""
        raise ToolError("not today")

    @tool
    async def draw(self) -> bytes:
        """Draw."""
        return PIXEL


class Makes(Waits):
    """It makes its tools in setup()."""

    def list_task_tools(self):
        return ListToolsOutput(tools=[ToolSpec(name=name, description="", input_schema=None) for name in self.made])


def names(response):
    assert response.status_code == 200, response.text
    return [spec["name"] for spec in response.json()["tools"]]


@anywhere
async def test_tools_that_need_no_setup_are_listed_before_it_is_over(tmp_path, placement):
    gate = tmp_path / "gate"
    with running([Waits], placement=placement) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"until": str(gate)})
            early = await wire.get("/waits/task_tools", headers=H(sid))
            gate.touch()
            assert (await wire.get("/waits/prompt", headers=H(sid))).json()[0]["text"] == "go"
            late = await wire.get("/waits/task_tools", headers=H(sid))
    assert sorted(names(early)) == ["draw", "fail", "look", "pack", "peek"]
    assert early.json() == late.json(), "and they are the same ones"


@anywhere
async def test_tools_that_setup_makes_are_listed_when_it_has_made_them(tmp_path, placement):
    gate = tmp_path / "gate"
    with running([Makes], placement=placement) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"until": str(gate)})
            with anyio.move_on_after(0.3) as waited:
                await wire.get("/makes/task_tools", headers=H(sid))
            assert waited.cancelled_caught
            gate.touch()
            assert "made" in names(await wire.get("/makes/task_tools", headers=H(sid)))


async def test_tools_of_a_session_whose_setup_failed_are_not_listed(tmp_path):
    gate = tmp_path / "gate"
    with running([Waits]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"until": str(gate), "breaks": True})
            gate.touch()
            assert (await wire.get("/waits/prompt", headers=H(sid))).status_code == 500
            response = await wire.get("/waits/task_tools", headers=H(sid))
            assert (response.status_code, response.json()["detail"]) == (500, "ValueError: no luck")


async def test_starting_seconds_are_about_what_waits_for_setup(tmp_path):
    gate = tmp_path / "gate"
    with running([Waits, Makes], starting_seconds=0.2) as server:
        async with Wire(server.url) as wire:
            known = await wire.open(task_spec={"until": str(gate)}, env_name="waits")
            made = await wire.open(task_spec={"until": str(gate)}, env_name="makes")
            assert "look" in names(await wire.get("/waits/task_tools", headers=H(known)))
            assert (await wire.get("/makes/task_tools", headers=H(made))).status_code == 503


OPENREWARD = [{"User-Agent": "openreward-sdk/0.1.167"}, {"User-Agent": "a proxy", "X-Deployment": "me/waits"}]
OTHERS = [{"User-Agent": "ors-sdk/0.1.0"}, {"User-Agent": "toolyard/0.1.0"}]


async def told(wire, sid, name, headers):
    return Answer.of(await wire.post("/waits/call", headers={**H(sid), **headers}, json=call_body(name))).result


@pytest.mark.parametrize("headers", OPENREWARD)
async def test_openrewards_clients_read_a_tool_error_as_an_output_without_a_reward(tmp_path, headers):
    with running([Waits]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"until": str(tmp_path)})
            failed, drawn = await told(wire, sid, "fail", headers), await told(wire, sid, "draw", headers)
            unknown = await told(wire, sid, "nope", headers)
    block = {"text": "Tool 'fail' failed: not today", "detail": None, "type": "text"}
    output = {"blocks": [block], "metadata": {"reason": "tool_failed"}, "reward": None, "finished": False}
    assert failed == {"ok": True, "output": output}
    assert [block.get("text") for block in drawn["output"]["blocks"]] == [None, "[an image: image/png]"]
    assert (unknown["ok"], unknown["reason"]) == (False, "not_found")


@pytest.mark.parametrize("headers", OTHERS)
async def test_other_clients_are_told_of_a_tool_error_as_the_documents_show(tmp_path, headers):
    with running([Waits]) as server:
        async with Wire(server.url) as wire:
            sid = await wire.open(task_spec={"until": str(tmp_path)})
            assert await told(wire, sid, "fail", headers) == {"ok": False, "error": "Tool 'fail' failed: not today"}
            assert len((await told(wire, sid, "draw", headers))["output"]["blocks"]) == 1
