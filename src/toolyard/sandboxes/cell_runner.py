"""Runs the cells of a notebook in a sandbox's IPython, and keeps what they show until the host has fetched it.

Imports only the standard library: a template, or the first session that needs it, runs the text of this file inside. It
replaces the shell's `run_cell` and passes on everything that is not a request. A request is a comment, so a shell
without this module ignores it.

A cell's standard output and error share one pipe, which keeps their order. Marks in it say where the stream changes and
where the cell showed something. The host fetches shown objects, such as pictures, as JSON, in pieces short enough for
the value of a piece of code. Nothing of them lies in the workspace, where it could be lost.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import importlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MethodType
from typing import Any

REQUEST = "#toolyard-cell "
BEGINS, ENDS = "\x02", "\x03"
"""They enclose a mark, which begins with the token of the request."""
PIECE = 60_000
"""Characters of one piece. They are ASCII, and an interpreter sends at most 64 KiB of a value."""
TEXT_MOST = 100_000
"""Characters of one shown text. The request limits what a cell writes."""
SHOWN_MOST = 4 * 2**20
"""Characters of everything that a cell shows, pictures included."""
ITEMS_MOST = 200
INLINE = "module://matplotlib_inline.backend_inline"

_exit, _dumps, _loads = os._exit, json.dumps, json.loads
"""Our own references: a cell may replace these functions."""
_MARK_BYTES = 24
_COUNT_OF_NEW = 3
"""The execution count of a shell that has run at most one request that it ignored, and then the installation."""
_HANDLER = "in CodeRunner._interrupted("
"""Marks the frame that handles an interrupt, which is not the cell's."""
REHEARSAL = f"""
import os
from IPython import get_ipython
shell, errors = get_ipython(), os.dup(2)
for code in ("print(1)\\n1", "1 / 0"):
    shell.run_cell({REQUEST!r} + __import__("json").dumps({{"token": "", "code": code, "room": 1000}}))
shell.reset(new_session=True)
os.dup2(errors, 2)
os.close(errors)
"""
"""A template runs this after the installation."""


class Stream(io.TextIOWrapper):
    """Standard output or standard error of cells. It belongs to the process, and marks which stream writes."""

    def __init__(self, runner: Runner, name: str) -> None:
        buffer = io.BufferedWriter(io.FileIO(1, "w", closefd=False))
        super().__init__(buffer, "utf-8", "backslashreplace", "\n", line_buffering=True)
        self.mode = "w"  # type: ignore[misc]  # as open() does
        self._runner = runner
        self._sign = name[3]  # o for stdout, e for stderr

    def write(self, text: str) -> int:
        if isinstance(text, str) and (cell := self._runner.cell) is not None:
            if kept := cell.admitted(text, self._sign):
                super().write(kept)
                super().flush()  # other programs write to the same file, and this one may be killed
            return len(text)
        return super().write(text)


class CellAnswer:
    """What the interpreter takes as the result of a cell, and as the value of its last line."""

    def __init__(self, text: str) -> None:
        self._text = text

    @property
    def result(self) -> CellAnswer:
        return self

    def raise_error(self) -> None:
        """Do nothing: the cell shows its errors itself."""

    def __repr__(self) -> str:
        return self._text


class Cell:
    """What one cell writes and shows."""

    def __init__(self, token: str, room: int, count: int, streams: Sequence[Stream]) -> None:
        self._token = token
        self._room = room
        self._streams = streams
        self._process = os.getpid()
        self._speaker = "o"
        self._clears = False
        self._size = 0
        self._known: dict[str, dict[str, Any]] = {}
        self.count = count
        self.items: list[dict[str, Any]] = []
        self.dropped = 0
        """Characters written beyond the limit."""
        self.left_out = 0
        """Objects shown beyond the limit."""

    def admitted(self, text: str, speaker: str) -> str:
        """As much of the text as there is room for."""
        if not text:
            return ""
        self._clear_if_asked()
        kept, size = _first(text, self._room)
        self.dropped += max(len(text) - len(kept), 0)
        if kept and speaker != self._speaker:
            self._speaker = speaker
            self._mark(speaker)
        self._room -= size
        return kept

    def show(
        self, kind: str, data: Mapping[str, object], known_as: object = None, *, update: bool = False, **more: object
    ) -> None:
        """Show an object with a picture or text of its own. One shown again under its name replaces the earlier one."""
        if os.getpid() != self._process:  # a fork: no request fetches what it shows
            sys.stdout.write(f"{data.get('text/plain', '')}\n")
            return
        self._clear_if_asked()
        bundle = self._fitting({str(kind): _text_of(str(kind), one) for kind, one in data.items()})
        if update:
            if isinstance(known_as, str) and known_as in self._known:
                self._known[known_as]["data"] = bundle
            return
        item = {"output_type": kind, "data": bundle, **more}
        if isinstance(known_as, str):
            self._known[known_as] = item
        self._add(item)

    def fail(self, error: type[BaseException], value: object, lines: Sequence[str]) -> None:
        frames = [str(line) for line in lines if _HANDLER not in str(line)] if isinstance(lines, list) else [str(lines)]
        told = _clean("\n".join(frames).rstrip("\n")).split("\n")
        if os.getpid() != self._process:
            sys.stderr.write(f"{told[-1]}\n")
            return
        message = _said(value)
        self._size += _length("".join([message, *told]))
        self._add({"output_type": "error", "ename": error.__name__, "evalue": message, "traceback": told})

    def clear(self, wait: bool = False) -> None:
        """Forget everything written and shown. With `wait`, forget it when there is something new to show."""
        self._clears = True
        if not wait:
            self._clear_if_asked()

    def told(self) -> str:
        return _dumps({"items": self.items, "count": self.count, "dropped": self.dropped, "left_out": self.left_out})

    @property
    def failed(self) -> bool:
        return any(item["output_type"] == "error" for item in self.items)

    def _add(self, item: dict[str, Any]) -> None:
        is_first_error = item["output_type"] == "error" and not self.failed
        if not is_first_error and (len(self.items) >= ITEMS_MOST or self._size > SHOWN_MOST):
            self.left_out += 1
            return
        self._mark(str(len(self.items)))
        self.items.append(item)

    def _clear_if_asked(self) -> None:
        if self._clears:
            self._clears = False
            self._mark("c")

    def _fitting(self, bundle: dict[str, str]) -> dict[str, str]:
        fitting: dict[str, str] = {}
        for kind, text in sorted(bundle.items(), key=lambda one: len(one[1])):
            if (size := _length(text)) <= SHOWN_MOST - self._size:
                self._size += size
                fitting[kind] = text
            else:
                note = f"[{kind} of {len(text):,} characters is left out: too large]"
                fitting["text/plain"] = "\n".join(filter(None, [fitting.get("text/plain", ""), note]))
        return fitting

    def _mark(self, what: str) -> None:
        if os.getpid() != self._process:
            return
        self._room -= _MARK_BYTES
        with contextlib.suppress(OSError, ValueError):  # closed: only the order of the output is lost
            for stream in self._streams:
                io.TextIOWrapper.flush(stream)
            os.write(1, f"{BEGINS}{self._token}{what}{ENDS}".encode())


class Runner:
    def __init__(self, shell: Any) -> None:
        self._shell = shell
        self._is_new = shell.execution_count <= _COUNT_OF_NEW
        self._run_cell = MethodType(type(shell).run_cell, shell)
        self._streams: dict[str, Stream] = {}
        self._told = ""
        self.cell: Cell | None = None

    def run_cell(self, raw_cell: str, *args: Any, **kwargs: Any) -> Any:
        """Replaces the shell's own method."""
        if not (isinstance(raw_cell, str) and raw_cell.startswith(REQUEST)):
            return self._run_cell(raw_cell, *args, **kwargs)
        request = _loads(raw_cell[len(REQUEST) :])
        if request.get("end"):
            _exit(0)
        if "code" in request:
            self._told = self._run(**request)
        begin = request.get("begin", 0)
        answer = CellAnswer(f"{request['token']} {len(self._told)} {self._told[begin : begin + PIECE]}")
        if begin + PIECE >= len(self._told):
            self._told = ""
        return answer

    def _run(self, token: str, code: str, room: int) -> str:
        if self._is_new:
            self._is_new = False
            self._shell.reset(new_session=True)
        with self._listening(token, room) as cell:
            result = self._run_cell(code, store_history=True)
            error = result.error_before_exec or result.error_in_exec
            if error is not None and not cell.failed:  # IPython could not show it, or wrote it to standard error
                cell.fail(type(error), error, _shortly(error))
        return cell.told()

    @contextlib.contextmanager
    def _listening(self, token: str, room: int) -> Iterator[Cell]:
        shell = self._shell
        cell = Cell(token, room, shell.execution_count, [self._stream("stdout"), self._stream("stderr")])
        hooks = self._hooks(cell)
        before = [(owner, name, vars(owner).get(name, vars)) for owner, name, _ in hooks]
        try:
            os.dup2(1, 2)  # the interpreter restores both after each piece of code
            for name, stream in self._streams.items():
                setattr(sys, name, stream)
            for owner, name, hook in hooks:
                vars(owner)[name] = hook
            self.cell = cell
            yield cell
        finally:
            self.cell = None
            for owner, name, value in before:
                if value is vars:  # the owner had no such attribute
                    vars(owner).pop(name, None)
                else:
                    vars(owner)[name] = value
            with contextlib.suppress(AttributeError):
                shell.history_manager.outputs.clear()  # which keeps every picture

    def _stream(self, name: str) -> Stream:
        stream = self._streams.get(name)
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):  # closed or detached
                io.TextIOWrapper.flush(stream)
                return stream
        self._streams[name] = stream = Stream(self, name)
        return stream

    def _hooks(self, cell: Cell) -> Sequence[tuple[Any, str, Any]]:
        """What IPython shows with, and what replaces it."""
        shell = self._shell
        kind, hook, publisher = type(shell), shell.displayhook, shell.display_pub

        def publish(data: Any, metadata: Any = None, source: Any = None, *, transient: Any = None, **more: Any) -> None:
            known_as = transient.get("display_id") if isinstance(transient, dict) else None
            cell.show("display_data", data, known_as, update=bool(more.get("update")))

        return [
            (shell, "showtraceback", MethodType(kind.showtraceback, shell)),
            (shell, "showsyntaxerror", MethodType(kind.showsyntaxerror, shell)),
            (shell, "showindentationerror", MethodType(kind.showindentationerror, shell)),
            (shell, "_showtraceback", cell.fail),
            (shell, "show_usage_error", lambda error: cell.fail(type(error), error, [f"UsageError: {error}"])),
            (shell, "_tee", lambda channel: contextlib.nullcontext()),  # it would keep all output
            (publisher, "publish", publish),
            (publisher, "clear_output", cell.clear),
            (hook, "write_output_prompt", lambda: None),
            (hook, "compute_format_data", shell.display_formatter.format),
            (
                hook,
                "write_format_data",
                lambda data, metadata=None: cell.show("execute_result", data, execution_count=cell.count),
            ),
            (hook, "finish_displayhook", lambda: setattr(hook, "_is_active", False)),
        ]


def _text_of(kind: str, shown: object) -> str:
    """As a notebook stores it: pictures in base64, JSON as its text."""
    if isinstance(shown, bytes):
        return base64.b64encode(shown).decode()
    if not isinstance(shown, str):
        try:
            shown = _dumps(shown)
        except (TypeError, ValueError, RecursionError):
            return f"[{kind} that JSON cannot hold]"
    return shown if kind.startswith("image/") else _clean(shown)


def _first(text: str, most: int) -> tuple[str, int]:
    """The longest beginning of a text that fits into so many bytes, and its size."""
    data = text[: max(most, 0)].encode("utf-8", "backslashreplace")
    if len(data) <= most and len(text) <= most:
        return text, len(data)
    data = data[: max(most, 0)]
    return data.decode("utf-8", "ignore"), len(data)


def _length(text: str) -> int:
    """Its length when it is sent as JSON."""
    return len(text) if text.isascii() else len(_dumps(text))


def _clean(text: str) -> str:
    """The text in a form that can be sent, cut to `TEXT_MOST` characters."""
    cut = f"\n[cut here: {len(text):,} characters]" if len(text) > TEXT_MOST else ""
    return text[:TEXT_MOST].encode("utf-8", "backslashreplace").decode() + cut


def _said(error: object) -> str:
    try:
        return _clean(str(error))
    except Exception as failure:  # its own __str__
        return f"<its __str__ raised {type(failure).__name__}>"


def _shortly(error: BaseException) -> Sequence[str]:
    try:
        return [line.rstrip("\n") for line in traceback.format_exception_only(error)]
    except Exception:  # its own methods
        return [f"{type(error).__name__}: {_said(error)}"]


def install() -> None:
    """Install into the shell of this process."""
    shell = importlib.import_module("IPython").get_ipython()
    os.environ.setdefault("MPLBACKEND", INLINE)  # as notebooks set it
    os.environ.setdefault("MPLCONFIGDIR", os.path.join(tempfile.gettempdir(), "matplotlib"))  # not in the workspace
    vars(shell)["run_cell"] = Runner(shell).run_cell


@functools.cache
def installation() -> str:
    """Code that installs this file into any IPython."""
    return f"exec(compile({Path(__file__).read_text()!r}, '<toolyard>', 'exec'), dict(__name__='toolyard_cells'))"


if __name__ == "toolyard_cells":
    install()
