"""Twins of a test file, run here: a program that passes the real tests passes none of the changed ones."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator

import pytest

from toolyard.sandboxes.grading import literals, twins
from toolyard.sandboxes.grading.finding import find_tests

SHAPES = """
import contextlib
import datetime
import decimal
import math
import unittest

import numpy as np
import pytest

CASES = [("a", 1), ("bc", 2), ("", 0)]


@pytest.fixture
def test_client():
    return 1


@pytest.mark.parametrize("text, size", CASES)
def test_cases(text, size):
    assert len(text) == size


@pytest.mark.parametrize("text", ["a", "b"])
def test_round_trips(text):
    assert text.encode().decode() == text


@pytest.mark.parametrize("n", [pytest.param(1, id="one"), 2])
def test_params(n):
    assert n == n
    assert n in (1, 2)
    assert n not in [3]


def test_numbers():
    assert 2 + 2 == 4
    assert 5.0 == 10 / 2
    assert -3 == abs(-3) * -1
    assert 0.1 + 0.2 == pytest.approx(0.3)
    assert pytest.approx(5, abs=3) == 6
    assert 1 < 2 <= 3
    assert math.inf > 3
    assert -math.inf <= 0
    assert 3 >= -1


def test_numpy():
    expected = sum([1.0, 2.0]) / 2
    assert np.mean([1.0, 2.0]) == expected
    assert np.array([3]) == 3
    assert (np.arange(3) == [0, 1, 2]).all()
    assert np.arange(3).tolist() == [0, 1, 2]


def test_text():
    assert "x".upper() == "X"
    assert "é".upper() == "É"
    assert "".join([]) == ""
    assert b"ab"[:1] == b"a"
    assert "at" in "cat"
    assert f"{1}" == f"{2 - 1}"
    assert str(decimal.Decimal("1.50")) == "1.50"
    assert decimal.Decimal("1.50") == decimal.Decimal("1.5")


def test_containers():
    assert sorted([2, 1]) == [1, 2]
    assert {1, 2} == {2, 1}
    assert {"a": {"b": [1, None]}} == {"a": {"b": [1, None]}}
    assert () == tuple([])
    assert not []
    assert [1] and True
    want = {"a": 1}
    assert dict(a=1) == want
    assert want != {}
    assert 1 == True
    assert None == (lambda: None)()


def test_kinds():
    assert isinstance(1, int)
    assert (lambda: None)() is None
    assert datetime.date(2020, 1, 2) == datetime.date.fromisoformat("2020-01-02")
    assert all(n > 0 for n in [1, 2])


def test_errors():
    with pytest.raises(ZeroDivisionError):
        1 / 0
    with pytest.raises((KeyError, IndexError)) as caught:
        [][0]
    assert "range" in str(caught.value)
    pytest.raises(FloatingPointError, lambda: (_ for _ in ()).throw(FloatingPointError()))


def test_loops():
    for number, square in [(1, 1), (2, 4)]:
        assert number**2 == square
    with contextlib.nullcontext():
        assert True


def test_branches():
    if len("a") > 5:
        assert False
    for number in []:
        assert number == 1
    with contextlib.suppress(AssertionError):
        assert 1 == 1
    try:
        assert 1 == 1
    except AssertionError:
        pass


def test_that_returns():
    if len("a"):
        return
    assert 1 == 2


class TestCases(unittest.TestCase):
    def test_many(self):
        self.assertEqual(1 + 1, 2)
        self.assertEqual([1], [*(1,)])
        self.assertTrue(1)
        self.assertFalse(0)
        self.assertIn(1, [1])
        self.assertIsNone(None)
        self.assertAlmostEqual(0.1 + 0.2, 0.3)
        self.assertGreater(2, 1)
        self.assertCountEqual([1, 2], [2, 1])
        with self.assertRaises(ValueError):
            int("x")
        self.assertRaises(ValueError, int, "x")
        with self.subTest():
            self.assertEqual(1, 1)


class TestMore(TestCases):
    def test_own(self):
        self.assertEqual("a", "A".lower())
"""


def outcomes(text: str) -> dict[tuple[str, str], bool]:
    """Whether each test of a file passes, by name and key of its case."""
    module: dict[str, object] = {"__name__": "twin"}
    exec(compile(text, "twin", "exec"), module)
    found = {}
    for test in find_tests(ast.parse(text)):
        for case, run in runs(module, test.name):
            try:
                run()
            except BaseException:
                found[test.name, case] = False
            else:
                found[test.name, case] = True
    return found


def runs(module: dict[str, object], name: str) -> Iterator[tuple[str, object]]:
    if "::" in name:
        kind, method = name.split("::")
        yield "", getattr(module[kind](method), method)
        return
    function = module[name]
    marks = getattr(function, "pytestmark", [])
    if not marks:
        yield "", function
        return
    names, cases = marks[0].args
    names = [one.strip() for one in names.split(",")]
    for number, case in enumerate(cases):
        values = getattr(case, "values", case if len(names) > 1 else (case,))
        key = ",".join(f"{one}={number}" for one in sorted(names))
        yield key, lambda values=values: function(**dict(zip(names, values, strict=True)))


@pytest.mark.parametrize("seed", range(10))
def test_an_honest_program_passes_no_twin_of_a_test_that_it_passes(seed: int):
    written = twins.write("test_shapes.py", SHAPES, 3, random.Random(seed))
    real = outcomes(written.real)
    assert all(real.values()), [key for key, passed in real.items() if not passed]
    for twin in written.twins:
        found = outcomes(twin.text)
        assert found.keys() == real.keys()
        for key, passed in found.items():
            is_same = twin.kinds[key[0]] == "same" or key in twin.same_cases
            assert passed == is_same, (key, twin.kinds[key[0]], twin.text)


def test_everything_that_stands_in_a_test_is_changed_in_some_twin():
    assertions = [f"assert value({number}) == {number + 100}" for number in range(4)]
    source = "def test_a():\n    " + "\n    ".join(assertions) + "\ndef test_b():\n    assert 1 == 1\n"
    written = twins.write("test_a.py", source, 8, random.Random(0))
    texts = [twin.text for twin in written.twins]
    assert all(any(line not in text for text in texts) for line in assertions)
    assert all(sum(line in text for line in assertions) >= 3 for text in texts)


def test_each_test_is_left_as_it_is_in_one_twin_so_that_no_other_can_take_its_place():
    source = "".join(f"def test_{number}():\n    assert value({number}) == {number}\n" for number in range(9))
    written = twins.write("test_a.py", source, 3, random.Random(1))
    for test in written.tests:
        assert [twin.kinds[test.name] for twin in written.twins].count("same") == 1


def test_real_and_twin_differ_in_nothing_but_what_they_expect():
    written = twins.write("test_shapes.py", SHAPES, 3, random.Random(2))
    shapes = {tuple(type(node).__name__ for node in ast.walk(ast.parse(one))) for one in texts_of_plain(written)}
    assert len(shapes) == 1


def texts_of_plain(written: twins.Written) -> list[str]:
    """The last lines of the one test that cannot be changed, in all twins."""
    trees = [ast.parse(text) for text in (written.real, *(twin.text for twin in written.twins))]
    functions = [node for tree in trees for node in tree.body if getattr(node, "name", "") == "test_that_returns"]
    return [ast.unparse(function) for function in functions]


def test_another_literal_is_never_equal_to_the_first():
    dice = random.Random(0)
    for text in ["0", "1", "True", "1.5", "1e300", "'a'", "'Ab'", "''", "'--'", "b''", "[]", "{}", "{1}", "()", "None",
                 "-7", "[[]]", "{'a': ()}", "1j", "{'x', 'y'}", "'é'"]:  # fmt: skip
        node = ast.parse(text, mode="eval").body
        for _ in range(200):
            other = literals.other(node, dice)
            assert other is not None
            assert ast.literal_eval(other) != ast.literal_eval(node)


def test_tests_are_found_as_pytest_finds_them():
    found = {test.name: (test.cases, test.counts) for test in find_tests(ast.parse(SHAPES))}
    assert found["TestMore::test_many"] == found["TestMore::test_own"] == (1, True)
    assert "test_client" not in found
    (test,) = find_tests(ast.parse("import pytest\n@pytest.mark.xfail\ndef test_a(): ..."))
    assert not test.counts
    source = (
        "@pytest.mark.parametrize('a', [1, 2])\n"
        "@pytest.mark.parametrize('b,c', [(1, 2), (3, 4), (5, 6)])\n"
        "def test_a(): ...\n"
        "class Helper:\n    def test_no(self): ...\n"
        "class TestInit:\n    def __init__(self): ...\n    def test_no(self): ...\n"
    )
    assert [(test.name, test.cases) for test in find_tests(ast.parse(source))] == [("test_a", 6)]


def test_what_pytest_calls_a_case_is_known_where_it_can_be():
    (test,) = find_tests(ast.parse("@pytest.mark.parametrize('b, a', [(1, 'x'), (None, 2.5)])\ndef test_a(): ..."))
    assert test.ids == {"a=0,b=0": "[1-x]", "a=1,b=1": "[None-2.5]"}
    for values in "[1, 1]", "[object()]", "[[1], [2]]", "CASES", "['é']":
        (test,) = find_tests(ast.parse(f"@pytest.mark.parametrize('a', {values})\ndef test_a(): ..."))
        assert test.ids == {}
