"""`supply`: writes an author's files into a workspace before the agent works there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from toolyard.core.errors import WorkspaceError
from toolyard.core.workspace import Files
from toolyard.sandboxes.base import Sandbox
from toolyard.sandboxes.paths import inside

_USUAL = 0o644
_LEFT_OUT = {"__pycache__"}


@dataclass(frozen=True, slots=True)
class Supply:
    data: bytes
    mode: int = _USUAL


async def supply(sandbox: Sandbox, files: Files) -> None:
    """Write files into a fresh sandbox. A failure here is the author's mistake, not the agent's."""
    try:
        supplies = await asyncio.to_thread(_read, files)
        for path, one in supplies.items():
            await sandbox.write(path, one.data, mode=one.mode)
    except WorkspaceError as error:  # a tool would show it to the agent
        raise ValueError(f"the files of the task cannot be laid into the workspace: {error}") from error


def _read(files: Files) -> Mapping[str, Supply]:
    named = files if isinstance(files, Mapping) else {".": files}
    found: dict[str, Supply] = {}
    for path, content in named.items():
        if isinstance(content, Path):
            found.update(_of_host(path, content))
        else:
            found[inside(path)] = Supply(content.encode() if isinstance(content, str) else bytes(content))
    return found


def _of_host(path: str, source: Path) -> Iterator[tuple[str, Supply]]:
    if not source.is_dir():
        yield inside(path), _file(source)
        return
    for file in sorted(source.rglob("*")):
        below = file.relative_to(source)
        if file.is_file() and _LEFT_OUT.isdisjoint(below.parts):
            yield inside(f"{path}/{below.as_posix()}"), _file(file)


def _file(source: Path) -> Supply:
    """Give every user the owner's permissions, except to write."""
    owner = source.stat().st_mode & 0o700
    executable = 0o111 if owner & 0o100 else 0
    return Supply(source.read_bytes(), 0o444 | executable | (owner & 0o200))
