"""`python_code`: run a Python program from its start, in a fresh sandbox. It keeps no state."""

from __future__ import annotations

import importlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from toolyard.core.environment import Toolset
from toolyard.core.forms import TOOL_CALL_END, fenced, tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.program import run_program
from toolyard.sandboxes.provider import interpreter_once

SECONDS = 10
LONGEST = 100_000
"""The most characters of output to show."""
BLOCKED = "Execution blocked: Code contains potentially dangerous operations or imports."

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
"""Code can use these modules, and everything in them, without an import, as trainers' prompts assume."""
_RECURSION_LIMIT = 200_000

_BLOCKED_MODULES = re.compile(
    r"\b(?:import|from)\s+(?:subprocess|multiprocessing|threading|socket|psutil|resource|ctypes)\b"
)
_BLOCKED_WORDS = re.compile(r"\b(?:os\.(?:system|popen|spawn|fork|exec|_exit|kill)|sys\.exit)")


@dataclass(frozen=True, slots=True)
class CodeForm:
    """Reads `<python>` tags, or else fences marked python or py; several are one program. An input block is its
    stdin."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        blocks = tagged(text, "python") or fenced(text, "python") or fenced(text, "py")
        if not blocks:
            return None
        read = {"code": "\n".join(block.strip() for block in blocks)}
        if given := re.search(r"```input\n(.*?)\n```", text, re.DOTALL):
            read["stdin"] = given[1].strip()
        return read

    def answer(self, text: str, result: str) -> str:
        if "```output" in text or "```python" in text:
            return f"\n{result}\n```\n" if text.count("```") % 2 else f"\n```result\n{result}\n```\n"
        if TOOL_CALL_END in text:
            return f"\n<tool_response>\n```result\n{result}\n```\n</tool_response>\n"
        if text.rstrip(" \n").endswith("<result>"):
            return f"\n{result}\n</result>\n"
        return f"\n<result>\n{result}\n</result>\n"


class PythonCode(Toolset):
    """A fresh Python for each call."""

    uses_sandbox = True

    @tool(form=CodeForm(), concurrent=True)
    async def python_code(self, code: str, stdin: Annotated[str, Given(open=True)] = "") -> ToolOutput:
        """Run a Python program and return what it prints. Nothing is kept from one call to the next.

        Args:
            code: The whole program.
            stdin: What it reads from standard input.
        """
        if getattr(self.env, "block_lists", False) and is_blocked(code):
            return ToolOutput(blocks=[TextBlock(text=BLOCKED)])
        names = ready_made(code)
        async with interpreter_once(profile=smallest(code)) as interpreter:
            ran = await run_program(
                interpreter, code, stdin, names=names, recursion_limit=_RECURSION_LIMIT, seconds=SECONDS
            )
        text = f"{ran.stdout}\n{ran.stderr}{ran.note}".strip(" \n")[:LONGEST]
        metadata = {"exit_code": ran.exit_code, "isolation": ran.isolation}
        return ToolOutput(blocks=[TextBlock(text=text)], metadata=metadata)


def is_blocked(code: str) -> bool:
    """Whether the code contains one of verl-tool's forbidden words. This stops no attack; the sandbox does."""
    return bool(_BLOCKED_MODULES.search(code) or _BLOCKED_WORDS.search(code))


def ready_made(code: str) -> Sequence[tuple[str, str]]:
    """The ready-made names that the code uses, and the module of each."""
    words = set(_WORD.findall(code))
    if not words.isdisjoint(_SEES_ALL):
        words |= _NAMES.keys()
    return [(name, _NAMES[name]) for name in words if name in _NAMES]


def _names() -> Mapping[str, str]:
    """The module of each name, as if all modules were imported with `*` in order, and then by name."""
    found: dict[str, str] = {}
    for module in (*_MODULES, "builtins", "typing"):
        space = vars(importlib.import_module(module))
        found |= dict.fromkeys(space.get("__all__") or [name for name in space if name[0] != "_"], module)
    return {name: module for name, module in found.items() if module != "builtins"} | {name: name for name in _MODULES}


_NAMES = _names()
_WORD = re.compile(r"[^\W\d]\w*")
_SEES_ALL = frozenset({"eval", "exec", "globals", "locals", "vars", "dir", "compile"})
"""Code with one of these words may use names that do not occur in it."""
