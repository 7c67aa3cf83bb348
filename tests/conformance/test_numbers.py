"""Every case has its own number, and our server has a test of that number."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from toolyard.testing.conformance import KITS

TESTS = Path(__file__).parents[1]
NUMBERS = [(kit.protocol, case.number) for kit in KITS.values() for case in kit.cases]


def numbers_of_tests() -> Iterator[str]:
    """Numbers in names of tests, such as `test_E12_…` and `test_67_to_71_…`, and in comments, such as `# F10`."""
    source = "\n".join(path.read_text() for folder in ("wires", "peers") for path in (TESTS / folder).glob("*.py"))
    yield from re.findall(r"\b[FG]\d+\b", source)
    for numbers in re.findall(r"def test_E?((?:\d+_|to_)+)", source):
        first, *others = map(int, re.findall(r"\d+", numbers))
        last = max([first, *others])
        named = range(first, last + 1) if "to" in numbers else [first, *others]
        yield from (f"E{number}" for number in named)


def test_each_case_has_the_number_of_a_test_of_ours():
    known = set(numbers_of_tests())
    assert [number for _, number in NUMBERS if number.rstrip("abhm") not in known] == []


def test_no_number_is_given_twice():
    assert len({number for _, number in NUMBERS}) == len(NUMBERS)
