"""Which frames of a traceback are the author's: those in files of neither Toolyard, nor Python, nor a library."""

from __future__ import annotations

import logging
import sysconfig
from collections.abc import Sequence
from pathlib import Path
from traceback import FrameSummary, StackSummary, TracebackException
from typing import Any

_log = logging.getLogger("toolyard")

_OURS = str(Path(__file__).parents[1])
_EXAMPLES = str(Path(__file__).parents[1] / "examples")
_INSTALLED = (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"))
_PYTHON = (sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"), "<")


def is_ours(filename: str) -> bool:
    return filename.startswith(_OURS) and not filename.startswith(_EXAMPLES)


def is_installed(filename: str) -> bool:
    """Whether it belongs to a library."""
    return filename.startswith(_INSTALLED)


def is_authors(filename: str) -> bool:
    return not (is_ours(filename) or filename.startswith((*_INSTALLED, *_PYTHON)))


ELSEWHERE = "__toolyard_traceback__"
"""The attribute of an error that another process raised: its traceback there."""


def traceback_of(error: BaseException) -> str:
    """The traceback as its author wants it: the frames from the author's first one on, those of Toolyard in one line.

    The exceptions that it came from keep theirs, in the same way. An error without a frame of an author's is whole,
    and on log level debug all are. Of an error of another process, only the frames there are of use.
    """
    if there := getattr(error, ELSEWHERE, ""):
        return str(there)
    whole = TracebackException.from_exception(error)
    if not _log.isEnabledFor(logging.DEBUG):
        _fold(whole)
    return "".join(whole.format()).rstrip("\n")


class _Folded(StackSummary):
    left_out = 0

    def format(self, **how: Any) -> list[str]:  # how: what later versions of Python pass, such as colours
        lines = super().format(**how)
        frames = f"{self.left_out} frame{'s' * (self.left_out > 1)}"
        return [*lines, f"  ({frames} of Toolyard and Python left out; --log-level debug shows all)\n"]


def _fold(raised: TracebackException | None) -> None:
    if raised is None:
        return
    kept = _kept(raised.stack)
    if kept and len(kept) < len(raised.stack):
        stack = _Folded()
        stack.extend(kept)
        stack.left_out = len(raised.stack) - len(kept)
        raised.stack = stack
    for other in (raised.__cause__, raised.__context__, *(raised.exceptions or ())):
        _fold(other)


def _kept(stack: Sequence[FrameSummary]) -> Sequence[FrameSummary]:
    first = next((at for at, frame in enumerate(stack) if is_authors(frame.filename)), None)
    if first is None:
        return ()
    return [frame for frame in stack[first:] if not is_ours(frame.filename)]
