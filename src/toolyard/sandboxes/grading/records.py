"""Reads the report of the process that ran a file of tests. Bounds it, and does not believe it yet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from toolyard.core.errors import SandboxError, SandboxUnavailable
from toolyard.sandboxes.base import Finished
from toolyard.sandboxes.output import ended_by

Outcome: TypeAlias = Literal["passed", "failed", "skipped"]
Key: TypeAlias = tuple[str, str]
"""A test's name, and the key of one of its cases."""

_BROKEN_MOST = 100
"""pytest reports one for a file, and one for each class in it."""


@dataclass(frozen=True, slots=True)
class Record:
    id: str
    outcome: Outcome
    text: str


@dataclass(slots=True)
class Records:
    tests: dict[Key, Record] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    """Why the file could not be loaded."""
    complete: bool = False
    """Whether the process reported its end."""
    ended: str = ""
    """Why the process did not end properly, as far as known."""
    tampered: str = ""
    """Evidence that the program tampered with the report; empty if there is none."""


def read(finished: Finished, path: str) -> Records:
    """Raises `SandboxError` if the tests never began: then no code under test has run."""
    lines = finished.stdout.split(b"\n")
    first = _message(lines[0])
    if first is not None and isinstance(lacks := first.get("lacks"), str):
        raise SandboxUnavailable(f"the Python of the sandbox cannot run tests: {lacks}. Install pytest in it")
    if first is None or "ready" not in first:
        said = finished.stderr.decode(errors="replace").strip()[-500:]
        raise SandboxError(f"the tests did not begin (exit code {finished.exit_code}): {said or 'no error message'}")
    records = Records()
    for line in lines[1:-1]:
        if records.complete or not _add(records, _message(line), f"{path}::"):
            records.tampered = "the report has lines that pytest did not write"
            break  # nothing in the report counts, and it may have millions of lines
    if lines[-1] and finished.killed_by is None and finished.exit_code == 0:
        records.tampered = records.tampered or "the report ends in the middle of a line"
    if finished.killed_by is not None:
        records.complete = False
        records.ended = ended_by(finished.killed_by, finished.usage.wall_seconds)
    elif not records.complete:
        records.ended = f"its process ended early, with exit code {finished.exit_code}"
    return records


def _message(line: bytes) -> Mapping[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) else None


def _add(records: Records, message: Mapping[str, Any] | None, prefix: str) -> bool:
    match message:
        case {"broken": str(text)} if len(records.broken) < _BROKEN_MOST:
            records.broken.append(text)
        case {"end": int()}:
            records.complete = True
        case {"base": str(base), "case": str(case), "id": str(id), "outcome": str(outcome), "text": str(text)}:
            if not (base.startswith(prefix) and id.startswith(base) and outcome in ("passed", "failed", "skipped")):
                return False
            key = base.removeprefix(prefix), case
            if key in records.tests:
                return False
            records.tests[key] = Record(id, _outcome(outcome), text)
        case _:
            return False
    return True


def _outcome(word: str) -> Outcome:
    match word:
        case "passed" | "skipped":
            return word
        case _:
            return "failed"
