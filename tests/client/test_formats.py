"""Tools as the APIs of models want them. Schemas are those that pydantic makes of authors' parameters."""

from __future__ import annotations

import enum
from typing import Annotated, Any, Literal

import pytest
from jsonschema_rs import validator_for
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from toolyard import Environment, tool
from toolyard.client.formats import formatted
from toolyard.core.tool import ToolSpec

JSON_FORMATS = {
    "openai": lambda tool: tool["parameters"],
    "openrouter": lambda tool: tool["function"]["parameters"],
    "anthropic": lambda tool: tool["input_schema"],
}


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Size(enum.IntEnum):
    SMALL = 1
    LARGE = 2


class Point(BaseModel):
    """Where it is."""

    x: int = Field(description="From the left.")
    y: int


class Circle(BaseModel):
    kind: Literal["circle"]
    radius: Annotated[float, Field(gt=0)]


class Square(BaseModel):
    kind: Literal["square"]
    side: float


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Options(TypedDict, total=False):
    deep: bool


class Everything(BaseModel):
    title: str = Field(description="A parameter that is called like a keyword.")
    colour: Colour = Field(default=Colour.RED, description="What it looks like.")
    size: Size = Size.SMALL
    at: Point
    also_at: Point | None = Field(default=None, description="If it is in two places.")
    path: list[Point]
    shape: Annotated[Circle | Square, Field(discriminator="kind", description="The form.")]
    number: int | str | None = None
    limits: dict[str, int] = {}
    pair: tuple[int, str] = (1, "a")
    anything: Any = None
    tree: Tree | None = None
    level: Literal[1, 2, 3] = 1
    when: Literal["now", "later", None] = None
    options: Options = {}


def spec(schema) -> ToolSpec:
    return ToolSpec(name="go", description="Go there.", input_schema=schema)


def convert(schema, format):
    (converted,) = formatted([spec(schema)], format)
    return converted


def google(schema):
    return convert(schema, "google")["parameters"]


EVERYTHING = Everything.model_json_schema()
GOOD = {
    "title": "t",
    "at": {"x": 1, "y": 2},
    "path": [{"x": 1, "y": 2}],
    "shape": {"kind": "circle", "radius": 2},
    "number": "three",
    "tree": {"value": 1, "children": [{"value": 2, "children": []}]},
}


def test_each_format_has_its_shape():
    schema = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
    assert convert(schema, "openai") == {
        "type": "function",
        "name": "go",
        "description": "Go there.",
        "parameters": schema,
    }
    assert convert(schema, "openrouter") == {
        "type": "function",
        "function": {"name": "go", "description": "Go there.", "parameters": schema},
    }
    assert convert(schema, "anthropic") == {
        "type": "custom",
        "name": "go",
        "description": "Go there.",
        "input_schema": schema,
    }
    assert convert(schema, "google") == {"name": "go", "description": "Go there.", "parameters": schema}


def test_without_a_format_the_specs_stay_as_they_are():
    tools = [spec(None)]
    assert formatted(tools, None) == tools


def test_a_format_that_there_is_not_is_refused():
    with pytest.raises(ValueError, match="'openai', 'anthropic', 'google', 'openrouter'"):
        formatted([], "cohere")


@pytest.mark.parametrize("format", ["openai", "openrouter", "anthropic", "google"])
@pytest.mark.parametrize("schema", [None, {}, {"type": "object"}, {"type": "object", "properties": {}}])
def test_a_tool_without_parameters_takes_an_empty_object(format, schema):
    read = JSON_FORMATS.get(format, lambda tool: tool["parameters"])
    assert read(convert(schema, format)) == {"type": "object", "properties": {}}


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_json_schema_still_says_yes_and_no_to_the_same_arguments(format):
    converted = JSON_FORMATS[format](convert(EVERYTHING, format))
    before, after = validator_for(EVERYTHING), validator_for(converted)
    for arguments in (
        GOOD,
        {**GOOD, "number": None},
        {**GOOD, "number": 1.5},
        {**GOOD, "colour": "green"},
        {**GOOD, "size": 3},
        {**GOOD, "shape": {"kind": "circle", "side": 2}},
        {**GOOD, "also_at": {"x": 1}},
        {**GOOD, "limits": {"a": "b"}},
        {**GOOD, "tree": {"value": 1, "children": [{"value": "x"}]}},
        {},
    ):
        assert before.is_valid(arguments) == after.is_valid(arguments), arguments


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_titles_go_but_a_parameter_called_title_stays(format):
    converted = JSON_FORMATS[format](convert(EVERYTHING, format))
    assert converted["properties"]["title"] == {
        "description": "A parameter that is called like a keyword.",
        "type": "string",
    }
    assert "title" in converted["required"]
    assert "title" not in converted
    assert "title" not in converted["$defs"]["Point"]


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_default_that_looks_like_a_schema_is_left_alone(format):
    schema = {"type": "object", "properties": {"a": {"type": "object", "default": {"title": "x"}}}}
    assert JSON_FORMATS[format](convert(schema, format)) == schema


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_model_that_holds_itself_still_has_an_object_on_top(format):
    schema = Tree.model_json_schema()
    assert "$ref" in schema, "or this tests nothing"
    converted = JSON_FORMATS[format](convert(schema, format))
    assert converted["type"] == "object"
    assert list(converted["properties"]) == ["value", "children"]
    assert validator_for(converted).is_valid({"value": 1, "children": [{"value": 2}]})
    assert not validator_for(converted).is_valid({"value": 1, "children": [{"value": "x"}]})


@pytest.mark.parametrize("format", [*JSON_FORMATS, "google"])
def test_alternatives_on_top_become_one_object(format):
    read = JSON_FORMATS.get(format, lambda tool: tool["parameters"])
    text, number = {"type": "string"}, {"type": "integer"}
    schema = {
        "$defs": {"A": {"type": "object", "properties": {"a": text, "n": number}, "required": ["a", "n"]}},
        "anyOf": [
            {"$ref": "#/$defs/A"},
            {"type": "object", "properties": {"b": text, "n": number}, "required": ["n"]},
        ],
    }
    converted = read(convert(schema, format))
    assert converted["type"] == "object"
    assert "anyOf" not in converted
    assert set(converted["properties"]) == {"a", "b", "n"}
    assert converted["required"] == ["n"]
    both = read(convert({"allOf": schema["anyOf"], "$defs": schema["$defs"]}, format))
    assert set(both["required"]) == {"a", "n"}


@pytest.mark.parametrize("format", JSON_FORMATS)
def test_a_list_of_anything_says_so(format):
    schema = {"type": "object", "properties": {"a": {"type": "array"}}}
    assert JSON_FORMATS[format](convert(schema, format))["properties"]["a"] == {"type": "array", "items": {}}


# Google.

KNOWN_TO_GOOGLE = {
    "type", "format", "description", "nullable", "enum", "items", "properties", "required", "anyOf",
    "minItems", "maxItems", "minimum", "maximum", "minLength", "maxLength", "pattern",
}  # fmt: skip


def assert_readable_by_google(schema):
    assert schema.keys() <= KNOWN_TO_GOOGLE, schema
    if "anyOf" in schema:
        assert schema.keys() == {"anyOf"}, "nothing may stand beside anyOf"
    else:
        assert schema["type"] in ("string", "integer", "number", "boolean", "array", "object")
    assert schema.get("type") != "array" or "items" in schema
    assert all(isinstance(value, str) for value in schema.get("enum", ()))
    assert "enum" not in schema or schema["type"] == "string"
    assert set(schema.get("required", ())) <= set(schema.get("properties", ()))
    inner = [*schema.get("properties", {}).values(), *schema.get("anyOf", ())]
    for part in [*inner, schema["items"]] if "items" in schema else inner:
        assert_readable_by_google(part)


def test_google_is_given_only_what_it_can_read():
    assert_readable_by_google(google(EVERYTHING))
    assert_readable_by_google(google(Tree.model_json_schema()))


def test_google_is_told_of_nested_models_without_references():
    properties = google(EVERYTHING)["properties"]
    point = {
        "type": "object",
        "properties": {"x": {"type": "integer", "description": "From the left."}, "y": {"type": "integer"}},
        "required": ["x", "y"],
    }
    assert properties["at"] == {**point, "description": "Where it is."}
    assert properties["path"] == {"type": "array", "items": {**point, "description": "Where it is."}}
    assert properties["also_at"] == {**point, "description": "If it is in two places.", "nullable": True}
    assert google(EVERYTHING)["required"] == ["title", "at", "path", "shape"]


def test_google_is_told_of_enums():
    properties = google(EVERYTHING)["properties"]
    assert properties["colour"] == {
        "type": "string",
        "enum": ["red", "blue"],
        "description": 'What it looks like. Default: "red".',
    }
    assert properties["size"] == {"type": "integer", "description": "One of 1, 2. Default: 1."}
    assert properties["level"] == {"type": "integer", "description": "One of 1, 2, 3. Default: 1."}
    assert properties["when"] == {"type": "string", "enum": ["now", "later"], "nullable": True}


def test_google_is_told_of_unions():
    properties = google(EVERYTHING)["properties"]
    assert properties["number"] == {
        "anyOf": [{"type": "integer", "nullable": True}, {"type": "string", "nullable": True}]
    }
    circle, square = properties["shape"]["anyOf"]
    assert circle["properties"]["kind"] == {"type": "string", "enum": ["circle"]}
    assert circle["properties"]["radius"] == {"type": "number", "description": "More than 0."}
    assert circle["description"] == square["description"] == "The form."


def test_google_is_told_in_words_what_it_cannot_read():
    properties = google(EVERYTHING)["properties"]
    assert properties["limits"]["type"] == "object"
    assert 'each value is {"type": "integer"}' in properties["limits"]["description"]
    assert properties["pair"]["items"] == {"anyOf": [{"type": "integer"}, {"type": "string"}]}
    assert (properties["pair"]["minItems"], properties["pair"]["maxItems"]) == (2, 2)
    schema = {"type": "object", "properties": {"a": {"type": "string", "format": "email"}}}
    assert google(schema)["properties"]["a"] == {"type": "string", "description": "Format: email."}


def test_google_is_told_of_a_tree_only_so_deep():
    tree = google(Tree.model_json_schema())
    again = tree["properties"]["children"]["items"]["properties"]["children"]["items"]
    assert again == {"type": "object", "description": "Another Tree, of the same shape."}


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        ({"type": ["string", "null"], "description": "d"}, {"type": "string", "description": "d", "nullable": True}),
        ({"type": ["string", "integer"]}, {"anyOf": [{"type": "string"}, {"type": "integer"}]}),
        ({"type": "null"}, {"type": "string", "nullable": True}),
        ({"anyOf": [{"type": "null"}]}, {"type": "string", "nullable": True}),
        ({"allOf": [{"$ref": "#/$defs/E"}], "description": "d"}, {"type": "string", "enum": ["a"], "description": "d"}),
        ({"$ref": "#/$defs/nowhere"}, {"type": "string"}),
        ({"$ref": "https://elsewhere/schema"}, {"type": "string"}),
        ({"$ref": "#/definitions/with~1slash"}, {"type": "boolean"}),
        ({"const": 3}, {"type": "integer", "description": "One of 3."}),
        ({"const": True}, {"type": "boolean", "description": "One of true."}),
        ({"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}),
        ({"properties": {"x": True}}, {"type": "object", "properties": {"x": {"type": "string"}}}),
        ({"items": {"type": "integer"}}, {"type": "array", "items": {"type": "integer"}}),
        ({"type": "array", "items": False}, {"type": "array", "items": {"type": "string"}}),
        ({"type": "object", "required": ["x"]}, {"type": "object"}),
        (True, {"type": "string"}),
    ],
)  # fmt: skip
def test_google_reads_schemas_that_people_wrote_by_hand(schema, expected):
    defs = {"$defs": {"E": {"enum": ["a"]}}, "definitions": {"with/slash": {"type": "boolean"}}}
    converted = google({"type": "object", "properties": {"a": schema}, **defs})["properties"]["a"]
    assert converted == expected
    assert_readable_by_google(converted)


def test_a_tree_written_the_old_way_ends_too():
    node = {"type": "object", "properties": {"next": {"allOf": [{"$ref": "#/$defs/N"}]}}}
    schema = {"type": "object", "properties": {"n": {"$ref": "#/$defs/N"}}, "$defs": {"N": node}}
    assert google(schema)["properties"]["n"]["properties"]["next"]["description"] == "Another N, of the same shape."


def test_the_schemas_of_plain_parameters_go_the_same_way():
    class Plain(Environment):
        @tool
        def go(self, to: Point, how: Colour | None = None) -> str:
            """Go.

            Args:
                to: where
            """
            return "there"

    (listed,) = formatted(Plain.list_tools().tools, "google")
    assert listed["parameters"]["properties"]["to"]["description"] == "where"
    assert listed["parameters"]["properties"]["how"] == {"type": "string", "enum": ["red", "blue"], "nullable": True}
    assert_readable_by_google(listed["parameters"])
