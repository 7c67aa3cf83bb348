"""The tables of a store, and how to open a connection to it."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from toolyard.core.errors import ToolyardError

VERSION = 2
_BUSY_MS = 30_000
_TABLES = """
CREATE TABLE episodes (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    session TEXT NOT NULL,
    parent TEXT,
    parent_step INTEGER,
    environment TEXT NOT NULL,
    split TEXT,
    task_index INTEGER,
    task TEXT NOT NULL,
    prompt TEXT,
    wire TEXT NOT NULL,
    run TEXT NOT NULL,
    labels TEXT NOT NULL,
    opened REAL NOT NULL,
    closed REAL,
    why TEXT,
    steps INTEGER NOT NULL,
    total REAL,
    finished INTEGER NOT NULL,
    outcome TEXT NOT NULL,
    complete INTEGER NOT NULL,
    stays INTEGER NOT NULL,
    searchable INTEGER NOT NULL DEFAULT 0,
    toolyard TEXT NOT NULL,
    source TEXT NOT NULL
);
CREATE INDEX episodes_by_time ON episodes (opened);
CREATE INDEX episodes_by_run ON episodes (run, opened);
CREATE INDEX episodes_by_task ON episodes (environment, split, task_index);
CREATE INDEX episodes_by_return ON episodes (total);
CREATE INDEX episodes_by_session ON episodes (session);
CREATE INDEX episodes_to_index ON episodes (number) WHERE closed IS NOT NULL AND NOT searchable;
CREATE TABLE steps (
    episode INTEGER NOT NULL REFERENCES episodes (number) ON DELETE CASCADE,
    number INTEGER NOT NULL,
    tool TEXT NOT NULL,
    arguments TEXT NOT NULL,
    given TEXT,
    said TEXT,
    outcome TEXT NOT NULL,
    blocks TEXT NOT NULL,
    reward REAL,
    rewards TEXT,
    finished INTEGER NOT NULL,
    metadata TEXT,
    queued REAL NOT NULL,
    ran REAL,
    at REAL NOT NULL,
    altered INTEGER NOT NULL,
    PRIMARY KEY (episode, number)
) WITHOUT ROWID;
CREATE TABLE blobs (sha BLOB PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
CREATE TABLE uses (
    episode INTEGER NOT NULL REFERENCES episodes (number) ON DELETE CASCADE,
    sha BLOB NOT NULL,
    PRIMARY KEY (episode, sha)
) WITHOUT ROWID;
CREATE INDEX uses_by_sha ON uses (sha);
CREATE TABLE scores (
    episode INTEGER NOT NULL REFERENCES episodes (number) ON DELETE CASCADE,
    at REAL NOT NULL,
    source TEXT NOT NULL,
    name TEXT NOT NULL,
    score REAL
);
CREATE INDEX scores_by_episode ON scores (episode);
CREATE VIRTUAL TABLE words USING fts5 (text, content = '', tokenize = 'unicode61');
"""
_SINCE_2 = """
ALTER TABLE episodes ADD COLUMN rewards TEXT;
UPDATE episodes SET rewards = (
    SELECT json_group_object(name, total) FROM (
        SELECT named.key AS name, sum(named.value) AS total FROM steps, json_each(steps.rewards) AS named
        WHERE steps.episode = episodes.number AND json_valid(steps.rewards) AND named.type IN ('integer', 'real')
        GROUP BY named.key
    )
) WHERE number IN (SELECT episode FROM steps WHERE rewards IS NOT NULL);
DROP INDEX episodes_by_time;
CREATE INDEX episodes_by_time ON episodes (
    opened, environment, split, task_index, run, wire, outcome, closed, steps, total, labels
);
CREATE INDEX episodes_by_parent ON episodes (parent) WHERE parent IS NOT NULL;
CREATE INDEX steps_failed ON steps (episode, number) WHERE outcome <> 'ok';
CREATE INDEX steps_rewarded ON steps (episode, number) WHERE reward IS NOT NULL;
"""
"""The sums of named rewards, and indexes for Studio's pages: lists by any filter without reading tasks and prompts,
forks, and the steps of an episode that failed or have a reward."""
_VERSIONS = (_TABLES, _SINCE_2)
_OPERATIONS = 20_000
"""Operations of SQLite's machine between two looks at the clock: about a millisecond."""


class StoreError(ToolyardError):
    """The file of episodes cannot be used. The message names it, and says why."""


def connect(path: Path, *, create: bool = False, patience: float | None = None) -> sqlite3.Connection:
    """Open a store, or make one. Wait up to `patience` seconds for a lock. Raises `StoreError`."""
    if not create and not path.exists():
        raise StoreError(f"there is no file {str(path)!r}; a server that is started with --record makes one")
    connection = None
    patience = _BUSY_MS / 1000 if patience is None else patience
    try:
        if create and not path.exists():
            os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))  # private: it holds tasks and their answers
        connection = sqlite3.connect(path, timeout=patience, isolation_level=None, check_same_thread=False)
        _prepare(connection, path, create=create)
    except (OSError, sqlite3.Error, StoreError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"{str(path)!r} cannot be used as a store of episodes: {error}") from error
    return connection


@contextmanager
def looking(path: Path, *, seconds: float = 10.0, patience: float = 2.0) -> Iterator[sqlite3.Connection]:
    """A connection for a page: a query gives up after `seconds`. Raises `StoreError`."""
    end = time.monotonic() + seconds
    connection = connect(path, patience=patience)
    connection.set_progress_handler(lambda: int(time.monotonic() > end), _OPERATIONS)
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    except sqlite3.Error as error:
        if time.monotonic() > end:
            raise StoreError(f"{str(path)!r} took longer than {seconds:g} seconds to answer; ask for less") from error
        raise StoreError(f"{str(path)!r} cannot be read: {error}") from error
    finally:
        connection.close()


def _prepare(connection: sqlite3.Connection, path: Path, *, create: bool) -> None:
    version = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > VERSION:
        raise StoreError(
            f"{str(path)!r} was written by a newer Toolyard (version {version} of its tables, this one knows {VERSION})"
        )
    if version == 0 and connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise StoreError(f"{str(path)!r} is the database of another program")
    if version == 0 and not create:
        raise StoreError(f"{str(path)!r} is no store of episodes")
    if version == 0:
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")  # before the first table, or the file never shrinks
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreError(
            f"{str(path)!r} lies on a file system that several processes cannot share (its journal is {mode!r}): "
            f"network drives are such; name a file on a disk of this machine"
        )
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")
    if version < VERSION:
        _make_tables(connection)


def _make_tables(connection: sqlite3.Connection) -> None:
    """Make the missing tables. Several processes may try at the same time, and one of them does it."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        for missing in _VERSIONS[version:]:
            for statement in filter(str.strip, missing.split(";\n")):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
