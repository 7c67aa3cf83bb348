"""Compares a program's output with the expected one, as online judges do."""

from __future__ import annotations

import math
import re

_WHOLE_NUMBER = re.compile(r"([+-]?)([0-9]+)")  # one way to match: a program may print a million zeros


def agrees(output: str, expected: str) -> bool:
    """Whether they are the same, apart from space around lines and the notation of numbers."""
    ours, theirs = ([line.strip() for line in text.strip().splitlines()] for text in (output, expected))
    if ours == theirs:
        return True
    ours, theirs = ([line for line in lines if line] for lines in (ours, theirs))
    return len(ours) == len(theirs) and all(map(_line_agrees, ours, theirs))


def _line_agrees(ours: str, theirs: str) -> bool:
    pairs = list(zip(ours.split(), theirs.split(), strict=False))
    return len(ours.split()) == len(theirs.split()) and all(_word_agrees(*pair) for pair in pairs)


def _word_agrees(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    whole = _WHOLE_NUMBER.fullmatch(ours), _WHOLE_NUMBER.fullmatch(theirs)
    if whole[0] and whole[1]:  # compare digits: Python refuses to convert very long integers
        return _signed(whole[0]) == _signed(whole[1])
    try:
        numbers = float(ours), float(theirs)
    except ValueError:
        return False
    if any(map(math.isinf, numbers)):  # a float of very many digits reads as infinite, but is not
        return numbers[0] == numbers[1] and all("inf" in word.lower() for word in (ours, theirs))
    return math.isclose(*numbers, rel_tol=1e-5, abs_tol=1e-8)


def _signed(whole: re.Match[str]) -> tuple[bool, str]:
    """Whether the number is below zero, and its digits."""
    digits = whole[2].lstrip("0")
    return whole[1] == "-" and digits != "", digits
