"""Evaluates an expression, looks at the code of a tool, or calls it. Run in a sandbox, by its text.

The request is JSON on standard input; the answer is JSON on what was standard output when this began. What the code
itself prints goes to standard error. It imports only the standard library, because any Python that the sandbox has may
run it.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import json
import math
import os
import sys
import traceback
import types
import typing
from collections.abc import Callable
from typing import Any

_FILE = "<tool>"
_LABELS = "__toolyard_labels__"


def evaluate(request: dict[str, Any]) -> dict[str, Any]:
    source = request["expression"].strip()
    space: dict[str, Any] = {"__name__": "__main__", **vars(math), "math": math}
    try:
        code = compile(source, _FILE, "eval", dont_inherit=True)
    except SyntaxError:
        exec(compile(source, _FILE, "exec", dont_inherit=True), space)
        return {"done": True}
    return {"value": packed(eval(code, space))}


def describe(request: dict[str, Any]) -> dict[str, Any]:
    """Describe a tool, or say that there is none."""
    function = _loaded(request["code"]).get(request["name"])
    if function is None:
        return {"found": False}
    if not inspect.isroutine(function) or not hasattr(function, _LABELS):
        return {"found": True, "labelled": False}
    parameters = [_parameter(parameter) for parameter in inspect.signature(function).parameters.values()]
    return {
        "found": True,
        "labelled": True,
        "doc": inspect.getdoc(function) or "",
        "parameters": [parameter for parameter in parameters if parameter],
    }


def call(request: dict[str, Any]) -> dict[str, Any]:
    result = _loaded(request["code"])[request["name"]](**request["arguments"])
    return {"value": packed(asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result)}


def packed(value: object) -> dict[str, Any]:
    """Pack a value for JSON, with marks for tuples and bytes."""
    if isinstance(value, bytes | bytearray):
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, tuple):
        return {"tuple": [packed(item) for item in value]}
    return {"json": value}


def toolwrapper(*decorated: Any, **labels: Any) -> Any:  # Any: a decorator, with labels or without
    """Marks a function as a tool: `@toolwrapper`, `@toolwrapper()` or `@toolwrapper(visible=False)`."""

    def label(function: Any) -> Any:
        setattr(function, _LABELS, labels)
        return function

    return label(decorated[0]) if decorated and callable(decorated[0]) else label


def _loaded(code: str) -> dict[str, Any]:
    """The names that the code defines, in a module of its own."""
    register = types.ModuleType("core.register")
    core = types.ModuleType("core")
    vars(register)["toolwrapper"] = toolwrapper
    vars(core)["register"] = register
    sys.modules.update({"core": core, "core.register": register})  # XAgent's tools import it from there
    module = types.ModuleType("new_tool")
    sys.modules[module.__name__] = module
    vars(module).update({name: getattr(typing, name) for name in typing.__all__}, toolwrapper=toolwrapper)
    exec(compile(code, _FILE, "exec", dont_inherit=True), vars(module))
    return vars(module)


def _parameter(parameter: inspect.Parameter) -> dict[str, Any]:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        return {}
    hint, default = parameter.annotation, parameter.default
    described: dict[str, Any] = {"name": parameter.name, "optional": default is not parameter.empty}
    if hint is not parameter.empty:
        described["type"] = hint if isinstance(hint, str) else inspect.formatannotation(hint)
    if isinstance(default, str | int | float):
        described["default"] = default
    return described


async def _awaited(result: Any) -> object:
    return await result


def _plain(value: Any) -> object:
    """Convert values that JSON does not know."""
    if isinstance(value, set | frozenset):
        return list(value)
    if isinstance(value, bytes | bytearray):
        return base64.b64encode(value).decode()
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _failed(error: BaseException) -> dict[str, Any]:
    lines = "".join(traceback.format_exception_only(error)).strip().splitlines()
    places = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == _FILE]
    at = error.lineno if isinstance(error, SyntaxError) else places[-1] if places else None
    return {"error": lines[-1][:4000] if lines else type(error).__name__, "said": str(error)[:4000], "line": at}


def main() -> None:
    request = json.load(sys.stdin)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    sys.path.insert(0, os.getcwd())
    actions: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]
    actions = {"evaluate": evaluate, "describe": describe, "call": call}
    try:
        answer = json.dumps(actions[request["do"]](request), default=_plain)
    except BaseException as error:  # the tool's code, or the repr() of its value
        answer = json.dumps(_failed(error))
    out.write(answer)
    out.close()
    os._exit(0)  # without a wait for threads that the code has left


if __name__ == "__main__":
    main()
