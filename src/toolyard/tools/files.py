"""`FileSystemEnv`: text files of the workspace, read and edited by line, and shown as a tree."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Mapping, Sequence
from typing import Literal, TypeAlias

from toolyard.core.errors import ToolError, WorkspaceError
from toolyard.core.tool import tool
from toolyard.sandboxes.base import WORKSPACE, Entry, Sandbox
from toolyard.sandboxes.paths import inside
from toolyard.tools.archives import OURS, ROOT
from toolyard.tools.file_lines import edited, numbered
from toolyard.tools.sandboxed import SandboxedToolset

ENTRIES_MOST = 20
"""The most entries to show of each folder."""
FOLDERS_SURE = 10
"""Of these, this many places are reserved for folders."""
LINES_MOST = 1000
DEPTH_MOST = 32
WRAPPED = "`wrapped`"

IGNORED = frozenset(
    {".git", ".idea", ".ipynb_checkpoints", ".vs", ".vscode", "__pycache__", "node_modules", "site-packages", "venv"}
    | {"python_notebook.ipynb", OURS}
)

Problem: TypeAlias = Literal["outside", "missing", "no file", "full"]

_PROBLEMS: Mapping[Problem, tuple[str, ...]] = {
    "outside": ("out of the workspace", f"not in the workspace, which is {WORKSPACE}"),
    "missing": (os.strerror(errno.ENOENT),),
    "no file": ("not a regular file", os.strerror(errno.EISDIR), os.strerror(errno.ENXIO)),
    "full": ("that a file may have", *map(os.strerror, (errno.ENOSPC, errno.EDQUOT, errno.EFBIG))),
}
"""How a sandbox's message for each problem ends."""


class FileSystemEnv(SandboxedToolset):
    """Lists, reads and writes the files of the workspace."""

    prefixed = True

    @tool
    async def print_filesys_struture(self, return_root: bool = False) -> str:
        """Show the files and folders of the workspace as a tree. Use it to find out what is there.

        Args:
            return_root: Say first where the workspace is.
        """
        lines = [f"Global Root Work Directory: {WORKSPACE}"] * return_root
        await _grow(lines, await self.sandbox(), ".", ROOT, depth=0)
        return "".join(f"{line}\n" for line in lines)

    @tool
    async def read_from_file(self, filepath: str, line_number: int = 1) -> str:
        """Read a text file of the workspace. Each line comes with its number. A long file is shown in part.

        Args:
            filepath: The file, relative to the workspace.
            line_number: The line to begin with, defaults to 1. Negative numbers count from the end.
        """
        path = await self._place(filepath)
        if not IGNORED.isdisjoint(path.split("/")):
            raise _missing(filepath)
        try:
            data = await (await self.sandbox()).read(path)
        except WorkspaceError as error:
            raise refusal(filepath, error) from error
        return await asyncio.to_thread(_shown, filepath, data, line_number)

    @tool
    async def write_to_file(
        self,
        filepath: str,
        content: str,
        truncating: bool = False,
        line_number: int | None = None,
        overwrite: bool = False,
    ) -> str:
        """Write lines to a text file of the workspace. The file is made if it is not there, and the folders it needs.

        The lines go to the end of the file, or to where line_number says. What the file then holds comes back with
        line numbers, so there is no need to read it again.

        Args:
            filepath: The file, relative to the workspace.
            content: The lines to write.
            truncating: Empty the file first.
            line_number: Write before this line instead of at the end. Negative numbers count from the end.
            overwrite: Replace lines, from line_number on, by as many new ones.
        """
        path = await self._place(filepath)
        if not IGNORED.isdisjoint(path.split("/")):
            raise _outside(filepath)
        sandbox = await self.sandbox()
        try:
            old = await self._before(sandbox, path, is_new_fine=line_number in (None, 0, 1))
            new = await asyncio.to_thread(
                _changed, filepath, b"" if truncating else old, content, line_number, overwrite=overwrite
            )
            await sandbox.write(path, new)
        except WorkspaceError as error:
            raise refusal(filepath, error) from error
        return await asyncio.to_thread(_shown, filepath, new, 1)

    async def _before(self, sandbox: Sandbox, path: str, *, is_new_fine: bool) -> bytes:
        try:
            return await sandbox.read(path)
        except WorkspaceError as error:
            if is_new_fine and problem_of(error) == "missing":
                return b""
            raise

    async def _place(self, filepath: str) -> str:
        """The path below the workspace, without a leading `workspace/`, unless there is such a folder."""
        try:
            names = inside(filepath).split("/")
        except WorkspaceError as error:
            raise refusal(filepath, error) from error
        if names[0] == "..":
            raise _outside(filepath)
        if names[0] == ROOT and len(names) > 1:
            found = await (await self.sandbox()).list()
            del names[: all(entry.name != ROOT for entry in found)]
        return "/".join(names)


# Problems.


def problem_of(error: WorkspaceError) -> Problem | None:
    """The kind of problem with a path, if callers have a message of their own for it."""
    said = str(error)
    return next((problem for problem, endings in _PROBLEMS.items() if said.endswith(endings)), None)


def refusal(filepath: str, error: WorkspaceError) -> ToolError:
    match problem_of(error):
        case "outside":
            return _outside(filepath)
        case "missing":
            return _missing(filepath)
        case "no file":
            return ToolError(f"File {filepath} is not a file.")
    reason = str(error).rpartition(": ")[2]
    return ToolError(f"File {filepath} cannot be used: {reason}.")


def _outside(filepath: str) -> ToolError:
    return ToolError(f"File {filepath} is not within workspace.")


def _missing(filepath: str) -> ToolError:
    return ToolError(f"File {filepath} not found in workspace.")


# Text handling, in threads: a text can be long.


def _shown(filepath: str, data: bytes, line_number: int) -> str:
    if (lines := numbered(_text(filepath, data), line_number)) is None:
        raise ToolError(f"Line number {line_number} is out of range.")
    return lines


def _changed(filepath: str, old: bytes, content: str, line_number: int | None, *, overwrite: bool) -> bytes:
    if "\0" in content:
        raise ToolError(f"File {filepath} is a text file, which cannot hold a null character.")
    return edited(_text(filepath, old), content, line_number, overwrite=overwrite).encode(errors="replace")


def _text(filepath: str, data: bytes) -> str:
    try:
        if b"\0" not in data:
            return data.decode()
    except UnicodeDecodeError:
        pass
    raise ToolError(f"File {filepath} is not a text file: it is not UTF-8.")


# The tree.


async def _grow(lines: list[str], sandbox: Sandbox, path: str, name: str, *, depth: int) -> None:
    """Add the lines of a folder, and of all below it."""
    indent = "    " * depth
    lines.append(f"{indent}- {_visible(name)}/")
    try:
        found = [entry for entry in await sandbox.list(path) if entry.name not in IGNORED]
    except WorkspaceError:  # the folder has vanished, or holds too much to list
        if depth == 0:
            raise
        found = []
    left = len(found)
    for entry in _chosen(found) if depth < DEPTH_MOST else []:
        if len(lines) >= LINES_MOST:
            break
        left -= 1
        if entry.kind == "directory":
            await _grow(lines, sandbox, f"{path}/{entry.name}", entry.name, depth=depth + 1)
        else:
            lines.append(f"{indent}    - {_visible(entry.name)}")
    if left:
        lines.append(f"{indent}    {WRAPPED}")


def _chosen(found: Sequence[Entry]) -> Sequence[Entry]:
    """The entries to show: files, then folders."""
    folders = [entry for entry in found if entry.kind == "directory"]
    files = [entry for entry in found if entry.kind != "directory"]
    folders = folders[: max(FOLDERS_SURE, ENTRIES_MOST - len(files))]
    return [*files[: ENTRIES_MOST - len(folders)], *folders]


def _visible(name: str) -> str:
    """A name on one line, of visible characters."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in name)
