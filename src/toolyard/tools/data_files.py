"""Which files of the server a trainer may name: those below the directories that the operator named."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextvars import ContextVar, Token
from pathlib import Path

_named: ContextVar[Sequence[str]] = ContextVar("data directories", default=())


def use_data_dirs(folders: Sequence[str]) -> Token[Sequence[str]]:
    """Let trainers name files below these folders, in this context and in tasks that it starts."""
    return _named.set(folders)


def data_dirs() -> Sequence[str]:
    """What the operator named with --data-dir."""
    return _named.get()


def real_path(path: str) -> str:
    """Where a path really leads, links resolved."""
    try:
        return os.path.realpath(path)
    except ValueError:  # it has a zero byte in it, or a lone surrogate: no file can be called so
        return os.path.abspath(path)


def is_below(real: str, folders: Sequence[str]) -> bool:
    """Whether a real path lies in one of the folders, which may be links themselves. An empty name is no folder."""
    return any(Path(real).is_relative_to(os.path.realpath(folder)) for folder in folders if folder)
