"""Arguments for tools that have only a JSON schema."""

from __future__ import annotations

import pytest

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
        ({}, '"n" is a required property'),
        ({"n": "four"}, "n: "),
        ({"n": 0}, "n: 0 is less than the minimum"),
        ({"n": 1, "word": "c"}, "word: "),
        ({"n": 1, "inner": {"n": "x"}}, "inner.n: "),
    ],
)
def test_what_does_not_fit_is_named(given, said):
    _, problems = fit(given, SCHEMA)
    assert len(problems) == 1
    assert said in problems[0]


def test_no_schema_means_anything_goes():
    assert fit({"a": 1}, None) == ({"a": 1}, [])
