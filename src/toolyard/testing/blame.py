"""Find the line of the author's own code behind an error or a stall, rather than a line of Toolyard or of a library."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from pydantic import ValidationError

from toolyard.core.errors import describe
from toolyard.core.frames import is_authors, is_installed

Line = tuple[str, str, int]
"""Function, file, line."""


def explained(error: BaseException) -> str:
    """Describe an error with its place: `KeyError: 'size' (maze.py, line 37)`."""
    walk = traceback.walk_tb(error.__traceback__)
    lines = _authors([(frame.f_code.co_qualname, frame.f_code.co_filename, line) for frame, line in walk])
    return _in_one_line(error) + (f" {_place(lines[-1])}" if lines else "")


def _in_one_line(error: BaseException) -> str:
    """Pydantic writes paragraphs with links: keep what is wrong with which field."""
    if not isinstance(error, ValidationError):
        return describe(error)
    wrong = error.errors(include_url=False, include_context=False)
    parts = [f"{'.'.join(map(str, one['loc'])) or 'it'} is {one['input']!r}: {one['msg']}" for one in wrong]
    return f"{type(error).__name__}: {error.title}: {'; '.join(parts)}"


def running_code(frame: FrameType | None) -> tuple[FrameType | None, str | None]:
    """The step that the event loop is in, and the author's code in it, if any: `Maze.move (maze.py, line 37)`."""
    frames: list[Line] = []
    interrupts = {getattr(callback, "__code__", None) for callback in gc.callbacks}  # may run inside any code
    while frame is not None and frame.f_code.co_qualname != "Handle._run":  # where asyncio starts each step
        if frame.f_code not in interrupts:
            frames.append((frame.f_code.co_qualname, frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    lines = _authors(frames) if frame is not None else []
    return frame, f"{lines[-1][0]} {_place(lines[0])}" if lines else None


def _authors(lines: Sequence[Line]) -> Sequence[Line]:
    """The lines in the author's files; if there are none, the lines in installed libraries."""
    return [line for line in lines if is_authors(line[1])] or [line for line in lines if is_installed(line[1])]


def _place(line: Line) -> str:
    return f"({Path(line[1]).name}, line {line[2]})"
