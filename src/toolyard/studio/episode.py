"""One episode, and two side by side: windows of steps, jumps, long texts and images in parts, forks, files to keep."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

from anyio import to_thread

from toolyard.asgi import Headers, HttpError
from toolyard.core.encoding import encode
from toolyard.core.output import JsonObject
from toolyard.episodes import bundles
from toolyard.episodes import parts as reading
from toolyard.episodes.exports import row_of_step
from toolyard.episodes.parts import Kind
from toolyard.episodes.schema import looking
from toolyard.episodes.store import Filter, Store
from toolyard.episodes.texts import STEPS_MOST, index
from toolyard.studio.copying import Story, is_call
from toolyard.studio.episodes import asked, store_of
from toolyard.studio.parts import Parts
from toolyard.studio.sessions import copied
from toolyard.studio.visit import Page, Visit

_WINDOW_MOST = 100
_COPIED_MOST = 1000
_TASK_MOST = 2**20
_INDEX_SECONDS = 0.4
_PIECES = 64
"""Pieces of a file that are made at once."""


def pages(parts: Parts) -> Sequence[Page]:
    return [
        Page("GET", "episodes/*", show),
        Page("GET", "compare", show_two),
        Page("GET", "episodes/*/html", save_html),
        Page("GET", "episodes/*/jsonl", save_lines),
        Page("GET", "api/v1/episodes/*", head),
        Page("GET", "api/v1/episodes/*/steps", steps),
        Page("GET", "api/v1/episodes/*/jump", jump),
        Page("GET", "api/v1/episodes/*/text", text),
        Page("GET", "api/v1/episodes/*/file", save_text),
        Page("GET", "api/v1/episodes/*/image", image),
        Page("GET", "api/v1/episodes/*/near", near),
        Page("GET", "api/v1/episodes/*/difference", difference),
        Page("GET", "api/v1/episodes/*/copy/*", copy),
    ]


async def show(visit: Visit) -> None:
    wanted = visit.named[0]
    found = await asked(visit, lambda file: reading.head(file, wanted))
    served = found["environment"] in visit.parts.runtime.environments
    await visit.page("episode.html", one=found, served=served)


async def show_two(visit: Visit) -> None:
    query = visit.query
    ids = [query.get("a", ""), query.get("b", "")]
    a, b = await asked(visit, lambda file: [reading.head(file, one) for one in ids])
    await visit.page("compare.html", a=a, b=b, ahead=ahead_of(a, b))


def ahead_of(a: JsonObject, b: JsonObject) -> int:
    """How many steps of `b` stand before the first of `a`: a fork begins where its parent was."""
    if a["parent"] == b["id"]:
        return int(a["parent_step"] or 0)
    return -int(b["parent_step"] or 0) if b["parent"] == a["id"] else 0


async def head(visit: Visit) -> None:
    def ask(file: sqlite3.Connection) -> JsonObject:
        found = reading.head(file, visit.named[0])
        return {**found, "strip": reading.strip(file, found["number"], found["steps"])}

    await visit.json(await asked(visit, ask))


async def steps(visit: Visit) -> None:
    first, back = visit.number("first", 1), visit.query.get("back") == "1"
    limit = min(max(visit.number("limit", 40), 1), _WINDOW_MOST)
    await visit.json(
        {"steps": await of_episode(visit, lambda file, one: reading.steps(file, one, first, limit, back=back))}
    )


async def jump(visit: Visit) -> None:
    """The next step of a kind, or with words, after one or before it."""
    query = visit.query
    start, back, words = visit.number("from", 0), query.get("back") == "1", query.get("words", "").strip()
    kind = query.get("kind", "")
    if not words and kind not in ("failure", "reward"):
        raise HttpError(400, f"steps are found by kind=failure, kind=reward or words=…, not by {kind[:100]!r}")

    def ask(file: sqlite3.Connection, one: int) -> JsonObject:
        if not words:
            return {"step": reading.jump(file, one, cast(Kind, kind), start, back=back)}
        index(file, _INDEX_SECONDS)
        found, looked = reading.find(file, one, words, start, back=back)
        over = found is not None or looked <= 0 or looked >= STEPS_MOST
        return {"step": found, "looked": None if over else looked}

    await visit.json(await of_episode(visit, ask))


async def text(visit: Visit) -> None:
    step, name, start = visit.number("step", 0), visit.query.get("name", ""), max(visit.number("start", 0), 0)
    part = await of_episode(visit, lambda file, one: reading.text(file, one, step, name, start))
    await visit.json(part.as_json())


async def save_text(visit: Visit) -> None:
    """All of one text, as a file."""
    wanted, step, name = visit.named[0], visit.number("step", 0), visit.query.get("name", "")
    path = store_of(visit)

    def pieces() -> Iterator[bytes]:
        with looking(path, seconds=600) as file:
            yield from reading.whole(file, reading.number_of(file, wanted), step, name)

    await asked(visit, lambda file: reading.text(file, reading.number_of(file, wanted), step, name, 0, most=1))
    await saved(visit, pieces(), f"{wanted}-{step}-{name}.txt", b"text/plain; charset=utf-8")


async def image(visit: Visit) -> None:
    step, place = visit.number("step", 0), visit.number("block", 0)
    kind, data = await of_episode(visit, lambda file, one: reading.picture(file, one, step, place))
    await visit.picture(data, kind)


async def near(visit: Visit) -> None:
    """The tree of forks, and other episodes of its task."""
    wanted = visit.named[0]
    await visit.json(
        await asked(
            visit,
            lambda file: {"family": reading.family(file, wanted), "siblings": reading.siblings(file, wanted)},
        )
    )


async def difference(visit: Visit) -> None:
    other, after, ahead = visit.query.get("other", ""), visit.number("after", 0), visit.number("ahead", 0)

    def ask(file: sqlite3.Connection, one: int) -> JsonObject:
        found, looked = reading.first_difference(file, one, reading.number_of(file, other), ahead=ahead, after=after)
        return {"step": found, "looked": looked}

    await visit.json(await of_episode(visit, ask))


async def copy(visit: Visit) -> None:
    """The calls, to make them again elsewhere."""
    wanted = visit.named[0]

    def ask(file: sqlite3.Connection) -> Story:
        found = reading.head(file, wanted)
        known, number = reading.calls(file, wanted, _COPIED_MOST)
        task = reading.text(file, found["number"], 0, "task", 0, most=_TASK_MOST)
        missing = f"Only the first {len(known)} of {number} calls are here." if len(known) < number else ""
        return Story(
            environment=found["environment"],
            split=found["split"],
            index=found["index"],
            task=json.loads(task.text) if found["split"] is None else {},
            calls=[(tool, arguments) for tool, arguments, outcome in known if is_call(outcome)],
            missing=missing,
        )

    await copied(visit, await asked(visit, ask))


async def save_html(visit: Visit) -> None:
    """What `toolyard episodes bundle` writes."""
    path, wanted = store_of(visit), visit.named[0]
    await asked(visit, lambda file: reading.number_of(file, wanted))

    def pieces() -> Iterator[bytes]:
        with Store([path]) as store:
            for piece in bundles.page(store, list(store.episodes(Filter(ids=[wanted]), limit=1))):
                yield piece.encode(errors="replace")

    await saved(visit, pieces(), f"{wanted}.html", b"text/html; charset=utf-8")


async def save_lines(visit: Visit) -> None:
    """What `toolyard episodes export --as steps` writes."""
    path, wanted = store_of(visit), visit.named[0]
    await asked(visit, lambda file: reading.number_of(file, wanted))

    def pieces() -> Iterator[bytes]:
        with Store([path]) as store:
            episode = store.find(wanted)
            for step in store.each_step(episode):
                yield encode(row_of_step(episode, step)) + b"\n"

    await saved(visit, pieces(), f"{wanted}.jsonl", b"application/x-ndjson")


async def of_episode(visit: Visit, ask: Callable[[sqlite3.Connection, int], Any]) -> Any:  # what it returns
    wanted = visit.named[0]
    return await asked(visit, lambda file: ask(file, reading.number_of(file, wanted)))


async def saved(visit: Visit, pieces: Iterator[bytes], name: str, kind: bytes) -> None:
    """A file that the browser keeps and never shows, a part at a time."""
    clean = "".join(one if one.isascii() and (one.isalnum() or one in ".-_") else "_" for one in name)
    headers: Headers = [
        (b"content-type", kind),
        (b"content-disposition", f'attachment; filename="{clean}"'.encode()),
        (b"content-security-policy", b"sandbox; default-src 'none'"),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    ]

    def some() -> bytes:
        return b"".join(piece for _, piece in zip(range(_PIECES), pieces, strict=False))

    await visit.request.start(headers)
    try:
        while data := await to_thread.run_sync(some):
            await visit.request.write(data)
        await visit.request.write(b"", last=True)
    finally:
        await to_thread.run_sync(getattr(pieces, "close", lambda: None))
