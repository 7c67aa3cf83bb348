"""Shows a workspace to people, as a zip archive or a tree of names. It trusts nothing that comes out of the workspace.

Untrusted code may have made the tar archive, which `archives.tar_reader` reads.
"""

from __future__ import annotations

import re
import stat
import time
import zipfile
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import IO, Any

from toolyard.archives.tar_reader import FOLDER, HARD_LINK, LINK, Member, members, plain
from toolyard.core.errors import WorkspaceError
from toolyard.core.workspace import Entry

ROOT = "workspace"
"""The name of the workspace as a whole."""
OURS = ".toolyard"
"""Toolyard's own folder in the workspace. It is hidden from people."""

ZIP_MOST = 2**30
"""The most bytes of all files in an archive, uncompressed. Only hard links can exceed it."""
ZIP_FILES_MOST = 100_000
ENTRIES_MOST = 20_000
DEPTH_MOST = 100
"""The deepest nesting of folders. Its JSON is twice as deep, near the limit of parsers."""

_NAME_MOST = 4096
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|clock\$|(com|lpt)[0-9¹²³])[ ]*(\.|$)", re.IGNORECASE)
"""Names that Windows takes for a device, with any suffix after a dot."""
_YEARS = range(1980, 2108)
"""The years that a zip archive can hold."""


def write_zip(tar: bytes, packed: IO[bytes]) -> None:
    """Write the files and folders as a zip archive that is safe to unpack on any system. Leaves out links."""
    files: dict[bytes, Member] = {}
    written: set[str] = set()
    size = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member in members(tar):
            if member.kind == LINK:
                continue
            content = files.get(plain(member.target)) if member.kind == HARD_LINK else member
            name = zip_name(member.name)
            if content is None or not name or name in written:
                continue
            files[plain(member.name)] = content
            written.add(name)
            size += content.size
            if size > ZIP_MOST or len(written) > ZIP_FILES_MOST:
                raise WorkspaceError(f"the workspace is more than {ZIP_FILES_MOST} files or {ZIP_MOST} bytes")
            is_folder = content.kind == FOLDER
            about = zipfile.ZipInfo(name + "/" * is_folder, _date(content.mtime))
            kind = stat.S_IFDIR if is_folder else stat.S_IFREG
            about.external_attr = (kind | content.mode & 0o777) << 16 | 0x10 * is_folder
            about.compress_type = zipfile.ZIP_STORED if is_folder else zipfile.ZIP_DEFLATED
            archive.writestr(about, b"" if is_folder else tar[content.start : content.start + content.size])


def zip_name(name: bytes) -> str:
    """A path that stays below the target folder on any system; empty if there is none, or if it is Toolyard's own."""
    parts = [part for part in name.split(b"/") if part not in (b"", b".")]
    if name.startswith(b"/") or b".." in parts or parts[:1] == [OURS.encode()] or len(name) > _NAME_MOST:
        return ""
    return "/".join(_harmless_part(part.decode("utf-8", "surrogateescape")) for part in parts)


def _harmless_part(part: str) -> str:
    """Make a name that no system takes for a device or another name. Windows drops dots and spaces at the end, so that
    `.. ` would lead up."""
    name = "".join(map(_harmless, part))
    if name.endswith((".", " ")):
        name = name[:-1] + _escaped(name[-1])
    return _escaped(name[0]) + name[1:] if _DEVICE.match(name) else name


def _harmless(character: str) -> str:
    """The character, or its escape such as `%0A` if it is invisible or separates paths somewhere, as the colon of a
    drive."""
    return character if character.isprintable() and character not in "\\:" else _escaped(character)


def _escaped(character: str) -> str:
    return "".join(f"%{byte:02X}" for byte in character.encode("utf-8", "surrogateescape"))


def _date(mtime: int) -> tuple[int, int, int, int, int, int]:
    now = time.gmtime(min(mtime, 2**33))
    return now[:6] if now.tm_year in _YEARS else (1980, 1, 1, 0, 0, 0)


async def structure_of(listing: Callable[[str], Awaitable[Sequence[Entry]]]) -> dict[str, Any]:
    """The names in a workspace as nested objects, as many as an answer can hold, those near the top first."""
    root = _folder(ROOT)
    waiting = deque([(".", root, 1)])
    left = ENTRIES_MOST
    while waiting and left:
        path, folder, depth = waiting.popleft()
        for entry in (await _entries(listing, path))[:left]:
            if entry.kind == "directory":
                folder["children"].append(_folder(entry.name))
                if depth < DEPTH_MOST:
                    waiting.append((f"{path}/{entry.name}", folder["children"][-1], depth + 1))
            else:
                folder["children"].append({"name": entry.name, "type": "file"})
            left -= 1
    return root


async def _entries(listing: Callable[[str], Awaitable[Sequence[Entry]]], path: str) -> Sequence[Entry]:
    """Files, links and folders. A folder that has vanished, or cannot be listed, looks empty."""
    try:
        found = await listing(path)
    except WorkspaceError:
        if path == ".":
            raise
        return []
    return [entry for entry in found if entry.kind != "other" and (path, entry.name) != (".", OURS)]


def _folder(name: str) -> dict[str, Any]:
    return {"name": name, "type": "directory", "children": []}
