"""`Cache`: verdicts by the judged text, in memory and in a file that several processes may share."""

from __future__ import annotations

import json
import logging
import os
import sqlite3
from collections import OrderedDict
from collections.abc import Mapping
from contextlib import closing
from typing import Any

log = logging.getLogger("toolyard.judge")

_MOST = 10_000
"""How many verdicts stay in memory. The file keeps all."""
_WAIT_SECONDS = 5.0


class Cache:
    """A cache that cannot be read or written costs another question, but is no error."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        self._path = path
        self._kept: OrderedDict[str, Mapping[str, Any]] = OrderedDict()

    def find(self, key: str) -> Mapping[str, Any] | None:
        """Find a verdict. May read a file."""
        if (found := self._kept.get(key)) is None and self._path is not None:
            found = self._read(self._path, key)
        return found

    def keep(self, key: str, said: Mapping[str, Any]) -> None:
        """Keep a verdict. May write a file."""
        self._kept[key] = said
        if len(self._kept) > _MOST:
            self._kept.popitem(last=False)
        if self._path is not None:
            self._write(self._path, key, said)

    def _read(self, path: str | os.PathLike[str], key: str) -> Mapping[str, Any] | None:
        if not os.path.exists(path):
            return None
        try:
            with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as file:
                row = file.execute("SELECT said FROM verdicts WHERE key = ?", (key,)).fetchone()
            found = json.loads(row[0]) if row is not None else None
        except (sqlite3.Error, ValueError) as error:
            log.warning("the cache of verdicts %s cannot be read: %s", path, error)
            return None
        return found if isinstance(found, dict) else None

    def _write(self, path: str | os.PathLike[str], key: str, said: Mapping[str, Any]) -> None:
        try:
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))  # private: reasons quote the judged text
            with closing(sqlite3.connect(path, timeout=_WAIT_SECONDS)) as file, file:
                file.execute("CREATE TABLE IF NOT EXISTS verdicts (key TEXT PRIMARY KEY, said TEXT NOT NULL)")
                file.execute("INSERT OR REPLACE INTO verdicts VALUES (?, ?)", (key, json.dumps(said)))
        except (sqlite3.Error, OSError) as error:
            log.warning("the cache of verdicts %s cannot be written: %s", path, error)
