"""Shows a workspace to people, as a zip archive or a tree of names. It trusts nothing that comes out of the workspace.

Untrusted code may have made the tar archive. So its reader moves forward with each step and knows no more than it must:
files, folders, hard links, and long names in the two usual forms.
"""

from __future__ import annotations

import re
import stat
import time
import zipfile
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

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

_BLOCK = 512
_DIGITS_MOST = 20
_NAME_MOST = 4096
_DEVICE = re.compile(r"(con|prn|aux|nul|conin\$|conout\$|clock\$|(com|lpt)[0-9¹²³])[ ]*(\.|$)", re.IGNORECASE)
"""Names that Windows takes for a device, with any suffix after a dot."""
_YEARS = range(1980, 2108)
"""The years that a zip archive can hold."""


@dataclass(frozen=True, slots=True)
class Member:
    """An entry of a tar archive, and where its content is."""

    name: bytes
    kind: bytes
    mode: int
    mtime: int
    target: bytes
    start: int
    size: int


def write_zip(tar: bytes, packed: IO[bytes]) -> None:
    """Write the files and folders as a zip archive that is safe to unpack on any system. Leaves out links."""
    files: dict[bytes, Member] = {}
    written: set[str] = set()
    size = 0
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for member in members(tar):
            content = files.get(_plain(member.target)) if member.kind == b"1" else member
            name = zip_name(member.name)
            if content is None or not name or name in written:
                continue
            files[_plain(member.name)] = content
            written.add(name)
            size += content.size
            if size > ZIP_MOST or len(written) > ZIP_FILES_MOST:
                raise WorkspaceError(f"the workspace is more than {ZIP_FILES_MOST} files or {ZIP_MOST} bytes")
            is_folder = content.kind == b"5"
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


def members(tar: bytes) -> Iterator[Member]:
    """Files (of kind 0), folders (5) and hard links (1), in order. Raises `WorkspaceError` if it is no tar archive."""
    at = 0
    longer: dict[bytes, bytes] = {}
    while at + _BLOCK <= len(tar) and (header := tar[at : at + _BLOCK]).strip(b"\0"):
        start = at + _BLOCK
        size = _number(longer.get(b"size", b""), 10) or _number(header[124:136])
        at = start + -(-size // _BLOCK) * _BLOCK
        if header[257:262] != b"ustar" or start + size > len(tar):
            raise WorkspaceError("the workspace cannot be read: it was not saved as a tar archive")
        kind = header[156:157].replace(b"\0", b"0")
        if kind in b"LKx":
            longer.update(_longer(kind, tar[start : start + size]))
            continue
        if kind in b"015":
            prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
            yield Member(
                name=longer.get(b"path") or b"/".join(filter(None, (prefix, _text(header[:100])))),
                kind=kind,
                mode=_number(header[100:108]),
                mtime=_number(header[136:148]),
                target=longer.get(b"linkpath") or _text(header[157:257]),
                start=start,
                size=size if kind == b"0" else 0,
            )
        longer = {}


def _longer(kind: bytes, content: bytes) -> Mapping[bytes, bytes]:
    """What a header says about the next one: GNU's long name (L) or long link (K), or the fields of POSIX (x)."""
    if kind != b"x":
        return {b"path" if kind == b"L" else b"linkpath": _text(content)}
    fields: dict[bytes, bytes] = {}
    at = 0
    while (space := content.find(b" ", at, at + 20)) > 0 and (length := _number(content[at:space], 10)):
        key, _, value = content[space + 1 : at + length].partition(b"=")
        if key in (b"path", b"linkpath", b"size"):
            fields[key] = _text(value.removesuffix(b"\n"))
        at += length
    return fields


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, base: int = 8) -> int:
    """The number in a field, 0 if it is malformed: what follows reveals a wrong size."""
    digits = field.strip(b" \0")
    try:
        return int(digits, base) if digits.isdigit() and len(digits) <= _DIGITS_MOST else 0
    except ValueError:
        return 0


def _plain(name: bytes) -> bytes:
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


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
