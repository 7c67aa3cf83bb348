"""Folders of this machine as archives for a session, and archives of a session as folders here.

Nothing in an archive that a server sends is trusted: agents may have made what is in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from toolyard.archives import contents_of, lay_out, packed_files
from toolyard.core.workspace import Files

_PART = 8 * 2**20
"""Bytes of files in one request. Servers take 16 MiB, and base64 adds a third."""
_BYTES_MOST = 2**32
_ENTRIES_MOST = 200_000


def parts_of(source: Files, path: str) -> tuple[Sequence[bytes], str, Sequence[str]]:
    """Archives to unpack, one after the other, where to do that, and what was left out."""
    if isinstance(source, Path) and not source.is_dir():
        folder, _, name = (source.name if path == "." else path).rpartition("/")
        source, path = {name: source}, folder or "."
    archives, left_out = packed_files(source, _BYTES_MOST, _PART)
    return archives, path, left_out


def lay(archive: bytes, target: Path) -> Sequence[str]:
    return lay_out(contents_of(archive, _ENTRIES_MOST), target)
