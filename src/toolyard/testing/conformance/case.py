"""A conformance case and its result. Knows no wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from toolyard.testing.conformance.http import Http
from toolyard.testing.conformance.target import Target

Verdict: TypeAlias = Literal["pass", "fail", "skip"]
ProbeT = TypeVar("ProbeT")


class Untried(Exception):
    """The case cannot be tried on this server; the text says why."""


@dataclass(frozen=True, slots=True)
class Case(Generic[ProbeT]):
    number: str
    """The test of Toolyard's own server for this case carries the same number."""
    protocol: str
    title: str
    expected: str
    trial: Callable[[ProbeT], Awaitable[None]]
    """Raises `Unmet` if the server answers otherwise, and `Untried` if it offers nothing to try the case on."""
    difference: str = ""
    """The known difference that makes reference servers fail it, such as D-8."""


@dataclass(frozen=True, slots=True)
class Result:
    case: Case[Any]
    verdict: Verdict
    why: str = ""
    """What came instead, or why the case was not tried."""


@dataclass(frozen=True, slots=True)
class Chapter(Generic[ProbeT]):
    """Cases of one protocol about one topic, in the order in which they are tried."""

    protocol: str
    cases: list[Case[ProbeT]] = field(default_factory=list)

    def case(
        self, number: str, expected: str, *, difference: str = ""
    ) -> Callable[[Callable[[ProbeT], Awaitable[None]]], Callable[[ProbeT], Awaitable[None]]]:
        """Add a case. Its title is the docstring of the decorated function."""

        def add(trial: Callable[[ProbeT], Awaitable[None]]) -> Callable[[ProbeT], Awaitable[None]]:
            title = " ".join((trial.__doc__ or "").split()).rstrip(".")
            self.cases.append(Case(number, self.protocol, title, expected, trial, difference))
            return trial

        return add


@dataclass(frozen=True, slots=True)
class Kit(Generic[ProbeT]):
    """The cases of one protocol, and their shared probe."""

    protocol: str
    probe: Callable[[Http, Target], ProbeT]
    speaks: Callable[[ProbeT], Awaitable[bool]]
    """Whether a server speaks this protocol at all."""
    close: Callable[[ProbeT], Awaitable[None]]
    """Ends what is still open after the last case."""
    cases: Sequence[Case[ProbeT]]
