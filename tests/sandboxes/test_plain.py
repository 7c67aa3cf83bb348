"""Plain data crosses unchanged, in exact types, and nothing else can pass for it."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, deque, namedtuple
from decimal import Decimal
from enum import IntEnum
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from toolyard.sandboxes.inside.plain import DEEPEST, LONGEST, TooLarge, write
from toolyard.sandboxes.inside.plain_reader import NotPlain, Reader


def crossed(value: object) -> Any:
    reader = Reader(lambda token: (token,))
    for chunk in write(value, lambda item: f"h {type(item).__name__}"):
        assert chunk.isascii()
        assert len(chunk) < 60_000
        reader.feed(chunk)
    return reader.value


_keys = some.one_of(
    some.none(),
    some.booleans(),
    some.integers(),
    some.floats(allow_nan=False),
    some.complex_numbers(allow_nan=False),
    some.text(some.characters(), max_size=5),
    some.binary(max_size=5),
)
_hashable = some.one_of(_keys, some.tuples(_keys, _keys), some.frozensets(_keys, max_size=3))
_plain = some.recursive(
    some.one_of(_hashable, some.sets(_hashable, max_size=3)),
    lambda inner: some.one_of(
        some.lists(inner, max_size=3), some.tuples(inner), some.dictionaries(_hashable, inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100, deadline=None)
@given(_plain)
def test_plain_data_comes_back_as_it_was(value):
    assert repr(crossed(value)) == repr(value) or crossed(value) == value


@pytest.mark.parametrize(
    "value",
    [
        2**70,
        -(2**5000),
        math.inf,
        -0.0,
        "é\ud800\0" * 5000,
        b"\xff" * 10_000,
        range(3, 9, 2),
        [[]] * 20_000,
        Decimal("1.50"),
        Fraction(1, 3),
        {1: 2, "a": 3}.keys(),
        deque([[1]], maxlen=3),
        [int, str, frozenset],
        "a" * 300_000,
    ],
)
def test_large_and_odd_values_come_back_as_they_were(value):
    assert repr(crossed(value)) == repr(value)


class Lying(list[int]):
    def __iter__(self):
        return iter([9])

    def __len__(self):
        return 5

    def __eq__(self, other):
        return True

    __hash__ = None  # type: ignore[assignment]


class LyingText(str):
    def __eq__(self, other):
        return True

    def __str__(self):
        return "lie"

    __hash__ = str.__hash__


class Level(IntEnum):
    HIGH = 3


def test_subclasses_are_read_by_the_methods_of_their_base():
    spot = namedtuple("spot", "x y")(1, 2)  # untyped on purpose
    odd = [Lying([1]), LyingText("true"), Level.HIGH, Counter("aab"), OrderedDict(a=1), spot]
    seen = crossed(odd)
    assert seen == [[1], "true", 3, {"a": 2, "b": 1}, {"a": 1}, (1, 2)]
    assert [type(one) for one in seen] == [list, str, int, dict, dict, tuple]


def test_what_is_no_plain_data_crosses_as_a_handle():
    inner: list[Any] = [1]
    inner.append(inner)
    assert crossed([object(), inner]) == [("h object",), [1, ("h list",)]]


def test_what_is_too_deep_is_a_handle_and_what_is_too_large_is_refused():
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    seen, depth = crossed(deep), 0
    while isinstance(seen, list):
        seen, depth = seen[0], depth + 1
    assert (seen, depth) == (("h list",), DEEPEST)
    with pytest.raises(TooLarge):
        write("x" * 5_000_000, str)


@pytest.mark.parametrize(
    "chunk",
    [
        "",
        "{}",
        "[",
        "[1, 2]",
        "[[1]]",
        '["l2", 1]',
        '["l-1"]',
        '["l99999999999", 1]',
        '["e1", "l0"]',
        '["inot hex"]',
        '["S1", 5]',
        '["q"]',
        '["q1", -1]',
        '["q2", "sx", 1]',
        '["k1", "l0"]',
        '["yobject"]',
        '["DsNaN"]',
        '["F1e999999999"]',
        '["F1/0"]',
        "[" * 50_000,
        json.dumps(["l1"] * 30_000),
        json.dumps(["e4999", *(f"i{(2**61 - 1) * k:x}" for k in range(1, 5000))]),
        " " * (2 * LONGEST),
    ],
)
def test_a_text_that_no_writer_writes_is_refused_at_once(chunk):
    with pytest.raises(NotPlain):
        _read(chunk)


def _read(chunk: str) -> Any:
    reader = Reader(_unknown)
    reader.feed(chunk)
    return reader.value


def _unknown(token: str) -> None:
    raise NotPlain(token)
