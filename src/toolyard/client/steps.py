"""What a flow asks for, and what it is told came of it."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, TypeVar

from toolyard.client.stream import Heard
from toolyard.core.output import JsonObject

T = TypeVar("T")

SILENCE = 30.0
"""Seconds without a byte on the stream of a call, which has signs of life in it, before we come back for it."""
WAITING = 3600.0
"""Seconds without a byte on any other request: it may wait for a dataset to load, or for setup()."""


@dataclass(frozen=True, slots=True)
class Ask:
    """One request, one answer."""

    method: Literal["GET", "POST"]
    path: str
    body: JsonObject | None = None
    session: str = ""
    silence: float = WAITING


@dataclass(frozen=True, slots=True)
class Listen:
    """One request, answered by a stream of events."""

    path: str
    body: JsonObject
    session: str
    silence: float


@dataclass(frozen=True, slots=True)
class Sleep:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True, slots=True)
class Broken:
    """There was no answer."""

    what: str
    sent: bool = True
    """Whether the server may have got the request all the same."""


Step: TypeAlias = Ask | Listen | Sleep
Outcome: TypeAlias = Answer | Broken | Heard
"""`Heard` only ever comes of `Listen`. Nothing comes of `Sleep`."""
Flow: TypeAlias = Generator[Step, Any, T]
"""Yields steps and is sent what came of each; hence Any. Returns the answer to what was wanted."""
