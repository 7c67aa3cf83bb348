"""What @tool makes of a method, and what it refuses when the class is defined."""

from __future__ import annotations

import functools
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError

from toolyard import Environment, TextBlock, ToolOutput, Toolset, terminal, tool
from toolyard.core.errors import DefinitionError
from toolyard.core.tool import Given


class Params(BaseModel):
    answer: str = Field(description="Your answer")


class Nested(BaseModel):
    inner: Params
    more: list[int] = []


class Every(Environment):
    @tool
    def model(self, params: Params) -> ToolOutput:
        """Take a model, as ORS does."""
        return ToolOutput(blocks=[TextBlock(text=params.answer)])

    @tool
    def plain(self, a: int, b: float = 1.5, mode: Literal["x", "y"] = "x") -> str:
        """Add two numbers.

        Args:
            a: the first
            b: the second
        """
        return f"{a + b} {mode}"

    @tool(name="renamed", shared=False)
    async def other(self, deep: Nested, note: Annotated[str, Field(max_length=3)] = "") -> str:
        """Two parameters, one of them a model."""
        return deep.inner.answer + note

    @tool
    def nothing(self) -> None:
        pass

    @staticmethod
    @tool
    def static(x: int) -> str:
        """No self."""
        return str(x)


def tool_of(name):
    return Every._definition.tools[name]


def call(env, name, written, said={}, task={}):
    tool = env._definition.tools[name]
    positional, named = tool.fit(written, said, task)
    return tool.method_of(env)(*positional, **named)


def test_a_model_parameter_is_the_schema():
    spec = tool_of("model").spec
    assert spec.description == "Take a model, as ORS does."
    assert spec.input_schema == Params.model_json_schema()


def test_plain_parameters_make_a_schema_with_the_words_of_the_docstring():
    schema = tool_of("plain").spec.input_schema
    assert schema["required"] == ["a"]
    assert schema["properties"]["a"] == {"description": "the first", "title": "A", "type": "integer"}
    assert schema["properties"]["b"]["default"] == 1.5
    assert schema["properties"]["mode"]["enum"] == ["x", "y"]
    assert tool_of("plain").spec.description == "Add two numbers."


def test_a_tool_without_parameters_has_no_schema_and_ignores_what_it_is_given():
    assert tool_of("nothing").spec.input_schema is None
    assert call(Every(), "nothing", {"whatever": 1}) is None


def test_names_and_visibility_come_from_the_decorator():
    assert "renamed" in Every._definition.tools
    assert "other" not in Every._definition.tools
    assert [spec.name for spec in Every.list_tools().tools] == ["model", "plain", "nothing", "static"]


@pytest.mark.parametrize(
    ("name", "given", "answer"),
    [
        ("plain", {"a": "2", "b": "3"}, "5.0 x"),
        ("static", {"x": 3}, "3"),
    ],
)
def test_arguments_are_taken_as_leniently_as_pydantic_does(name, given, answer):
    assert call(Every(), name, given) == answer


def by_name_only(fn):
    @functools.wraps(fn)
    def wrapper(self, **named):
        return fn(self, **named)

    return wrapper


class Texts(Environment):
    @tool
    def two(self, a: str, b: str = "beta") -> str:
        return f"{a} {b}"

    @tool
    def odd(self, a: str, b: str = None) -> str:  # noqa: RUF013  # as people write
        return f"{a} {b}"

    @tool
    def limited(self, a: str = Field(max_length=3), b: str = Field("beta", pattern="^b")) -> str:
        return f"{a} {b}"

    @tool
    def named(self, *, a: str, b: str = "beta") -> str:
        return f"{a} {b}"

    @tool
    @by_name_only
    def wrapped(self, a: str, b: str = "beta") -> str:
        return f"{a} {b}"

    @tool
    def given(self, a: str, b: Annotated[str, Given()] = "beta", c: Annotated[str, Given(open=True)] = "gamma") -> str:
        return f"{a} {b} {c}"


def test_text_has_to_fit_what_a_field_in_the_place_of_a_default_says():
    assert call(Texts(), "limited", {"a": "1", "b": "b2"}) == "1 b2"
    assert call(Texts(), "limited", {"a": "1"}) == "1 beta"
    for wrong in ({}, {"a": "1234"}, {"a": "1", "b": "2"}):
        with pytest.raises(ValidationError):
            call(Texts(), "limited", wrong)


@pytest.mark.parametrize("name", ["two", "named", "wrapped"])
def test_text_reaches_the_parameter_of_its_name_however_the_method_takes_it(name):
    assert call(Texts(), name, {"b": "2", "a": "1"}) == "1 2"
    assert call(Texts(), name, {"a": "1"}) == "1 beta"
    assert call(Texts(), name, {"a": "1", "more": "x"}) == "1 beta"
    for wrong in ({}, {"b": "2"}, {"a": None}, {"a": 1}, {"a": "1", "b": None}):
        with pytest.raises(ValidationError):
            call(Texts(), name, wrong)


def test_a_default_that_is_no_text_is_left_alone():
    assert call(Texts(), "odd", {"a": "1"}) == "1 None"


@pytest.mark.parametrize(
    ("written", "said", "task", "answer"),
    [
        ({"a": "1"}, {}, {}, "1 beta gamma"),
        ({"a": "1"}, {"b": "2", "c": "3"}, {"b": "4"}, "1 2 3"),
        ({"a": "1"}, {}, {"b": "4", "c": "5"}, "1 4 5"),
        ({"a": "1"}, {"b": None}, {"b": "4"}, "1 beta gamma"),
        ({"a": "1", "b": "mine", "c": "mine"}, {"b": "2", "c": "3"}, {}, "1 2 mine"),
        ({"a": "1", "b": "mine"}, {}, {}, "1 beta gamma"),
    ],
)
def test_the_trainer_fills_in_what_is_his_and_the_model_only_what_is_open(written, said, task, answer):
    assert call(Texts(), "given", written, said, task) == answer


class Odd:
    pass


def broken(body, *, toolsets=(), bases=(Environment,)):
    return type("Broken", bases, {"toolsets": toolsets, **body})


def without_hint(self, x) -> str: ...
def with_rest(self, *args: int) -> str: ...
def with_keywords(self, **kwargs: int) -> str: ...
def generator(self):
    yield "x"


def two_fields(self, a: int, b: int) -> str: ...
def good(self, a: int) -> str: ...
def no_schema(self, a: Odd) -> str: ...


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"f": tool(without_hint)}, "Broken.f: parameter 'x' needs a type hint"),
        ({"f": tool(with_rest)}, "Broken.f: parameter \\*args"),
        ({"f": tool(with_keywords)}, "Broken.f: parameter \\*\\*kwargs"),
        ({"f": tool(generator)}, "Broken.f: a tool returns its output"),
        ({"f": terminal(tool(two_fields))}, "Broken.f: a terminal tool takes the one message"),
        ({"f": terminal(lambda self: None)}, "Broken.f: @terminal marks a tool; it needs @tool as well"),
        (
            {"f": tool(no_schema)},
            "Broken.f: parameter 'a' is of type Odd, which a model cannot write as JSON; take str, int, ",
        ),
        ({"setup": tool(good)}, "Broken.setup"),
        ({"list_splits": lambda cls: ["train"]}, "Broken.list_splits is asked of the class: it needs @classmethod"),
        ({"list_tasks": classmethod(lambda cls: [])}, "Broken.list_tasks does not take the arguments"),
        ({"get_prompt": lambda self, x: ""}, "Broken.get_prompt does not take the arguments"),
        ({"__init__": lambda self: None}, "Broken.__init__ must accept the keywords task_spec and secrets"),
    ],
)
def test_what_cannot_be_served_is_refused_when_the_class_is_defined(body, said):
    for value in body.values():  # the same function objects serve several cases
        if hasattr(value, "__name__"):
            value.__name__ = next(iter(body))
    with pytest.raises(DefinitionError, match=said):
        broken(body)


def test_concurrent_and_exclusive_exclude_each_other():
    with pytest.raises(DefinitionError, match="cannot be concurrent"):
        broken({"f": tool(concurrent=True, exclusive=True)(lambda self: "")})


class Extra(Toolset):
    @tool
    def plain(self) -> str:
        """Clashes with Every.plain."""
        return ""


def test_two_tools_of_one_name_are_refused():
    with pytest.raises(DefinitionError, match="Tool name collision: 'plain' is defined in both the environment"):
        broken({}, toolsets=[Extra], bases=(Every,))


def test_two_terminal_tools_are_refused():
    class One(Environment):
        @terminal
        @tool
        def first(self) -> str: ...

    with pytest.raises(DefinitionError, match="at most one tool can be terminal"):

        class Two(One):
            @tool
            @terminal
            def second(self) -> str: ...


def test_a_hint_that_cannot_be_resolved_says_what_to_do():
    with pytest.raises(DefinitionError, match=r"Later\.f: its type hints cannot be read .*top level"):

        class Later(Environment):
            @tool
            def f(self, x: NotThere) -> str: ...  # noqa: F821


def test_a_subclass_may_replace_a_tool_or_drop_it():
    class Replaced(Every):
        @tool
        def plain(self, c: int) -> str:
            """Another."""
            return str(c)

        model = None

    class Reused(Replaced):
        def model(self) -> str:
            """A method like any other: the tool of this name was dropped above."""

    assert Replaced._definition.tools["plain"].spec.description == "Another."
    for cls in (Replaced, Reused):
        assert "model" not in cls._definition.tools
        assert "model" not in [spec.name for spec in cls.list_tools().tools]
    assert Every._definition.tools["plain"].spec.description == "Add two numbers."


def test_a_tool_overridden_without_the_decorator_is_refused():
    with pytest.raises(
        DefinitionError, match=r"Half\.plain overrides a tool: decorate it with @tool too, .*plain = None"
    ):

        class Half(Every):
            def plain(self, c: int) -> str: ...

    class Mixin:
        def plain(self) -> str: ...

    with pytest.raises(DefinitionError, match=r"Mixin\.plain overrides a tool"):

        class Mixed(Mixin, Every):
            pass

    class Beside(Every, Mixin):
        """Here the tool comes first."""

    assert "plain" in Beside._definition.tools


@pytest.mark.parametrize("base", [Environment, Toolset])
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (tool(staticmethod(lambda: "")), r"Broken\.f: write @staticmethod above @tool"),
        (terminal(staticmethod(tool(lambda: ""))), r"Broken\.f: write @staticmethod above @terminal"),
        (tool(classmethod(lambda cls: "")), r"Broken\.f: a tool is a method of the session"),
        (classmethod(tool(lambda cls: "")), r"Broken\.f: a tool is a method of the session"),
    ],
)
def test_decorators_in_an_order_that_hides_the_tool_are_refused(base, value, said):
    with pytest.raises(DefinitionError, match=said):
        type("Broken", (base,), {"f": value})


def test_a_terminal_tool_is_not_listed_but_described():
    class Ends(Environment):
        @terminal
        @tool
        def answer(self, params: Params) -> ToolOutput:
            """Grade the last message."""
            return ToolOutput()

    listed = Ends.list_tools()
    assert listed.tools == []
    assert listed.terminal_tool.model_dump() == {
        "name": "answer",
        "arg": "answer",
        "description": "Grade the last message.",
    }
    assert Ends._definition.tools["answer"].turn == "exclusive"
