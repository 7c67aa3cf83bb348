"""`python_code`: run a Python program from its start, in a sandbox that nobody has used before. No state is kept."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from toolyard.core.environment import Toolset
from toolyard.core.forms import TOOL_CALL_END, fenced, tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.sandboxes.base import Executed
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.provider import open_sandbox

SECONDS = 10
LONGEST = 100_000
"""Characters of output that are shown."""
BLOCKED = "Execution blocked: Code contains potentially dangerous operations or imports."

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json", "builtins", "typing"),
)
"""Everything in them can be used without importing it, as trainers' prompts assume."""

_PRELUDE = f"""
def __run__(source, stdin):
    import linecache, os, sys
    namespace = {{"__name__": "__main__", "__builtins__": __builtins__}}
    for module in {_MODULES!r}:
        exec(f"from {{module}} import *", namespace)
    if stdin:
        with open("/tmp/stdin", "w+b") as file:
            file.write(stdin)
            file.seek(0)
            os.dup2(file.fileno(), 0)
        os.remove("/tmp/stdin")
    vars(sys.modules["__main__"]).update(namespace)
    linecache.cache["main.py"] = (len(source), None, source.splitlines(True), "main.py")
    sys.argv = ["main.py"]
    exec(compile(source, "main.py", "exec", dont_inherit=True), vars(sys.modules["__main__"]))
"""

_BLOCKED_MODULES = re.compile(
    r"\b(?:import|from)\s+(?:subprocess|multiprocessing|threading|socket|psutil|resource|ctypes)\b"
)
_BLOCKED_WORDS = re.compile(r"\b(?:os\.(?:system|popen|spawn|fork|exec|_exit|kill)|sys\.exit)")


@dataclass(frozen=True, slots=True)
class CodeForm:
    """`<python>` tags, or else fences marked python or py; several are one program. An input block is its stdin."""

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
        if text.rstrip().endswith("<result>"):
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
        executed = await run_program(code, stdin)
        return ToolOutput(blocks=[TextBlock(text=told(executed))], metadata={"isolation": executed.isolation})


async def run_program(code: str, stdin: str = "", seconds: float = SECONDS) -> Executed:
    """As `python main.py`, but in a Python that is already running."""
    call = f"{_PRELUDE}\n__run__({code!r}, {stdin.encode(errors='surrogateescape')!r})"
    async with await open_sandbox(profile=smallest(code)) as sandbox:
        return await sandbox.exec(call, timeout=seconds)


def is_blocked(code: str) -> bool:
    """Whether it contains one of verl-tool's words. That keeps nobody from anything; the sandbox does."""
    return bool(_BLOCKED_MODULES.search(code) or _BLOCKED_WORDS.search(code))


def told(executed: Executed, seconds: float = SECONDS) -> str:
    """Standard output, then standard error, then how it ended if that was not well."""
    parts = [executed.stdout, executed.stderr + traceback_of(executed)]
    if executed.timed_out:
        parts.append(f"Execution timed out after {seconds:g} seconds.")
    elif executed.killed_by is not None:
        parts.append(f"Execution {ended_by(executed.killed_by, executed.usage.wall_seconds)}.")
    return "\n".join(part.strip(" \n") for part in parts).strip(" \n")[:LONGEST]


def traceback_of(executed: Executed) -> str:
    """As a program of its own would have written it; a program that ends itself writes none."""
    error = executed.error
    if error is None or executed.killed_by is not None:
        return ""
    if error.name == "SystemExit":
        return "" if re.fullmatch(r"-?\d*|None", error.message) else error.message
    _, found, own = error.traceback.partition('  File "main.py"')
    if not found:
        return error.traceback
    begun = not re.search(r"^\w*(?:Syntax|Indentation|Tab)Error: ", own, re.MULTILINE) or '  File "main.py"' in own
    return "Traceback (most recent call last):\n" * begun + found + own
