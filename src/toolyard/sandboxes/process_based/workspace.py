"""A workspace that is a directory: reads, writes and lists its files without ever following a link out of it.

Imports only the standard library: backends that cannot reach the directory run the text of this file beside it. A
program in the sandbox may change the directory at any moment. So no path is looked up twice: each part is opened from
the one before, and this code, not the system, follows links.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import shutil
import stat
import sys
from collections.abc import Iterator, Sequence

_LINKS_MOST = 40
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY


class WorkspaceFolder:
    """Paths are relative to it. Every failure is an OSError."""

    def __init__(self, root: str, owner: int = -1) -> None:
        self._root = root
        self._owner = owner
        """The owner of written files; -1 for our own user."""

    def read(self, path: str, most: int) -> bytes:
        with self._opened(path, os.O_RDONLY) as fd:
            _check_regular(fd)
            if os.fstat(fd).st_size > most:
                raise OSError(errno.EFBIG, f"larger than the {most} bytes that a file may have")
            with open(fd, "rb", closefd=False) as file:
                return file.read(most)

    def write(self, path: str, data: bytes, most: int, mode: int | None = None) -> None:
        if len(data) > most:
            raise OSError(errno.EFBIG, f"larger than the {most} bytes that a file may have")
        self._make_parents(path)
        with self._opened(path, os.O_WRONLY | os.O_CREAT) as fd:
            _check_regular(fd)
            os.truncate(fd, 0)
            self._give(fd)
            if mode is not None:
                os.fchmod(fd, mode)
            with open(fd, "wb", closefd=False) as file:
                file.write(data)

    def list(self, path: str) -> Sequence[tuple[str, str, int]]:
        """Name, kind and size of each entry of a directory."""
        with self._opened(path, _DIRECTORY) as fd:
            found = []
            for name in sorted(os.listdir(fd)):
                with contextlib.suppress(FileNotFoundError):  # removed since
                    about = os.stat(name, dir_fd=fd, follow_symlinks=False)
                    found.append((name, _kind(about.st_mode), about.st_size))
            return found

    def copy_from(self, other: WorkspaceFolder) -> None:
        """Replace everything here by a copy of the other's files."""
        with self._opened(".", _DIRECTORY) as target, other._opened(".", _DIRECTORY) as source:
            clear(target)
            self._copy(source, target)

    @contextlib.contextmanager
    def _opened(self, path: str, flags: int) -> Iterator[int]:
        fd = self._open(path, flags)
        try:
            yield fd
        finally:
            os.close(fd)

    def _open(self, path: str, flags: int) -> int:
        """Like openat2() with RESOLVE_BENEATH."""
        names = [name for name in reversed(path.split("/")) if name not in ("", ".")]
        above = [os.open(self._root, _DIRECTORY)]
        links = 0
        try:
            while names:
                name = names.pop()
                if name == "..":
                    if len(above) == 1:
                        raise OSError(errno.EXDEV, "it leads out of the workspace")
                    os.close(above.pop())
                    continue
                wanted = _DIRECTORY if names else flags
                try:
                    fd = os.open(name, wanted | os.O_NOFOLLOW | os.O_NONBLOCK, 0o644, dir_fd=above[-1])
                except OSError as error:
                    target = _link(name, above[-1]) if error.errno in (errno.ELOOP, errno.ENOTDIR) else None
                    if target is None:
                        raise
                    links += 1
                    if links > _LINKS_MOST:
                        raise
                    if target.startswith("/"):
                        raise OSError(errno.EXDEV, "a link leads out of the workspace") from None
                    names += [part for part in reversed(target.split("/")) if part not in ("", ".")]
                    continue
                if not names:
                    return fd
                above.append(fd)
            if flags & (os.O_WRONLY | os.O_RDWR):
                raise OSError(errno.EISDIR, os.strerror(errno.EISDIR))
            return above.pop()
        finally:
            for fd in above:
                os.close(fd)

    def _make_parents(self, path: str) -> None:
        parts = [part for part in path.split("/") if part not in ("", ".")][:-1]
        for depth, name in enumerate(parts):
            with self._opened("/".join(parts[:depth]), _DIRECTORY) as above, contextlib.suppress(FileExistsError):
                if name != "..":
                    os.mkdir(name, 0o755, dir_fd=above)
                    with self._opened("/".join(parts[: depth + 1]), _DIRECTORY) as made:
                        self._give(made)

    def _give(self, fd: int) -> None:
        if self._owner >= 0:
            os.fchown(fd, self._owner, self._owner)

    def _copy(self, source: int, target: int) -> None:
        """Copy everything below one open directory into another. Links stay links; pipes and sockets are left out."""
        for name in os.listdir(source):
            with contextlib.suppress(FileNotFoundError):  # removed since
                mode = os.stat(name, dir_fd=source, follow_symlinks=False).st_mode
                if stat.S_ISLNK(mode):
                    os.symlink(os.readlink(name, dir_fd=source), name, dir_fd=target)
                elif stat.S_ISDIR(mode):
                    self._copy_one(name, source, target, directory=True)
                elif stat.S_ISREG(mode):
                    self._copy_one(name, source, target, directory=False)

    def _copy_one(self, name: str, source: int, target: int, *, directory: bool) -> None:
        kind = _DIRECTORY if directory else os.O_RDONLY
        from_fd = os.open(name, kind | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=source)
        try:
            if directory:
                os.mkdir(name, 0o700, dir_fd=target)
                to_fd = os.open(name, kind, dir_fd=target)
            else:
                to_fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=target)
            try:
                if directory:
                    self._copy(from_fd, to_fd)
                else:
                    _check_regular(from_fd)
                    with open(from_fd, "rb", closefd=False) as reads, open(to_fd, "wb", closefd=False) as writes:
                        shutil.copyfileobj(reads, writes)
                os.fchmod(to_fd, stat.S_IMODE(os.fstat(from_fd).st_mode) & 0o777)
                self._give(to_fd)
            finally:
                os.close(to_fd)
        finally:
            os.close(from_fd)


def clear(directory: int) -> None:
    """Remove everything below an open directory, however deep it is and whatever its permissions. Move deep directories
    up first: recursion would take a stack frame and a descriptor for each level."""
    names = (f"{os.urandom(8).hex()}-{number}" for number in itertools.count())
    while found := os.listdir(directory):
        for name in found:
            if not _is_directory(name, directory):
                os.unlink(name, dir_fd=directory)
                continue
            os.chmod(name, 0o700, dir_fd=directory)
            fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            try:
                for inner in os.listdir(fd):
                    if _is_directory(inner, fd):
                        os.chmod(inner, 0o700, dir_fd=fd)
                        os.rename(inner, next(names), src_dir_fd=fd, dst_dir_fd=directory)
                    else:
                        os.unlink(inner, dir_fd=fd)
            finally:
                os.close(fd)
            os.rmdir(name, dir_fd=directory)


def _is_directory(name: str, above: int) -> bool:
    return stat.S_ISDIR(os.stat(name, dir_fd=above, follow_symlinks=False).st_mode)


def _link(name: str, above: int) -> str | None:
    try:
        return os.readlink(name, dir_fd=above)
    except OSError:  # not a link
        return None


def _kind(mode: int) -> str:
    return {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}.get(stat.S_IFMT(mode), "other")


def _check_regular(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(errno.EINVAL, "not a regular file")


def main() -> None:
    """`read`, `write` or `list` one path of the current directory; report a problem on standard error.

    `write` takes an optional mode after the others.
    """
    operation, path, most, *modes = sys.argv[1:]
    workspace = WorkspaceFolder(".")
    try:
        if operation == "write":
            workspace.write(path, sys.stdin.buffer.read(), int(most), *map(int, modes))
        elif operation == "read":
            sys.stdout.buffer.write(workspace.read(path, int(most)))
        else:
            sys.stdout.write(json.dumps(workspace.list(path)))
    except OSError as error:
        sys.exit(error.strerror)


if __name__ == "__main__":
    main()
