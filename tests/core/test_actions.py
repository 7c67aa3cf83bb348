"""From the text of a model to the call in it, and back to what follows the text."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated

import pytest

from toolyard import Environment, ToolOutput, tool
from toolyard.core.actions import actions_of, tool_call
from toolyard.core.environment import Toolset
from toolyard.core.errors import DefinitionError
from toolyard.core.forms import Plain, Tagged, fenced, tagged
from toolyard.core.tool import Given, ListToolsOutput, ToolSpec, terminal
from toolyard.tools.environment import toolbox

SEARCH = Tagged("search", "query", before="\n<information>", after="</information>\n")


@dataclass(frozen=True)
class Broken:
    shown: tuple[str, ...] = ()

    def read(self, text):
        raise RuntimeError("cannot read")

    def answer(self, text, result):
        return result


class World(Environment):
    """Tools of every way of writing."""

    @tool(form=SEARCH)
    async def find(self, query: str) -> str:
        """Find."""
        return query

    @tool
    async def add(self, a: int, b: int = 1) -> str:
        """Add."""
        return str(a + b)

    @tool
    async def say(self, text: str) -> str:
        """Say."""
        return text

    @tool
    async def look(self) -> str:
        """Look."""
        return "seen"

    @tool
    async def pick(self, which: list[int]) -> str:
        """Pick."""
        return str(which)


class Last(World):
    @terminal
    @tool
    async def submit(self, answer: str) -> ToolOutput:
        """Submit."""
        return ToolOutput(finished=True)


class OpenEnded(World):
    def list_task_tools(self):
        return ListToolsOutput(tools=[ToolSpec(name="dyn", description="", input_schema=None)])


def read(text: str, world: type[Environment] = World) -> tuple[str, dict] | None:
    action = actions_of(world).read(text)
    return action and (action[0], dict(action[1]))


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("I <search> cats </search> so", ("find", {"query": "cats"})),
        ("<search>a</search> then <search>b</search>", ("find", {"query": "b"})),
        ("<search></search>", ("find", {"query": ""})),
        ("<search>two\nlines</search>", ("find", {"query": "two\nlines"})),
        ("<search>never closed", None),
        ("<find>cats</find>", None),
        ("<Search>x</Search>", None),
        ("", None),
        ("plain", None),
        ('<tool_call>{"name": "find", "arguments": {"query": "q"}}</tool_call>', ("find", {"query": "q"})),
        ('<tool_call>{"name": "add", "arguments": "{\\"a\\": 1}"}</tool_call>', ("add", {"a": 1})),
        ('<tool_call>{"name": "look"}</tool_call>', ("look", {})),
        ('<tool_call>{"name": "look", "arguments": null}</tool_call>', ("look", {})),
        ('<tool_call>{"name": "nope"}</tool_call> <tool_call>{"name": "look"}</tool_call>', ("look", {})),
        ('<tool_call>{"name": "nope"}</tool_call>', None),
        ("<tool_call>not json</tool_call>", None),
        ("<tool_call>[1]</tool_call>", None),
        ('<tool_call>{"name": 7}</tool_call>', None),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', None),
        ('<add>{"a": 2, "b": 3}</add>', ("add", {"a": 2, "b": 3})),
        ("<add>2</add>", ("add", {"a": 2})),
        ("<add>two</add>", ("add", {"a": "two"})),
        ('<add>{"c": 2}</add>', ("add", {"a": {"c": 2}})),
        ("<say> 12 </say>", ("say", {"text": "12"})),
        ('<say>{"text": "12"}</say>', ("say", {"text": "12"})),
        ('<say>{"other": 1}</say>', ("say", {"text": '{"other": 1}'})),
        ("<look></look>", ("look", {})),
        ("<look>around</look>", ("look", {})),
        ("<pick>[1, 2]</pick>", ("pick", {"which": [1, 2]})),
        ("<say>a</say><look></look>", ("say", {"text": "a"})),
    ],
)
def test_the_call_in_a_text(text, meant):
    assert read(text) == meant


def test_a_tools_own_form_comes_before_json_and_json_before_its_name():
    json_call = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    assert read(f"<say>x</say>{json_call}<search>q</search>") == ("find", {"query": "q"})
    assert read(f"<say>x</say>{json_call}") == ("add", {"a": 1})


def test_the_last_message_goes_to_the_terminal_tool_only_if_it_calls_nothing():
    assert read("It is 42.", Last) == ("submit", {"answer": "It is 42."})
    assert read("<look></look>", Last) == ("look", {})
    assert read("  \n", Last) is None


def test_only_where_tasks_have_tools_of_their_own_an_unknown_name_is_a_call():
    text = '<tool_call>{"name": "dyn", "arguments": {"x": 1}}</tool_call>'
    assert read(text) is None
    assert read(text, OpenEnded) == ("dyn", {"x": 1})


def test_a_form_that_breaks_leaves_the_text_to_the_others(caplog):
    class Odd(Toolset):
        @tool(form=Broken())
        async def odd(self) -> str:
            """Odd."""
            return ""

        @tool(form=SEARCH)
        async def find(self, query: str) -> str:
            """Find."""
            return query

    assert read("<search>q</search>", toolbox([Odd])) == ("find", {"query": "q"})
    assert "the form of tool 'odd' could not read a text" in caplog.text


def test_forms_are_tried_in_the_order_of_the_toolsets():
    def one(name: str) -> type[Toolset]:
        class Same(Toolset):
            @tool(name=name, form=Tagged("x", "text"))
            async def same(self, text: str) -> str:
                """Same."""
                return text

        return Same

    first, second = one("first"), one("second")
    assert read("<x>1</x>", toolbox([first, second])) == ("first", {"text": "1"})
    assert read("<x>1</x>", toolbox([second, first])) == ("second", {"text": "1"})


def test_the_result_follows_the_text_as_the_form_has_it():
    def follows(text: str) -> str:
        action = actions_of(World).read(text)
        assert action is not None
        _, _, form, _ = action
        return form.answer(text, "R")

    assert follows("<search>q</search>") == "\n<information>R</information>\n"
    assert follows("<say>q</say>") == "\n<result>\nR\n</result>\n"
    assert follows('<tool_call>{"name": "look"}</tool_call>') == "\n<tool_response>\nR\n</tool_response>\n"


def test_a_deeply_nested_call_is_no_call_and_no_crash():
    deep = "[" * 100_000
    assert tool_call(deep) is None
    assert read(f"<tool_call>{deep}</tool_call>") is None
    assert read(f"<pick>{deep}</pick>") == ("pick", {"which": deep})


def test_tags_and_fences_are_found_without_greed():
    assert tagged("<a>1</a> <a>2</a>", "a") == ["1", "2"]
    assert tagged("<a.b>1</a.b><axb>2</axb>", "a.b") == ["1"]
    assert fenced("```py\n1\n``` ```python\n2\n```", "python") == ["\n2\n"]
    assert fenced("```\nsh\nls\n```", "bash", "sh") == ["\nls\n"]
    assert fenced("no fence", "py") == []
    assert Plain().read("<plain>x</plain>") is None


def test_a_parameter_that_may_not_be_given_needs_a_default():
    with pytest.raises(DefinitionError, match="'word' may not be given, so it needs a default"):

        class Wrong(Toolset):
            @tool
            async def wrong(self, word: Annotated[str, Given()]) -> str:
                """Wrong."""
                return word


def test_a_model_that_writes_one_tag_over_and_over_holds_nobody_up():
    began = time.perf_counter()
    assert tagged("<python>" * 100_000, "python") == []
    assert fenced("```python " + "``python " * 100_000, "python") == []
    assert len(tagged("<a></a>" * 100_000, "a")) == 100_000
    assert read("<search>" * 50_000 + "<tool_call>" * 50_000 + "<say>" * 50_000) is None
    assert time.perf_counter() - began < 2


def test_a_form_that_says_it_is_late_is_asked_after_all_others():
    @dataclass(frozen=True)
    class Late(Tagged):
        late = True

    class Two(Toolset):
        @tool(form=Late("say", "text"))
        async def everything(self, text: str) -> str:
            """Take everything."""
            return text

        @tool
        async def say(self, text: str) -> str:
            """Say."""
            return text

    assert read("<say>x</say>", toolbox([Two])) == ("say", {"text": "x"})
