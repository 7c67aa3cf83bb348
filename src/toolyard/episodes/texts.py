"""Reads blocks with their long texts and images, and keeps the word index for `search`.

A search first indexes what was recorded since the last one, so that serving does not pay for it. When the store drops
indexed episodes, the next search makes the index anew.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from typing import Any

from toolyard.core.output import JsonObject
from toolyard.episodes.rows import whole
from toolyard.episodes.schema import StoreError

STEPS_MOST = 2**20
"""More steps than any episode has: a step's place in the index is its episode's number times this, plus its own
number."""
_INDEX_AT_ONCE = 500
_UNREAD = "SELECT number FROM episodes WHERE closed IS NOT NULL AND NOT searchable ORDER BY number LIMIT ?"
_STEPS = "SELECT number, tool, said, arguments, blocks FROM steps WHERE episode = ?"


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


def index(file: sqlite3.Connection) -> None:
    """Add what was recorded since the last search."""
    while True:
        file.execute("BEGIN IMMEDIATE")
        try:
            numbers = file.execute(_UNREAD, (_INDEX_AT_ONCE,)).fetchall()
            file.executemany("INSERT INTO words (rowid, text) VALUES (?, ?)", _places(file, numbers))
            file.executemany("UPDATE episodes SET searchable = 1 WHERE number = ?", numbers)
            file.execute("COMMIT")
        except BaseException:
            file.execute("ROLLBACK")
            raise
        if not numbers:
            return


def empty_index(file: sqlite3.Connection) -> None:
    """Empty the index, before indexed episodes are dropped. To delete only their words would take long and free no
    space."""
    file.execute("INSERT INTO words (words) VALUES ('delete-all')")
    file.execute("UPDATE episodes SET searchable = 0 WHERE searchable")


def _places(file: sqlite3.Connection, numbers: Sequence[tuple[int]]) -> Iterator[tuple[int, str]]:
    for (number,) in numbers:
        for step, *row in file.execute(_STEPS, (number,)).fetchall():
            yield number * STEPS_MOST + step, words_of_step(file, *row)
