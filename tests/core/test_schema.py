"""Arguments for tools that have only a JSON schema."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from toolyard.core.schema import fit

SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1},
        "x": {"type": "number"},
        "on": {"type": "boolean"},
        "word": {"type": "string", "enum": ["a", "b"]},
        "many": {"type": "array", "items": {"type": "integer"}},
        "inner": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
    "required": ["n"],
}


def test_text_is_taken_for_the_number_it_spells():
    given = {"n": "4", "x": "2.5", "on": "true", "word": "a", "many": ["1", 2], "inner": {"n": "7"}, "extra": 1}
    fitted, problems = fit(given, SCHEMA)
    assert problems == []
    assert fitted == {"n": 4, "x": 2.5, "on": True, "word": "a", "many": [1, 2], "inner": {"n": 7}, "extra": 1}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, (("n",), "missing")),
        ({"n": "four"}, (("n",), "wrong")),
        ({"n": 0}, (("n",), "wrong")),
        ({"n": 1, "word": "c"}, (("word",), "wrong")),
        ({"n": 1, "inner": {"n": "x"}}, (("inner", "n"), "wrong")),
    ],
)
def test_what_does_not_fit_is_named(given, said):
    _, problems = fit(given, SCHEMA)
    assert len(problems) == 1
    assert problems[0][:2] == said


def test_no_schema_means_anything_goes():
    assert fit({"a": 1}, None) == ({"a": 1}, [])


class Inner(BaseModel):
    n: int


class Asked(BaseModel):
    count: int | None = None
    ratio: float | None = None
    name: str | int = ""
    inner: Inner | None = None
    many: list[int] | None = None


@pytest.mark.parametrize(
    ("type_", "given", "taken"),
    [
        (["integer", "null"], "42", 42),
        (["integer", "null"], 3.0, 3),
        (["integer", "null"], None, None),
        (["number", "integer"], 3.0, 3.0),
        (["boolean", "number"], "2.5", 2.5),
        (["string", "integer"], "42", "42"),
    ],
)
def test_a_list_of_types_takes_whatever_fits_one_of_them(type_, given, taken):
    fitted, problems = fit({"n": given}, {"type": "object", "properties": {"n": {"type": type_}}})
    assert (fitted, problems) == ({"n": taken}, [])
    assert type(fitted["n"]) is type(taken)


def test_text_that_fits_none_of_several_types_is_named():
    _, problems = fit({"n": "x"}, {"type": "object", "properties": {"n": {"type": ["integer", "null"]}}})
    assert len(problems) == 1
    assert problems[0].path == ("n",)


def test_optional_fields_and_models_are_followed_as_pydantic_writes_them():
    given = {"count": "4", "ratio": "0.5", "name": "7", "inner": {"n": "8"}, "many": ["9"]}
    fitted, problems = fit(given, Asked.model_json_schema())
    assert problems == []
    assert fitted == {"count": 4, "ratio": 0.5, "name": "7", "inner": {"n": 8}, "many": [9]}
    assert fit({"count": None, "inner": None}, Asked.model_json_schema()) == ({"count": None, "inner": None}, [])


def test_conditions_beside_the_properties_do_not_hide_them():
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    }
    assert fit({"b": "2"}, schema) == ({"b": 2}, [])


def test_a_schema_that_refers_to_itself_is_followed_as_deep_as_the_arguments_are():
    tree = {"type": "object", "properties": {"n": {"type": "integer"}, "next": {"$ref": "#/$defs/Tree"}}}
    schema = {"$defs": {"Tree": tree}, "$ref": "#/$defs/Tree"}
    assert fit({"n": "1", "next": {"n": "2", "next": {"n": "3"}}}, schema) == (
        {"n": 1, "next": {"n": 2, "next": {"n": 3}}},
        [],
    )
