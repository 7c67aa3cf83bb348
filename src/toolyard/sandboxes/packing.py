"""Packs a file or a folder of the current directory into a tar archive, or unpacks one there. Run in a sandbox.

The host passes the text of this file to whichever Python the sandbox has, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
import sys
import tarfile
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

_LEFT_OUT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.ENAMETOOLONG}
"""Errors of a file that has vanished or changed its kind since it was listed, or whose path is too long."""
_BLOCK = 256 * 1024
_TIME_MOST = 2**33


class Steady:
    """A file of fixed length. If it shrinks while it is read, the missing end reads as zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


class Refused(Exception):
    """A path or an archive that cannot be used."""


def place(path: str, *, make: bool = False) -> str:
    """The real path of an entry of the current directory. Raises `Refused` if a link leads out of it."""
    root, real = os.getcwd(), os.path.realpath(path)
    if not _is_below(real, root):
        raise Refused("it leads out of the workspace")
    if make:
        os.makedirs(real, exist_ok=True)
    return real


def _is_below(path: str, folder: str) -> bool:
    return path == folder or path.startswith(folder.rstrip("/") + "/")


def pack(path: str, most: int, out: BinaryIO) -> None:
    """Pack files, folders and links with their write and execute bits. Pipes, sockets and devices are left out.

    `most` limits their number. A single file has the name `.`.
    """
    sys.setrecursionlimit(10_000)  # a path has at most half as many folders
    real = place(path)
    is_folder = stat.S_ISDIR(mode := os.stat(real).st_mode)
    if not (is_folder or stat.S_ISREG(mode)):
        raise Refused("it is neither a file nor a folder")
    with tarfile.open(fileobj=out, bufsize=_BLOCK, **_format("w|")) as tar:
        if is_folder:
            os.chdir(real)
            _pack_folder(tar, "", Room(most))
        else:
            _pack_one(tar, real, mode, Room(1), name=".")


class Room:
    """For so many files and folders."""

    def __init__(self, most: int) -> None:
        self._left = self._most = most

    def take(self) -> None:
        self._left -= 1
        if self._left < 0:
            raise Refused(f"it is more than {self._most} files and folders")


def _pack_folder(tar: tarfile.TarFile, folder: str, room: Room) -> None:
    for name in sorted(os.listdir(folder or ".")):
        path = os.path.join(folder, name)
        try:
            _pack_one(tar, path, os.lstat(path).st_mode, room)
        except OSError as error:
            if error.errno not in _LEFT_OUT:
                raise


def _pack_one(tar: tarfile.TarFile, path: str, mode: int, room: Room, *, name: str = "") -> None:
    room.take()
    if stat.S_ISREG(mode):
        with _readable(path, mode, stat.S_IRUSR), _opened(path) as file:
            about = tar.gettarinfo(arcname=name or path, fileobj=file)
            about.mode = stat.S_IMODE(mode)
            if about.isreg() or about.islnk():
                tar.addfile(about, Steady(file))  # type: ignore[arg-type]  # it only reads
    elif stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        about = tar.gettarinfo(path)
        if about is not None and (about.isdir() or about.issym()):  # its kind may have changed
            tar.addfile(about)
        if stat.S_ISDIR(mode):
            with _readable(path, mode, stat.S_IRUSR | stat.S_IXUSR):
                _pack_folder(tar, path, room)


@contextlib.contextmanager
def _readable(path: str, mode: int, needed: int) -> Iterator[None]:
    """Grants the owner access during the block, where the mode denies even that."""
    if mode & needed == needed:
        yield
        return
    os.chmod(path, stat.S_IMODE(mode) | needed)
    try:
        yield
    finally:
        os.chmod(path, stat.S_IMODE(mode))


def _opened(path: str) -> BinaryIO:
    return open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def _if_allowed(change: Callable[..., None], *about: Any) -> None:
    """Some walls forbid changes of modes and times of files."""
    with contextlib.suppress(PermissionError):
        change(*about)


class Unpacking:
    """Unpacks into the current directory. `strict` refuses an archive that has anything but files, folders and links
    below it; otherwise such entries are left out."""

    def __init__(self, bytes_most: int, entries_most: int, *, strict: bool) -> None:
        self._bytes_left = self._bytes_most = bytes_most
        self._entries_left = self._entries_most = entries_most
        self._strict = strict
        self._root = os.getcwd()
        self._folders: list[tuple[str, int, float]] = []

    def unpack(self, packed: BinaryIO) -> None:
        os.umask(0)
        with tarfile.open(fileobj=packed, bufsize=_BLOCK, **_format("r|*")) as tar:
            for member in tar:
                self._count(member)
                if problem := self._problem(member):
                    if self._strict:
                        raise Refused(f"{member.name[:200]!r} {problem}")
                else:
                    self._unpack_one(tar, member)
        for path, mode, mtime in reversed(self._folders):  # last, since some modes forbid adding files
            if stat.S_IMODE(os.stat(path).st_mode) != mode:
                _if_allowed(os.chmod, path, mode)
            _if_allowed(os.utime, path, (mtime, mtime))

    def _unpack_one(self, tar: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = os.path.normpath(member.name)
        mode, mtime = member.mode & 0o777, min(max(member.mtime, 0), _TIME_MOST)
        os.makedirs(os.path.dirname(path) or ".", 0o755, exist_ok=True)
        if os.path.islink(path) or (os.path.lexists(path) and not os.path.isdir(path)):
            os.unlink(path)  # otherwise the write would follow the link
        if member.isdir():
            os.makedirs(path, mode | 0o700, exist_ok=True)
            self._folders.append((path, mode, mtime))
        elif member.issym():
            os.symlink(member.linkname, path)
        elif member.islnk():
            os.link(member.linkname, path, follow_symlinks=False)
        else:
            content = tar.extractfile(member)
            assert content is not None
            with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
                shutil.copyfileobj(content, file, _BLOCK)
            _if_allowed(os.utime, path, (mtime, mtime))

    def _count(self, member: tarfile.TarInfo) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise Refused(f"it has more than {self._entries_most} files and folders")
        self._bytes_left -= member.size
        if self._bytes_left < 0 or member.size < 0:
            raise Refused(f"its files have more than {self._bytes_most} bytes")

    def _problem(self, member: tarfile.TarInfo) -> str:
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return "is neither a file nor a folder nor a link"
        if self._leads_out(member.name, os.path.dirname(member.name)):
            return "leads out of the folder"
        if member.islnk() and self._leads_out(member.linkname, member.linkname):
            return "is a link to a file that is not in the folder"
        return ""

    def _leads_out(self, name: str, followed: str) -> bool:
        if os.path.isabs(name) or ".." in name.split("/") or "\0" in name:
            return True
        return not _is_below(os.path.realpath(os.path.join(self._root, followed)), self._root)


def _format(mode: str) -> dict[str, Any]:
    return {"mode": mode, "format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}


def main() -> None:
    """`pack PATH ENTRIES` to standard output; `unpack PATH ENTRIES BYTES` or `restore PATH ENTRIES BYTES`, which leaves
    out what it cannot unpack, from standard input. The problem, if there is one, goes to standard error."""
    what, path, entries_most, *bytes_most = sys.argv[1:]
    try:
        if what == "pack":
            pack(path, int(entries_most), sys.stdout.buffer)
        else:
            os.chdir(place(path, make=True))
            Unpacking(int(*bytes_most), int(entries_most), strict=what == "unpack").unpack(sys.stdin.buffer)
    except (OSError, ValueError, OverflowError, EOFError, MemoryError, Refused, tarfile.TarError, zlib.error) as error:
        said = error.strerror if isinstance(error, OSError) else ""  # without the path, which may be the host's
        sys.exit(said or str(error) or type(error).__name__)


if __name__ == "__main__":
    main()
