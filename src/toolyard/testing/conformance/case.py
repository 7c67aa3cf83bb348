"""What a conformance case is, and what comes of trying it. Knows no wire."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from toolyard.testing.conformance.http import Http
from toolyard.testing.conformance.target import Target

Verdict: TypeAlias = Literal["pass", "fail", "skip"]
ProbeT = TypeVar("ProbeT")


class Untried(Exception):
    """The case cannot be tried on this server, and why."""


@dataclass(frozen=True, slots=True)
class Case(Generic[ProbeT]):
    number: str
    """The same number stands at the test of our own server for this case."""
    protocol: str
    title: str
    expected: str
    trial: Callable[[ProbeT], Awaitable[None]]
    """Raises `Unmet` if something else came, and `Untried` if the server gives it nothing to try."""
    difference: str = ""
    """The known difference between documents and reference servers that makes it fail there, such as D-8."""


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
        """Add a case. Its title is the documentation of what is decorated."""

        def add(trial: Callable[[ProbeT], Awaitable[None]]) -> Callable[[ProbeT], Awaitable[None]]:
            title = " ".join((trial.__doc__ or "").split()).rstrip(".")
            self.cases.append(Case(number, self.protocol, title, expected, trial, difference))
            return trial

        return add


@dataclass(frozen=True, slots=True)
class Kit(Generic[ProbeT]):
    """The cases of one protocol, and the probe that they share."""

    protocol: str
    probe: Callable[[Http, Target], ProbeT]
    speaks: Callable[[ProbeT], Awaitable[bool]]
    """Whether a server speaks this protocol at all."""
    close: Callable[[ProbeT], Awaitable[None]]
    """Ends what is still open after the last case."""
    cases: Sequence[Case[ProbeT]]
