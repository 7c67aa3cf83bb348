"""Tools that have nothing to say yet, and tools that only a session or a catalogue knows."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import pytest

from tests.runtime.test_runtime import runtime_of
from tests.worlds import OneTask
from toolyard import ListToolsOutput, ToolError, Toolset, ToolSpec, tool
from toolyard.core.errors import CallNotFound, DefinitionError
from toolyard.core.output import AskAgain
from toolyard.placement.base import SessionSpec, Task

pytestmark = pytest.mark.anyio

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


class Oven(OneTask):
    """Bakes; whoever asks before it is done is told to ask again."""

    def __init__(self, task_spec={}, secrets={}):
        super().__init__(task_spec, secrets)
        self.looked = 0

    @tool
    async def bake(self) -> str | AskAgain:
        return AskAgain("look", {"what": "bread"})

    @tool
    def bake_in_a_thread(self) -> str | AskAgain:
        return AskAgain("look", {"what": "cake"})

    @tool
    async def bake_slowly(self) -> str | AskAgain:
        await anyio.sleep(0.01)
        return AskAgain("look", {"what": "pie"})

    @tool
    async def look(self, what: str = "") -> str | AskAgain:
        self.looked += 1
        return AskAgain("look", {"what": what}) if self.looked % 3 else f"{what} is done"

    @tool(name="break")
    async def break_(self) -> str:
        raise ValueError("x" * 5000)

    @tool
    async def burn(self) -> str:
        raise ToolError("it is black", detail={"colour": "black"})


class Shelf(Toolset):
    """One tool that only the session knows, and two that are too many to list."""

    catalogue = {
        name: ToolSpec(name=name, description="Hidden.", input_schema=NUMBER) for name in ("hidden", "more_hidden")
    }

    def list_task_tools(self):
        return ListToolsOutput(tools=[ToolSpec(name="own", description="Of this session.", input_schema=None)])

    async def call_task_tool(self, name, arguments):
        return [name, arguments]


class Shop(Oven):
    toolsets = [Shelf]

    @tool
    async def sell(self) -> str:
        return "sold"


def of(environment) -> SessionSpec:
    return SessionSpec("s", environment, Task({}))


@pytest.mark.parametrize("name", ["bake", "bake_in_a_thread", "bake_slowly"])
async def test_a_call_goes_on_with_the_tool_that_will_know_until_there_is_a_result(name):
    expected = {"bake": "bread", "bake_in_a_thread": "cake", "bake_slowly": "pie"}[name] + " is done"
    async with runtime_of(Oven).running() as runtime:
        session = await runtime.open(of(Oven))
        assert (await session.start(name, {}).finished()) == expected
        assert session.running == runtime.calls == 0


async def test_a_client_who_can_ask_again_is_told_how_and_its_session_stays_free():
    async with runtime_of(Oven).running() as runtime:
        session = await runtime.open(of(Oven))
        assert session.start("bake", {}, follow=False).result == AskAgain("look", {"what": "bread"})
        assert session.start("look", {"what": "x"}, follow=False).result == AskAgain("look", {"what": "x"})
        slowly = session.start("bake_slowly", {}, follow=False)
        assert await slowly.finished() == AskAgain("look", {"what": "pie"})
        assert session.running == runtime.calls == 0


async def test_who_asks_while_another_call_runs_gets_a_ticket():
    async with runtime_of(Oven).running() as runtime:
        session = await runtime.open(of(Oven))
        running = session.start("bake_slowly", {})
        await anyio.lowlevel.checkpoint()
        tickets = [session.start(name, {}, follow=False) for name in ("bake", "bake_slowly")]
        assert await tickets[0].finished() == AskAgain("look", {"what": "bread"})
        assert not running.done
        assert await tickets[1].finished() == AskAgain("look", {"what": "pie"})
        assert (await running.finished()) == "pie is done"


async def test_what_was_raised_is_cut_even_if_the_tool_never_waited():
    async with runtime_of(Oven, output_bytes=1000).running() as runtime:
        session = await runtime.open(of(Oven))
        failure = session.start("break", {}).result
        assert failure.message.startswith("x" * 1000 + "\n[cut here")


async def test_a_call_that_is_kept_can_be_found_by_its_id_and_no_other():
    async with runtime_of(Oven).running() as runtime:
        session = await runtime.open(of(Oven))
        call = session.start("look", {})
        assert session.find(call.id) is call
        await call.finished()
        assert session.find(call.id) is call
        for unknown in ("", "never", call.id[:-1] + "x"):
            with pytest.raises(CallNotFound):
                session.find(unknown)


async def test_a_tool_says_what_is_wrong_in_words_and_for_programs():
    async with runtime_of(Oven).running() as runtime:
        session = await runtime.open(of(Oven))
        failure = await session.start("burn", {}).finished()
        assert (failure.reason, failure.message) == ("tool_failed", "Tool 'burn' failed: it is black")
        assert failure.said == {"colour": "black"}


async def test_a_toolset_may_have_tools_of_its_session_and_hidden_ones():
    async with runtime_of(Shop).running() as runtime:
        session = await runtime.open(of(Shop))
        placed = await session.ready()
        assert [one.name for one in (await placed.list_tools()).tools][-1] == "own"
        assert (await session.start("own", {}).finished()).value == ["own", {}]
        assert (await session.start("hidden", {"n": "7"}).finished()).value == ["hidden", {"n": 7}]
        assert (await session.start("hidden", {}).finished()).reason == "bad_arguments"
        assert (await session.start("unheard", {}).finished()).reason == "no_such_tool"
        assert await placed.has_tool("more_hidden")
        assert not await placed.has_tool("unheard")


def test_a_hidden_tool_cannot_be_called_as_one_that_is_there_already():
    with pytest.raises(DefinitionError, match=r"Shelf.catalogue: .*Twice has a tool 'hidden' already"):

        class Twice(Oven):
            toolsets = [Shelf]

            @tool
            async def hidden(self) -> str:
                return ""
