"""Copies files between sandboxes by way of the host: no program in either sandbox takes part."""

from __future__ import annotations

import asyncio
import fnmatch
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from toolyard.core.errors import WorkspaceError
from toolyard.sandboxes.base import Sandbox
from toolyard.sandboxes.paths import inside

Hidden: TypeAlias = Mapping[str, str | bytes | Path] | Path
"""Files by their path in the workspace: text, bytes, or the host's path of a file or a folder."""

BYTES_MOST = 32 * 2**20
FILES_MOST = 4096
_DEPTH_MOST = 64
_NOT_COPIED = {"__pycache__", ".git", ".pytest_cache"}
_OF_PYTHON = (".so", ".pyc", ".pyd")


@dataclass(slots=True)
class Snapshot:
    """Files of a workspace, in the memory of the host."""

    files: dict[str, bytes] = field(default_factory=dict)
    left_out: list[str] = field(default_factory=list)
    """Links, pipes, sockets, and unreadable files."""


async def take(sandbox: Sandbox, wanted: Sequence[str] | None = None) -> Snapshot:
    """Copy the workspace, or what paths and patterns in `wanted` select. Does not follow links.

    Raises `WorkspaceError`, before it reads any file, if that is more than may be copied.
    """
    snapshot = Snapshot()
    names = None if wanted is None else [inside(one) for one in wanted]
    sizes = await _survey(sandbox, names, snapshot.left_out)
    if sum(sizes.values()) > BYTES_MOST:
        raise _too_much(f"{sum(sizes.values())} bytes, more than {BYTES_MOST}")
    for path in sizes:
        try:
            snapshot.files[path] = await sandbox.read(path)
        except WorkspaceError:  # a program has made it unreadable
            snapshot.left_out.append(path)
    return snapshot


async def _survey(sandbox: Sandbox, wanted: Sequence[str] | None, left_out: list[str]) -> dict[str, int]:
    """The size of every file to copy."""
    sizes: dict[str, int] = {}
    folders, seen = ["."], 0
    while folders:
        at = folders.pop()
        try:
            entries = await sandbox.list(at)
        except WorkspaceError:
            left_out.append(at)
            continue
        for entry in entries:
            path = entry.name if at == "." else f"{at}/{entry.name}"
            if entry.kind == "directory":
                folders += [] if entry.name in _NOT_COPIED else [path]
            elif not _is_wanted(path, wanted):
                continue
            elif entry.kind == "file":
                sizes[path] = entry.size
            else:
                left_out.append(path)
        seen += len(entries)
        if len(sizes) > FILES_MOST or seen > 4 * FILES_MOST or at.count("/") > _DEPTH_MOST:
            raise _too_much(f"more than {FILES_MOST} files, or folders deeper than {_DEPTH_MOST}")
    return sizes


def _is_wanted(path: str, wanted: Sequence[str] | None) -> bool:
    if wanted is None:
        return True
    return any(name == "." or path.startswith(f"{name}/") or fnmatch.fnmatchcase(path, name) for name in wanted)


def _too_much(what: str) -> WorkspaceError:
    return WorkspaceError(f"the workspace cannot be copied for grading: it has {what}. Remove what is not needed")


async def lay(sandbox: Sandbox, files: Mapping[str, bytes], hidden: Mapping[str, bytes]) -> None:
    """Write files into a fresh sandbox, the hidden ones last. Files that would stand in their way are left out."""
    for path in beside(files, hidden):
        await sandbox.write(path, files[path])
    for path, data in hidden.items():
        await sandbox.write(path, data)


def beside(files: Collection[str], hidden: Collection[str]) -> Sequence[str]:
    """The files that have no hidden file's path, are no folder of one, and would not be imported instead of one."""
    taken = {*hidden}
    folders = {folder for path in hidden for folder in _folders(path)}
    modules = {path.removesuffix(".py") for path in hidden if path.endswith(".py")}

    def is_free(path: str) -> bool:
        above = _folders(path)
        if path in taken or path in folders or not taken.isdisjoint(above):
            return False
        folder, _, name = path.rpartition("/")
        if name.startswith("__init__.") and folder in modules:
            return False
        return not (name.endswith(_OF_PYTHON) and f"{folder}/{name.partition('.')[0]}".lstrip("/") in modules)

    return [path for path in files if is_free(path)]


def _folders(path: str) -> Sequence[str]:
    """All folders that a path lies in."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


async def gather(hidden: Hidden) -> Mapping[str, bytes]:
    """Read the hidden files, by path in the workspace."""
    return await asyncio.to_thread(_gather, hidden)


def _gather(hidden: Hidden) -> Mapping[str, bytes]:
    if isinstance(hidden, Path):
        return _below(".", hidden)
    found: dict[str, bytes] = {}
    for path, content in hidden.items():
        if isinstance(content, Path):
            found |= _below(path, content)
        else:
            found[inside(path)] = content.encode() if isinstance(content, str) else bytes(content)
    return found


def _below(path: str, source: Path) -> Mapping[str, bytes]:
    if not source.is_dir():
        return {inside(path): source.read_bytes()}
    files = [file for file in sorted(source.rglob("*")) if file.is_file() and not _NOT_COPIED & {*file.parts}]
    return {inside(f"{path}/{file.relative_to(source).as_posix()}"): file.read_bytes() for file in files}
