"""Reads recorded episodes, by filter or by id, with their steps."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import Any, Self

from toolyard.core.errors import ToolyardError
from toolyard.core.output import JsonObject
from toolyard.episodes.schema import StoreError, connect
from toolyard.episodes.texts import MATCHES_MOST, STEPS_MOST, index, quoted, read_block, words_of_step

OUTCOMES = ("finished", "closed", "idle", "failed", "lost", "open")
_STEPS_AT_ONCE = 50
_COMPARISON = re.compile(r"\s*(<=|>=|=|==|!=|<|>)?\s*(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?|null)\s*", re.IGNORECASE)


class NoEpisode(ToolyardError):
    """No store has an episode of this id, or several begin with it."""


@dataclass(frozen=True, slots=True)
class Step:
    number: int
    tool: str
    arguments: JsonObject
    given: JsonObject
    said: str | None
    outcome: str
    blocks: Sequence[JsonObject]
    reward: float | None
    rewards: JsonObject | None
    finished: bool
    metadata: JsonObject | None
    queued_seconds: float
    ran_seconds: float | None
    at: str
    altered: bool
    """Something was removed, so the call cannot be repeated."""

    @property
    def text(self) -> str:
        return "\n".join(block["text"] for block in self.blocks if block["type"] == "text")

    def as_json(self) -> JsonObject:
        hidden = {"given", "altered"}
        return {name: getattr(self, name) for name in self.__slots__ if name not in hidden}


@dataclass(frozen=True, slots=True)
class Episode:
    id: str
    session: str
    environment: str
    split: str | None
    index: int | None
    run: str
    wire: str
    steps: int
    total: float | None
    """The sum of its rewards; None if there is none."""
    finished: bool
    outcome: str
    complete: bool
    opened: str
    closed: str | None
    task: JsonObject
    prompt: Sequence[JsonObject] | None
    labels: JsonObject
    parent: str | None
    parent_step: int | None
    toolyard: str
    source: str
    number: int
    """Its row in its store."""

    @property
    def file_name(self) -> str:
        """Its id, made safe for file names: the ids of an untrusted store may lead out of a folder."""
        return re.sub(r"[^0-9A-Za-z]", "_", self.id)

    def as_json(self) -> dict[str, Any]:
        """The episode as one line of a list."""
        names = ("id", "session", "environment", "split", "index", "run", "wire", "steps")
        later = ("finished", "outcome", "complete", "opened", "closed")
        return {
            **{name: getattr(self, name) for name in names},
            "return": self.total,
            **{name: getattr(self, name) for name in later},
        }

    def whole(self, steps: Sequence[Step]) -> dict[str, Any]:
        return {
            **self.as_json(),
            "labels": self.labels,
            "parent": self.parent,
            "parent_step": self.parent_step,
            "task": self.task,
            "prompt": self.prompt,
            "steps": [step.as_json() for step in steps],
        }


@dataclass(frozen=True, slots=True)
class Filter:
    environment: str | None = None
    split: str | None = None
    index: int | None = None
    run: str | None = None
    wire: str | None = None
    outcome: str | None = None
    reward: str | None = None
    """A comparison with the return, such as `<0.5`, or several: `>=0.2,<0.5`."""
    labels: JsonObject = field(default_factory=dict)
    ids: Sequence[str] = ()
    """Ids, or their beginnings."""
    like: str | None = None
    """The id of an episode: only episodes of its task match."""
    words: str | None = None
    """Words that one of their steps contains. Finds only indexed steps."""

    def where(self) -> tuple[str, Sequence[object]]:
        """The SQL condition and its values. Raises `StoreError` for a malformed comparison."""
        clauses, values = ["1"], []
        for column, value in [
            ("environment", self.environment and self.environment.lower()),
            ("split", self.split),
            ("task_index", self.index),
            ("run", self.run),
            ("wire", self.wire),
            ("outcome", self.outcome),
        ]:
            if value is not None:
                clauses.append(f"{column} = ?")
                values.append(value)
        if self.reward is not None:
            clauses += map(_compared, self.reward.split(","))
        for name, label in self.labels.items():
            clauses.append("EXISTS (SELECT 1 FROM json_each(labels) WHERE key = ? AND value = ?)")
            values += [name, label]
        if self.like is not None:
            clauses.append(
                "(environment, split, task_index) IS "
                "(SELECT environment, split, task_index FROM episodes WHERE id = ?) "
                "AND (task_index IS NOT NULL OR task = (SELECT task FROM episodes WHERE id = ?))"
            )
            values += [self.like, self.like]
        if self.words is not None:
            clauses.append(
                f"number IN (SELECT rowid / {STEPS_MOST} FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?)"
            )
            values += [quoted(self.words), MATCHES_MOST]
        if self.ids:
            clauses.append(f"({' OR '.join(['id GLOB ?'] * len(self.ids))})")
            values += [f"{re.sub('[^0-9a-zA-Z]', '?', wanted)}*" for wanted in self.ids]
        return " AND ".join(clauses), values


ALL = Filter()


def _compared(text: str) -> str:
    found = _COMPARISON.fullmatch(text)
    if found is None:
        raise StoreError(f"--reward is {text!r}; it compares the return with a number, as '<0.5', or says null")
    operator, number = found[1] or "=", found[2].lower()
    if number == "null":
        return "total IS NOT NULL" if operator == "!=" else "total IS NULL"
    return f"total {'=' if operator == '==' else operator} {float(number)!r}"


class Store:
    """One or several files, read as one."""

    def __init__(self, paths: Sequence[Path]) -> None:
        if not paths:
            raise StoreError("name a file of episodes with --store")
        self._files = [connect(path) for path in paths]
        self._paths = paths

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for file in self._files:
            file.close()

    def episodes(self, wanted: Filter = ALL, *, limit: int = -1, newest: bool = False) -> Iterator[Episode]:
        """Yield episodes in the order in which they began. Memory does not grow with their number."""
        where, values = wanted.where()
        order = "DESC" if newest else "ASC"
        sql = f"SELECT * FROM episodes WHERE {where} ORDER BY opened {order}, number {order} LIMIT ?"
        found = merge(*(_rows(file, sql, *values, limit) for file in self._files), key=_opened, reverse=newest)
        return map(_episode, islice(found, limit if limit >= 0 else None))

    def find(self, wanted: str) -> Episode:
        """Find an episode by its id, or by the id's beginning. Raises `NoEpisode`."""
        found = list(self.episodes(Filter(ids=[wanted]), limit=2))
        exact = [one for one in found if one.id == wanted]
        if len(found) != 1 and not exact:
            said = "there is no episode" if not found else "several episodes have ids that begin with"
            raise NoEpisode(f"{said} {wanted!r} in {', '.join(map(str, self._paths))}")
        return (exact or found)[0]

    def steps(self, episode: Episode) -> Sequence[Step]:
        """All steps of an episode, with images and long texts in their places."""
        file = self._file_of(episode)
        sql = "SELECT * FROM steps WHERE episode = ? ORDER BY number"
        return [self._step(file, row) for row in _rows(file, sql, episode.number)]

    def some_steps(self, episode: Episode, first: int, limit: int) -> Sequence[Step]:
        """Steps from a number on."""
        file = self._file_of(episode)
        sql = "SELECT * FROM steps WHERE episode = ? AND number >= ? ORDER BY number LIMIT ?"
        return [self._step(file, row) for row in _rows(file, sql, episode.number, first, limit)]

    def each_step(self, episode: Episode) -> Iterator[Step]:
        """Yield all steps, a few in memory at a time."""
        first = 1
        while steps := self.some_steps(episode, first, _STEPS_AT_ONCE):
            yield from steps
            first = steps[-1].number + 1

    def prompt(self, episode: Episode) -> Sequence[JsonObject] | None:
        file = self._file_of(episode)
        return None if episode.prompt is None else [read_block(file, {**block}) for block in episode.prompt]

    def search(self, words: str, *, limit: int) -> Iterator[tuple[Episode, int, str]]:
        """Episodes with a step that contains these words, the step's number and an excerpt, the newest first."""
        for file, path in zip(self._files, self._paths, strict=True):
            sql = "SELECT rowid AS place FROM words WHERE words MATCH ? ORDER BY rowid DESC LIMIT ?"
            try:
                index(file)
                places = [row["place"] for row in _rows(file, sql, quoted(words), limit)]
            except sqlite3.Error as error:
                raise StoreError(f"{str(path)!r} cannot be searched for {words!r}: {error}") from error
            for place in places:
                number, step = divmod(place, STEPS_MOST)
                limit -= 1
                for row in _rows(file, "SELECT * FROM episodes WHERE number = ?", number):
                    yield _episode(row), step, _excerpt(file, number, step, words)

    def add_score(self, episode: Episode, source: str, scores: JsonObject) -> None:
        """Keep a new score beside the old ones."""
        now = datetime.now(UTC).timestamp()
        rows = [(episode.number, now, source, name, score) for name, score in scores.items()]
        self._file_of(episode).executemany("INSERT INTO scores VALUES (?, ?, ?, ?, ?)", rows)

    def scores(self, episode: Episode) -> Sequence[JsonObject]:
        sql = "SELECT at, source, name, score FROM scores WHERE episode = ? ORDER BY at"
        return [dict(row) for row in _rows(self._file_of(episode), sql, episode.number)]

    def _file_of(self, episode: Episode) -> sqlite3.Connection:
        for file in self._files:
            if next(_rows(file, "SELECT 1 FROM episodes WHERE id = ?", episode.id), None):
                return file
        raise NoEpisode(f"the episode {episode.id!r} is no longer there")

    def _step(self, file: sqlite3.Connection, row: sqlite3.Row) -> Step:
        return Step(
            number=row["number"],
            tool=row["tool"],
            arguments=json.loads(row["arguments"]),
            given=_read(row["given"]) or {},
            said=row["said"],
            outcome=row["outcome"],
            blocks=[read_block(file, block) for block in json.loads(row["blocks"])],
            reward=row["reward"],
            rewards=_read(row["rewards"]),
            finished=bool(row["finished"]),
            metadata=_read(row["metadata"]),
            queued_seconds=row["queued"],
            ran_seconds=row["ran"],
            at=_time(row["at"]),
            altered=bool(row["altered"]),
        )


def _excerpt(file: sqlite3.Connection, number: int, step: int, words: str) -> str:
    sql = "SELECT tool, said, arguments, blocks FROM steps WHERE episode = ? AND number = ?"
    for row in file.execute(sql, (number, step)).fetchall():
        text = " ".join(words_of_step(file, *row).split())
        places = [text.lower().find(word.lower()) for word in words.split()]
        start = max(min((place for place in places if place >= 0), default=0) - 30, 0)
        return text[start : start + 120]
    return ""


def _rows(file: sqlite3.Connection, sql: str, *values: object) -> Iterator[sqlite3.Row]:
    cursor = file.cursor()
    cursor.row_factory = sqlite3.Row
    for row in cursor.execute(sql, values):  # noqa: UP028  # `yield from` closes it, maybe after its file
        yield row


def _opened(row: sqlite3.Row) -> float:
    opened: float = row["opened"]
    return opened


def _episode(row: sqlite3.Row) -> Episode:
    return Episode(
        id=row["id"],
        session=row["session"],
        environment=row["environment"],
        split=row["split"],
        index=row["task_index"],
        run=row["run"],
        wire=row["wire"],
        steps=row["steps"],
        total=row["total"],
        finished=bool(row["finished"]),
        outcome=row["outcome"],
        complete=bool(row["complete"]),
        opened=_time(row["opened"]),
        closed=None if row["closed"] is None else _time(row["closed"]),
        task=json.loads(row["task"]),
        prompt=_read(row["prompt"]),
        labels=json.loads(row["labels"]),
        parent=row["parent"],
        parent_step=row["parent_step"],
        toolyard=row["toolyard"],
        source=row["source"],
        number=row["number"],
    )


def _read(text: str | None) -> Any:  # any JSON value
    return None if text is None else json.loads(text)


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
