"""`sql`: queries a trainer's SQLite database, read-only. `solution`: the query that ends the task."""

from __future__ import annotations

import logging
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Annotated, ClassVar
from urllib.parse import quote

from toolyard.core.environment import Toolset
from toolyard.core.forms import Tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput, cut_text
from toolyard.core.tool import Given, tool
from toolyard.tools.data_files import data_dirs, is_below, real_path
from toolyard.tools.table_text import Value, table_text

log = logging.getLogger("toolyard.sql")

SECONDS = 5
LONGEST = 9_000
"""The most characters of a table to show whole; of a longer one, only the beginning."""
FIRST = 50
"""How many rows of the beginning."""
TEXT_MOST = 100_000
ROWS_MOST = 100_000
"""The most rows to read. Later rows decide nothing."""
_KEPT_BYTES = 2**20
_VALUE_BYTES = 2**20
"""The largest value that a query may make or read."""
HEAP_BYTES = min(4 * 2**30, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 4)
"""The memory of all queries together. A query of a few lines can ask for more than any machine has."""

EMPTY_QUERY = (
    "Your previous action is invalid. Follow the format of outputting thinking process and sql tool, and try again."
)

_BELOW = "below a directory that the operator named with --data-dir or the variable TOOLYARD_DATA_DIR."
_REMINDER_END = "</reminder>"
_FENCE = re.compile(r"```sql[ \t]*[\r\n]", re.IGNORECASE)
_FENCE_END = re.compile(r"[\r\n][ \t]*```")
_YEAR = re.compile(r"YEAR\s*\(\s*CURDATE\s*\(\s*\)\s*\)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class SqlForm:
    """Reads the last `<sql>` and the `</sql>` after it. The answer reminds the agent of the turns that are left."""

    shown: Sequence[str] = ("parsed_sql",)

    def read(self, text: str) -> JsonObject | None:
        _, opened, rest = text.rpartition("<sql>")
        written, closed, _ = rest.partition("</sql>")
        return {"sql": written.strip()} if opened and closed else None

    def answer(self, text: str, result: str) -> str:
        reminded = result if result.endswith(_REMINDER_END) else f"{result}\n{reminder(0)}"
        return f"\n\n<observation>{reminded}</observation>\n\n"


class Sql(Toolset):
    """The database comes with the action, as `db_path`, or as `db_id` in the folder $SQL_CACHE_DIR."""

    data_dirs: ClassVar[Sequence[str]] = ()
    """The author's folders in which tasks may name databases, beside the operator's."""

    @tool(form=SqlForm(), concurrent=True)
    def sql(
        self,
        sql: str,
        db_path: Annotated[str, Given()] = "",
        db_id: Annotated[str, Given()] = "",
        turns_left: Annotated[int | None, Given()] = None,
    ) -> ToolOutput:
        """Run one SQL query on the SQLite database of the task and return its rows. The database cannot be changed.

        Args:
            sql: The query.
            db_path: File of the database.
            db_id: Name of the database.
            turns_left: How often the agent may still act.
        """
        database = Database.named(db_path, db_id, self.data_dirs)
        if database is None:
            text = "Execution Error:\nthe task names no database, neither as db_path nor as db_id"
        else:
            text = cut_text(observed(extracted(sql), database), TEXT_MOST)
        reminded = [] if turns_left is None else [reminder(turns_left)]
        return ToolOutput(
            blocks=[TextBlock(text=one) for one in (text, *reminded)],
            metadata={"parsed_sql": sql} if database else {"parsed_sql": sql, "valid": False},
        )

    @tool(form=Tagged("solution", "solution", before="", after="", shown=("parsed_sql",)))
    async def solution(self, solution: str) -> ToolOutput:
        """Hand in the SQL query that answers the question. It is not run, and the episode is over with it.

        Args:
            solution: The query.
        """
        return ToolOutput(metadata={"parsed_sql": solution, "valid": False}, finished=True)


def reminder(turns: int) -> str:
    return f"<reminder>You have {turns} turns left to complete the task.{_REMINDER_END}"


def extracted(written: str) -> str:
    """The query in a text: the last fence, if there is one. Mends operators that models tear apart."""
    query = _last_fence(written)
    query = query.replace("> =", ">=").replace("< =", "<=").replace("! =", "!=")
    return _YEAR.sub("2020", query)  # the answers of the data sets are from that year


def _last_fence(written: str) -> str:
    """The content of the last fence; without one, the whole text. One pattern for both ends of a fence would be slow on
    a text of line ends."""
    query, end = written, 0
    while opened := _FENCE.search(written, end):
        if (closed := _FENCE_END.search(written, opened.end())) is None:
            break
        query, end = written[opened.end() : closed.start()].strip(), closed.end()
    return query


@dataclass(frozen=True, slots=True)
class Database:
    path: str
    """The path as the trainer and the model know it."""
    folders: Sequence[str] | None = None
    """The path must lie below one of these. None: the path comes from code, not from a trainer, and may be anywhere."""

    @classmethod
    def named(cls, db_path: str, db_id: str, own: Sequence[str] = ()) -> Database | None:
        """The database that a trainer names."""
        cache = os.environ.get("SQL_CACHE_DIR", "")
        folders = (*own, *data_dirs(), os.environ.get("TOOLYARD_SQL_ROOT", ""), cache)
        if db_path:
            return cls(db_path, folders)
        return cls._in_cache(db_id, cache or "data/nl2sql/cache", folders) if db_id else None

    @classmethod
    def _in_cache(cls, db_id: str, cache: str, folders: Sequence[str]) -> Database:
        """A database in the cache. No `..` leads out of it; a link in it may lead to another folder of the
        operator's."""
        path = os.path.join(cache, db_id)
        inside = Path(os.path.abspath(path)).is_relative_to(os.path.abspath(cache))
        return cls(path, (*folders, cache) if inside else ())

    def found(self) -> str:
        """The real path, which is then opened, so that a later change of a link has no effect.

        Raises FileNotFoundError, worded for the model. The message does not reveal whether a file outside of the
        folders exists.
        """
        real = real_path(self.path)
        if self.folders is not None and not is_below(real, self.folders):
            _warn_operator(os.path.dirname(real))
            raise FileNotFoundError(f"The database file {self.path} does not exist {_BELOW}")
        if not _is_file(real):
            raise FileNotFoundError(f"The database file {self.path} does not exist.")
        return real


@lru_cache(64)
def _warn_operator(folder: str) -> None:
    """Warn once for each folder: only the model reads the refusal, and every trajectory of a run may get it."""
    log.warning("refused a trainer a database in %s. To allow that, start the server with --data-dir", folder)


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (OSError, ValueError):
        return False


def observed(query: str, database: Database) -> str:
    """The result of the query, for the model."""
    if not query:
        return EMPTY_QUERY
    try:
        rows = ask(query, database.found())
    except FileNotFoundError as error:
        return str(error)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            return f"SQL Timeout:\n{query}"
        return f"Error executing SQL: {error}"
    except (sqlite3.Error, sqlite3.Warning, ValueError) as error:
        return f"Error executing SQL: {error}"
    except MemoryError:
        return "Error executing SQL: out of memory"
    return shown(rows)


def shown(rows: Rows) -> str:
    if rows.whole and len(text := table_text(rows.kept, rows.kinds)) <= LONGEST:
        return text
    first = table_text(rows.kept[:FIRST], rows.kinds)
    return f"Truncated to {FIRST} lines since returned response too long: {first}"


@dataclass(slots=True)
class Rows:
    """The result of a query: as many rows as can be shown, and the types of all rows."""

    kept: list[Sequence[Value]] = field(default_factory=list)
    kinds: list[set[type]] = field(default_factory=list)
    whole: bool = True
    """No row was left out."""
    _size: int = 0
    """The kept rows take at least this many characters."""

    def add(self, row: Sequence[Value]) -> None:
        self.kinds = self.kinds or [set() for _ in row]
        for kinds, value in zip(self.kinds, row, strict=True):
            kinds.add(type(value))
        if self._size > (_KEPT_BYTES if len(self.kept) < FIRST else LONGEST):
            self.whole = False
            return
        size = 1 + sum(len(value) if isinstance(value, str | bytes) else 1 for value in row)
        self._size += size
        self.kept.append(row if size <= TEXT_MOST else _beginning(row))


def _beginning(row: Sequence[Value]) -> Sequence[Value]:
    """Cut a row to what can be shown: one row may have 500 values of a megabyte each."""
    kept: list[Value] = []
    room = TEXT_MOST
    for value in row:
        shortened = value[:room] if isinstance(value, str | bytes) else value
        room -= len(shortened) if isinstance(shortened, str | bytes) else 0
        kept.append(shortened)
    return kept


def ask(query: str, path: str) -> Rows:
    rows = Rows()
    with opened(path) as connection:
        for i, row in enumerate(connection.execute(query)):
            if i == ROWS_MOST:
                rows.whole = False
                break
            rows.add(row)
    return rows


@contextmanager
def opened(path: str) -> Iterator[sqlite3.Connection]:
    """A connection that can only read this one file, for a limited time."""
    # Limit processor time: a query must not pay for the server's other work. At each row another thread may take
    # Python's lock, so a query of many rows would pay for each.
    worked, passed = time.thread_time() + SECONDS, time.monotonic() + 12 * SECONDS
    uri = f"file:{quote(path)}?mode=ro&immutable=1"
    with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
        connection.text_factory = lambda data: data.decode(errors="ignore")
        for limit, most in _LIMITS.items():
            connection.setlimit(limit, most)
        connection.execute("PRAGMA query_only = ON")
        connection.execute(f"PRAGMA hard_heap_limit = {HEAP_BYTES}")  # for the whole process; it can only be lowered
        connection.set_authorizer(_allowed)
        connection.set_progress_handler(lambda: time.thread_time() > worked or time.monotonic() > passed, 20_000)
        yield connection


_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: _VALUE_BYTES,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 100_000,
    sqlite3.SQLITE_LIMIT_COLUMN: 500,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 1_000,  # nothing interrupts the comparison of one text with one pattern
    sqlite3.SQLITE_LIMIT_ATTACHED: 0,
    sqlite3.SQLITE_LIMIT_WORKER_THREADS: 0,
}

_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE}

_WRITES = {
    *(sqlite3.SQLITE_INSERT, sqlite3.SQLITE_UPDATE, sqlite3.SQLITE_DELETE, sqlite3.SQLITE_ALTER_TABLE),
    *(sqlite3.SQLITE_CREATE_TABLE, sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_CREATE_VIEW),
    *(sqlite3.SQLITE_DROP_TABLE, sqlite3.SQLITE_DROP_INDEX, sqlite3.SQLITE_DROP_VIEW),
}

_PRAGMAS = {
    *("table_info", "table_xinfo", "table_list", "index_list", "index_info", "index_xinfo", "foreign_key_list"),
    *("collation_list", "function_list", "compile_options"),
}
"""Pragmas that only describe tables; others change something, or name files."""

_FUNCTIONS_REFUSED = {"load_extension", "fts3_tokenizer"}


def _allowed(action: int, first: str | None, second: str | None, database: str | None, _: str | None) -> int:
    if action == sqlite3.SQLITE_PRAGMA:
        allowed = first is not None and first.lower() in _PRAGMAS
    elif action == sqlite3.SQLITE_FUNCTION:
        allowed = second is not None and second.lower() not in _FUNCTIONS_REFUSED
    elif action in _WRITES:
        allowed = database == "main"  # SQLite itself refuses others, with a message that models know
    else:
        allowed = action in _READS
    return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY
