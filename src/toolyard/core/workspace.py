"""`Workspace`: the files of one session, as those see them who are not in it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Protocol


class Entry(Protocol):
    """One name in a folder."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> Literal["file", "directory", "link", "other"]: ...
    @property
    def size(self) -> int: ...


class Workspace(Protocol):
    """Paths are relative to it; none leads out of it. What is wrong with one is a `WorkspaceError`."""

    async def read(self, path: str) -> bytes: ...
    async def write(self, path: str, data: bytes) -> None: ...
    async def list(self, path: str = ".") -> Sequence[Entry]: ...

    async def stop_programs(self) -> None:
        """End whatever runs in it, so that nothing changes it but its callers."""

    async def save(self) -> bytes:
        """All of it, as a tar archive made by code that nobody trusts."""

    async def restore(self, saved: bytes) -> None:
        """Put into a new workspace what another one saved."""
