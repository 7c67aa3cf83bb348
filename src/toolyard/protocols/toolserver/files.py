"""Uploads and downloads files of a node's workspace. The workspace itself makes sure that no path leads out of it."""

from __future__ import annotations

import asyncio
import contextlib
import os
import posixpath
import re
import tempfile
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from typing import IO
from urllib.parse import quote

from pydantic import BaseModel

from toolyard.asgi import Headers, HttpError, Request
from toolyard.core.errors import SandboxError, SessionFailed, WorkspaceError
from toolyard.core.workspace import Workspace
from toolyard.protocols.toolserver.bodies import parse
from toolyard.protocols.toolserver.forms import BadForm, is_form, parts_of
from toolyard.tools.archives import ROOT, structure_of, write_zip
from toolyard.tools.files import problem_of

_NAME_MOST = 255
_MEDIA_TYPE = re.compile(r"[\w.+-]{1,100}/[\w.+-]{1,100}(?:; ?charset=[\w-]{1,40})?", re.ASCII)
_ANY_BYTES = "application/octet-stream"
_PIECE = 256 * 1024
"""Bytes of an archive that are sent at once."""


class Download(BaseModel):
    """What clients post for a file."""

    file_path: str
    file_type: str = "text/plain"


async def upload_file(request: Request, workspace: Workspace) -> None:
    name, data = await _uploaded(request)
    with _answering():
        await workspace.write(f"./{name}", data)
    await request.answer_json({"message": "Upload Success!"})


async def download_file(request: Request, workspace: Workspace) -> None:
    wanted = parse(Download, await request.body())
    with _answering():
        data = await _content(workspace, wanted.file_path)
    media_type = wanted.file_type if _MEDIA_TYPE.fullmatch(wanted.file_type) else _ANY_BYTES
    await request.answer(200, _headers(posixpath.basename(wanted.file_path), media_type), data)


async def download_workspace(
    request: Request, workspace: Workspace, packing: AbstractAsyncContextManager[None]
) -> None:
    """Send all files as an archive. It waits on disk, not in memory, for a client that may be slow."""
    with _answering(otherwise=413):
        async with packing:
            file = await asyncio.to_thread(_zipped, await workspace.save())
    with file:
        headers = _headers(f"{ROOT}.zip", "application/zip")
        await request.start([*headers, (b"content-length", b"%d" % file.seek(0, os.SEEK_END))])
        file.seek(0)
        while piece := await asyncio.to_thread(file.read, _PIECE):
            await request.write(piece)
        await request.write(b"", last=True)


async def get_workspace_structure(request: Request, workspace: Workspace) -> None:
    with _answering():
        structure = await structure_of(workspace.list)
    await request.answer_json(structure)


@contextlib.contextmanager
def _answering(otherwise: int = 400) -> Iterator[None]:
    """Turn errors about a path or the workspace into answers."""
    try:
        yield
    except WorkspaceError as error:
        statuses = {"outside": 404, "missing": 404, "full": 413}
        raise HttpError(statuses.get(problem_of(error) or "", otherwise), str(error)) from error
    except (SandboxError, SessionFailed) as error:
        raise HttpError(503, "node is not responding") from error


# Files that come in.


async def _uploaded(request: Request) -> tuple[str, bytes]:
    """The name and the content of the part `file`. Clients also send a part `filename`, which repeats the name."""
    body, content_type = await request.body(), request.header(b"content-type")
    if not is_form(content_type):
        raise _unprocessable("missing", "Field required")
    try:
        parts = await asyncio.to_thread(parts_of, content_type, body)
    except BadForm as error:
        raise HttpError(400, str(error)) from error
    part = next((part for part in reversed(parts) if part.name == "file"), None)
    if part is None:
        raise _unprocessable("missing", "Field required")
    if part.filename is None:
        raise _unprocessable("value_error", "a file is wanted, and this part has no file name")
    return _base_name(part.filename), part.content


def _base_name(given: str) -> str:
    """The last component of a path of any system. Raises a 422 if no file can have that name."""
    name = re.split(r"[/\\]", given)[-1]
    if name in ("", ".", "..") or not name.isprintable() or len(name.encode()) > _NAME_MOST:
        raise _unprocessable("value_error", "no file can have this name")
    return name


def _unprocessable(kind: str, message: str) -> HttpError:
    return HttpError(422, [{"type": kind, "loc": ["body", "file"], "msg": message, "input": None}])


# Files that go out.


async def _content(workspace: Workspace, path: str) -> bytes:
    """Read a file. Its path begins with `workspace/`, as the structure shows it, or is relative to the workspace."""
    below = path.removeprefix(f"{ROOT}/")
    try:
        return await workspace.read(below)
    except WorkspaceError as error:
        if below == path or problem_of(error) != "missing":
            raise
        return await workspace.read(path)


def _zipped(tar: bytes) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115  # the caller closes it
    try:
        write_zip(tar, file)
    except BaseException:
        file.close()
        raise
    return file


def _headers(name: str, media_type: str) -> Headers:
    return [
        (b"content-type", media_type.encode()),
        (b"content-disposition", _disposition(name).encode()),
        (b"x-content-type-options", b"nosniff"),
    ]


def _disposition(name: str) -> str:
    """A plain name for all clients, and the real name, encoded in ASCII, for clients that can read that."""
    plain = re.sub(r"[^\w. ()+-]", "_", name, flags=re.ASCII)
    real = quote(name.encode("utf-8", "surrogateescape"), safe="")
    return f'attachment; filename="{plain}"' + (f"; filename*=UTF-8''{real}" if plain != name else "")
