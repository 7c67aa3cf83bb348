"""Lists what a backend that can only allow paths must allow, so that hidden paths stay hidden.

Each warden loads this module, so it imports almost nothing. Hidden paths must be resolved (no links).
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_below(path: str, folder: str) -> bool:
    """Whether the path is the folder or lies in it."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def beside(root: str, hidden: Sequence[str]) -> tuple[list[str], list[str]]:
    """The paths below a root that programs may read, and the folders that they may only list.

    Links are left out: each target is either allowed at its own path or lies outside the root.
    """
    real = os.path.realpath(root)
    if any(is_below(real, path) for path in hidden):
        return [], []
    if not any(is_below(path, real) for path in hidden):
        return [root], []
    allowed: list[str] = []
    listed = [real]
    with os.scandir(real) as entries:
        for entry in entries:
            if not entry.is_symlink():
                more, folders = beside(entry.path, hidden)
                allowed += more
                listed += folders
    return allowed, listed
