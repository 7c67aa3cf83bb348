"""The parts of an evaluation: tasks, attempts at them, and the journal that keeps each attempt as it ends."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Self

from toolyard.agents.rollout import Outcome, Rollout, Tokens
from toolyard.client import Task
from toolyard.core.errors import ToolyardError
from toolyard.core.output import JsonObject


class EvalError(ToolyardError):
    """The evaluation cannot begin or continue."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """A task to evaluate."""

    index: int
    task: Task
    key: str
    """A hash of its content, so that attempts stay with their task when the list changes."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One attempt to make. `number` counts from 0."""

    of: Chosen
    number: int

    @property
    def id(self) -> str:
        return f"{self.of.key}-{self.number}"


def chosen(tasks: Iterable[Task], start: int) -> Sequence[Chosen]:
    """Choose these tasks; the order tells apart those with the same content."""
    seen: Counter[str] = Counter()
    found = []
    for index, task in enumerate(tasks, start):
        text = json.dumps([task.environment_name, dict(task.task_spec)], sort_keys=True)
        again = f"{seen[text]}" if seen[text] else ""
        seen[text] += 1
        found.append(Chosen(index, task, hashlib.sha256((text + again).encode()).hexdigest()[:16]))
    return found


def planned(tasks: Sequence[Chosen], repeat: int) -> Sequence[Planned]:
    """Every task once before any is repeated: an evaluation that stops early has seen most tasks."""
    return [Planned(task, number) for number in range(repeat) for task in tasks]


@dataclass(frozen=True, slots=True)
class Attempt:
    """A finished attempt."""

    id: str
    index: int
    number: int
    total: float | None
    outcome: Outcome
    turns: int
    tokens: Tokens = field(default_factory=Tokens)
    failed_by: str | None = None
    error: str = ""
    session: str = ""
    seconds: float = 0.0
    rewards: JsonObject = field(default_factory=dict)
    """The sum of the rewards of each name."""

    @classmethod
    def of(cls, one: Planned, rollout: Rollout) -> Self:
        return cls(
            one.id,
            one.of.index,
            one.number,
            rollout.total,
            rollout.outcome,
            rollout.turns,
            rollout.tokens,
            rollout.failed_by,
            rollout.error,
            rollout.session,
            round(rollout.seconds, 3),
            rollout.named,
        )

    @property
    def counts(self) -> bool:
        """Whether it counts; one that others broke says nothing about the agent and is made again."""
        return self.failed_by is None or self.total is not None

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.id,
            "index": self.index,
            "try": self.number,
            "return": self.total,
            "outcome": self.outcome,
            "turns": self.turns,
        }

    def as_line(self) -> dict[str, Any]:
        more = {name: getattr(self, name) for name in ("failed_by", "error", "session", "seconds", "rewards")}
        return {**self.as_json(), "tokens": self.tokens.as_json(), **more}

    @classmethod
    def read(cls, said: JsonObject) -> Self:
        names = ("outcome", "turns", "failed_by", "error", "session", "seconds", "rewards")
        more = {name: said[name] for name in names}
        return cls(
            said["id"],
            said["index"],
            said["try"],
            said["return"],
            tokens=Tokens.of(said["tokens"]),
            **more,
        )


class AttemptJournal:
    """A file with a line for each attempt, in the order of their ends. It only grows.

    The first line says what is evaluated. Readers ignore a last line that a crash cut off.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: IO[str] | None = None

    def read(self) -> tuple[JsonObject, Sequence[Attempt]] | None:
        """What is evaluated, and the attempts so far. None if there is nothing."""
        lines = list(self._lines())
        if not lines:
            return None
        return lines[0], [Attempt.read(line) for line in lines[1:]]

    def _lines(self) -> Iterator[JsonObject]:
        if self.path.exists():
            for text in self.path.read_bytes()[: self._whole()].splitlines():
                yield json.loads(text)

    def _whole(self) -> int:
        """The length of all lines that were written to their end."""
        return self.path.read_bytes().rfind(b"\n") + 1

    def start(self, about: JsonObject) -> None:
        """Begin anew."""
        self._file = self._opened("w")
        self._write(about)

    def go_on(self) -> None:
        os.truncate(self.path, self._whole())
        self._file = self._opened("a")

    def _opened(self, mode: Literal["w", "a"]) -> IO[str]:
        try:
            return self.path.open(mode, encoding="utf-8")
        except OSError as error:
            raise EvalError(f"{self.path} cannot be written: {error}") from None

    def add(self, attempt: Attempt) -> None:
        self._write(attempt.as_line())

    def _write(self, line: JsonObject) -> None:
        assert self._file is not None
        try:
            self._file.write(f"{json.dumps(line)}\n")
            self._file.flush()
        except OSError as error:
            raise EvalError(f"{self.path} cannot be written: {error}") from None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
