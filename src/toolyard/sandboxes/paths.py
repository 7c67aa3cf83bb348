"""Paths of the workspace, as callers pass them."""

from __future__ import annotations

import os
import posixpath

from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import WORKSPACE

_BYTES_MOST = 4096


def inside(path: str) -> str:
    """A path relative to the workspace. The code that opens it checks that it stays inside, links and all."""
    if path == WORKSPACE or path.startswith(WORKSPACE + "/"):
        path = path.removeprefix(WORKSPACE).lstrip("/")
    if path.startswith("/"):
        raise WorkspaceError(f"{path}: not in the workspace, which is {WORKSPACE}")
    if "\0" in path:
        raise WorkspaceError(f"{path!r}: a path cannot hold a null character")
    try:
        size = len(os.fsencode(path))
    except UnicodeEncodeError as error:
        raise WorkspaceError(f"{path!r}: no file can have this name: {error.reason}") from None
    if size >= _BYTES_MOST:
        raise WorkspaceError(f"{path[:40]}…: a path of {size} bytes; it must be shorter than {_BYTES_MOST}")
    return posixpath.normpath(path or ".")


def check_mode(path: str, mode: int | None) -> None:
    """Only permissions: nothing in a sandbox runs as another user, or needs to."""
    if mode is not None and not 0 <= mode <= 0o777:
        raise WorkspaceError(f"{path}: a file cannot have the mode {mode:#o}; give permissions from 0 to 0o777")
