"""Reads parts of one episode, for a page that shows a few steps at a time: never all of it, never a whole long text."""

from __future__ import annotations

import base64
import binascii
import codecs
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from toolyard.core.output import JsonObject
from toolyard.episodes.schema import StoreError
from toolyard.episodes.store import NoEpisode
from toolyard.episodes.texts import STEPS_MOST, quoted, words_of_step

Kind: TypeAlias = Literal["failure", "reward"]

CUT = 4096
"""Bytes of a text to show at first."""
CHUNK = 64 * 2**10
"""Bytes of a text to fetch at once."""
IMAGES: Mapping[str, Sequence[bytes]] = {
    "image/png": (b"\x89PNG\r\n\x1a\n",),
    "image/jpeg": (b"\xff\xd8\xff",),
    "image/gif": (b"GIF87a", b"GIF89a"),
    "image/webp": (b"RIFF",),
}
"""The kinds of images to show, and how their files begin."""
_BLOCKS_MOST = 20
"""The most blocks of a step to show at first."""
_ARGUMENTS_MOST = 50
_WINDOW_BYTES = 2**20
"""The most bytes of steps to read at once; at least one step, even if it is larger."""
_STRIP = 240
"""Pieces of the strip that shows where an episode has failures and rewards."""
_FAMILY_MOST = 500
_SIBLINGS_MOST = 50
_COMPARED_AT_ONCE = 20_000
_SCANNED_AT_ONCE = 3000
_EPISODE = (
    "number, id, session, environment, split, task_index AS 'index', wire, run, labels, opened, closed, why, steps, "
    "total AS 'return', rewards, finished, outcome, complete, parent, parent_step, toolyard, source, "
    f"substr(CAST(task AS BLOB), 1, {CUT}) AS task, length(CAST(task AS BLOB)) AS task_bytes, prompt"
)
_KINDS: Mapping[Kind, str] = {"failure": "outcome <> 'ok'", "reward": "reward IS NOT NULL"}
_SAME = " AND ".join(
    f"a.{name} IS b.{name}" for name in ("tool", "arguments", "outcome", "reward", "finished", "blocks")
)


@dataclass(frozen=True, slots=True)
class Part:
    """A part of a text, and its place in the whole, in bytes."""

    text: str
    start: int
    end: int
    of: int

    def as_json(self) -> JsonObject:
        return {"text": self.text, "start": self.start, "end": self.end, "of": self.of}


def part_of(data: bytes, start: int, of: int) -> Part:
    """Cut off incomplete characters at both ends, so that the next part begins where this one ends."""
    skipped = 0
    while start and skipped < min(3, len(data)) and data[skipped] & 0xC0 == 0x80:
        skipped += 1
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    last = start + len(data) >= of
    text = decoder.decode(data[skipped:], last)
    left = 0 if last else len(decoder.getstate()[0])
    return Part(text, start + skipped, start + len(data) - left, of)


def cut(text: str) -> Part:
    data = text.encode(errors="replace")
    return part_of(data[:CUT], 0, len(data))


# An episode and its steps.


def head(file: sqlite3.Connection, wanted: str) -> JsonObject:
    """An episode without its steps. Raises `NoEpisode`."""
    row = file.execute(f"SELECT {_EPISODE} FROM episodes WHERE id = ?", (wanted,)).fetchone()
    if row is None:
        raise _missing(wanted)
    found: dict[str, Any] = dict(row)
    found["task"] = part_of(found["task"], 0, found.pop("task_bytes")).as_json()
    found["labels"] = json.loads(found["labels"])
    found["rewards"] = json.loads(found["rewards"]) if found["rewards"] else {}
    blocks = json.loads(found["prompt"]) if found["prompt"] else []
    found["prompt"] = [_block(file, block) for block in blocks[:_BLOCKS_MOST]]
    found["finished"], found["complete"] = bool(found["finished"]), bool(found["complete"])
    scores = file.execute(
        "SELECT at, source, name, score FROM scores WHERE episode = ? ORDER BY at DESC LIMIT 50", (found["number"],)
    )
    return {**found, "scores": [dict(score) for score in scores]}


def number_of(file: sqlite3.Connection, wanted: str) -> int:
    """The row of an episode. Raises `NoEpisode`."""
    row = file.execute("SELECT number FROM episodes WHERE id = ?", (wanted,)).fetchone()
    if row is None:
        raise _missing(wanted)
    return int(row[0])


def _missing(wanted: str) -> NoEpisode:
    return NoEpisode(f"there is no episode {wanted[:80]!r}; it may have been dropped to make room for newer ones")


def steps(
    file: sqlite3.Connection, episode: int, first: int, limit: int, *, back: bool = False
) -> Sequence[JsonObject]:
    """Steps from a number on, or back from it, in order; fewer than `limit` if they are large."""
    order, compared = ("DESC", "<=") if back else ("ASC", ">=")
    sql = f"SELECT * FROM steps WHERE episode = ? AND number {compared} ? ORDER BY number {order} LIMIT ?"
    found: list[JsonObject] = []
    size = 0
    for row in file.execute(sql, (episode, first, limit)):
        size += len(row["arguments"]) + len(row["blocks"]) + len(row["said"] or "") + len(row["metadata"] or "")
        if found and size > _WINDOW_BYTES:
            break
        found.append(_step(file, row))
    return found[::-1] if back else found


def calls(file: sqlite3.Connection, wanted: str, most: int) -> tuple[Sequence[tuple[str, str, str]], int]:
    """The first calls of an episode, with those of the episodes that it was forked from: tool, arguments as JSON, and
    outcome. And how many there are in all.
    """
    spans: list[tuple[int, int]] = []
    row = file.execute("SELECT number, parent, parent_step, steps FROM episodes WHERE id = ?", (wanted,)).fetchone()
    last = row["steps"] if row else 0
    while row is not None and len(spans) < _FAMILY_MOST:
        spans.insert(0, (row["number"], last))
        last = row["parent_step"] or 0
        row = file.execute(
            "SELECT number, parent, parent_step, steps FROM episodes WHERE id = ?", (row["parent"],)
        ).fetchone()
    found: list[tuple[str, str, str]] = []
    size = 0
    sql = "SELECT tool, arguments, outcome FROM steps WHERE episode = ? AND number <= ? ORDER BY number LIMIT ?"
    for number, until in spans:
        for tool, arguments, outcome in file.execute(sql, (number, until, most - len(found))):
            size += len(arguments)
            if size > _WINDOW_BYTES:
                return found, sum(until for _, until in spans)
            found.append((tool, arguments, outcome))
    return found, sum(until for _, until in spans)


def strip(file: sqlite3.Connection, episode: int, of: int) -> JsonObject:
    """The number of failures and rewards, in all and in each of the strip's equal pieces."""
    found: dict[str, object] = {"pieces": _STRIP, "of": of}
    for kind, condition in _KINDS.items():
        counted = file.execute(
            f"SELECT (number - 1) * {_STRIP} / ? AS piece, count(*) AS n, min(number) AS first FROM steps "
            f"WHERE episode = ? AND {condition} GROUP BY piece ORDER BY piece",
            (max(of, 1), episode),
        ).fetchall()
        found[f"{kind}s"] = [dict(row) for row in counted]
    return found


def jump(file: sqlite3.Connection, episode: int, kind: Kind, start: int, *, back: bool = False) -> int | None:
    """The next step of a kind after a number, or the last before it."""
    which, compared = ("max", "<") if back else ("min", ">")
    sql = f"SELECT {which}(number) FROM steps WHERE episode = ? AND number {compared} ? AND {_KINDS[kind]}"
    (found,) = file.execute(sql, (episode, start)).fetchone()
    return None if found is None else int(found)


def find(
    file: sqlite3.Connection, episode: int, words: str, start: int, *, back: bool = False
) -> tuple[int | None, int]:
    """The next step after a number that contains all of these words, or the last before it; and how far it searched.

    The word index has closed episodes. In others it reads some thousand steps: ask again from there.
    """
    (indexed,) = file.execute("SELECT searchable FROM episodes WHERE number = ?", (episode,)).fetchone()
    order, compared = ("DESC", "<") if back else ("ASC", ">")
    if indexed:
        place = episode * STEPS_MOST
        low, high = (place, place + start - 1) if back else (place + start + 1, place + STEPS_MOST - 1)
        sql = f"SELECT rowid FROM words WHERE words MATCH ? AND rowid BETWEEN ? AND ? ORDER BY rowid {order} LIMIT 1"
        row = file.execute(sql, (quoted(words), low, high)).fetchone()
        return (None if row is None else int(row[0]) - place), 0 if back else STEPS_MOST
    sql = (
        f"SELECT number, tool, said, arguments, blocks FROM steps WHERE episode = ? AND number {compared} ? "
        f"ORDER BY number {order} LIMIT {_SCANNED_AT_ONCE}"
    )
    wanted, looked = words.casefold().split(), 0 if back else STEPS_MOST
    for count, (number, *row) in enumerate(file.execute(sql, (episode, start)), 1):
        text = words_of_step(file, *row).casefold()
        if all(word in text for word in wanted):
            return int(number), int(number)
        if count == _SCANNED_AT_ONCE:
            looked = int(number)
    return None, looked


def _step(file: sqlite3.Connection, row: sqlite3.Row) -> JsonObject:
    blocks = json.loads(row["blocks"])
    return {
        "number": row["number"],
        "tool": cut(row["tool"]).text,
        "arguments": [
            {"name": name[:200], "json": is_json, **cut(text).as_json()}
            for name, text, is_json in _arguments(row["arguments"])[:_ARGUMENTS_MOST]
        ],
        "said": cut(row["said"]).as_json() if row["said"] else None,
        "outcome": row["outcome"],
        "blocks": [_block(file, block) for block in blocks[:_BLOCKS_MOST]],
        "more_blocks": max(len(blocks) - _BLOCKS_MOST, 0),
        "reward": row["reward"],
        "rewards": cut(row["rewards"]).text if row["rewards"] else None,
        "finished": bool(row["finished"]),
        "metadata": cut(row["metadata"]).as_json() if row["metadata"] else None,
        "queued": row["queued"],
        "ran": row["ran"],
        "at": row["at"],
        "altered": bool(row["altered"]),
        "digests": [_digest(row["arguments"]), _digest(row["blocks"])],
    }


def _digest(text: str) -> str:
    """A digest that tells apart two long texts with the same beginning."""
    return hashlib.blake2b(text.encode(errors="replace"), digest_size=8).hexdigest()


def _arguments(text: str) -> Sequence[tuple[str, str, bool]]:
    """Each argument with its text, and whether that is JSON; strings stay plain text."""
    found = json.loads(text)
    return [
        (name, value, False) if isinstance(value, str) else (name, json.dumps(value, ensure_ascii=False), True)
        for name, value in found.items()
    ]


def _block(file: sqlite3.Connection, block: JsonObject) -> JsonObject:
    """A block without its long data: the beginning of a text; for an image, whether it can be shown."""
    if block["type"] == "image":
        kind = str(block.get("mimeType", ""))
        return {"type": "image", "kind": kind[:100], "shown": kind in IMAGES}
    if "blob" not in block:
        return {"type": "text", **cut(block.get("text", "")).as_json()}
    data, of = _blob(file, block["blob"], 0, CUT)
    return {"type": "text", **part_of(data, 0, of).as_json()}


# Parts of a text, and images.


def text(file: sqlite3.Connection, episode: int, step: int, name: str, start: int, *, most: int = CHUNK) -> Part:
    """A part of a text: of `task`, of `said`, `arguments` or `metadata` of a step, of one of its arguments
    (`argument.0`) or of one of its blocks (`block.0`). Step 0 is the prompt. Raises `StoreError`.
    """
    what, _, place = name.partition(".")
    if what == "block":
        block = _block_at(file, episode, step, int(place) if place.isdigit() else -1)
        if "blob" in block:
            return part_of(*_from(start, _blob(file, block["blob"], start, most)))
        return _of_text(str(block.get("text", "")), start, most)
    if what == "argument":
        found = _arguments(_column(file, episode, step, "arguments"))
        if not place.isdigit() or int(place) >= len(found):
            raise StoreError(f"step {step} has no argument {place[:20]!r}")
        return _of_text(found[int(place)][1], start, most)
    if name == "task":
        table = "episodes WHERE number = ?3"
    elif name in ("said", "arguments", "metadata", "tool", "rewards"):
        table = "steps WHERE episode = ?3 AND number = ?4"
    else:
        raise StoreError(f"no part of a step is called {name[:40]!r}")
    row = file.execute(
        f"SELECT substr(CAST({name} AS BLOB), ?1, ?2), length(CAST({name} AS BLOB)) FROM {table}",
        (start + 1, most, episode, step)[: 3 if name == "task" else 4],
    ).fetchone()
    if row is None or row[0] is None:
        raise StoreError(f"step {step} is not there, or has nothing called {name!r}")
    return part_of(row[0], start, row[1])


def whole(file: sqlite3.Connection, episode: int, step: int, name: str) -> Iterator[bytes]:
    """All of a text, a part at a time."""
    start = 0
    while True:
        part = text(file, episode, step, name, start, most=16 * CHUNK)
        yield part.text.encode(errors="replace")
        if part.end >= part.of or part.end <= start:
            return
        start = part.end


def picture(file: sqlite3.Connection, episode: int, step: int, place: int) -> tuple[str, bytes]:
    """An image that a browser may show, and its kind. Raises `StoreError` if the data is something else."""
    block = _block_at(file, episode, step, place)
    kind = str(block.get("mimeType", ""))
    if block["type"] != "image" or kind not in IMAGES:
        raise StoreError(f"block {place} of step {step} is no image that is shown")
    data = block["data"].encode() if "data" in block else _blob(file, block["blob"], 0, -1)[0]
    try:
        found = base64.b64decode(data)
    except binascii.Error:
        found = b""
    if not found.startswith(tuple(IMAGES[kind])) or (kind == "image/webp" and found[8:12] != b"WEBP"):
        raise StoreError(f"block {place} of step {step} calls itself {kind}, and is something else")
    return kind, found


def _of_text(text: str, start: int, most: int) -> Part:
    data = text.encode(errors="replace")
    return part_of(data[start : start + most], start, len(data))


def _from(start: int, found: tuple[bytes, int]) -> tuple[bytes, int, int]:
    return found[0], start, found[1]


def _block_at(file: sqlite3.Connection, episode: int, step: int, place: int) -> JsonObject:
    if step == 0:
        (prompt,) = file.execute("SELECT prompt FROM episodes WHERE number = ?", (episode,)).fetchone() or ("[]",)
        blocks = json.loads(prompt or "[]")
    else:
        blocks = json.loads(_column(file, episode, step, "blocks"))
    if not 0 <= place < len(blocks):
        raise StoreError(f"step {step} has {len(blocks)} blocks, none of which has the number {place}")
    block: JsonObject = blocks[place]
    return block


def _column(file: sqlite3.Connection, episode: int, step: int, name: Literal["arguments", "blocks"]) -> str:
    row = file.execute(f"SELECT {name} FROM steps WHERE episode = ? AND number = ?", (episode, step)).fetchone()
    if row is None:
        raise StoreError(f"there is no step {step}")
    return str(row[0])


def _blob(file: sqlite3.Connection, sha: str, start: int, most: int) -> tuple[bytes, int]:
    length = most if most >= 0 else 2**31 - 1
    row = file.execute(
        "SELECT substr(data, ?, ?), length(data) FROM blobs WHERE sha = ?", (start + 1, length, bytes.fromhex(sha))
    ).fetchone()
    if row is None:
        raise StoreError("the episode was dropped while it was read, to make room for newer ones")
    return row[0], row[1]


# Other episodes beside it.

_NEAR = (
    "id, environment, split, task_index AS 'index', run, outcome, steps, total AS 'return', opened, parent, parent_step"
)


def family(file: sqlite3.Connection, wanted: str) -> Sequence[JsonObject]:
    """The tree of forks that an episode belongs to, from its root; only itself if it has none."""
    root, seen = wanted, {wanted}
    while len(seen) < _FAMILY_MOST:
        row = file.execute("SELECT parent FROM episodes WHERE id = ?", (root,)).fetchone()
        known = row and row[0] and file.execute("SELECT 1 FROM episodes WHERE id = ?", (row[0],)).fetchone()
        if not known or row[0] in seen:
            break
        root = row[0]
        seen.add(root)
    found: dict[str, JsonObject] = {}
    generation = [root]
    while generation and len(found) < _FAMILY_MOST:
        marks = ", ".join("?" * len(generation))
        rows = file.execute(f"SELECT {_NEAR} FROM episodes WHERE id IN ({marks}) ORDER BY number", generation)
        found |= {row["id"]: dict(row) for row in rows}
        forks = file.execute(
            f"SELECT id FROM episodes WHERE parent IN ({marks}) AND parent IS NOT NULL "
            f"ORDER BY number LIMIT {_FAMILY_MOST}",
            generation,
        )
        generation = [fork["id"] for fork in forks if fork["id"] not in found]
    return list(found.values())


def siblings(file: sqlite3.Connection, wanted: str) -> Sequence[JsonObject]:
    """The newest other episodes of its task."""
    row = file.execute("SELECT environment, split, task_index FROM episodes WHERE id = ?", (wanted,)).fetchone()
    if row is None:
        return []
    listed = "" if row["task_index"] is not None else "AND task = (SELECT task FROM episodes WHERE id = ?1)"
    rows = file.execute(
        f"SELECT {_NEAR} FROM episodes WHERE environment = ?2 AND split IS ?3 AND task_index IS ?4 {listed} "
        f"AND id <> ?1 ORDER BY opened DESC LIMIT {_SIBLINGS_MOST}",
        (wanted, row["environment"], row["split"], row["task_index"]),
    )
    return [dict(row) for row in rows]


def first_difference(
    file: sqlite3.Connection, a: int, b: int, *, ahead: int = 0, after: int = 0
) -> tuple[int | None, int | None]:
    """The first step of `a` after a number that differs from its counterpart in `b`; without one, how far they are the
    same.

    Step n of `a` stands beside step n + `ahead` of `b`, as for a parent and its fork. It compares many steps at once,
    but not all: ask again from there.
    """
    last = after + _COMPARED_AT_ONCE
    (found,) = file.execute(
        f"SELECT min(a.number) FROM steps AS a LEFT JOIN steps AS b ON b.episode = ?2 AND b.number = a.number + ?3 "
        f"WHERE a.episode = ?1 AND a.number > ?4 AND a.number <= ?5 AND NOT (b.number IS NOT NULL AND {_SAME})",
        (a, b, ahead, after, last),
    ).fetchone()
    ends = [
        file.execute("SELECT max(number) FROM steps WHERE episode = ?", (one,)).fetchone()[0] or 0 for one in (a, b)
    ]
    end_a, end_b = ends[0], ends[1] - ahead
    if found is not None:
        return int(found), None
    if last < max(end_a, 0):
        return None, last
    return (end_a + 1 if end_b > end_a else None), None
