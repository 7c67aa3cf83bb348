"""Restricts the files that a trainer may name to those below the operator's directories."""

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
    """The operator's folders, from --data-dir."""
    return _named.get()


def real_path(path: str) -> str:
    """The real path, with links resolved."""
    try:
        return os.path.realpath(path)
    except ValueError:  # a zero byte or a lone surrogate: no file has such a name
        return os.path.abspath(path)


def is_below(real: str, folders: Sequence[str]) -> bool:
    """Whether a real path lies in one of the folders, which may be links. An empty name is no folder."""
    return any(Path(real).is_relative_to(os.path.realpath(folder)) for folder in folders if folder)
