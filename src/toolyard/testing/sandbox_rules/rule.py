"""A rule, and what its programs use."""

from __future__ import annotations

import asyncio
import contextlib
import os
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import Backend, Limits, Report, Sandbox

SECRET = "TOOLYARD_CHECK_SECRET"
"""Stands in the server's environment during a check."""


@dataclass(slots=True)
class Case:
    """One rule on trial."""

    backend: Backend
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        self.problems.append(text)

    def same(self, what: str, got: object, wanted: object) -> None:
        if got != wanted:
            self.problem(f"{what} is {got!r:.300}, not {wanted!r:.300}")

    async def refused(self, work: Awaitable[object], path: str) -> None:
        """Expect a WorkspaceError that names the path."""
        try:
            got = await work
        except WorkspaceError as error:
            if path not in str(error) and repr(path)[1:-1] not in str(error):
                self.problem(f"the error does not name {path!r}: {error}")
        else:
            self.problem(f"{path!r:.100} gave {got!r:.100}")

    async def nothing_left(self, number: str) -> None:
        """Expect that no program `sleep NUMBER` runs any more, after a moment to end."""
        found: list[str] = []
        for _ in range(20):
            found = [name for name in _sleeps() if number in name]
            if not found:
                return
            await asyncio.sleep(0.05)
        self.problem(f"{len(found)} programs are left")


Trial: TypeAlias = Callable[[Sandbox, Case], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Rule:
    topic: str
    text: str
    trial: Trial
    limits: Limits
    """The limits of the sandbox that it is tried in."""
    layer: str
    """The layer of the report by which a backend may declare that it does not keep the rule."""

    def is_disclaimed(self, report: Report) -> bool:
        return bool(self.layer) and report.layers.get(self.layer, "none") == "none"


def rule_of(
    rules: list[Rule], topic: str, *, limits: Limits | None = None, layer: str = ""
) -> Callable[[Trial], Trial]:
    """Add a rule; its text is the docstring of the decorated function."""

    def add(trial: Trial) -> Trial:
        rules.append(Rule(topic, (trial.__doc__ or "").strip().rstrip("."), trial, limits or Limits(), layer))
        return trial

    return add


def sh(text: str) -> Sequence[str]:
    return ["sh", "-c", text]


def a_number() -> str:
    """A number of seconds to sleep that identifies the program."""
    return str(secrets.randbelow(10**6) + 10**6)


def _sleeps() -> Iterator[str]:
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
            if name.startswith("sleep "):
                yield name
