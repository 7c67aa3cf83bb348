"""What a model reads of a call that it wrote wrong, on each wire, and what a program reads beside it."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import anyio.to_thread
import httpx2
import pytest
from pydantic import BaseModel, Field, field_validator

from tests.wires import mcp_wire
from tests.wires.agent_wire import Agent
from tests.wires.dialects import OpenEnv
from tests.wires.toolserver_wire import Node
from tests.wires.verl_wire import Trainer, call
from tests.wires.wire import H, Wire
from tests.worlds import OneTask
from toolyard import Client, Environment, ListToolsOutput, ToolSpec, tool
from toolyard.client import ToolCallFailed
from toolyard.core.tool import Given
from toolyard.testing import Running, running

pytestmark = pytest.mark.anyio

SEEDS = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["oak", "elm"]},
        "count": {"type": "integer", "minimum": 1},
        "where": {"$ref": "#/$defs/Place"},
    },
    "required": ["kind"],
    "additionalProperties": False,
    "$defs": {"Place": {"type": "object", "properties": {"rows": {"type": "array", "items": {"type": "integer"}}}}},
}


class Bed(BaseModel):
    rows: list[int] = []
    name: str | None = None

    @field_validator("rows")
    @classmethod
    def _even(cls, rows: list[int]) -> list[int]:
        if len(rows) % 2:
            raise ValueError("rows come in pairs")
        return rows


class Garden(OneTask):
    @classmethod
    def list_tasks(cls, split):
        return [{"secret": "the well"}]

    def list_task_tools(self):
        return ListToolsOutput(tools=[ToolSpec(name="sow", description="Sow.", input_schema=SEEDS)])

    def call_task_tool(self, name, arguments):
        return "sown"

    @tool
    def plant(self, count: int, colour: Literal["red", "blue"] = "red", deep: bool = False) -> str:
        """Plant."""
        return "planted"

    @tool
    def dig(self, bed: Bed, at: int | list[int], depth: Annotated[float, Field(gt=0, le=2)] = 1.0) -> str:
        """Dig."""
        return "dug"

    @tool
    def find(self, what: str, secret: Annotated[str, Given()] = "") -> str:
        """Find."""
        return "found"

    @tool
    def rest(self) -> str:
        """Rest."""
        return "rested"


@pytest.fixture(scope="module")
def server():
    with running([Garden]) as server:
        yield server


async def failure(server: Running, name: str, input: Any) -> dict[str, Any]:
    async with Wire(server.url) as wire:
        sid = await wire.open(env_name="garden", split="train", index=0)
        told = (await wire.call(sid, name, input, env="garden")).failure
        await wire.end(sid)
    return told


@pytest.mark.parametrize(
    ("name", "input", "said"),
    [
        (
            "plant",
            {"number": 3},
            "'count' is missing: it must be a whole number. 'number' is no argument of plant. plant takes count (a "
            'whole number), colour (one of "red", "blue", optional), deep (true or false, optional).',
        ),
        (
            "plant",
            {"cuont": 3},
            "'count' is missing: it must be a whole number. 'cuont' is no argument of plant; did you mean 'count'? "
            'plant takes count (a whole number), colour (one of "red", "blue", optional), deep (true or false, '
            "optional).",
        ),
        ("plant", {"count": "three"}, "'count' must be a whole number (given: \"three\")."),
        (
            "plant",
            {"count": 1.5, "colour": "green", "deep": [1]},
            '\'count\' must be a whole number (given: 1.5). \'colour\' must be one of "red", "blue" (given: "green"). '
            "'deep' must be true or false (given: [1]).",
        ),
        (
            "dig",
            {"bed": {"rows": [1, "two"], "name": 7}, "at": "here", "depth": 3},
            "'bed.rows[1]' must be a whole number (given: \"two\"). 'bed.name' must be a string or null (given: 7). "
            "'at' must be a whole number or a list, each item a whole number (given: \"here\"). 'depth' must be a "
            "number of at most 2 and greater than 0 (given: 3).",
        ),
        ("dig", {"bed": {"rows": [1]}, "at": 1}, "'bed.rows': rows come in pairs (given: [1])."),
        ("dig", {"bed": "x" * 500, "at": 1}, f"'bed' must be an object (given: \"{'x' * 99}… (500 characters))."),
        (
            "find",
            {"secret": "mine"},
            "'what' is missing: it must be a string. 'secret' is no argument of find. find takes what (a string).",
        ),
        (
            "sow",
            {"kind": "ash", "count": 0, "where": {"rows": [1, None]}},
            "'count' must be a whole number of at least 1 (given: 0). 'kind' must be one of \"oak\", \"elm\" (given: "
            "\"ash\"). 'where.rows[1]' must be a whole number (given: null).",
        ),
        (
            "sow",
            {"cuont": 2},
            "'kind' is missing: it must be one of \"oak\", \"elm\". 'cuont' is no argument of sow; did you mean "
            '\'count\'? sow takes kind (one of "oak", "elm"), count (a whole number of at least 1, optional), where '
            "(an object, optional).",
        ),
    ],
)
async def test_wrong_arguments_are_told_with_what_is_expected_and_what_was_given(server, name, input, said):
    told = await failure(server, name, input)
    assert told["error"].startswith("Tool input validation error: ")
    words = told["error"].removeprefix("Tool input validation error: ")
    assert sorted(words.split()) == sorted(said.split()), words  # validators have an order of their own
    assert told["reason"] == "input_validation"
    assert told["metadata"]["tool"] == name


async def test_a_program_reads_the_same_in_the_metadata(server):
    told = await failure(server, "plant", {"cuont": 3, "colour": "green"})
    assert told["metadata"] == {
        "tool": "plant",
        "errors": [
            {"field": "count", "problem": "missing", "expected": "a whole number"},
            {"field": "colour", "problem": "wrong", "expected": 'one of "red", "blue"', "given": '"green"'},
            {"field": "cuont", "problem": "unexpected", "expected": "", "given": "3", "did_you_mean": "count"},
        ],
    }


async def test_what_the_task_fills_in_is_in_no_message(server):
    for input in ({}, {"what": 3}, {"what": [], "secret": "mine"}):
        assert "the well" not in json.dumps(await failure(server, "find", input))


@pytest.mark.parametrize(
    "input",
    [
        {f"name_{n}": "x" * 10_000 for n in range(1_000)},
        {"count": json.loads("[" * 100 + "]" * 100)},
        {"count": ["x" * 2_000_000]},
    ],
    ids=["many", "deep", "long"],
)
async def test_words_and_metadata_are_bounded_whatever_the_model_wrote(server, input):
    told = await failure(server, "plant", input)
    assert told["error"].startswith("Tool input validation error: 'count' ")
    assert len(json.dumps(told)) < 12_000


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("plnat", "'plnat' is not a valid tool. Did you mean 'plant'? The tools are: plant, dig, find, rest, sow."),
        ("Dig", "'Dig' is not a valid tool. Did you mean 'dig'? The tools are: plant, dig, find, rest, sow."),
        ("setup", "'setup' is not a valid tool. The tools are: plant, dig, find, rest, sow."),
        (
            "garden_plant",
            "'garden_plant' is not a valid tool. Did you mean 'plant'? The tools are: plant, dig, find, rest, sow.",
        ),
    ],
)
async def test_an_unknown_tool_is_told_with_those_there_are(server, name, said):
    told = await failure(server, name, {})
    assert (told["error"], told["reason"]) == (said, "not_found")
    tools = ["plant", "dig", "find", "rest", "sow"]
    assert told["metadata"].items() >= {"tool": name, "tools": tools, "tools_total": 5}.items()


class Crowded(OneTask):
    locals().update({f"tool_{n}": tool(lambda self: "") for n in range(100)})


async def test_of_many_tools_only_some_are_named():
    with running([Crowded]) as server:
        async with Wire(server.url) as wire:
            told = (await wire.call(await wire.open(env_name="crowded"), "x" * 100_000, env="crowded")).failure
    assert "The tools are: tool_0, tool_1, " in told["error"]
    assert told["error"].endswith(", tool_29 and 70 more.")
    assert (len(told["error"]) < 5_000, told["metadata"]["tools_total"]) == (True, 100)


# The other wires, as their clients show it to a model.

WRONG = "Tool input validation error: 'count' must be a whole number (given: \"three\")."
UNKNOWN = "'plnat' is not a valid tool. Did you mean 'plant'? The tools are: plant, dig, find, rest, sow."


async def test_our_client_has_the_words_and_the_metadata(server):
    def play() -> list[tuple[str, str, Any]]:
        seen = []
        with Client(server.url) as client, client.environments.get("garden").session(split="train", index=0) as session:
            for name, input in (("plant", {"count": "three"}), ("plnat", {})):
                with pytest.raises(ToolCallFailed) as caught:
                    session.call_tool(name, input)
                seen.append((caught.value.reason, str(caught.value), caught.value.metadata))
        return seen

    wrong, unknown = await anyio.to_thread.run_sync(play)
    assert wrong[:2] == ("bad_arguments", WRONG)
    assert wrong[2]["errors"][0]["given"] == '"three"'
    assert unknown[:2] == ("no_such_tool", UNKNOWN)
    assert unknown[2]["did_you_mean"] == ["plant"]


async def test_a_trainer_of_verl_sees_the_words_as_the_observation(server):
    async with Trainer(server.url) as trainer:
        wrong = await trainer.act("m-1", call("plant", count="three"), {"environment": "garden"})
        unknown = await trainer.act("m-1", call("plnat"), {"environment": "garden"})
        await trainer.finish("m-1")
    assert WRONG in str(wrong.text)
    assert UNKNOWN in str(unknown.text)
    assert (wrong.done, wrong.valid) == (False, False)


async def test_xagents_client_shows_the_words_as_the_detail(server):
    async with Node(server.url) as node:
        await node.cookie()
        assert await node.detail("Garden_plant", 500, count="three") == WRONG
        assert await node.detail("Garden_plnat", 404) == (
            "The tool Garden_plnat is not found! Did you mean 'Garden_plant'? The tools are: Garden_sow, Garden_plant, "
            "Garden_dig, Garden_find, Garden_rest."
        )
        await node.post("/release_session")


async def test_a_client_of_mcp_gets_the_words_as_the_result_and_the_rest_in_meta(server):
    async with Wire(server.url) as wire:
        sid = await wire.open(env_name="garden", split="train", index=0)
        headers = {"Accept": mcp_wire.ACCEPT, "MCP-Protocol-Version": mcp_wire.HANDSHAKE}

        async def ask(name: str, **arguments: Any) -> httpx2.Response:
            params = {"name": name, "arguments": arguments}
            body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            return await wire.post(f"/mcp/s/{sid}", headers=headers, json=body)

        wrong = (await ask("plant", count="three")).json()["result"]
        unknown = (await ask("plnat")).json()["error"]
        await wire.end(sid)
    assert (wrong["isError"], wrong["content"]) == (True, [{"type": "text", "text": WRONG}])
    assert wrong["_meta"]["toolyard/failure"]["errors"][0]["field"] == "count"
    assert unknown["code"] == -32602
    assert (
        unknown["message"]
        == f"Unknown tool: plnat{UNKNOWN.removeprefix(chr(39) + 'plnat' + chr(39) + ' is not a valid tool')}"
    )
    assert unknown["data"]["did_you_mean"] == ["plant"]


async def test_an_agent_at_its_own_door_reads_the_words_and_no_metadata(server):
    async with Wire(server.url) as wire:
        sid = await wire.open(env_name="garden", split="train", index=0)
        token = (await wire.post("/garden/agent", headers=H(sid), json={})).json()["token"]
        async with Agent(server.url, token) as agent:
            assert (await agent.fails("plant", count="three"))["message"] == WRONG
            assert (await agent.fails("plnat"))["message"] == UNKNOWN
        await wire.end(sid)


async def test_a_client_of_openenv_reads_the_words_as_the_error_of_the_observation(server):
    async with OpenEnv(server.url) as player:
        await player.open("garden", {})
        wrong, unknown = await player.step("plant", count="three"), await player.step("plnat")
        await player.close()
    assert wrong.observation["error"] == {"error_type": "invalid_args", "message": WRONG}
    assert wrong.observation["metadata"]["errors"][0]["field"] == "count"
    assert unknown.observation["error"] == {"error_type": "tool_not_found", "message": UNKNOWN}


class Bare(Environment):
    @classmethod
    def list_splits(cls):
        return ["train"]

    @classmethod
    def list_tasks(cls, split):
        return [{}]

    def get_prompt(self):
        return ""

    def list_task_tools(self):
        return ListToolsOutput(tools=[])


async def test_where_there_is_no_tool_this_is_said():
    with running([Bare]) as server:
        async with Wire(server.url) as wire:
            told = (await wire.call(await wire.open(env_name="bare"), "look", env="bare")).failure
    assert told["error"] == "'look' is not a valid tool. There are no tools."
