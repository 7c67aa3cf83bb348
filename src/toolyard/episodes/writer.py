"""The thread that writes episodes: one batch each tenth of a second, in one transaction."""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

from toolyard.core.encoding import encode
from toolyard.core.environment import Environment
from toolyard.core.errors import describe
from toolyard.core.output import JsonObject
from toolyard.episodes.events import Closed, Event, Open, Opened, Prompted, Stepped
from toolyard.episodes.rows import EPISODE, LONG, STEP, STEPS, STEPS_AT_ONCE, Row, plain, whole
from toolyard.episodes.schema import StoreError, connect
from toolyard.episodes.texts import empty_index
from toolyard.version import __version__

log = logging.getLogger("toolyard.episodes")

_PAUSE = 0.1
_BATCH_MOST = 2000
_EVENTS_MOST = 100_000
_BYTES_MOST = 128 * 2**20
"""The most events and bytes that wait to be written. Beyond that, episodes are left out."""
_YIELD_EVERY = 8
"""Yield to the event loop after this many rows, or it would wait for the interpreter."""
_DROPPED_MOST = 500
"""The most episodes to drop in one transaction."""
_REWARDS_MOST = 32
"""An episode keeps the sums of at most this many named rewards."""
_REWARD_MOST = 1e100
"""Larger rewards are left out of the sums, so that a sum stays finite."""
_NO_FILE = (-1, -1)
_SAID_EVERY = 60.0
"""Seconds between two complaints of the same kind."""
_TRIM_EVERY = 50
"""Check the size of the file after this many batches."""


class Writer:
    def __init__(self, path: Path, most: int) -> None:
        self._path = path
        self._most = most
        self._events: deque[tuple[Event, int]] = deque()
        self._taken = self._written = 0
        """Bytes; the event loop counts the first, the thread the second."""
        self.failed = 0
        """How many episodes were lost with batches that could not be written."""
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._batches = 0
        self._file = _NO_FILE
        """The identity of the file, independent of its name."""
        self._complained = -_SAID_EVERY
        self._gave_up = False
        """The server ends and the rest cannot be written: each further try would wait for a lock."""

    @property
    def waiting(self) -> int:
        return len(self._events)

    def start(self) -> None:
        """Raises `StoreError`."""
        connection = self._connected()
        self._stopping.clear()
        self._thread = threading.Thread(target=self._run, args=(connection,), name="toolyard-episodes", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Write all waiting events, and end."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def take(self, event: Event, size: int) -> bool:
        """Queue an event. False if too many wait already."""
        if len(self._events) >= _EVENTS_MOST or self._taken - self._written + size > _BYTES_MOST:
            return False
        self._taken += size
        self._events.append((event, size))
        return True

    def take_last(self, event: Closed) -> None:
        """Queue the end of an episode, in any case. There are no more of these than open sessions."""
        self._events.append((event, 0))

    def _connected(self) -> sqlite3.Connection:
        connection = connect(self._path, create=True)
        self._file = file_of(self._path)
        return connection

    def _run(self, connection: sqlite3.Connection) -> None:
        try:
            while not self._stopping.wait(_PAUSE):
                connection = self._drain(connection)
            connection = self._drain(connection)
            connection.execute("PRAGMA optimize")
        except sqlite3.Error as error:
            log.warning("%s cannot be tidied up: %s", self._path, error)
        finally:
            connection.close()

    def _drain(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        """Write all waiting events. Return the connection for the next time."""
        if self._events and file_of(self._path) != self._file:
            connection = self._begun_again(connection)
        while self._events:
            batch = Batch()
            size = 0
            while self._events and len(batch.events) < _BATCH_MOST:
                event, bytes_of_event = self._events.popleft()
                batch.events.append(event)
                size += bytes_of_event
            self._write(connection, batch)
            self._written += size
            self._batches += 1
            if self._batches % _TRIM_EVERY == 0:
                self._trim(connection)
        return connection

    def _begun_again(self, old: sqlite3.Connection) -> sqlite3.Connection:
        """Make the file anew: another program removed it, and no reader would find what this connection writes."""
        old.close()  # first: closing removes the files beside one of this name
        try:
            connection = self._connected()
        except StoreError as error:
            self._file = _NO_FILE
            self._complain(f"{self._path} is gone, and cannot be made again: {error}")
            return sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)  # it keeps nothing
        log.error("%s was deleted or replaced while it was in use; the server makes it anew", self._path)
        return connection

    def _write(self, connection: sqlite3.Connection, batch: Batch) -> None:
        try:
            if self._gave_up:
                raise StoreError("the server ends")
            connection.execute("BEGIN IMMEDIATE")
            batch.write(connection)
            connection.execute("COMMIT")
            self.failed += batch.spoiled
        except Exception as error:  # a full disk, or a file that is gone or locked
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            lost = batch.give_up()
            self.failed += lost
            self._gave_up = self._stopping.is_set()
            self._complain(f"{lost} episodes cannot be kept in {self._path}: {error}")

    def _complain(self, problem: str) -> None:
        """Log a problem, but not for each batch: there are ten in a second."""
        now = time.monotonic()
        if now - self._complained > _SAID_EVERY:
            self._complained = now
            log.error("%s; %d could not be kept so far", problem, self.failed)

    def _trim(self, connection: sqlite3.Connection) -> None:
        """Drop the oldest training episodes while the file is too large. Episodes marked to stay are never dropped."""
        try:
            while size_of(connection) > self._most and drop_oldest(connection):
                connection.executescript("PRAGMA incremental_vacuum")
        except sqlite3.Error as error:
            log.warning("%s cannot be made smaller: %s", self._path, error)


class Batch:
    """Events to write in one transaction."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.touched: dict[Open, None] = {}
        self.spoiled = 0
        """How many episodes have a part that cannot be written."""
        self._steps: list[Sequence[Any]] = []
        self._blobs: list[tuple[bytes, bytes]] = []
        self._uses: list[tuple[int, bytes]] = []

    def give_up(self) -> int:
        """Keep nothing more of the episodes in it. Return how many of them were whole."""
        whole = [one for one in dict.fromkeys(map(episode_of, self.events)) if not one.broken]
        for one in whole:
            one.broken = True
        for event in self.events:
            if isinstance(event, Opened):
                event.of.rowid = 0  # its row was rolled back, and another episode gets the number
        return len(whole)

    def write(self, connection: sqlite3.Connection) -> None:
        for count, event in enumerate(self.events):
            one = episode_of(event)
            if one.rowid and one.file is not connection:  # it began in a file that is gone
                one.rowid, one.broken = 0, True
                self.spoiled += 1
            try:
                self._take(connection, one, event)
            except Exception as error:
                if isinstance(error, sqlite3.Error):
                    raise
                # A value of the author's, from a tool or redact(). It must not cost the other episodes of the batch.
                log.error("the episode %s cannot be kept: %s", one.id, describe(error))
                one.broken = True
                self.spoiled += 1
            if one.rowid:
                self.touched[one] = None
            if count % _YIELD_EVERY == 0:
                time.sleep(0)
        connection.executemany("INSERT OR IGNORE INTO blobs VALUES (?, ?)", self._blobs)
        connection.executemany("INSERT OR IGNORE INTO uses VALUES (?, ?)", self._uses)
        insert_steps(connection, self._steps)
        connection.executemany(
            "UPDATE episodes SET prompt = ?, closed = ?, why = ?, steps = ?, total = ?, finished = ?, outcome = ?, "
            "complete = ?, rewards = ? WHERE number = ?",
            map(self._summary, self.touched),
        )

    def _take(self, connection: sqlite3.Connection, one: Open, event: Event) -> None:
        match event:
            case Opened():
                self._insert(connection, one, event.at)
            case Prompted():
                one.prompt = encode(self._stored(one, [plain(block) for block in event.blocks]))
            case Stepped():
                if one.rowid and not one.broken:
                    self._steps.append(self._step(one, event))
            case Closed():
                one.closed, one.why = event.at, event.why

    def _insert(self, connection: sqlite3.Connection, one: Open, at: float) -> None:
        spec, task = one.spec, one.spec.task
        cursor = connection.execute(
            EPISODE,
            (
                *(one.id, whole(spec.session_id), one.parent.id if one.parent else None, one.parent_step or None),
                *(spec.environment.name().lower(), task.split, task.index, one.task.decode()),
                *(spec.origin.wire, whole(spec.origin.run), json.dumps(dict(spec.origin.labels)), at),
                *(int("eval" in spec.origin.labels), __version__, source_hash(spec.environment)),  # type: ignore[arg-type]  # a class has a hash,
            ),
        )
        one.rowid, one.file = cursor.lastrowid or 0, connection

    def _step(self, one: Open, event: Stepped) -> Sequence[Any]:
        row = Row.of(event)
        rewards = row.rewards
        values = row.values(one.rowid, encode(self._stored(one, row.blocks)).decode(), rewards)
        if rewards:
            add_rewards(one.rewards, rewards)
        one.number += 1
        one.last = row.outcome
        if row.reward is not None:
            one.total = (one.total or 0.0) + row.reward
        one.finished = one.finished or row.finished
        return values

    def _stored(self, one: Open, blocks: Sequence[JsonObject]) -> Sequence[JsonObject]:
        """The blocks for a row; images and long texts go into a table of their own, each once."""
        stored = []
        for block in blocks:
            key = "data" if block["type"] == "image" else "text"
            if key == "text" and len(block[key]) <= LONG:
                stored.append(block)
                continue
            data = block[key].encode(errors="surrogatepass")
            sha = hashlib.sha256(data).digest()
            self._blobs.append((sha, data))
            self._uses.append((one.rowid, sha))
            stored.append({**{name: value for name, value in block.items() if name != key}, "blob": sha.hex()})
        return stored

    def _summary(self, one: Open) -> Sequence[Any]:
        prompt = one.prompt.decode() if one.prompt else None
        ended = one.closed, one.why, one.number, one.total, one.finished, one.outcome, one.complete
        return prompt, *ended, json.dumps(one.rewards) if one.rewards else None, one.rowid


def episode_of(event: Event) -> Open:
    return event.deed.of if isinstance(event, Stepped) else event.of


def add_rewards(sums: dict[str, float], rewards: JsonObject) -> None:
    for name, reward in rewards.items():
        known = name in sums or len(sums) < _REWARDS_MOST
        if known and type(reward) in (int, float) and abs(reward) < _REWARD_MOST:
            sums[name] = sums.get(name, 0.0) + reward


def insert_steps(connection: sqlite3.Connection, steps: Sequence[Sequence[Any]]) -> None:
    whole = len(steps) - len(steps) % STEPS_AT_ONCE
    for first in range(0, whole, STEPS_AT_ONCE):
        connection.execute(STEPS, list(chain.from_iterable(steps[first : first + STEPS_AT_ONCE])))
    connection.executemany(STEP, steps[whole:])


@cache
def source_hash(environment: type[Environment]) -> str:
    """The hash of the file with an environment's source; empty if there is none."""
    try:
        file = inspect.getsourcefile(environment.written_as or environment)
    except TypeError:  # a class without a module
        file = None
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:16] if file and Path(file).is_file() else ""


def file_of(path: Path) -> tuple[int, int]:
    """Device and inode, which tell a file from another of the same name."""
    try:
        found = path.stat()
    except OSError:  # it is gone
        return 0, 0
    return found.st_dev, found.st_ino


def size_of(connection: sqlite3.Connection) -> int:
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (free,) = connection.execute("PRAGMA freelist_count").fetchone()
    (size,) = connection.execute("PRAGMA page_size").fetchone()
    return int((pages - free) * size)


def drop_oldest(connection: sqlite3.Connection) -> int:
    """Drop a twentieth of the closed episodes that need not stay. Return how many."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        over = "FROM episodes WHERE NOT stays AND closed IS NOT NULL"
        (count,) = connection.execute(f"SELECT count(*) {over}").fetchone()
        rows = connection.execute(
            f"SELECT number, searchable {over} ORDER BY opened LIMIT ?", (min(-(-count // 20), _DROPPED_MOST),)
        ).fetchall()
        marks = ", ".join("?" * len(rows))
        numbers = [number for number, _ in rows]
        used = connection.execute(f"SELECT DISTINCT sha FROM uses WHERE episode IN ({marks})", numbers).fetchall()
        if any(searchable for _, searchable in rows):
            empty_index(connection)
        connection.execute(f"DELETE FROM episodes WHERE number IN ({marks})", numbers)
        connection.executemany(
            "DELETE FROM blobs WHERE sha = ?1 AND sha NOT IN (SELECT sha FROM uses WHERE sha = ?1)", used
        )
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    return len(rows)
