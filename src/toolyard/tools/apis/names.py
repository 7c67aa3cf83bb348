"""Makes names for tools and collections out of a document's own names."""

from __future__ import annotations

import re
from collections.abc import Iterable

LONGEST = 64
"""Characters of a tool's name: the most that models' interfaces allow."""
DESCRIPTION = 1024
"""Characters of a description."""

_OTHER = re.compile(r"[^A-Za-z0-9_]+")
_WORD = re.compile(r"[A-Za-z0-9]+")


def as_word(text: str) -> str:
    """Replace what cannot be in a name with underscores: `list /pets` becomes `list_pets`."""
    return _OTHER.sub("_", text).strip("_")


def as_title(*texts: str) -> str:
    """A name like a class's, from the first text that has letters or digits.

    It has no underscores: on the ToolServer wire they separate a collection from its tools.
    """
    words = next((found for text in texts if (found := _WORD.findall(text))), ["Api"])
    joined = "".join(word[:1].upper() + word[1:] for word in words)[:LONGEST]
    return f"Api{joined}" if joined[0].isdigit() else joined


def described(*parts: str) -> str:
    """Join those of these texts that are not empty, a line each, and cut the result to the length of a description."""
    return "\n".join(part.strip() for part in parts if part.strip())[:DESCRIPTION]


class UniqueNames:
    """Gives each name once. A name that is taken gets a number."""

    def __init__(self, taken: Iterable[str] = (), *, before_number: str = "_") -> None:
        self._given = dict.fromkeys(taken, 1)
        self._before = before_number

    def give(self, wanted: str) -> str:
        name = wanted[:LONGEST]
        while name in self._given:
            self._given[wanted] = number = self._given.get(wanted, 1) + 1
            ending = f"{self._before}{number}"
            name = wanted[: LONGEST - len(ending)] + ending
        self._given[name] = 1
        return name
