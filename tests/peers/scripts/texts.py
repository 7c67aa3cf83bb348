"""Texts that are hard to transfer, each with a number, so that server and client make the same one."""

from __future__ import annotations

import random
from collections.abc import Callable

SLICE = 4086
WHOLE = 4096
LIMIT = 20_000
"""The length of text that the detail of its block repeats."""

FIXED = [
    "",
    " ",
    "\n",
    " a" * 3000,
    " a" * 4096,
    " a" * 5000,
    " a" * 50_000,
    "\u3000é😀" * 5000,
    " " * 20_000,
    "\u3000" * 9000,
    "x" * 2**20,
    "é" * 2**20,
    "a\u2028b\u2029c\x85d\x0be\x0cf" * 3000,
    "".join(map(chr, range(0x20))) * 300,
    "\x7f\x00\ufeff" * 2000,
    "\r\n\r\n: comment\n\nevent: end\ndata: {}\n\n" * 400,
    "\ud800",
    "\udfff" * 5000,
    "\ude00\ud83d" * 4000,
    '"\\' * 6000,
    "data: " * 2000,
    "\\u0020 " * 3000,
]

_ALPHABETS = [
    " ",
    " a",
    "\t\n\r ",
    " \u3000\u2003\xa0",
    "\x00\x1f\x7f\u2028\u2029\ufeff",
    "abcdefghij",
    '"\\/ ',
    "é😀𝔘漢 ",
    "\ud800\udc00\udfff a",
]


def _length(chance: random.Random) -> int:
    """Short, long, or near a multiple of a piece's size, so that edges of pieces fall everywhere."""
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randrange(64)
    if kind == 1:
        return chance.randrange(30_000)
    return max(0, chance.choice((SLICE, WHOLE)) * chance.randrange(1, 5) + chance.randrange(-130, 20))


def _any_character(chance: random.Random) -> str:
    return chr(chance.randrange(0x110000))


def _joined(text: str) -> str:
    """Two adjacent surrogates form one character: JSON does not distinguish them."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def text(number: int) -> str:
    if number < len(FIXED):
        return _joined(FIXED[number])
    chance = random.Random(number)
    alphabet = chance.choice([*_ALPHABETS, None])
    character: Callable[[], str] = (
        (lambda: _any_character(chance)) if alphabet is None else (lambda: chance.choice(alphabet))
    )
    return _joined("".join(character() for _ in range(_length(chance))))
