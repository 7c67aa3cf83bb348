"""Find out whether a program in the sandbox can read the environment's source, its data or what it hides.

The program searches as an agent would: by path, by import, and by content under any other name.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from toolyard.core.environment import classes_of
from toolyard.core.errors import NotSupported, SandboxError, WorkspaceError
from toolyard.core.workspace import Workspace
from toolyard.placement.base import Placed
from toolyard.sandboxes.base import Sandbox
from toolyard.sandboxes.hidden import hidden_paths
from toolyard.sandboxes.provider import open_sandbox
from toolyard.testing.judging import Problems

_FILES_MOST = 500
_BYTES = (64, 2**20)
"""Smaller files are too alike, and larger files take long to read."""
_SECONDS = 30.0
_SHOWN = 3

_PROGRAM = """
def look(wanted):
    import hashlib, importlib.util, json, os, sys, time
    found = []

    def can_read(path):
        try:
            if os.path.isdir(path):
                return bool(os.listdir(path))
            with open(path, "rb") as file:
                file.read(1)
            return True
        except OSError:
            return False

    def copies():
        until = time.monotonic() + wanted["seconds"]
        for root in dict.fromkeys([*sys.path, os.getcwd(), "/home", "/root", "/srv", "/opt", "/mnt", "/tmp"]):
            for folder, below, names in os.walk(root or "."):
                below[:] = [name for name in below if not os.path.join(folder, name).endswith(wanted["public"])]
                for name in names:
                    if time.monotonic() > until:
                        return
                    path = os.path.join(folder, name)
                    try:
                        if str(os.stat(path).st_size) in wanted["contents"]:
                            with open(path, "rb") as file:
                                digest = hashlib.sha256(file.read()).hexdigest()
                            if digest in wanted["contents"][str(os.stat(path).st_size)]:
                                yield path
                    except OSError:
                        continue

    for path in filter(can_read, wanted["paths"]):
        found.append(path)
    for name in wanted["modules"]:
        try:
            spec = importlib.util.find_spec(name)
        except (ImportError, ValueError):
            continue
        places = [spec.origin, *(spec.submodule_search_locations or ())] if spec else []
        found += [f"{place} (import {name})" for place in places if place and can_read(place)]
    found += copies()
    print(json.dumps(list(dict.fromkeys(found))))
"""


async def readable(environment: type) -> Problems:
    """Search in a sandbox that opens as the server's do."""
    wanted = wanted_of(environment)
    if not wanted["paths"]:
        return []
    async with await open_sandbox() as sandbox:
        found = await _found(sandbox, wanted)
    if found is None:
        return [("warning", "the search for readable files failed in the sandbox, so nothing is known about them")]
    if not found:
        return [("ok", "a program in a sandbox looked for its source, and for what it hides, and found nothing")]
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return [
        (
            "error",
            f"programs in its sandbox can read {', '.join(found[:_SHOWN])}{more}: no answer and no test there is a "
            f"secret to the agent",
        )
    ]


async def laid_out(placed: Placed) -> str:
    """Name the files that an agent finds in its workspace at the beginning; empty if it finds none. Their author knows
    which of them should have stayed secret."""
    try:
        workspace = await placed.workspace()
        found = [path async for path in _files_in(workspace, ".")]
    except (NotSupported, SandboxError, WorkspaceError):  # it has none, or none that can be listed
        return ""
    if not found:
        return ""
    more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return f"{', '.join(found[:_SHOWN])}{more}"


async def _files_in(workspace: Workspace, folder: str) -> AsyncIterator[str]:
    """The paths of the files, those of a folder before those of the folders in it."""
    left, folders = _FILES_MOST, [folder]
    while folders and left:
        folder = folders.pop(0)
        for entry in (await workspace.list(folder))[:left]:
            left -= 1
            path = posixpath.normpath(f"{folder}/{entry.name}")
            if entry.kind == "directory":
                folders.append(path)
            else:
                yield path


def wanted_of(environment: type) -> Mapping[str, Any]:
    paths = hidden_paths(environment)
    modules = {cls.__module__.partition(".")[0] for cls in classes_of(environment)} - {"toolyard", "builtins", "abc"}
    contents: dict[str, list[str]] = {}
    for file in _files(paths):
        data = file.read_bytes()
        contents.setdefault(str(len(data)), []).append(hashlib.sha256(data).hexdigest())
    return {
        "paths": [str(path) for path in paths],
        "modules": sorted(modules - {"typing", "__main__"}),
        "contents": contents,
        "public": "/toolyard/examples",  # public: Toolyard ships them
        "seconds": _SECONDS / 3,
    }


def _files(paths: Sequence[Path]) -> Iterator[Path]:
    left = _FILES_MOST
    for path in paths:
        for file in [path] if path.is_file() else _below(path):
            if left and _BYTES[0] <= file.stat().st_size <= _BYTES[1]:
                left -= 1
                yield file


def _below(folder: Path) -> Iterator[Path]:
    for where, _, names in os.walk(folder):
        yield from (path for name in names if (path := Path(where, name)).is_file())


async def _found(sandbox: Sandbox, wanted: Mapping[str, Any]) -> Sequence[str] | None:
    code = f"{_PROGRAM}\nimport json as _json\nlook(_json.loads({json.dumps(wanted)!r}))"
    executed = await sandbox.exec(code, timeout=_SECONDS)
    try:
        found: list[str] = json.loads(executed.stdout)
    except ValueError:
        return None
    return found
