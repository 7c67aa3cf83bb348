"""The findings of a check, one line each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, TypeAlias

Level: TypeAlias = Literal["ok", "note", "warning", "error"]


@dataclass(frozen=True, slots=True)
class Finding:
    level: Level
    topic: str
    """What was checked, in a word: splits, tasks, prompts, tools, episodes, leaks, loop …"""
    text: str

    def __str__(self) -> str:
        return f"{self.level:8} {self.topic:9} {self.text}"


@dataclass(slots=True)
class Report:
    environment: str
    findings: list[Finding] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True if there is no error; there may be warnings."""
        return not self.of("error")

    def of(self, level: Level) -> list[Finding]:
        return [finding for finding in self.findings if finding.level == level]

    @property
    def summary(self) -> str:
        errors, warnings = len(self.of("error")), len(self.of("warning"))
        verdict = "holds together" if self.ok else "does not hold together"
        return f"{self.environment} {verdict}: {_count(errors, 'error')}, {_count(warnings, 'warning')}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.findings), self.summary])


def _count(number: int, noun: str) -> str:
    return f"{number or 'no'} {noun}{'s' * (number != 1)}"
