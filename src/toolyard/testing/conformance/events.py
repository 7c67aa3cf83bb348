"""Reads server-sent events as the strictest of the known clients does."""

from __future__ import annotations

from dataclasses import dataclass

from toolyard.testing.conformance.http import Answer, require


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: str


def read_events(answer: Answer) -> list[Event]:
    """The events of an answer. Skips comments, and an event that no blank line ends."""
    found: list[Event] = []
    name, data = "", list[str]()
    for line in answer.body.decode("utf-8", "replace").replace("\r\n", "\n").split("\n"):
        if not line:
            if name:
                found.append(Event(name, "\n".join(data)))
            name, data = "", []
        elif not line.startswith(":"):
            field, colon, value = line.partition(":")
            require(colon, f"{answer}, with a line that has no colon: {line[:80]!r}")
            if field == "event":
                name = value.strip()
            elif field == "data":
                data.append(value.removeprefix(" "))
    return found
