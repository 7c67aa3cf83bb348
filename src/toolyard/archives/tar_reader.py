"""Reads a tar archive that untrusted code may have made, and trusts nothing in it.

It moves forward with each step and knows no more than it must: files, folders, links, and long names in the two usual
forms.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from toolyard.core.errors import WorkspaceError

FILE, HARD_LINK, LINK, FOLDER = b"0", b"1", b"2", b"5"
"""Kinds of members."""

_BLOCK = 512
_DIGITS_MOST = 20
_LONGER_MOST = 1024 * 1024
"""The most bytes of a header that describes the next member, such as its long name."""


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


def members(tar: bytes) -> Iterator[Member]:
    """Files, folders and links, in order. Raises `WorkspaceError` if it is no tar archive."""
    at = 0
    longer: dict[bytes, bytes] = {}
    while at + _BLOCK <= len(tar) and (header := tar[at : at + _BLOCK]).strip(b"\0"):
        start = at + _BLOCK
        size = _number(longer.get(b"size", b""), 10) or _number(header[124:136])
        at = start + -(-size // _BLOCK) * _BLOCK
        if header[257:262] != b"ustar" or start + size > len(tar):
            raise WorkspaceError("the workspace cannot be read: it was not saved as a tar archive")
        kind = header[156:157].replace(b"\0", FILE)
        if kind in b"LKx":
            if size > _LONGER_MOST:
                raise WorkspaceError(f"the workspace cannot be read: one of its names takes {size} bytes")
            longer.update(_longer(kind, tar[start : start + size]))
            continue
        if kind in (FILE, HARD_LINK, LINK, FOLDER):
            prefix = _text(header[345:500]) if header[257:263] == b"ustar\0" else b""
            yield Member(
                name=longer.get(b"path") or b"/".join(filter(None, (prefix, _text(header[:100])))),
                kind=kind,
                mode=_number(header[100:108]),
                mtime=_number(header[136:148]),
                target=longer.get(b"linkpath") or _text(header[157:257]),
                start=start,
                size=size if kind == FILE else 0,
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


def plain(name: bytes) -> bytes:
    """The name without empty steps and `.`."""
    return b"/".join(part for part in name.split(b"/") if part not in (b"", b"."))


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _number(field: bytes, base: int = 8) -> int:
    """The number in a field, 0 if it is malformed: what follows reveals a wrong size."""
    digits = field.strip(b" \0")
    try:
        return int(digits, base) if digits.isdigit() and len(digits) <= _DIGITS_MOST else 0
    except ValueError:
        return 0
