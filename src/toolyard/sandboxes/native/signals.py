"""Signals as the processes of a sandbox handle them: by numbers. The enums that Python's own module wraps around those
cost every new process some pages of memory."""

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
    """For a signal that wakes us."""


def handle(number: int, handler: Handler) -> None:
    _signal.signal(number, handler)


def await_children() -> None:
    """As those do who start processes. What they ignore is what any Python does."""
    for number, handler in {CHILD: _nothing, _INTERRUPT: _DEFAULT, PIPE: IGNORED, _FILE_SIZE: IGNORED}.items():
        _signal.signal(number, handler)


def reset() -> None:
    """Programs expect the defaults; Python has changed a few for itself."""
    for number in _CHANGED:
        _signal.signal(number, _DEFAULT)
