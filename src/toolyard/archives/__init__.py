"""Archives of a workspace on the host's side. They may come from untrusted code, so nothing in them is trusted.

The host keeps files, folders, and links that stay inside, under names that any tool unpacks below its target folder.
"""

from __future__ import annotations

import errno
import io
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from toolyard.archives.tar_reader import FILE, FOLDER, HARD_LINK, LINK, Member, members, plain
from toolyard.core.errors import WorkspaceError
from toolyard.core.workspace import Files

_PATH_MOST, _NAME_MOST = 4095, 255
_TOLD_MOST = 200
"""The most bytes of a left-out name in a report to callers."""
_SINGLE = b"./"
"""The prefix of the name of a file that was packed by itself."""
_TIME_MOST = 2**33 - 1
_IMPOSSIBLE = {errno.ENAMETOOLONG, errno.EILSEQ, errno.EINVAL, errno.ENOENT}
"""Errors for a name that this host's file system refuses, or for a hard link to a file that was left out."""


@dataclass(slots=True)
class Contents:
    """The entries of an archive that may leave the sandbox, in an order in which they can be unpacked."""

    tar: bytes
    members: list[Member] = field(default_factory=list)
    """Entries with plain names. A single file has an empty name."""
    left_out: list[str] = field(default_factory=list)

    @property
    def is_file(self) -> bool:
        """Whether the archive holds a single file and no folder."""
        return any(not member.name for member in self.members)

    def data(self, member: Member) -> memoryview:
        return memoryview(self.tar)[member.start : member.start + member.size]


def contents_of(tar: bytes, most: int) -> Contents:
    """Read an archive. Raises `WorkspaceError` if it is no tar archive, or has more than `most` files and folders."""
    contents = Contents(tar)
    kinds: dict[bytes, bytes] = {}
    for number, member in enumerate(members(tar)):
        if number >= most:
            raise WorkspaceError(f"the archive has more than {most} files and folders")
        name = plain(member.name)
        if member.kind == FILE and member.name == _SINGLE + name and b"/" not in name:
            name = b""
        if _is_sound(name, member) and _fits(name, member, kinds):
            kinds[name] = member.kind
            about = replace(member, name=name, mode=member.mode & 0o777, mtime=min(member.mtime, _TIME_MOST))
            contents.members.append(replace(about, target=plain(member.target)) if member.kind == HARD_LINK else about)
        elif name or member.kind != FOLDER:
            contents.left_out.append(os.fsdecode(name[:_TOLD_MOST]))
    if contents.is_file and len(contents.members) > 1:
        raise WorkspaceError("the archive is that of a file, and has other things in it")
    return contents


def _is_sound(name: bytes, member: Member) -> bool:
    """Whether the entry stays below any target folder by itself."""
    parts = name.split(b"/")
    if member.name.startswith(b"/") or b".." in parts or len(name) > _PATH_MOST:
        return False
    if any(len(part) > _NAME_MOST for part in parts):
        return False
    if member.kind == LINK:
        return bool(name) and stays_inside(member.target, len(parts) - 1)
    return bool(name) or member.kind == FILE


def _fits(name: bytes, member: Member, kinds: dict[bytes, bytes]) -> bool:
    """Whether the name is free and lies in real folders, not behind links."""
    if name in kinds or (member.kind == HARD_LINK and kinds.get(plain(member.target)) not in (FILE, HARD_LINK)):
        return False
    above, at = [], name
    while (at := at.rpartition(b"/")[0]) and kinds.get(at) != FOLDER:
        if at in kinds:
            return False
        above.append(at)
    kinds.update(dict.fromkeys(above, FOLDER))
    return True


def stays_inside(target: bytes, depth: int) -> bool:
    """Whether a link stays inside, wherever other links lead. The link itself lies `depth` folders deep.

    `..` may stand only at its beginning: behind another link, it is another folder than the text says.
    """
    if not target or target.startswith(b"/") or len(target) > _PATH_MOST:
        return False
    parts = plain(target).split(b"/")
    ups = next((number for number, part in enumerate(parts) if part != b".."), len(parts))
    return ups <= depth and b".." not in parts[ups:]


def clean(contents: Contents, name: str) -> bytes:
    """Write the contents as an archive that any tool can unpack. `name` is for a single file."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
        for member in contents.members:
            about = tarfile.TarInfo(os.fsdecode(member.name or _SINGLE) + ("" if member.name else name))
            about.type, about.mode, about.mtime, about.size = member.kind, member.mode, member.mtime, member.size
            if member.kind in (LINK, HARD_LINK):
                about.linkname = os.fsdecode(member.target)
            tar.addfile(about, io.BytesIO(contents.data(member)) if member.kind == FILE else None)
    return packed.getvalue()


# To the host.


def lay_out(contents: Contents, target: Path) -> Sequence[str]:
    """Write the contents to a new path of the host, or into an empty folder. Return the names that were left out.

    Only this user may write the files; programs can be run. A copy that fails leaves nothing. Raises `FileExistsError`
    if the path is taken, and other OSErrors for trouble of this host.
    """
    target = Path(os.path.abspath(target))
    if contents.is_file:
        (member,) = contents.members
        _write_file(bytes(target), contents, member)
        return contents.left_out
    was_there = target.is_dir() and not target.is_symlink()
    if was_there and any(target.iterdir()):
        raise FileExistsError(errno.EEXIST, "the folder is not empty", str(target))
    target.mkdir(parents=True, exist_ok=was_there)
    try:
        _write_folder(contents, bytes(target))
    except BaseException:
        _remove(target, keep=was_there)
        raise
    return contents.left_out


def _remove(target: Path, *, keep: bool) -> None:
    shutil.rmtree(target)
    if keep:
        target.mkdir()


def _write_folder(contents: Contents, root: bytes) -> None:
    """Write the links last, so that no path leads through one."""
    for member in sorted(contents.members, key=lambda one: one.kind == LINK):
        path = os.path.join(root, member.name)
        try:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            if member.kind == FOLDER:
                os.makedirs(path, exist_ok=True)
            elif member.kind == LINK:
                os.symlink(member.target, path)
            elif member.kind == HARD_LINK:
                os.link(os.path.join(root, member.target), path, follow_symlinks=False)
            else:
                _write_file(path, contents, member)
        except OSError as error:
            if error.errno not in _IMPOSSIBLE:
                raise
            contents.left_out.append(os.fsdecode(member.name[:_TOLD_MOST]))


def _write_file(path: bytes, contents: Contents, member: Member) -> None:
    mode = 0o755 if member.mode & stat.S_IXUSR else 0o644
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode), "wb") as file:
        file.write(contents.data(member))
        os.utime(file.fileno(), (member.mtime, member.mtime))


# From the host.


def packed_files(files: Files, most: int, part: int | None = None) -> tuple[Sequence[bytes], Sequence[str]]:
    """Pack files of this host. Return the archive and what was left out: pipes, sockets, devices, links that lead out.

    With `part` there are several archives, each with files of about that many bytes. Raises `WorkspaceError` if all
    files have more than `most` bytes, before reading them.
    """
    left_out: list[str] = []
    named = files if isinstance(files, Mapping) else {".": files}
    found = [one for path, content in named.items() for one in _found(path, content, left_out)][::-1]
    if (size := sum(_size(source) for *_, source in found)) > most:
        raise WorkspaceError(f"the files have {size} bytes, and the workspace takes {most}")
    archives: list[bytes] = []
    while found or not archives:
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
            while found and (part is None or not tar.offset or tar.offset + _size(found[-1][-1]) <= part):
                name, about, source = found.pop()
                about.name = name
                data = source.read_bytes() if isinstance(source, Path) else source
                about.size = len(data)
                tar.addfile(about, io.BytesIO(data))
        archives.append(packed.getvalue())
    return archives, left_out


def _size(source: bytes | Path) -> int:
    return source.stat().st_size if isinstance(source, Path) else len(source)


def _found(
    path: str, content: str | bytes | Path, left_out: list[str]
) -> Iterator[tuple[str, tarfile.TarInfo, bytes | Path]]:
    if not isinstance(content, Path):
        yield path, _about(tarfile.REGTYPE, 0o644), content.encode() if isinstance(content, str) else bytes(content)
    elif not content.is_dir():
        yield path, _about(tarfile.REGTYPE, content.stat().st_mode), content
    else:
        if path != ".":
            yield path, _about(tarfile.DIRTYPE, 0o755), b""
        for folder, folders, names in os.walk(content):
            below = os.path.relpath(folder, content)
            for name in sorted(folders):
                if not os.path.islink(os.path.join(folder, name)):
                    yield posixpath.normpath(f"{path}/{below}/{name}"), _about(tarfile.DIRTYPE, 0o755), b""
            for name in sorted([*names, *(one for one in folders if os.path.islink(os.path.join(folder, one)))]):
                yield from _one(posixpath.normpath(f"{below}/{name}"), path, Path(folder, name), left_out)


def _one(
    below: str, path: str, source: Path, left_out: list[str]
) -> Iterator[tuple[str, tarfile.TarInfo, bytes | Path]]:
    mode = source.lstat().st_mode
    name = posixpath.normpath(f"{path}/{below}")
    if stat.S_ISREG(mode):
        yield name, _about(tarfile.REGTYPE, mode), source
    elif stat.S_ISLNK(mode) and stays_inside(target := os.fsencode(os.readlink(source)), below.count("/")):
        about = _about(tarfile.SYMTYPE, 0o777)
        about.linkname = os.fsdecode(target)
        yield name, about, b""
    else:
        left_out.append(below)


def _about(kind: bytes, mode: int) -> tarfile.TarInfo:
    """An entry of this kind, with permissions of `shared_mode`."""
    about = tarfile.TarInfo()
    about.type = kind
    about.mode = shared_mode(mode)
    return about


def shared_mode(mode: int) -> int:
    """The permissions in a workspace of a file from the host: others get its owner's rights, except writing."""
    owner = mode & 0o700
    return 0o444 | (0o111 if owner & 0o100 else 0) | (owner & 0o200)
