"""`python_code`: run a Python program from its start, in a sandbox that nobody has used before. No state is kept."""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from toolyard.core.environment import Toolset
from toolyard.core.forms import TOOL_CALL_END, fenced, tagged
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.sandboxes.base import Executed, Level
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.provider import open_sandbox

SECONDS = 10
LONGEST = 100_000
"""Characters of output that are shown."""
BLOCKED = "Execution blocked: Code contains potentially dangerous operations or imports."

UNTESTED = "The program ended before the test had ended."

_MODULES = (
    *("string", "re", "datetime", "collections", "heapq", "bisect", "copy", "math", "random", "statistics"),
    *("itertools", "functools", "operator", "io", "sys", "json"),
)
"""They, and everything in them, can be used without importing it, as trainers' prompts assume."""
_RECURSION_LIMIT = 200_000
"""Of programs that get those too."""

_PROGRAM = """
def __program__(source, test, untested, stdin, modules, recursion_limit):
    import linecache, os, sys, tempfile, traceback
    main = vars(sys.modules["__main__"])
    del main["__program__"]
    main.update(__file__="main.py", exit=sys.exit, quit=sys.exit)
    sys.argv = ["main.py"]
    for name in modules + ("builtins", "typing") * bool(modules):
        module = __import__(name)
        names = getattr(module, "__all__", None) or [name for name in vars(module) if name[0] != "_"]
        main.update({name: getattr(module, name) for name in names})
    main.update({name: sys.modules[name] for name in modules})
    sys.setrecursionlimit(recursion_limit or sys.getrecursionlimit())
    if stdin:
        with tempfile.TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            os.dup2(file.fileno(), 0)

    def run(text, name):
        linecache.cache[name] = (len(text), None, [line + "\\n" for line in text.split("\\n")], name)
        exec(compile(text, name, "exec", dont_inherit=True), main)

    def tell(error):
        frames, trace = [], error.__traceback__
        while trace is not None:
            frames += [trace] if frames or trace.tb_frame.f_code.co_filename in ("main.py", "test.py") else []
            trace = trace.tb_next
        if len(frames) > 1000:
            frames[500].tb_next = frames[-400]
        traceback.print_exception(error.with_traceback(frames[0] if frames else None))

    status = 0
    try:
        run(source, "main.py")
        if test:
            run(test, "test.py")
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        status = error.code or 0
        if not isinstance(status, int):
            print(status, file=sys.stderr)
            status = 1
        if test:
            print(untested, file=sys.stderr)
            status = 1
    except BaseException as error:
        status = 1
        tell(error)
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    __import__("atexit")._run_exitfuncs()
    return status
"""
"""Given to an interpreter that is already running: does what `python main.py` does, and returns the exit code.

A test is code of its own that has to come to its end. A program that ends itself has not passed it.
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


@dataclass(frozen=True, slots=True)
class Ran:
    """What became of a program."""

    stdout: str
    stderr: str
    exit_code: int
    note: str
    """How it ended, if it was ended."""
    timed_out: bool
    isolation: Level | None

    @classmethod
    def refused(cls, why: str) -> Ran:
        return cls("", why, 1, "", timed_out=False, isolation=None)

    @classmethod
    def of(cls, executed: Executed, seconds: float, *, tested: bool) -> Ran:
        stderr, code, note = executed.stderr, 1, ""
        if executed.timed_out:
            note = f"Execution timed out after {seconds:g} seconds."
        elif executed.killed_by is not None:
            note = f"Execution {ended_by(executed.killed_by, executed.usage.wall_seconds)}."
        elif executed.state_lost:
            code = _ending(executed)
            note = f"Execution was ended by {_signal(-code)}." if code < 0 else UNTESTED if tested else ""
            code = code or int(tested)
        elif executed.error is not None:
            stderr += _own_part(executed.error.traceback)
        elif executed.value is not None and executed.value.isdigit():
            code = int(executed.value)
        return cls(executed.stdout, stderr, code, note, executed.timed_out, executed.isolation)

    @property
    def text(self) -> str:
        """Standard output, a line end, standard error, then how it ended if that was not well."""
        return f"{self.stdout}\n{self.stderr}{self.note}".strip(" \n")[:LONGEST]


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
        ran = await run_program(code, stdin, ready_made=True)
        metadata = {"exit_code": ran.exit_code, "isolation": ran.isolation}
        return ToolOutput(blocks=[TextBlock(text=ran.text)], metadata=metadata)


async def run_program(
    code: str, stdin: str = "", *, test: str = "", ready_made: bool = False, seconds: float = SECONDS
) -> Ran:
    """As `python main.py`, but in a Python that is already running; then the test, if there is one.

    With `ready_made`, what programs most often import is there already.
    """
    modules = _MODULES if ready_made else ()
    limit = _RECURSION_LIMIT if ready_made else 0
    given = stdin.encode(errors="surrogatepass")
    call = f"{_PROGRAM}\n__program__({code!r}, {test!r}, {UNTESTED!r}, {given!r}, {modules!r}, {limit})"
    async with await open_sandbox(profile=smallest(code)) as sandbox:
        return Ran.of(await sandbox.exec(call, timeout=seconds), seconds, tested=bool(test))


def is_blocked(code: str) -> bool:
    """Whether it contains one of verl-tool's words. That keeps nobody from anything; the sandbox does."""
    return bool(_BLOCKED_MODULES.search(code) or _BLOCKED_WORDS.search(code))


def _ending(executed: Executed) -> int:
    """The exit code of a program that has ended its interpreter with it."""
    said = re.search(r"-?\d+$", executed.error.message if executed.error else "")
    return int(said[0]) if said else 1


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _own_part(traceback: str) -> str:
    """Of the program's own, and not of how it was begun."""
    _, found, own = traceback.partition('  File "main.py"')
    return f"Traceback (most recent call last):\n{found}{own}" if found else traceback
