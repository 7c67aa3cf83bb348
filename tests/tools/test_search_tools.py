"""`search_tools`: an agent finds its tools, listed or not, over any wire."""

from __future__ import annotations

import json
import time

import pytest

from toolyard import Client, Toolset, tool
from toolyard.core.tool import ListToolsOutput, ToolSpec
from toolyard.sandboxes import Provider
from toolyard.testing import running
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.search_tools import TOP_MOST, SearchTools
from toolyard.tools.tool_maker import ToolMaker

pytestmark = pytest.mark.anyio

TRACK = ToolSpec(
    name="rapi_parcel_post_track",
    description="Where a shipment is.",
    input_schema={"type": "object", "properties": {"number": {"type": "string"}}},
)


class FilesEnv(Toolset):
    prefixed = True

    @tool
    def read_from_file(self, filepath: str) -> str:
        """Read a text file of the workspace."""
        return filepath

    @tool
    def write_to_file(self, filepath: str) -> str:
        """Write a text file of the workspace."""
        return filepath


class Post(Toolset):
    catalogue = {TRACK.name: TRACK} | {
        f"rapi_colour_{at}": ToolSpec(name=f"rapi_colour_{at}", description="Mixes paint.", input_schema=None)
        for at in range(3000)
    }

    def call_task_tool(self, name: str, arguments: object) -> str:
        return name


class Searchers(ToolsEnvironment):
    toolsets = (FilesEnv, Post, SearchTools, ToolMaker)

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="grade", description="Grade an essay.", input_schema=None)])

    def call_task_tool(self, name: str, arguments: object) -> str:
        return "A"


async def test_listed_and_hidden_tools_are_found_with_all_that_is_needed_to_call_them():
    search = SearchTools(Searchers()).search_tools
    found = await search("read a file")
    assert found[0] == {
        "name": "read_from_file",
        "description": "Read a text file of the workspace.",
        "parameters": Searchers._definition.tools["read_from_file"].spec.input_schema,
    }
    assert found[1]["name"] == "write_to_file"
    assert await search("track my shipment", 1) == [
        {"name": TRACK.name, "description": TRACK.description, "parameters": TRACK.input_schema}
    ]


async def test_a_tool_can_be_asked_for_by_the_name_that_another_wire_has_for_it():
    assert (await SearchTools(Searchers()).search_tools("FilesEnv_write_to_file", 1))[0]["name"] == "write_to_file"


async def test_it_does_not_find_itself_and_finds_no_more_than_it_is_asked_for():
    search = SearchTools(Searchers()).search_tools
    assert "search_tools" not in [one["name"] for one in await search("search tools: find the tools that do something")]
    assert len(await search("paint", 7)) == 7
    assert len(await search("paint", 10**6)) == TOP_MOST
    assert await search("paint", 0) == await search("paint", -1) == await search("") == []


async def test_tools_that_only_this_session_has_are_found_too():
    async with Provider("subprocess", "L0"):
        env = Searchers()
        maker = ToolMaker(env)
        code = '@toolwrapper()\ndef knit(): "Knit a scarf of wool."'
        await maker.register_new_tool("knit", code)
        search = SearchTools(env).search_tools
        assert [one["name"] for one in await search("knit a scarf")] == ["knit"]
        assert (await search("grade this essay"))[0]["name"] == "grade"
        assert [one["name"] for one in await SearchTools(Searchers()).search_tools("knit a scarf")] == []
        await maker.teardown()


async def test_the_index_is_made_once_for_all_sessions():
    await SearchTools(Searchers()).search_tools("paint")
    began = time.process_time()
    for _ in range(20):
        await SearchTools(Searchers()).search_tools("track my shipment")
    assert time.process_time() - began < 1


def test_over_ors_an_agent_calls_what_it_has_found():
    with (
        running([Searchers]) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        assert TRACK.name not in [spec.name for spec in session.list_tools()]
        (found,) = json.loads(session.call_tool("search_tools", {"question": "my shipment", "top_k": 1}).text)
        assert session.call_tool(found["name"], {"number": "7"}).text == TRACK.name
