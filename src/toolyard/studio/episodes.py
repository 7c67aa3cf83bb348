"""Episodes: what sessions left behind, if this server records them: a list to filter and sort, and plots over it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from anyio import CapacityLimiter, to_thread
from anyio.lowlevel import RunVar

from toolyard.asgi import HttpError
from toolyard.core.output import JsonObject
from toolyard.episodes import lists
from toolyard.episodes.lists import BYS, By, Cursor, Order
from toolyard.episodes.schema import StoreError, looking
from toolyard.episodes.store import OUTCOMES, Filter
from toolyard.episodes.texts import index
from toolyard.studio.parts import Parts
from toolyard.studio.visit import Page, Visit

_ROWS_MOST = 500
_TASKS_MOST = 1000
_NAMED_MOST = 100
_INDEX_SECONDS = 0.4
"""How long one request adds to the index of words; the page asks again while that goes on."""
_AT_ONCE = 3
"""Questions to a store at once: each has a thread of its own."""
_LIMITER = RunVar[CapacityLimiter]("toolyard.studio.episodes")

T = TypeVar("T")


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "episodes", show_list),
        Page("GET", "api/v1/episodes", rows),
        Page("GET", "api/v1/episodes/choices", choices),
        Page("GET", "api/v1/episodes/plots/*", plots),
        Page("GET", "api/v1/episodes/named", named),
    ]


async def show_list(visit: Visit) -> None:
    await visit.page("episodes.html", outcomes=OUTCOMES)


async def rows(visit: Visit) -> None:
    """Some rows after a place, how many there are, and whether the index of words is still being made."""
    query = visit.query
    wanted, order = filter_of(query), order_of(query)
    after = Cursor.read(query["after"]) if query.get("after") else None
    limit = min(max(visit.number("limit", 100), 1), _ROWS_MOST)

    def ask(file: sqlite3.Connection) -> JsonObject:
        indexed = index(file, _INDEX_SECONDS) if wanted.words is not None and after is None else True
        found = lists.page(file, wanted, order, after=after, limit=limit)
        count = None if after is not None else lists.count(file, wanted)
        return {"rows": found, "count": count, "indexed": indexed}

    await visit.json(await asked(visit, ask))


async def choices(visit: Visit) -> None:
    await visit.json({**await asked(visit, lists.choices), "outcomes": OUTCOMES})


async def plots(visit: Visit) -> None:
    query = visit.query
    wanted = filter_of(query)
    limit = min(max(visit.number("limit", 12), 1), _TASKS_MOST)
    ask: Mapping[str, Callable[[sqlite3.Connection], object]] = {
        "histogram": lambda file: lists.histogram(file, wanted),
        "curves": lambda file: lists.curves(file, wanted),
        "tasks": lambda file: lists.tasks(file, wanted, limit=limit),
    }
    which = visit.named[0]
    if which not in ask:
        raise HttpError(404, f"there is no plot {which[:100]!r}; there are {', '.join(ask)}")
    await visit.json(await asked(visit, ask[which]))


async def named(visit: Visit) -> None:
    """Rows that are shown already, as they are now."""
    ids = [one for one in visit.query.get("ids", "").split(",") if one][:_NAMED_MOST]
    await visit.json({"rows": await asked(visit, lambda file: lists.named(file, ids))})


# What pages of episodes share.


async def asked(visit: Visit, ask: Callable[[sqlite3.Connection], T]) -> T:
    """Ask the store of this server, in a thread. Raises `HttpError` if there is none or it cannot be read."""
    path = store_of(visit)

    def look() -> T:
        with looking(path) as file:
            return ask(file)

    try:
        return await to_thread.run_sync(look, limiter=_limiter(), abandon_on_cancel=False)
    except StoreError as error:
        raise HttpError(503 if not path.exists() else 409, str(error)) from error
    except (ValueError, TypeError, LookupError, AttributeError) as error:  # of a stranger's file
        raise HttpError(409, f"{str(path)!r} has rows that no Toolyard has written: {error}") from error


def store_of(visit: Visit) -> Path:
    record = visit.parts.options.record
    if not record:
        raise HttpError(404, "this server keeps no episodes: start it with --record runs.db")
    return Path(record)


def filter_of(query: Mapping[str, str]) -> Filter:
    """The filter that the query of a page names. Raises `HttpError` for a number that is none."""
    given = {name: value for name, value in query.items() if value}
    bounds = [
        f"{compared}{_number(given[name], name)}"
        for name, compared in (("least", ">="), ("most", "<="))
        if name in given
    ]
    if given.get("scored") == "no":
        bounds = ["null"]
    labels = {}
    if "label" in given:
        name, equals, value = given["label"].partition("=")
        if not equals:
            raise HttpError(400, f"label is {given['label'][:100]!r}; it must be a name and a value, as step=12")
        labels[name.strip()] = value.strip()
    task = given.get("index")
    if task is not None and not (task.isascii() and task.isdigit() and len(task) < 16):
        raise HttpError(400, f"index is {task[:100]!r}; it must be the number of a task")
    return Filter(
        environment=given.get("environment"),
        split=given.get("split"),
        index=int(task) if task is not None else None,
        run=given.get("run"),
        wire=given.get("wire"),
        outcome=given.get("outcome"),
        reward=",".join(bounds) or None,
        labels=labels,
        like=given.get("like"),
        words=given.get("words", "").strip() or None,
    )


def order_of(query: Mapping[str, str]) -> Order:
    by = query.get("by") or "opened"
    if by not in BYS:
        raise HttpError(400, f"episodes are not sorted by {by[:100]!r}; they are by {', '.join(BYS)}")
    return Order(cast(By, by), falling=query.get("rising") != "1")


def _number(text: str, name: str) -> str:
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if not abs(number) < 1e300:
        raise HttpError(400, f"{name} is {text[:100]!r}; it must be a number")
    return f"{number:.17g}"


def _limiter() -> CapacityLimiter:
    try:
        return _LIMITER.get()
    except LookupError:
        made = CapacityLimiter(_AT_ONCE)
        _LIMITER.set(made)
        return made
