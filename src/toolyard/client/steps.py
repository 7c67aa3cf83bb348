"""The steps that a flow yields, and the outcomes that it receives."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias, TypeVar

from toolyard.client.stream import Heard
from toolyard.core.output import JsonObject

T = TypeVar("T")

SILENCE = 30.0
"""Seconds without a byte on the stream of a call, on which the server sends pings, before the client reconnects."""
WAITING = 3600.0
"""Seconds without a byte on any other request, which may wait for a dataset to load, or for setup()."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Send a request, and get one answer."""

    method: Literal["GET", "POST", "DELETE"]
    path: str
    body: JsonObject | None = None
    session: str = ""
    silence: float = WAITING
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of this request alone."""


@dataclass(frozen=True, slots=True)
class Listen:
    """Send a request, and get a stream of events."""

    path: str
    body: JsonObject
    session: str
    silence: float
    headers: Mapping[str, str] = field(default_factory=dict)
    """Of this request alone."""


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
    """The request got no answer."""

    what: str
    sent: bool = True
    """Whether the server may have got the request."""


Step: TypeAlias = Ask | Listen | Sleep
Outcome: TypeAlias = Answer | Broken | Heard
"""Only `Listen` has the outcome `Heard`. `Sleep` has no outcome."""
Flow: TypeAlias = Generator[Step, Any, T]
"""Yields steps, receives the outcome of each, whose type depends on the step, and returns the answer."""
