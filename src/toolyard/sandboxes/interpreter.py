"""The session's Python, as it runs inside a sandbox: it runs untrusted code piece by piece and keeps its variables.

Imports only the standard library: the native backend imports it in a template process and forks that; the other
backends pass its text to a Python in their sandbox. The untrusted code runs in the same process and can break it. That
costs only its own session; the guards here prevent accidents.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # without the enums that cost a new process time and memory
import ast
import builtins
import importlib
import io
import itertools
import json
import linecache
import os
import resource
import signal
import sys
import types
import warnings
from collections.abc import Callable, Coroutine, Iterator, Sequence
from traceback import TracebackException, format_exception_only
from typing import Any

_TEXT_BYTES = 64 * 1024
"""The longest text of a value, a message or a traceback."""
_NOTE_BYTES = 4096 - 128
"""Bytes of one write: a pipe does not split writes of up to 4096 bytes, no matter what else writes to it."""
_COROUTINE = 0x80
"""A flag of a code object: it awaits at the top level."""
_ANNOTATIONS = 0x1000000
"""A flag of a code object: it has `from __future__ import annotations`, which then holds for later code too."""
_NO_START = "#)]} \t\f\r\n"
"""No statement at the top level begins with one of these."""
_INTERRUPT = int(signal.SIGINT)
_INTERRUPTS = (_INTERRUPT,)
_RECURSION_LIMIT = sys.getrecursionlimit()
_now = vars(builtins)
_before = dict(_now)
"""The builtins of our own code, whatever untrusted code did to them. Between the last instruction of untrusted code and
`_recover`, our code may use only names bound in this module."""
_BaseException, _Exception, _eval = BaseException, Exception, eval
_sources = linecache.cache
_HERE = (lambda: None).__code__.co_filename
_name_of_type = type.__dict__["__name__"].__get__  # a metaclass could put something else in its place

_WARM_UP = """
import sys
class Warm:
    def __init__(self, number=0):
        self.number = number
    def __repr__(self):
        return f"Warm({self.number!r})"
def warm(count):
    return [Warm(number) for number in range(count)]
print("", end="")
print("", end="", file=sys.stderr)
warm(3)
"""


class CodeRunner:
    """Runs code in the namespace of a real `__main__` module, or in an IPython shell.

    A process has one, and it belongs to the main thread. SIGINT interrupts code while it runs; at any other moment it
    does nothing. Standard output and error are descriptors 1 and 2, and are flushed after each piece of code.

    `changes` returns a number that changes whenever the builtins do. Without it, each run compares all builtins, which
    makes a freshly forked process copy a good part of its memory.
    """

    def __init__(self, ipython: bool = False, *, changes: Callable[[], int] | None = None) -> None:
        self._count_changes = changes or itertools.count().__next__
        self._changes = -1
        self._armed = False
        self._cells = 0
        self._futures = 0
        self._replaced: dict[str, Any] = {}
        self._loop: Any = None
        self._loops_of_parents: list[Any] = []
        self._descriptors: dict[int, int] = {}
        self._streams: dict[str, io.TextIOWrapper] = {}
        self._previous_main = sys.modules.get("__main__")  # this may be the only reference, and its functions still run
        self._main = types.ModuleType("__main__")
        self._main.__dict__.update(__builtins__=builtins, __spec__=None)
        self._recover()
        self._prepare()
        self._shell: Any = self._ipython() if ipython else None
        os.register_at_fork(after_in_child=self.leave_loop)

    def run(self, code: str) -> dict[str, Any]:
        """`value` is repr() of the last expression if that has a value; `error` describes an uncaught exception."""
        pid = os.getpid()
        self._prepare()
        value, error = self._guarded(self._evaluate, code)
        self._reopen()  # otherwise a file that we open could get one of these numbers
        self._recover()
        described = None
        if error is not None:
            described, failure = self._guarded(_described, error)
            if described is None:  # describing it ran its own code, which raised too
                text = f"{_name(error)} (it cannot be shown: {_name(failure)})"
                described = {"name": _name(error), "message": "", "traceback": text}
        if os.getpid() != pid:
            self._end_of_a_fork(error, described)
        del error  # frees its frames and what they hold
        self._flush()
        self._recover()
        return {"value": value, "error": described}

    def warm(self) -> None:
        """Run something representative, so that a fork of this process has loaded what most code needs."""
        self.rehearse(_WARM_UP, "warm(2).missing", "1 +")

    def rehearse(self, *codes: str) -> Sequence[dict[str, Any]]:
        """Run our own code and forget everything but its results. Call this before any other code runs."""
        before = set(vars(self._main))
        results = [self.run(code) for code in codes]
        if self._shell is not None:
            self._shell.reset(new_session=True)
        for name in set(vars(self._main)) - before:
            del vars(self._main)[name]
        for number in range(1, self._cells + 1):
            _sources.pop(f"<cell {number}>", None)
        _now.pop("_", None)
        self._changes = self._count_changes()
        self._cells = 0
        return results

    def attach(self) -> None:
        """Save descriptors 0, 1 and 2: each piece of code gets these, whatever earlier code did to them.

        Call this again after redirecting them, as in a fork.
        """
        if not self._descriptors:
            sys.path.append("")  # last: files of the workspace can be imported, but shadow nothing
        self.detach()
        self._descriptors = {0: os.dup(0), 1: os.dup(1), 2: os.dup(2)}
        _signal.signal(_INTERRUPT, self._interrupted)  # a fresh fork may have the default handler

    def detach(self) -> None:
        """Close the saved descriptors."""
        for copy in self._descriptors.values():
            os.close(copy)
        self._descriptors = {}

    def leave_loop(self) -> None:
        """In a fork: the loop shares descriptors with the parent's. Neither use it nor let it close them."""
        if self._loop is not None:
            self._loops_of_parents.append(self._loop)
            self._loop = None

    # One piece of code.

    def _evaluate(self, code: str) -> str | None:
        self._cells += 1
        value = self._in_main(code, f"<cell {self._cells}>") if self._shell is None else self._in_shell(code)
        return None if value is None else _bounded(repr(value))

    def _in_main(self, code: str, name: str) -> object:
        lines = [line + "\n" for line in code.split("\n")]
        _sources[name] = (len(code), None, lines, name)
        parts = _in_two(lines, name, self._futures) or _by_its_tree(code, name, self._futures)
        self._futures |= parts[0].co_flags & _ANNOTATIONS
        namespace = vars(self._main)
        awaits = any(part.co_flags & _COROUTINE for part in parts)
        if self._replaced:
            _now.update(self._replaced)
            self._replaced = {}
        try:
            if awaits:
                value = self._await(_each_in_turn(parts, namespace))
            else:
                for part in parts:
                    value = _eval(part, namespace)
        finally:
            self._recover()
        if value is not None:
            unchanged = self._count_changes() == self._changes
            _now["_"] = value  # as every interactive Python does
            if unchanged:
                self._changes = self._count_changes()
        return value

    def _in_shell(self, code: str) -> object:
        result = self._shell.run_cell(code, store_history=True)
        result.raise_error()
        return result.result

    def _await(self, work: Coroutine[Any, Any, object]) -> object:
        """Run in a loop that lasts from one piece of code to the next, because objects are bound to it."""
        asyncio: Any = importlib.import_module("asyncio")  # seldom needed, and slow to load
        if self._loop is None or self._loop.is_closed():
            self._loop = asyncio.new_event_loop()
        whole = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(whole)
        except BaseException:
            if not whole.cancel() and not whole.cancelled():
                whole.exception()  # retrieve it, or asyncio logs a warning
            raise

    def _ipython(self) -> Any:
        """An IPython shell that writes nothing by itself, neither to a file nor to a stream."""
        shells: Any = importlib.import_module("IPython.core.interactiveshell")
        hooks: Any = importlib.import_module("IPython.core.displayhook")
        config: Any = importlib.import_module("traitlets.config").Config()
        hook = type("SilentHook", (hooks.DisplayHook,), {"compute_format_data": lambda *_: ({}, {})})
        for name in ("write_output_prompt", "write_format_data", "finish_displayhook"):
            setattr(hook, name, lambda *_: None)
        config.InteractiveShell.colors = "NoColor"
        config.InteractiveShell.autoindent = False
        config.InteractiveShell.separate_in = ""
        config.HistoryManager.enabled = False
        config.HistoryManager.hist_file = ":memory:"
        shutil, tempfile = map(importlib.import_module, ("shutil", "tempfile"))
        directory = tempfile.mkdtemp()  # IPython requires one
        try:
            shell = shells.InteractiveShell.instance(
                config=config,
                user_module=self._main,
                user_ns=vars(self._main),
                ipython_dir=directory,
                displayhook_class=hook,
            )
        finally:
            shutil.rmtree(directory, ignore_errors=True)
        # These would print errors. `run` returns them as results instead, prepared for exceptions that misbehave.
        for name in ("showtraceback", "showsyntaxerror", "showindentationerror", "_format_exception_for_storage"):
            setattr(shell, name, lambda *_, **__: None)
        shell.ask_exit = sys.exit
        warnings.filterwarnings("ignore", message="To exit: use")
        shell.compile.get_code_name = lambda raw, transformed, number: f"<cell {self._cells}>"
        shell.system = shell.system_raw  # straight to our output, not through a terminal
        shell.enable_gui = lambda gui=None: None  # there is no screen; `%matplotlib inline` needs none
        shell.loop_runner = self._await
        return shell

    # What untrusted code may change, and what it gets back.

    def _guarded(self, work: Callable[..., Any], *args: Any) -> tuple[Any, BaseException | None]:
        """The result and the exception of the work, whatever type they have. SIGINT interrupts it."""
        try:
            try:
                self._armed = True
                result = work(*args)
                self._armed = False
            except _BaseException as error:
                self._armed = False
                return None, error
        except _BaseException as error:  # a signal that arrived just as the work ended
            return None, error
        return result, None

    def _interrupted(self, number: int, frame: types.FrameType | None) -> None:
        if self._armed:
            self._armed = False  # only once: do not interrupt the handler of the interrupt
            raise KeyboardInterrupt

    def _prepare(self) -> None:
        """Give the code its streams and its module."""
        sys.modules["__main__"] = self._main
        self._reopen()
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            stream = self._streams.get(name)
            if stream is None or not _usable(stream):
                stream = self._streams[name] = _stream(number)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def _reopen(self) -> None:
        for number, copy in self._descriptors.items():
            os.dup2(copy, number)

    def _recover(self) -> None:
        """Restore Python for our own code. Builtins that the code replaced are saved for it; deleted ones come back."""
        sys.settrace(None)
        sys.setprofile(None)
        if self._count_changes() != self._changes:
            for name, value in _before.items():
                if _now.get(name, value) is not value:
                    self._replaced[name] = _now[name]
            _now.update(_before)
            self._changes = self._count_changes()
        linecache.cache = _sources
        if sys.getrecursionlimit() < _RECURSION_LIMIT:
            sys.setrecursionlimit(_RECURSION_LIMIT)
        _signal.signal(_INTERRUPT, self._interrupted)
        _signal.pthread_sigmask(_signal.SIG_UNBLOCK, _INTERRUPTS)

    def _flush(self) -> None:
        for name in ("stdout", "stderr"):
            self._guarded(_flush_any, name)
            self._guarded(io.TextIOWrapper.flush, self._streams[name])

    def _end_of_a_fork(self, error: BaseException | None, described: dict[str, str] | None) -> None:
        """The code forked, and this is the child: the end of the code ends the process."""
        status: object = 0
        if isinstance(error, SystemExit):
            status = error.code or 0
        elif described is not None:
            status = described["traceback"]
        if not isinstance(status, int):
            self._guarded(lambda: print(status, file=self._streams["stderr"]))
        self._flush()
        os._exit(status & 0xFF if isinstance(status, int) else 1)


def _flush_any(name: str) -> None:
    """Flush a stream of `sys`, which may be any object by now."""
    getattr(sys, name).flush()


def _in_two(lines: Sequence[str], name: str, flags: int) -> Sequence[types.CodeType]:
    """Compile all but the last statement, and that one if it is an expression of whole lines. Returns nothing if
    unsure. The last line ends with a newline too, which is not in the code.

    The text before the last line that may begin a statement is complete if it compiles by itself; so is an expression
    that begins there. This is much faster than walking the tree of the code.
    """
    starts = (at for at in range(len(lines) - 1, -1, -1) if lines[at][0] not in _NO_START)
    if (start := next(starts, None)) is None:
        return ()
    try:
        last = _compiled("\n" * start + "".join(lines[start:])[:-1], name, "eval", flags)
        before = _compiled("".join(lines[:start]), name, "exec", flags)
    except _Exception:
        return ()
    return (before, last) if last.co_flags & _ANNOTATIONS == before.co_flags & _ANNOTATIONS else ()


def _by_its_tree(code: str, name: str, flags: int) -> Sequence[types.CodeType]:
    """The same for any code."""
    tree = _compiled(code, name, "exec", flags | ast.PyCF_ONLY_AST)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    before = _compiled(tree, name, "exec", flags)
    if last is None:
        return (before,)
    return before, _compiled(ast.Expression(last.value), name, "eval", flags | before.co_flags & _ANNOTATIONS)


def _compiled(source: Any, name: str, mode: str, flags: int) -> Any:
    return compile(source, name, mode, flags | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)


async def _each_in_turn(parts: Sequence[types.CodeType], namespace: dict[str, Any]) -> object:
    value = None
    for part in parts:
        value = _eval(part, namespace)
        if part.co_flags & _COROUTINE:
            value = await value
    return value


# Describing errors.


def _name(error: BaseException | None) -> str:
    return _bounded(_name_of_type(type(error)))


def _bounded(text: str) -> str:
    """The text cut to `_TEXT_BYTES`, in a form that can be sent. Trusts no method of a class derived from str."""
    whole = str.__len__(text) <= _TEXT_BYTES
    data = str.encode(text if whole else str.__getitem__(text, slice(_TEXT_BYTES)), "utf-8", "backslashreplace")
    if whole and len(data) <= _TEXT_BYTES:
        return data.decode()
    return data[:_TEXT_BYTES].decode("utf-8", "ignore") + f" … ({str.__len__(text)} characters)"


def _described(error: BaseException) -> dict[str, str]:
    try:
        message = _bounded(str(error))
    except Exception as failure:  # the error's own __str__
        message = f"<its __str__ raised {_name(failure)}>"
    told = TracebackException(type(error), error, error.__traceback__)
    for one in _all_of(told):
        _leave_our_frames_out(one)
    return {"name": _name(error), "message": message, "traceback": _bounded("".join(told.format()).rstrip("\n"))}


def _all_of(told: TracebackException) -> Iterator[TracebackException]:
    """The exception, its causes and contexts, and the members of groups."""
    waiting, seen = [told], set()
    while waiting:
        one = waiting.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [other for other in (one.__cause__, one.__context__) if other is not None]
            waiting += getattr(one, "exceptions", None) or []


def _leave_our_frames_out(told: TracebackException) -> None:
    """Keep frames from the first one of a cell on. The last one may be our signal handler."""
    stack = told.stack
    first = next((at for at, frame in enumerate(stack) if frame.filename.startswith("<cell ")), len(stack))
    stack[:] = [frame for frame in stack[first:] if frame.filename != _HERE]


# Streams.


def _stream(descriptor: int) -> io.TextIOWrapper:
    """Buffered by line, so that printed lines get out even if the process is killed."""
    mode, errors = ("r", "surrogateescape") if descriptor == 0 else ("w", "backslashreplace")
    try:
        file: Any = io.FileIO(descriptor, mode, closefd=False)
    except OSError:  # closed
        file = io.FileIO(os.devnull, mode)
    buffer = io.BufferedReader(file) if descriptor == 0 else io.BufferedWriter(file)
    stream = io.TextIOWrapper(buffer, "utf-8", errors, "\n" if descriptor else None, line_buffering=descriptor > 0)
    stream.mode = mode  # type: ignore[misc]  # as open() does
    return stream


def _usable(stream: io.TextIOWrapper) -> bool:
    """Whether it is neither closed nor detached. Removes attributes that code has put over its methods."""
    for name in vars(stream).keys() - {"mode"}:
        del vars(stream)[name]
    try:
        io.TextIOWrapper.flush(stream)
    except (OSError, ValueError):
        return False
    return True


# For backends that have only standard input, output and error.


def main() -> None:
    """Answer requests from standard input: `{"mark": …, "code": …}`, one per line.

    Output of the code goes to standard output and error unchanged. The answer follows on both, after the mark of the
    request. On standard output it is the result of `CodeRunner.run` and its resource use, as JSON, in lines of `mark +
    more` and `mark = last`; on standard error it is empty.
    """
    requests = os.fdopen(os.dup(0), "rb")
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    os.close(nothing)
    outputs = os.dup(1), os.dup(2)
    interpreter = CodeRunner(ipython="--ipython" in sys.argv[1:])
    interpreter.attach()
    interpreter.warm()
    while True:
        try:
            line = requests.readline()
        except BaseException as error:  # from a timer or signal handler that code left behind
            _tell(outputs[1], format_exception_only(error)[-1].encode())
            continue
        if not line:
            break
        request = json.loads(line)
        before, _ = _used()
        said = interpreter.run(request["code"])
        cpu, peak = _used()
        answer = json.dumps({**said, "cpu": cpu - before, "peak": peak}).encode()
        mark = request["mark"].encode()
        pieces = [answer[at : at + _NOTE_BYTES] for at in range(0, len(answer), _NOTE_BYTES)]
        for piece in pieces[:-1]:
            _tell(outputs[0], mark + b"+" + piece + b"\n")
        _tell(outputs[0], mark + b"=" + pieces[-1] + b"\n")
        _tell(outputs[1], mark + b"=\n")
    os._exit(0)


def _used() -> tuple[float, int]:
    """Seconds of processor time, including children's, and the peak memory."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    peak = own.ru_maxrss  # on Linux, at least that of the parent process
    if os.path.exists("/proc/self/status"):
        with open("/proc/self/status") as file:
            peak = next((int(line.split()[1]) for line in file if line.startswith("VmHWM:")), peak)
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime, peak * 1024


def _tell(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


if __name__ == "__main__":
    main()
