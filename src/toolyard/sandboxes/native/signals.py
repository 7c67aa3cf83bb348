"""Signal handling in the processes of a sandbox, by number. The enums of Python's own module cost every new process
some pages of memory."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int"

CHILD, PIPE, _INTERRUPT, _FILE_SIZE = map(int, (signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT, signal.SIGXFSZ))
IGNORED = int(signal.SIG_IGN)
_DEFAULT = int(signal.SIG_DFL)
_CHANGED = (CHILD, PIPE, _INTERRUPT, _FILE_SIZE)


def _nothing(number: int, frame: FrameType | None) -> None:
    """For a signal that only wakes us."""


def handle(number: int, handler: Handler) -> None:
    _signal.signal(number, handler)


def await_children() -> None:
    """Handle signals as a parent of processes. It ignores what every Python ignores."""
    for number, handler in {CHILD: _nothing, _INTERRUPT: _DEFAULT, PIPE: IGNORED, _FILE_SIZE: IGNORED}.items():
        _signal.signal(number, handler)


def reset() -> None:
    """Restore the defaults, which programs expect and Python has changed."""
    for number in _CHANGED:
        _signal.signal(number, _DEFAULT)
