"""Listens to the journal on the event loop, and hands its events to a thread that writes them.

The disk never slows a call. If the writer falls behind, the recorder leaves out whole episodes and counts them; an
episode with a missing part is marked as incomplete.
"""

from __future__ import annotations

import logging
import random
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from toolyard.core.encoding import encode
from toolyard.core.output import Blocks, JsonObject, Reply
from toolyard.episodes.events import Closed, Deed, Open, Opened, Prompted, Stepped
from toolyard.episodes.writer import Writer
from toolyard.placement.base import SessionSpec
from toolyard.runtime.journal import Journal, Why

log = logging.getLogger("toolyard.episodes")

_SAID_EVERY = 60.0
"""Seconds between log lines about episodes that were left out."""
_EMPTY = b"{}"


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """`settings.py` explains each."""

    record: str
    record_bytes: int
    record_fraction: float


class Recorder:
    """Records the sessions of one process, while inside `with recorder.recording(journal):`."""

    def __init__(self, options: RecordOptions) -> None:
        self._options = options
        self._writer = Writer(Path(options.record), options.record_bytes)
        self._open: dict[str, Open] = {}
        self._left_out = 0
        self._said = 0.0

    @property
    def left_out(self) -> int:
        return self._left_out + self._writer.failed

    @property
    def waiting(self) -> int:
        return self._writer.waiting

    @contextmanager
    def recording(self, of: Journal) -> Iterator[None]:
        """Record until the block ends; by then everything is written. Raises `StoreError` if the file cannot be
        used."""
        self._writer.start()
        of.opened.append(self._opened)
        of.closed.append(self._closed)
        of.recorder = self
        of.hear(self)
        try:
            yield
        finally:
            of.recorder = None
            of.unhear(self)
            of.opened.remove(self._opened)
            of.closed.remove(self._closed)
            self._writer.stop()

    # Events of the journal.

    def _opened(self, spec: SessionSpec) -> None:
        if self._options.record_fraction < 1 and random.random() >= self._options.record_fraction:
            return
        one = Open(new_id(), spec, encode(spec.task.spec), self._ended)
        if (parent := self._open.get(spec.forked_from)) is not None:
            one.parent, one.parent_step = parent, parent.begun
        if self._writer.take(Opened(one), len(one.task)):
            self._open[spec.session_id] = one
        else:
            self._leave_out()

    def _closed(self, spec: SessionSpec, why: Why, _: float) -> None:
        one = self._open.get(spec.session_id)
        if one is not None and one.spec is spec:
            del self._open[spec.session_id]
            self._writer.take_last(Closed(one, why))

    # Events of sessions.

    def began(self, spec: SessionSpec, tool: str, arguments: JsonObject, given: JsonObject, said: str) -> Deed | None:
        one = self._open.get(spec.session_id)
        if one is None or one.broken:
            return None
        one.begun += 1
        written = encode(arguments) if arguments else _EMPTY
        return Deed(one, tool, written, encode(given) if given else b"", said)

    def _ended(self, deed: Deed, result: Reply, waited: float, ran: float | None) -> None:
        if deed.of.broken:
            return
        size = len(deed.arguments) + len(deed.said) + size_of(result)
        self._take(deed.of, Stepped(deed, result, waited, ran), size)

    def prompted(self, spec: SessionSpec, prompt: Blocks) -> None:
        one = self._open.get(spec.session_id)
        if one is not None and one.prompt is None and not one.broken:
            one.prompt = b""
            self._take(one, Prompted(one, prompt), sum(map(size_of, prompt)))

    def _take(self, one: Open, event: Any, size: int) -> None:
        if not self._writer.take(event, size):
            one.broken = True
            self._leave_out()

    def _leave_out(self) -> None:
        self._left_out += 1
        now = time.monotonic()
        if now - self._said > _SAID_EVERY:
            self._said = now
            log.warning("the store of episodes cannot keep up: %d episodes are left out so far", self._left_out)


def size_of(value: object) -> int:
    """About how many bytes a value holds."""
    if isinstance(value, str):
        return len(value)
    blocks = getattr(value, "blocks", None)
    if blocks is not None:
        return sum(len(getattr(block, "text", "") or getattr(block, "data", "")) for block in blocks)
    return len(getattr(value, "text", "") or getattr(value, "data", "") or getattr(value, "message", ""))


def new_id() -> str:
    """Ids sort by the time at which their episodes began."""
    return f"{time.time_ns() // 1_000_000:011x}{secrets.token_hex(5)}"
