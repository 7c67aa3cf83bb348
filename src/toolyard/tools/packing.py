"""Packs the current directory into a tar archive, or unpacks one into it. Run in a sandbox, by its text.

It imports only the standard library, because any Python that the sandbox has may run it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import sys
import tarfile
from collections.abc import Iterator
from typing import Any, BinaryIO

_LEFT_OUT = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EINVAL, errno.ENAMETOOLONG}
"""The file has vanished or changed its kind meanwhile, or its path is too long."""
_BLOCK = 256 * 1024


class Steady:
    """A file with a fixed length: if it shrinks meanwhile, the missing end reads as zeros."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        return self._file.read(size).ljust(size, b"\0")


def pack(out: BinaryIO) -> None:
    """Pack files, folders and links, with their modes. Leaves out pipes, sockets and devices."""
    sys.setrecursionlimit(10_000)  # a path has at most half as many folders
    with tarfile.open(fileobj=out, bufsize=_BLOCK, **_format("w|")) as tar:
        _pack_folder(tar, "")


def _pack_folder(tar: tarfile.TarFile, folder: str) -> None:
    for name in sorted(os.listdir(folder or ".")):
        path = os.path.join(folder, name)
        try:
            _pack_one(tar, path, os.lstat(path).st_mode)
        except OSError as error:
            if error.errno not in _LEFT_OUT:
                raise


def _pack_one(tar: tarfile.TarFile, path: str, mode: int) -> None:
    if stat.S_ISREG(mode):
        with _readable(path, mode, stat.S_IRUSR), _opened(path) as file:
            about = tar.gettarinfo(arcname=path, fileobj=file)
            about.mode = stat.S_IMODE(mode)
            if about.isreg() or about.islnk():
                tar.addfile(about, Steady(file))  # type: ignore[arg-type]  # tarfile only reads it
    elif stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
        about = tar.gettarinfo(path)
        if about is not None and (about.isdir() or about.issym()):  # unless it has changed its kind by now
            tar.addfile(about)
        if stat.S_ISDIR(mode):
            with _readable(path, mode, stat.S_IRUSR | stat.S_IXUSR):
                _pack_folder(tar, path)


@contextlib.contextmanager
def _readable(path: str, mode: int, needed: int) -> Iterator[None]:
    """Make a file readable for the moment, if its owner has removed that right."""
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


def unpack(packed: BinaryIO) -> None:
    with tarfile.open(fileobj=packed, bufsize=_BLOCK, **_format("r|")) as tar:
        # None of the library's filters: they refuse links that lead out, but the sandbox confines this program.
        tar.extraction_filter = lambda member, _: member
        tar.extractall(members=filter(_is_wanted, tar))


def _is_wanted(member: tarfile.TarInfo) -> bool:
    kinds = member.isreg() or member.isdir() or member.issym() or member.islnk()
    return kinds and not os.path.isabs(member.name) and ".." not in member.name.split("/")


def _format(mode: str) -> dict[str, Any]:
    return {"mode": mode, "format": tarfile.GNU_FORMAT, "encoding": "utf-8", "errors": "surrogateescape"}


def main() -> None:
    """`pack` to standard output, or `unpack` standard input; the problem, if there is one, on standard error."""
    try:
        if sys.argv[1] == "pack":
            pack(sys.stdout.buffer)
        else:
            unpack(sys.stdin.buffer)
    except (OSError, tarfile.TarError) as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
