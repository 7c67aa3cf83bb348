"""A system that has no room for more processes, as seen from Python: which calls of `os.fork` it refuses."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Container


def refusing(numbers: Container[int]) -> Callable[[], int]:
    """In place of `os.fork`: it refuses the calls of these numbers. Processes that are forked go on counting."""
    fork, count = os.fork, itertools.count(1)

    def limited() -> int:
        if next(count) in numbers:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    return limited
