"""A few open files kept aside, so that a server that can open no more still hears who asks how it is."""

from __future__ import annotations

import contextlib
import os
from types import TracebackType
from typing import Self

_KEPT = 4
"""A connection each."""


class SpareFiles:
    """Given up when nothing can be opened any more, and taken again when there is room. Look at them now and then."""

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
        with contextlib.suppress(OSError):  # as many as there are; and one stays free for who comes next
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
