"""How a model writes the call of a tool as plain text, and how the result is written after it.

A tool names its form with `@tool(form=Tagged("search", "query"))`. A tool without a form is called by its own name as a
tag, or as JSON, and answers as `Plain`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from toolyard.core.output import JsonObject

TOOL_CALL_END = "</tool_call>"

EVERYTHING: Sequence[str] = ("*",)
"""`shown` of a form that shows all of the output's metadata."""


class Form(Protocol):
    """How calls of one tool are written.

    A form that can read the calls of any tool sets `late = True`. `Actions` asks it after all others.
    """

    @property
    def shown(self) -> Sequence[str]:
        """The keys of the output's metadata that a trainer gets beside the text."""

    def read(self, text: str) -> JsonObject | None:
        """The arguments of the call in this text; None if it holds no call of this tool."""

    def answer(self, text: str, result: str) -> str:
        """The result as the trainer appends it to that text."""


@dataclass(frozen=True, slots=True)
class Tagged:
    """The last `<tag>text</tag>` is the call. The text between the tags, stripped, is its one argument."""

    tag: str
    argument: str
    before: str = "\n<result>\n"
    after: str = "\n</result>\n"
    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        """The arguments of the call, or None if the text has none."""
        found = tagged(text, self.tag)
        return {self.argument: found[-1].strip()} if found else None

    def answer(self, text: str, result: str) -> str:
        """The result of the call as the model reads it."""
        return f"{self.before}{result}{self.after}"


@dataclass(frozen=True, slots=True)
class Plain:
    """The tool is called only as JSON: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        return None

    def answer(self, text: str, result: str) -> str:
        if TOOL_CALL_END in text:
            return f"\n<tool_response>\n{result}\n</tool_response>\n"
        return f"\n<result>\n{result}\n</result>\n"


@dataclass(frozen=True, slots=True)
class Unwrapped(Plain):
    """As `Plain`, but the result is appended without anything around it."""

    def answer(self, text: str, result: str) -> str:
        return result


def is_late(form: Form) -> bool:
    return getattr(form, "late", False) is True


def tagged(text: str, tag: str) -> list[str]:
    """The texts between each `<tag>` and the next `</tag>`."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    found: list[str] = []
    end = 0
    while (start := text.find(opening, end)) >= 0:
        start += len(opening)
        if (close := text.find(closing, start)) < 0:
            break
        found.append(text[start:close])
        end = close + len(closing)
    return found


def fenced(text: str, *languages: str) -> list[str]:
    """The texts in fences that open with ``` and one of these words, which may be on the next line."""
    if "```" not in text:
        return []
    return between(text, _fence(languages), "```")


def between(text: str, opening: re.Pattern[str], closing: str) -> list[str]:
    """The texts between each opening and the next closing.

    One pattern for both would be slow for a text of openings only: it would search for the closing from each of them.
    """
    found: list[str] = []
    end = 0
    while (opened := opening.search(text, end)) is not None:
        if (close := text.find(closing, opened.end())) < 0:
            break
        found.append(text[opened.end() : close])
        end = close + len(closing)
    return found


@lru_cache(256)
def _fence(languages: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(f"```\\n?(?:{'|'.join(map(re.escape, languages))})")
