"""`SpareFiles`: a few open files kept aside, so that a server that can open no more can still answer health checks."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Self

_KEPT = 4
"""How many files to keep: each makes room for one connection."""


class SpareFiles:
    """Closes its files when the process can open no more, and reopens them when there is room. Call `look` often."""

    def __init__(self) -> None:
        self._kept: list[int] = []

    def __enter__(self) -> Self:
        self.look()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._give_up()

    def look(self) -> None:
        try:
            opened = [os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)]
        except OSError:
            self._give_up()
            return
        with contextlib.suppress(OSError):  # open one more than we keep, to leave one free for the next connection
            while len(opened) + len(self._kept) <= _KEPT:
                opened.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
            os.close(opened.pop())
            self._kept += opened
            return
        for one in opened:
            os.close(one)

    def _give_up(self) -> None:
        while self._kept:
            os.close(self._kept.pop())
