"""Everything below a folder but what is hidden there, for a backend that can only allow.

Loaded by each warden, so it imports next to nothing. Paths that are hidden are real ones.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def is_below(path: str, folder: str) -> bool:
    """Whether it is the folder or lies in it."""
    return f"{path}/".startswith(f"{folder.rstrip('/')}/")


def beside(root: str, hidden: Sequence[str]) -> tuple[list[str], list[str]]:
    """What may be read below a root, and the folders that may only be listed.

    Links are left out: what they lead to has a place of its own, or is none of the root's.
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
