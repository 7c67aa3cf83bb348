"""Tool names on the ToolServer's wire that several environments have, or that only one node knows."""

from __future__ import annotations

import pytest

from tests.wires.toolserver_wire import Described, Patience, Toolbox, node_of
from tests.worlds import OneTask
from toolyard import tool
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.tool_maker import ToolMaker

pytestmark = pytest.mark.anyio


class Namesake(OneTask):
    """Has a tool of the same name as one that only another environment's session has."""

    @tool
    async def only_here(self) -> str:
        return "not this one"


async def test_a_tool_of_the_nodes_own_is_not_taken_for_another_one_of_that_name() -> None:
    async with node_of(Toolbox, Namesake) as (node, _):
        assert await node.execute("only_here") == "not this one"  # while there is no other
        await node.execute("stand_alone")
        assert await node.execute("only_here") == "only_here ran"
        assert await node.execute("Namesake_only_here") == "not this one"
        (about,) = (await node.answer("/get_json_schema_for_tools", ["only_here"]))["tools_json"]
        assert about["description"] == "Of the session."


class Impatient(OneTask):
    toolsets = [Patience]


async def test_who_is_told_to_ask_again_asks_the_same_environment() -> None:
    async with node_of(Toolbox, Impatient, toolserver_wait_seconds=0.1) as (node, _):
        for name, next_one in (("Patience_begin", "Patience_end"), ("Impatient_begin", "Impatient_end")):
            detail = await node.detail(name, 450)
            assert detail["next_calling"] == next_one
            assert (await node.asked(next_one, **detail["arguments"])).status_code == 450
            assert await node.execute(next_one, **detail["arguments"]) == "done after 2"


async def test_tools_of_a_task_are_found_by_any_of_their_names_and_by_a_question() -> None:
    async with node_of(Toolbox, Described) as (node, _):
        await node.cookie({"environment": "described", "split": "train", "index": 0})
        for body in (
            {"tool_name": "Described_paint"},
            {"tool_name": "paint"},
            {"tool": "paint", "env_name": "Described"},
        ):
            response = await node.post("/execute_tool", json={**body, "arguments": {}})
            assert (response.status_code, response.json()) == (200, "paint ran"), body
        names = ["paint", "Described_paint"]
        assert (await node.answer("/get_json_schema_for_tools", names))["missing_tools"] == []
        found = await node.answer("/retrieving_tools", {"question": "paint the fence"})
        assert found["retrieved_tools"][0] == found["tools_json"][0]["name"] == "Described_paint"
        for name, world in (("alone", "stand"), ("paint", "Toolbox"), ("Described_paint", "Described")):
            response = await node.post("/execute_tool", json={"tool_name": name, "env_name": world, "arguments": {}})
            assert response.status_code == 404, (name, world)


class Makers(ToolsEnvironment):
    toolsets = [ToolMaker]

    @classmethod
    def name(cls) -> str:
        return "makers"


async def test_a_new_tool_cannot_have_the_name_of_one_of_another_environment() -> None:
    async with node_of(Toolbox, Makers) as (node, _):
        for name in ("stand_alone", "wait_for_call"):
            response = await node.post("/register_new_tool", json={"tool_name": name, "code": ""})
            assert response.status_code == 406
            assert "replicated" in response.json()["detail"]
