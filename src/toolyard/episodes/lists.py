"""Reads parts of a list of episodes, and the data of plots over a list, in bounded time and memory.

Most queries read only an index with the columns to filter and sort by: tasks and prompts would be a hundred times as
much.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

from toolyard.core.output import JsonObject
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import Filter

By: TypeAlias = Literal["opened", "return", "steps", "duration"]
BYS: Sequence[By] = get_args(By)

_FROM = "FROM episodes INDEXED BY episodes_by_time"
_SORTED: Mapping[By, str] = {
    "opened": "opened",
    "return": "coalesce(total, {nothing})",
    "steps": "steps",
    "duration": "coalesce(closed - opened, {nothing})",
}
_SHOWN = (
    "number, id, environment, split, task_index, substr(task, 1, 240) AS task, wire, run, labels, opened, closed, "
    "steps, total, rewards, finished, outcome, complete, parent, parent_step"
)
_CHOICES_MOST = 200
_BARS_MOST = 24
_POINTS = 48
_RUNS_MOST = 8
_LEAST_SPAN = 1.0
"""The shortest span of a curve in seconds, for runs of a single moment."""


@dataclass(frozen=True, slots=True)
class Order:
    by: By = "opened"
    falling: bool = True

    def terms(self) -> tuple[str, str, str]:
        """The column to sort by, the direction, and how later rows compare. Rows without a value come last."""
        expression = _SORTED[self.by].format(nothing="-9e999" if self.falling else "9e999")
        return (expression, "DESC", "<") if self.falling else (expression, "ASC", ">")


NEWEST = Order()


@dataclass(frozen=True, slots=True)
class Cursor:
    """The place of a row in an order. Pages begin after a cursor, never at a position."""

    value: float
    number: int

    def __str__(self) -> str:
        return f"{self.value!r},{self.number}"

    @classmethod
    def read(cls, text: str) -> Cursor:
        """Read a cursor. Raises `StoreError` for any other text."""
        value, _, number = text.partition(",")
        try:
            return cls(float(value), int(number))
        except ValueError:
            raise StoreError(f"{text[:80]!r} is no place in a list of episodes") from None


def page(
    file: sqlite3.Connection, wanted: Filter, order: Order = NEWEST, *, after: Cursor | None = None, limit: int = 100
) -> Sequence[JsonObject]:
    """The rows after a place, each with its own place."""
    where, values = wanted.where()
    expression, direction, later = order.terms()
    beyond = f" AND ({expression}, number) {later} (?, ?)" if after else ""
    places = file.execute(
        f"SELECT number, {expression} AS value {_FROM} WHERE {where}{beyond} "
        f"ORDER BY value {direction}, number {direction} LIMIT ?",
        (*values, *((after.value, after.number) if after else ()), limit),
    ).fetchall()
    marks = ", ".join("?" * len(places))
    numbers = [place["number"] for place in places]
    found = {
        row["number"]: row for row in file.execute(f"SELECT {_SHOWN} FROM episodes WHERE number IN ({marks})", numbers)
    }
    return [{**_row(found[number]), "place": str(Cursor(value, number))} for number, value in places if number in found]


def count(file: sqlite3.Connection, wanted: Filter) -> int:
    where, values = wanted.where()
    (found,) = file.execute(f"SELECT count(*) {_FROM} WHERE {where}", values).fetchone()
    return int(found)


def choices(file: sqlite3.Connection) -> JsonObject:
    """The values to filter by."""
    kinds = file.execute("SELECT DISTINCT environment, split FROM episodes LIMIT ?", (_CHOICES_MOST,)).fetchall()
    runs = file.execute(
        "SELECT run FROM episodes GROUP BY run ORDER BY max(opened) DESC LIMIT ?", (_CHOICES_MOST,)
    ).fetchall()
    wires = file.execute(f"SELECT DISTINCT wire {_FROM} LIMIT ?", (_CHOICES_MOST,)).fetchall()
    return {
        "environments": sorted({kind["environment"] for kind in kinds}),
        "splits": sorted({kind["split"] for kind in kinds if kind["split"] is not None}),
        "runs": [run["run"] for run in runs if run["run"]],
        "wires": sorted(wire["wire"] for wire in wires),
    }


def histogram(file: sqlite3.Connection, wanted: Filter) -> JsonObject:
    """How many episodes have each return: by value if there are few, else by ranges of one width."""
    where, values = wanted.where()
    scored = f"{_FROM} WHERE {where} AND total IS NOT NULL"
    known = file.execute(
        f"SELECT count(*), count(total), avg(total), min(total), max(total) {_FROM} WHERE {where}", values
    ).fetchone()
    everything, number, mean, low, high = known
    unscored = everything - number
    found: JsonObject = {"scored": number, "unscored": unscored, "mean": mean, "bars": []}
    if not number:
        return found
    few = file.execute(f"SELECT DISTINCT total {scored} LIMIT ?", (*values, _BARS_MOST // 2 + 1)).fetchall()
    if len(few) <= _BARS_MOST // 2:
        counted = file.execute(f"SELECT total, count(*) {scored} GROUP BY total", values).fetchall()
        return {**found, "bars": [{"from": value, "to": value, "n": n} for value, n in counted]}
    if not math.isfinite(high - low):
        low, high = max(low, -1e6), min(high, 1e6)
    width = _round_width((high - low) / _BARS_MOST)
    first = math.floor(low / width)
    counted = file.execute(
        f"SELECT CAST(min(max((total - ?) / ?, 0), ?) AS INTEGER) AS bar, count(*) {scored} GROUP BY bar",
        (first * width, width, _BARS_MOST + 1, *values),
    ).fetchall()
    bars = [
        {"from": round((first + bar) * width, 9), "to": round((first + bar + 1) * width, 9), "n": n}
        for bar, n in counted
    ]
    return {**found, "bars": bars, "width": width}


def curves(file: sqlite3.Connection, wanted: Filter) -> JsonObject:
    """The mean return of the newest runs, over the time since each began."""
    where, values = wanted.where()
    scored = f"{_FROM} WHERE {where} AND total IS NOT NULL"
    runs = file.execute(
        f"SELECT run, min(opened) AS began, max(opened) AS last, count(*) AS n {scored} "
        f"GROUP BY run ORDER BY last DESC LIMIT ?",
        (*values, _RUNS_MOST),
    ).fetchall()
    span = max((run["last"] - run["began"] for run in runs), default=0.0)
    width = max(span, _LEAST_SPAN) / _POINTS
    if not runs:
        return {"seconds": _LEAST_SPAN, "runs": []}
    began = " ".join("WHEN ? THEN ?" for _ in runs)
    marks = ", ".join("?" * len(runs))
    points: dict[str, list[JsonObject]] = {run["run"]: [] for run in runs}
    counted = file.execute(
        f"SELECT run, min(CAST((opened - CASE run {began} END) / ? AS INTEGER), {_POINTS - 1}) AS place, "
        f"count(*), avg(total) {scored} AND run IN ({marks}) GROUP BY run, place",
        (*(part for run in runs for part in (run["run"], run["began"])), width, *values, *points),
    )
    for run, place, n, mean in counted:
        points[run].append({"at": (place + 0.5) * width, "n": n, "mean": mean})
    found = [{"run": run["run"], "n": run["n"], "points": points[run["run"]]} for run in runs]
    return {"seconds": max(span, _LEAST_SPAN), "runs": found}


def tasks(file: sqlite3.Connection, wanted: Filter, *, limit: int) -> Sequence[JsonObject]:
    """How often each task was passed, with a return of at least 1, the worst first."""
    where, values = wanted.where()
    what = "count(*) AS n, avg(total >= 1) AS passed, avg(total) AS mean, max(number) AS example"
    worst = "ORDER BY passed, mean, n DESC LIMIT ?"
    listed = file.execute(
        f"SELECT environment, split, task_index, NULL AS task, {what} {_FROM} "
        f"WHERE {where} AND total IS NOT NULL AND task_index IS NOT NULL "
        f"GROUP BY environment, split, task_index {worst}",
        (*values, limit),
    ).fetchall()
    brought = file.execute(
        f"SELECT environment, split, task_index, substr(task, 1, 240) AS task, {what} {_FROM} "
        f"WHERE {where} AND total IS NOT NULL AND task_index IS NULL GROUP BY environment, episodes.task {worst}",
        (*values, limit),
    ).fetchall()
    found = sorted((*listed, *brought), key=lambda row: (row["passed"], row["mean"], -row["n"]))[:limit]
    ids = _ids(file, [row["example"] for row in found])
    return [{**dict(row), "example": ids.get(row["example"], "")} for row in found]


def named(file: sqlite3.Connection, ids: Sequence[str]) -> Sequence[JsonObject]:
    """The current state of these episodes, for rows that a page already shows."""
    marks = ", ".join("?" * len(ids))
    return [_row(row) for row in file.execute(f"SELECT {_SHOWN} FROM episodes WHERE id IN ({marks})", ids)]


def _ids(file: sqlite3.Connection, numbers: Sequence[int]) -> Mapping[int, str]:
    marks = ", ".join("?" * len(numbers))
    return dict(file.execute(f"SELECT number, id FROM episodes WHERE number IN ({marks})", numbers).fetchall())


def _row(row: sqlite3.Row) -> JsonObject:
    found: dict[str, Any] = dict(row)
    del found["number"]
    found["return"] = found.pop("total")
    found["index"] = found.pop("task_index")
    found["labels"] = json.loads(found["labels"])
    found["rewards"] = json.loads(found["rewards"]) if found["rewards"] else {}
    found["finished"], found["complete"] = bool(found["finished"]), bool(found["complete"])
    return found


def _round_width(width: float) -> float:
    """A width that reads well: 1, 2, 2.5 or 5 times a power of ten, and no smaller."""
    power = 10.0 ** math.floor(math.log10(width)) if width > 0 else 1.0
    return next((step * power for step in (1.0, 2.0, 2.5, 5.0) if step * power >= width), 10.0 * power)
