"""`Carrier` moves folders and archives between a workspace and the host, for every sandbox that can run a program.

A program inside the sandbox packs and unpacks, so an archive cannot touch anything else. Other programs in there may
forge what it hands out, so the host does not trust that.
"""

from __future__ import annotations

import asyncio
import dataclasses
import posixpath
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Protocol

from toolyard.archives import Contents, clean, contents_of, lay_out, packed_files, shared_mode
from toolyard.core.errors import WorkspaceError
from toolyard.core.workspace import Files
from toolyard.sandboxes.base import Finished, Limits
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.paths import inside

PACKING_SECONDS = 60.0
_BYTES_PER_SECOND = 10 * 2**20
"""The slowest that a busy machine packs or unpacks."""
_PACKING = resources.files("toolyard.sandboxes").joinpath("packing.py").read_text(encoding="utf-8")
_HEADER_MOST = 8 * 1024
"""Bytes in an archive for one file beside its content: a path can take 4 KiB, and a link's target as much."""


class Runs(Protocol):
    """The methods of a sandbox that this needs."""

    @property
    def limits(self) -> Limits: ...

    async def run(self, argv: Sequence[str], *, stdin: bytes = b"", limits: Limits | None = None) -> Finished: ...

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None: ...


class Carrier:
    """The methods of a sandbox that move folders and archives, built on its `run` and `write`."""

    async def pack(self: Runs, path: str = ".") -> bytes:
        contents = await _taken(self, path)
        name = posixpath.basename(inside(path))
        return await asyncio.to_thread(clean, contents, name)

    async def unpack(self: Runs, archive: bytes, path: str = ".") -> None:
        await unpack(self, archive, path, "unpack")

    async def put(self: Runs, source: Files, path: str = ".") -> Sequence[str]:
        inside(path)
        if isinstance(source, Path) and not source.is_dir():
            data = await asyncio.to_thread(source.read_bytes)
            to = source.name if inside(path) == "." else path
            await self.write(to, data, mode=shared_mode(source.stat().st_mode))
            return []
        if isinstance(source, Mapping):
            source = {inside(name): content for name, content in source.items()}
        (packed,), left_out = await asyncio.to_thread(packed_files, source, self.limits.disk_bytes)
        await unpack(self, packed, path, "unpack")
        return left_out

    async def save(self: Runs) -> bytes:
        return await pack(self)

    async def restore(self: Runs, saved: bytes) -> None:
        await unpack(self, saved, ".", "restore")

    async def get(self: Runs, path: str, target: Path) -> Sequence[str]:
        contents = await _taken(self, path)
        return await asyncio.to_thread(lay_out, contents, target)


async def _taken(sandbox: Runs, path: str) -> Contents:
    packed = await pack(sandbox, path)
    try:
        return await asyncio.to_thread(contents_of, packed, sandbox.limits.disk_files)
    except WorkspaceError as error:
        raise WorkspaceError(f"{path}: it cannot be packed: {error}") from error


async def pack(sandbox: Runs, path: str = ".") -> bytes:
    """Pack a file or a folder. Untrusted code makes the archive."""
    files_most = sandbox.limits.disk_files
    bytes_most = sandbox.limits.disk_bytes + files_most * _HEADER_MOST
    return (await _run(sandbox, "pack", path, str(files_most), bytes_most=bytes_most)).stdout


async def unpack(sandbox: Runs, archive: bytes, path: str, how: str) -> None:
    """Unpack an archive inside the sandbox. `how` is `unpack`, or `restore`, which skips what it cannot unpack."""
    most = sandbox.limits.disk_bytes
    await _run(sandbox, how, path, str(sandbox.limits.disk_files), str(most), stdin=archive, bytes_most=most)


async def _run(sandbox: Runs, what: str, path: str, *more: str, bytes_most: int, stdin: bytes = b"") -> Finished:
    relative = inside(path)
    seconds = PACKING_SECONDS + bytes_most / _BYTES_PER_SECOND
    most = bytes_most if what == "pack" else 64 * 1024
    limits = dataclasses.replace(sandbox.limits, wall_seconds=seconds, cpu_seconds=None, output_bytes=most)
    argv = ["python3", "-I", "-S", "-c", _PACKING, what, relative, *more]
    finished = await sandbox.run(argv, stdin=stdin, limits=limits)
    if finished.exit_code != 0 or finished.killed_by is not None:
        raise WorkspaceError(f"{path}: it cannot be {what.removesuffix('e')}ed: {_reason(finished, most)}")
    return finished


def _reason(finished: Finished, most: int) -> str:
    if finished.killed_by == "output":
        return f"it is larger than {most} bytes"
    if finished.killed_by is not None:
        return f"this {ended_by(finished.killed_by, finished.usage.wall_seconds)}"
    said = finished.stderr.decode(errors="replace").strip()
    return said[-1000:] or f"exit code {finished.exit_code}"
