"""Reads blocks with their long texts and images, and keeps the word index for `search`.

A search first indexes what was recorded since the last one, so that serving does not pay for it. When the store drops
indexed episodes, the next search makes the index anew.
"""

from __future__ import annotations

import json
import math
import sqlite3
import time
from collections.abc import Sequence
from typing import Any

from toolyard.core.output import JsonObject
from toolyard.episodes.rows import whole
from toolyard.episodes.schema import StoreError

STEPS_MOST = 2**20
"""More steps than any episode has: a step's place in the index is its episode's number times this, plus its own
number."""
MATCHES_MOST = 50_000
"""A filter by words considers at most this many steps, the newest that match."""
_INDEX_AT_ONCE = 500
_UNREAD = "SELECT number FROM episodes WHERE closed IS NOT NULL AND NOT searchable ORDER BY number LIMIT ?"
_STEPS = (
    "SELECT number, tool, said, arguments, blocks FROM steps WHERE episode = ? AND number > ? ORDER BY number LIMIT ?"
)
_STEPS_AT_ONCE = 5000
"""The most steps to index in one transaction, which blocks all other writers."""
_LAST = "SELECT max(id) FROM words_docsize WHERE id BETWEEN ? AND ?"


def quoted(words: str) -> str:
    """Quote the words: all must occur, and none acts as an operator."""
    return " ".join('"{}"'.format(word.replace('"', '""')) for word in words.split())


def read_block(file: sqlite3.Connection, block: dict[str, Any]) -> JsonObject:
    if (sha := block.pop("blob", None)) is None:
        return block
    found = file.execute("SELECT data FROM blobs WHERE sha = ?", (bytes.fromhex(sha),)).fetchone()
    if found is None:
        raise StoreError("an episode was dropped while it was read, to make room for newer ones")
    key = "data" if block["type"] == "image" else "text"
    return {"type": block.pop("type"), key: found[0].decode(errors="surrogatepass"), **block}


def words_of_step(file: sqlite3.Connection, tool: str, said: str | None, arguments: str, blocks: str) -> str:
    """The words of a step: its call and its result."""
    read = (read_block(file, block) for block in json.loads(blocks) if block["type"] == "text")
    text = "\n".join((said or "", f"{tool} {arguments}", *(block["text"] for block in read)))
    return whole(text)


def index(file: sqlite3.Connection, seconds: float = math.inf) -> bool:
    """Index what was recorded since the last search, for about `seconds`. Return whether the index is complete."""
    end = time.monotonic() + seconds
    while True:
        file.execute("BEGIN IMMEDIATE")
        try:
            numbers = file.execute(_UNREAD, (_INDEX_AT_ONCE,)).fetchall()
            file.executemany("UPDATE episodes SET searchable = 1 WHERE number = ?", _indexed(file, numbers))
            file.execute("COMMIT")
        except BaseException:
            file.execute("ROLLBACK")
            raise
        if not numbers:
            return True
        if time.monotonic() >= end:
            return False


def empty_index(file: sqlite3.Connection) -> None:
    """Empty the index, before indexed episodes are dropped. To delete only their words would take long and free no
    space."""
    file.execute("INSERT INTO words (words) VALUES ('delete-all')")
    file.execute("UPDATE episodes SET searchable = 0 WHERE searchable")


def _indexed(file: sqlite3.Connection, numbers: Sequence[tuple[int]]) -> Sequence[tuple[int]]:
    """Index some steps of these episodes. Return the episodes that are complete now."""
    done, left = [], _STEPS_AT_ONCE
    for (number,) in numbers:
        first = number * STEPS_MOST
        (last,) = file.execute(_LAST, (first, first + STEPS_MOST - 1)).fetchone()
        rows = file.execute(_STEPS, (number, last - first if last else 0, left)).fetchall()
        file.executemany(
            "INSERT INTO words (rowid, text) VALUES (?, ?)",
            ((first + step, words_of_step(file, *row)) for step, *row in rows),
        )
        left -= len(rows)
        if left <= 0:
            break
        done.append((number,))
    return done
