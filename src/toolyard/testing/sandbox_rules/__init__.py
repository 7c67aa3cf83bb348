"""The rules of the sandbox contract, each with the programs that test it."""

from __future__ import annotations

from collections.abc import Sequence

from toolyard.testing.sandbox_rules import endings, files, limits, processes, programs, reports, sessions
from toolyard.testing.sandbox_rules.rule import SECRET, Case, Rule

RULES: Sequence[Rule] = [
    *programs.RULES,
    *processes.RULES,
    *limits.RULES,
    *sessions.RULES,
    *files.RULES,
    *endings.RULES,
    *reports.RULES,
]

__all__ = ["RULES", "SECRET", "Case", "Rule"]
