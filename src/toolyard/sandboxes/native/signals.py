"""Signals as the processes of a sandbox handle them: by numbers. The enums that Python's own module wraps around those
cost every new process some pages of memory."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import signal
from collections.abc import Callable
from types import FrameType
from typing import TypeAlias

Handler: TypeAlias = "Callable[[int, FrameType | None], object] | int"

CHILD, PIPE = int(signal.SIGCHLD), int(signal.SIGPIPE)
IGNORED = int(signal.SIG_IGN)
_DEFAULT = int(signal.SIG_DFL)
_CHANGED = tuple(map(int, (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ)))


def handle(number: int, handler: Handler) -> None:
    _signal.signal(number, handler)


def reset() -> None:
    """Programs expect the defaults; Python has changed a few for itself."""
    for number in _CHANGED:
        _signal.signal(number, _DEFAULT)
