"""Formats log lines, for people or as one JSON object a line, and logs what happens to sessions and calls.

It never logs what clients send: no arguments, no secrets, no keys, no cookies. It cuts agents' tokens out of every
line.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal

from toolyard.core.frames import traceback_of
from toolyard.placement.base import SessionSpec
from toolyard.runtime.grants import hide_tokens
from toolyard.runtime.journal import Journal, Outcome, Why

log = logging.getLogger("toolyard.sessions")

_LONGEST = 100
"""The most characters of a tool's name: a client may send any text as one."""


class TextLines(logging.Formatter):
    """Writes a message as one line: a line end, such as in a session's name, becomes `\\n`."""

    def format(self, record: logging.LogRecord) -> str:
        return hide_tokens(super().format(record))

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(record.message)
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:  # as logging has it: three values, or three times None
        return "\n".join(map(visible, _traceback(ei).split("\n")))


def visible(text: str) -> str:
    """The text with escapes for control characters and other invisible characters."""
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class JsonLines(logging.Formatter):
    """Adds the subject of a line, such as its session, to its keys: `log.info("…", extra={"about": {…}})`."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **getattr(record, "about", {}),
        }
        if record.exc_info:
            line["traceback"] = _traceback(record.exc_info)
        return hide_tokens(json.dumps(line))


def _traceback(info: Any) -> str:
    return "NoneType: None" if info[1] is None else traceback_of(info[1])  # the first, as Python writes it


def configure(style: Literal["text", "json"], level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    text = TextLines("%(asctime)s %(levelname)-7s %(name)s: %(message)s", "%H:%M:%S")
    handler.setFormatter(JsonLines() if style == "json" else text)
    for name in ("toolyard", "uvicorn"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, getattr(logging, level.upper())))


@contextmanager
def following(journal: Journal) -> Iterator[None]:
    """Log what happens to sessions, and at level debug also calls. It listens only to events that the level shows."""
    heard: list[tuple[list[Any], Any]] = []  # lists of the journal and their listeners: each has its own type
    if log.isEnabledFor(logging.INFO):
        heard += [(journal.closed, _closed), (journal.rebuilt, _rebuilt)]
    if log.isEnabledFor(logging.DEBUG):
        heard += [
            (journal.opened, _opened),
            (journal.settled, _settled),
            (journal.started, _started),
            (journal.answered, _answered),
        ]
    for listeners, listener in heard:
        listeners.append(listener)
    try:
        yield
    finally:
        for listeners, listener in heard:
            listeners.remove(listener)


def _opened(spec: SessionSpec) -> None:
    log.debug("session %s of %s: opened", spec.session_id, _name(spec), extra=_about(spec))


def _settled(spec: SessionSpec, problem: str, seconds: float) -> None:
    about = _about(spec, seconds=round(seconds, 6))
    what = "could not be set up" if problem else "is set up"  # the problem is logged where it occurs
    log.debug("session %s of %s: %s after %.3f s", spec.session_id, _name(spec), what, seconds, extra=about)


def _rebuilt(spec: SessionSpec) -> None:
    log.info("session %s of %s: was lost, and made again", spec.session_id, _name(spec), extra=_about(spec))


def _closed(spec: SessionSpec, why: Why, seconds: float) -> None:
    level = logging.DEBUG if why == "deleted" else logging.INFO  # clients delete sessions all the time
    if log.isEnabledFor(level):
        about = _about(spec, reason=why, seconds=round(seconds, 6))
        words = "session %s of %s: closed after %.3f s, %s"
        log.log(level, words, spec.session_id, _name(spec), seconds, why, extra=about)


def _started(spec: SessionSpec, tool: str) -> None:
    about = _about(spec, tool=tool[:_LONGEST])
    log.debug("session %s of %s: %r is called", spec.session_id, _name(spec), tool[:_LONGEST], extra=about)


def _answered(spec: SessionSpec, tool: str, outcome: Outcome, waited: float, ran: float | None) -> None:
    about = _about(spec, tool=tool[:_LONGEST], outcome=outcome, queue_seconds=round(waited, 6))
    if ran is not None:
        about["about"]["run_seconds"] = round(ran, 6)
    log.debug(
        "session %s of %s: %r answered %s, waited %.3f s, %s",
        *(spec.session_id, _name(spec), tool[:_LONGEST], outcome, waited),
        "never ran" if ran is None else f"ran {ran:.3f} s",
        extra=about,
    )


def _name(spec: SessionSpec) -> str:
    return spec.environment.name().lower()


def _about(spec: SessionSpec, **more: object) -> dict[str, dict[str, object]]:
    return {"about": {"session": spec.session_id, "environment": _name(spec), **more}}
