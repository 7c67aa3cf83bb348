"""The agent's access to the workspace, for the host. No path leads out of it, whatever programs change in it."""

from __future__ import annotations

import contextlib
import json
import os
import stat

from toolyard.sandboxes.native import syscalls, wire


class Files:
    """The files below a directory. Every method raises OSError."""

    def __init__(self, directory: str) -> None:
        self._directory = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def read(self, path: str, offset: int, most: int) -> bytes:
        fd = syscalls.open_beneath(self._directory, path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            _check_regular(fd)
            return os.pread(fd, most, offset)
        finally:
            os.close(fd)

    def write(self, path: str, data: bytes, *, more: bool, mode: int | None = None) -> None:
        """Write a file from its beginning; with `more`, append. Sets its permissions to `mode`."""
        self._make_parents(path)
        flags = os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | (os.O_APPEND if more else 0)
        fd = syscalls.open_beneath(self._directory, path, flags, 0o644)
        try:
            _check_regular(fd)
            if not more:
                os.truncate(fd, 0)
            if mode is not None:
                os.fchmod(fd, mode)
            while data:
                data = data[os.write(fd, data) :]
        finally:
            os.close(fd)

    def _make_parents(self, path: str) -> None:
        parts = path.split("/")[:-1]
        for depth, name in enumerate(parts):
            above = syscalls.open_beneath(self._directory, "/".join(parts[:depth]) or ".", os.O_PATH | os.O_DIRECTORY)
            try:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, 0o755, dir_fd=above)
            finally:
                os.close(above)

    def list(self, path: str) -> bytes:
        fd = syscalls.open_beneath(self._directory, path, os.O_RDONLY | os.O_DIRECTORY)
        found = []
        try:
            for name in sorted(os.listdir(fd)):
                with contextlib.suppress(FileNotFoundError):  # removed since
                    found.append(_entry(name, os.stat(name, dir_fd=fd, follow_symlinks=False)))
        finally:
            os.close(fd)
        listed = json.dumps(found, ensure_ascii=False).encode("utf-8", "surrogateescape")
        if len(listed) > wire.LIST_MOST:
            raise OSError(0, f"its {len(found)} names are too many to be listed")
        return listed


def _entry(name: str, about: os.stat_result) -> tuple[str, str, int]:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "directory", stat.S_IFLNK: "link"}
    return name, kinds.get(stat.S_IFMT(about.st_mode), "other"), about.st_size


def _check_regular(fd: int) -> None:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError(0, "not a regular file")
