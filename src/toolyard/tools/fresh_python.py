"""Starts a Python in a session's sandbox for one request.

It shares nothing with the session's notebook. Untrusted code makes its answer, so this module lets only the expected
form through.
"""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
from importlib import resources
from typing import Any, Literal, TypeAlias

from toolyard.core.errors import ToolError
from toolyard.core.output import ToolOutput, ValueOutput, as_output
from toolyard.sandboxes.base import Finished, Sandbox
from toolyard.sandboxes.output import ended_by

ANSWER_MOST = 8 * 2**20
"""Bytes."""
_SCRIPT = resources.files("toolyard.tools").joinpath("python_side.py").read_text(encoding="utf-8")
_LARGE = 2**18
"""Bytes."""
_WORDS_MOST = 1000
_NO_RESULT = "the code ended without a result"

Action: TypeAlias = Literal["evaluate", "describe", "call"]


async def ask_python(sandbox: Sandbox, do: Action, *, seconds: float, **request: object) -> dict[str, Any]:
    """Ask it, and return its answer: an object, with `error` in it if the code raised. Raises `ToolError` without an
    answer."""
    limits = dataclasses.replace(sandbox.limits, wall_seconds=seconds, cpu_seconds=None, output_bytes=ANSWER_MOST)
    stdin = json.dumps({"do": do, **request}).encode()
    finished = await sandbox.run(["python3", "-I", "-c", _SCRIPT], stdin=stdin, limits=limits)
    answer = await asyncio.to_thread(_read, finished.stdout) if finished.killed_by is None else None
    if answer is None:
        raise ToolError(_why(finished))
    return answer


def value_of(packed: object) -> object:
    """Unpack a value of the code: any JSON value, bytes, or a tuple of them."""
    match packed:
        case {"json": value} | {"output": ToolOutput() as value}:
            return value
        case {"bytes": str(text)}:
            try:
                return base64.b64decode(text, validate=True)
            except ValueError as error:
                raise ToolError(_NO_RESULT) from error
        case {"tuple": list(items)}:
            return tuple(_in_tuple(value_of(item)) for item in items)
    raise ToolError(_NO_RESULT)


def _in_tuple(item: object) -> object:
    """In a tuple, only pictures stay bytes."""
    if isinstance(item, bytes) and isinstance(as_output(item), ValueOutput):
        return base64.b64encode(item).decode()
    return item


def _read(stdout: bytes) -> dict[str, Any] | None:
    try:
        answer = json.loads(stdout, parse_constant=lambda _: None)  # NaN is not JSON
    except (ValueError, RecursionError):
        return None
    if not isinstance(answer, dict):
        return None
    if len(stdout) > _LARGE and isinstance(value := value_of(answer.get("value", {"json": ""})), list | dict | tuple):
        answer["value"] = {"output": as_output(value)}  # in this thread, since it may have a million parts
    return answer


def _why(finished: Finished) -> str:
    if finished.killed_by is not None:
        return ended_by(finished.killed_by, finished.usage.wall_seconds)
    said = finished.stderr[-_WORDS_MOST:].decode(errors="replace").strip()
    return f"{_NO_RESULT} (exit code {finished.exit_code})" + f": {said}" * bool(said)
