"""Runs a whole program in an interpreter that already runs: like `python main.py`, without starting a Python.

The code that does it is a text, because it runs inside the sandbox. Templates have it loaded; other sandboxes load it
with each program.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from toolyard.sandboxes.base import TIMED_OUT, Executed, Interpreter, Level, exit_code_of
from toolyard.sandboxes.output import ended_by

MODULE = "toolyard_program"
_SOURCE = """
import atexit, linecache, os, sys, traceback

def execute(text, name, space, exec=exec, compile=compile):
    linecache.cache[name] = (len(text), None, [line + "\\n" for line in text.split("\\n")], name)
    exec(compile(text, name, "exec", dont_inherit=True), space)

def prepare(stdin=b"", names=(), recursion_limit=0):
    main = vars(sys.modules["__main__"])
    main.update(__file__="main.py", exit=sys.exit, quit=sys.exit)
    sys.argv = ["main.py"]
    for name, module in names:
        found = __import__(module)
        main[name] = found if name == module else getattr(found, name, None)
    if recursion_limit:
        sys.setrecursionlimit(recursion_limit)
    if stdin:
        memory = hasattr(os, "memfd_create")
        with open(os.memfd_create("stdin"), "wb") if memory else __import__("tempfile").TemporaryFile() as file:
            file.write(stdin)
            file.seek(0)
            os.dup2(file.fileno(), 0)
    return main

def attempt(source, main):
    try:
        execute(source, "main.py", main)
    except KeyboardInterrupt:
        raise
    except SystemExit as error:
        if isinstance(error.code, int) or not error.code:
            return "ended", error.code or 0
        print(error.code, file=sys.stderr)
        return "ended", 1
    except BaseException as error:
        print(told(error), end="", file=sys.stderr)
        return "failed", 1
    return "", 0

def run(source, stdin, names, recursion_limit):
    _, status = attempt(source, prepare(stdin, names, recursion_limit))
    if "threading" in sys.modules:
        sys.modules["threading"]._shutdown()
    atexit._run_exitfuncs()
    return status

def told(error, files=("main.py",)):
    frames, trace = [], error.__traceback__
    while trace is not None:
        if frames or trace.tb_frame.f_code.co_filename in files:
            frames.append(trace)
        trace = trace.tb_next
    if len(frames) > 1000:
        frames[500].tb_next = frames[-400]
    return "".join(traceback.format_exception(error.with_traceback(frames[0] if frames else None)))
"""
"""`run` returns the exit code. It waits for threads and `atexit` functions, as at the end of any program.

`attempt` returns whether the program ended itself or failed, and its exit code; `told` is a traceback without our
frames.
"""

INSTALL = f"""
import sys, types
module = types.ModuleType({MODULE!r})
exec({_SOURCE!r}, vars(module))
sys.modules[{MODULE!r}] = module
"""
"""A template runs this."""


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a program."""

    stdout: str
    stderr: str
    exit_code: int
    note: str
    """What ended it, if it did not end by itself."""
    timed_out: bool
    isolation: Level | None
    """None if the program never began."""

    @classmethod
    def refused(cls, why: str) -> Ran:
        return cls("", why, 1, "", timed_out=False, isolation=None)

    @classmethod
    def of(cls, executed: Executed, seconds: float) -> Ran:
        stderr, code, note = executed.stderr, 1, ""
        if executed.timed_out:
            note = f"Execution timed out after {seconds:g} seconds."
            code = TIMED_OUT
        elif executed.killed_by is not None:
            code = exit_code_of(-signal.SIGKILL, executed.killed_by)
            note = f"Execution {ended_by(executed.killed_by, executed.usage.wall_seconds)}."
        elif executed.state_lost:
            code, note = _ending(executed.error.message if executed.error else "")
        elif executed.error is not None:
            stderr += _own_part(executed.error.traceback)
        elif executed.value is not None and re.fullmatch(r"-?\d+", executed.value):
            code = int(executed.value) & 0xFF
        return cls(executed.stdout, stderr, code, note, executed.timed_out, executed.isolation)


async def run_program(
    interpreter: Interpreter,
    code: str,
    stdin: str = "",
    *,
    names: Sequence[tuple[str, str]] = (),
    recursion_limit: int = 0,
    seconds: float,
) -> Ran:
    """Run a program in an interpreter that runs nothing else.

    `names` are available without import: each with its module, or the module itself.
    """
    given = stdin.encode(errors="surrogatepass")
    # Expressions only, so that the program finds no name that it has not defined.
    call = (
        f"exec({INSTALL!r}, {{}}) if {MODULE!r} not in __import__('sys').modules else None\n"
        f"__import__({MODULE!r}).run({code!r}, {given!r}, {names!r}, {recursion_limit})"
    )
    return Ran.of(await interpreter.exec(call, timeout=seconds), seconds)


def _ending(words: str) -> tuple[int, str]:
    """Exit code and note of a program that has ended its interpreter with it, from what `how_ended` says of that."""
    if said := re.search(r"with code (\d+)$", words):
        return int(said[1]), ""
    if said := re.search(r"by (?:signal (\d+)|(SIG\w+))$", words):
        number = int(said[1] or signal.Signals[said[2]])
        return exit_code_of(-number, None), f"Execution was ended by {said[2] or f'signal {number}'}."
    return 1, ""


def _own_part(traceback: str) -> str:
    """The program's own part of the traceback, without the frames that started it."""
    _, found, own = traceback.partition('  File "main.py"')
    return f"Traceback (most recent call last):\n{found}{own}" if found else traceback
