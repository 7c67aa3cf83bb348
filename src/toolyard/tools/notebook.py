"""`PythonNotebook`: runs cells in an IPython of the session, and keeps them with their outputs in a notebook file."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import re
import secrets
from dataclasses import dataclass

import orjson

from toolyard.core.environment import Environment
from toolyard.core.errors import SandboxError, ToolError, WorkspaceError
from toolyard.core.output import TextBlock, ToolOutput
from toolyard.core.tool import tool
from toolyard.sandboxes import cell_runner, profiles
from toolyard.sandboxes.base import Executed, Sandbox
from toolyard.sandboxes.output import ended_by
from toolyard.tools.notebook_file import FILE_MOST, Notebook
from toolyard.tools.notebook_outputs import (
    Output,
    blocks_of,
    count_of,
    failure,
    has_failed,
    merged,
    note,
    outputs_of,
    text_of,
    writing,
)
from toolyard.tools.sandboxed import SandboxedToolset

SECONDS = 300.0
"""The time limit of one cell."""
FILE = "python_notebook.ipynb"
AFRESH = "the interpreter starts afresh: variables are gone, files are kept"

_FETCH_SECONDS = 20.0
_SHOWN_MOST = 2 * cell_runner.SHOWN_MOST
_ROOM_BESIDE = 8192
"""Bytes of a cell's output limit that are reserved for marks."""
_END = "__import__('os')._exit(0)"
_UNTELLABLE = "the output of the cell cannot be read: the code has changed how IPython shows values"


@dataclass(frozen=True, slots=True)
class CellRun:
    """The result of a cell."""

    outputs: list[Output]
    count: int | None
    """Its number in IPython, as in `In[3]`."""
    executed: Executed


class PythonNotebook(SandboxedToolset):
    """A notebook: cells of Python that share their variables and show values, figures and errors."""

    prefixed = True
    profile = "notebook"

    def __init__(self, env: Environment) -> None:
        super().__init__(env)
        self._turn = asyncio.Lock()
        self._notebook: Notebook | None = None
        self._has_run = False
        """Whether any cell has run. Later failures may be the agent's own."""
        self._unread = ""
        """Why an earlier notebook file could not be read."""

    @classmethod
    def missing(cls) -> str:
        absent = [
            *profiles.missing(cls.profile),
            *(["nbformat"] if importlib.util.find_spec("nbformat") is None else []),
        ]
        return profiles.not_installed(absent, "notebook")

    @tool
    async def execute_cell(self, code: str, cell_index: int | None = None, reset: bool = False) -> ToolOutput:
        """Write a cell of the notebook and run it. Variables are kept from cell to cell; the last value is shown.

        Figures of matplotlib are shown as pictures. The answer begins with the number of the cell.

        Args:
            code: Python code, as in a notebook.
            cell_index: The number of a cell that this one replaces, -1 for the last. Defaults to a new cell at the end.
            reset: Whether to start Python afresh before, without any variables. Cells and files are kept.
        """
        async with self._turn:
            sandbox, notebook = await self._opened()
            at = notebook.place(cell_index, code)
            if reset:
                await restart(sandbox)
            ran = await run_cell(sandbox, code, SECONDS, is_first=not self._has_run)
            self._has_run = True
            notebook.put(at, code, ran.outputs, ran.count)
            notes = [note for note in (self._unread, await self._save(sandbox, notebook)) if note]
            self._unread = ""
        if has_failed(ran.outputs):
            raise ToolError("\n".join([f"cell_index: {at}", text_of(ran.outputs), *notes]))
        said = [TextBlock(text=text) for text in notes]
        blocks = [TextBlock(text=f"cell_index: {at}"), *blocks_of(ran.outputs), *said]
        return ToolOutput(blocks=blocks, metadata={"isolation": ran.executed.isolation})

    @tool
    async def print_notebook(self) -> str:
        """Show all cells of the notebook with what they have written and shown; pictures only as a word."""
        async with self._turn:
            _, notebook = await self._opened()
            text = await asyncio.to_thread(notebook.text)
            return "\n".join(filter(None, [text, self._unread]))

    async def _opened(self) -> tuple[Sandbox, Notebook]:
        sandbox = await self.sandbox()
        if self._notebook is None:
            try:
                self._notebook = await _found(sandbox)
            except (ValueError, WorkspaceError) as error:
                self._unread = f"[{FILE} cannot be read, so this is a new notebook: {error}]"
                self._notebook = Notebook()
        return sandbox, self._notebook

    async def _save(self, sandbox: Sandbox, notebook: Notebook) -> str:
        """Save the notebook. Return what prevented it, so that the caller can still show the cell's output."""
        try:
            await sandbox.write(FILE, await asyncio.to_thread(notebook.written))
        except WorkspaceError as error:
            return f"[the notebook cannot be saved: {error}]"
        return ""


async def _found(sandbox: Sandbox) -> Notebook:
    """The notebook in the workspace, if there is one."""
    entry = next((entry for entry in await sandbox.list() if entry.name == FILE), None)
    if entry is None:
        return Notebook()
    if entry.kind != "file" or entry.size > FILE_MOST:
        raise ValueError("it is no file, or too large")
    return await asyncio.to_thread(Notebook.read, await sandbox.read(FILE))


async def restart(sandbox: Sandbox) -> None:
    """Give the next code a fresh interpreter."""
    for code in (cell_runner.REQUEST + json.dumps({"end": True}), _END):
        if (await sandbox.exec(code)).state_lost:
            return
    raise ToolError("the interpreter cannot be restarted: the code has changed how it ends")


async def run_cell(sandbox: Sandbox, code: str, seconds: float, *, is_first: bool = True) -> CellRun:
    """Run a cell in the session's IPython. Its outputs include its errors. A broken IPython is the host's fault only if
    no cell has run in it."""
    token = secrets.token_hex(4)
    room = min(cell_runner.TEXT_MOST, max(sandbox.limits.output_bytes - _ROOM_BESIDE, 0))
    request = {"token": token, "code": code, "room": room}
    executed = await _ask(sandbox, request, seconds)
    if _is_unheard(executed):  # the interpreter is new, or not from a template
        installed = await sandbox.exec(cell_runner.installation(), timeout=_FETCH_SECONDS)
        if (error := installed.error) is not None:
            kind = SandboxError if is_first else ToolError
            raise kind(f"IPython cannot be used as it is here: {error.name}: {error.message}")
        executed = await _ask(sandbox, request, seconds)
    outputs, count = _read(await _shown(sandbox, executed, token), executed.stdout, token)
    outputs += writing("stderr", executed.stderr)
    return CellRun([*outputs, *_ending(executed, outputs, readable=count is not None)], count, executed)


async def _ask(sandbox: Sandbox, request: dict[str, object], seconds: float) -> Executed:
    return await sandbox.exec(cell_runner.REQUEST + json.dumps(request), timeout=seconds)


def _is_unheard(executed: Executed) -> bool:
    """Whether the shell did not understand the request, and so did nothing."""
    return executed.value is None and executed.error is None and executed.killed_by is None and not executed.state_lost


async def _shown(sandbox: Sandbox, executed: Executed, token: str) -> str:
    """The outputs of the cell as JSON, perhaps from several pieces; empty if there are none."""
    said = re.match(rf"{token} (\d{{1,8}}) ", executed.value or "")
    size = int(said[1]) if said else 0
    shown = _piece(executed, token, size, 0)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_FETCH_SECONDS):
            while len(shown) < size <= _SHOWN_MOST:
                begin = len(shown)
                executed = await _ask(sandbox, {"token": token, "begin": begin}, _FETCH_SECONDS)
                shown += _piece(executed, token, size, begin)
                if len(shown) == begin:
                    break
    return shown if len(shown) == size else ""


def _piece(executed: Executed, token: str, size: int, begin: int) -> str:
    """The piece from `begin` on, if it has the right length."""
    piece = (executed.value or "").removeprefix(f"{token} {size} ")
    return piece if len(piece) == min(size - begin, cell_runner.PIECE) else ""


def _read(shown: str, written: str, token: str) -> tuple[list[Output], int | None]:
    """The cell's outputs and count. The cell controls these bytes, so anything malformed is left out."""
    try:
        said = orjson.loads(shown)
        items = outputs_of(said["items"])
        count, dropped, left_out = (count_of(said[name]) for name in ("count", "dropped", "left_out"))
    except (ValueError, TypeError, LookupError):
        return merged(written, token, []), None
    outputs = merged(written, token, items)
    if dropped:
        outputs.append(note(f"cut here: {dropped:,} more characters were written"))
    if left_out:
        outputs.append(note(f"cut here: {left_out:,} more outputs were shown"))
    return outputs, count


def _ending(executed: Executed, outputs: list[Output], *, readable: bool) -> list[Output]:
    """An error, if the cell failed and its outputs do not say so."""
    seconds, error = executed.usage.wall_seconds, executed.error
    if executed.killed_by is not None:
        name, why = "Stopped", ended_by(executed.killed_by, seconds)
    elif error is not None:
        name, why = error.name, error.traceback or error.message
    elif not readable:
        name, why = "Untellable", _UNTELLABLE
    else:
        return []
    after = AFRESH if executed.state_lost else "variables are kept" if executed.killed_by is not None else ""
    return [failure(name, why, [f"[{why}; {after}]" if after else why])]
