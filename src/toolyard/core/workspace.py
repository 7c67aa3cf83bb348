"""`Workspace`: the files of one session, as protocols read and write them from outside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, Protocol, TypeAlias

Files: TypeAlias = Mapping[str, str | bytes | Path] | Path
"""Files by their path in a workspace: text, bytes, or the path of a file or folder on the host. Or one folder for
all."""


class Entry(Protocol):
    """One name in a folder."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["file", "directory", "link", "other"]: ...
    @property
    def size(self) -> int: ...


class Workspace(Protocol):
    """Paths are relative to the workspace, and none leads out of it. A bad path raises `WorkspaceError`."""

    async def read(self, path: str) -> bytes: ...
    async def write(self, path: str, data: bytes) -> None: ...
    async def list(self, path: str = ".") -> Sequence[Entry]: ...

    async def stop_programs(self) -> None:
        """End all programs in it, so that only its callers change it."""

    async def pack(self, path: str = ".") -> bytes:
        """A file or a folder as a tar archive that is safe to unpack anywhere."""

    async def unpack(self, archive: bytes, path: str = ".") -> None:
        """Unpack a tar archive into a folder. Raises `WorkspaceError` if it leads out of that folder."""

    async def save(self) -> bytes:
        """All of its files, as a tar archive. Untrusted code makes the archive."""

    async def restore(self, saved: bytes) -> None:
        """Put the files that another workspace saved into this new one."""
