"""What code can do to its interpreter, and that the session goes on."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import subprocess
import sys
import warnings
from collections.abc import AsyncIterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.tiers import first, thorough
from toolyard.sandboxes import interpreter
from toolyard.sandboxes.base import Executed, Sandbox
from toolyard.sandboxes.subprocess import SubprocessBackend

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["plain", thorough("ipython")])
async def box(request) -> AsyncIterator[Sandbox]:
    backend = SubprocessBackend()
    async with await backend.open(profile=request.param) as sandbox:
        yield sandbox


@pytest.fixture
async def plain() -> AsyncIterator[Sandbox]:
    async with await SubprocessBackend().open() as sandbox:
        yield sandbox


@pytest.fixture
async def ipython() -> AsyncIterator[Sandbox]:
    async with await SubprocessBackend().open(profile="ipython") as sandbox:
        yield sandbox


def raised(executed: Executed) -> str | None:
    assert not executed.state_lost
    return executed.error and executed.error.name


async def fine(box: Sandbox) -> bool:
    executed = await box.exec("print('fine')\n6 * 7")
    return (executed.stdout, executed.value, executed.error) == ("fine\n", "42", None)


# What it returns.


async def test_the_last_value_is_kept_under_a_name(box):
    assert (await box.exec("21")).value == "21"
    assert (await box.exec("_ * 2")).value == "42"
    assert (await box.exec("None")).value is None
    assert (await box.exec("_")).value == "42"


async def test_only_the_last_line_has_a_value(box):
    executed = await box.exec("1\n2\nx = 3")
    assert (executed.value, executed.stdout) == (None, "")
    executed = await box.exec("for n in range(3): n\nx")
    assert (executed.value, executed.stdout) == ("3", "")


pieces = st.sampled_from(
    [
        *[
            "1",
            "x",
            "x = 1",
            "f(x)",
            "x;",
            "x; y",
            "x \\",
            "await f(x)",
            "*x, y",
            "y := 1",
            "(y := 1)",
            "yield x",
            "lambda: x",
        ],
        *[
            "if x:",
            "else:",
            "for x in y:",
            "def f(x):",
            "class C:",
            "try:",
            "finally:",
            "with x:",
            "if x: f(x)",
            "pass",
        ],
        *["    x", "    x = 1", "    f(x)", "  ", "", "# x", "    # x", "\tx", "\fx", "@x", "return", "import x"],
        *[
            "f(",
            "x,",
            ")",
            "[",
            "]",
            "f(x",
            "'''",
            "x'''",
            "'''.x",
            "f('''",
            "''')",
            "'x'",
            "x.",
            ".y",
            "f'{x}'",
            "\x00",
            "\r",
            "é = 1",
        ],
        *["from __future__ import annotations", "x: y = 1", "1 if x else y", "not x", "-1", "...", "None"],
    ]
)


@pytest.mark.thorough
@settings(max_examples=2000)
@example("x \\\n")
@given(st.lists(pieces, min_size=1, max_size=6).map("\n".join))
def test_code_that_is_taken_apart_by_lines_is_what_its_tree_says(code):
    lines = [line + "\n" for line in code.split("\n")]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = interpreter._in_two(lines, "<cell>", 0)
        if not parts:
            return
        expected = interpreter._by_its_tree(code, "<cell>", 0)
    assert parts == expected
    assert [list(part.co_positions()) for part in parts] == [list(part.co_positions()) for part in expected]


@pytest.mark.parametrize(
    "code", ["f(x)", "x = 1\nf(x)", "# a\n\nif x:\n    y\nf(\n    x)\n\n# end\n", "x\r\ny\r\n", "f(\n    x\n)"]
)
def test_usual_code_is_taken_apart_by_lines(code):
    assert interpreter._in_two([line + "\n" for line in code.split("\n")], "<cell>", 0)


async def test_a_traceback_shows_the_code_and_nothing_of_ours(box):
    await box.exec("def outer():\n    return inner()\ndef inner():\n    raise ValueError('deep')")
    executed = await box.exec("outer()")
    lines = [line for line in executed.error.traceback.split("\n") if line.strip(" ~^")]
    assert lines == [
        "Traceback (most recent call last):",
        '  File "<cell 2>", line 1, in <module>',
        "    outer()",
        '  File "<cell 1>", line 2, in outer',
        "    return inner()",
        '  File "<cell 1>", line 4, in inner',
        "    raise ValueError('deep')",
        "ValueError: deep",
    ]


async def test_a_syntax_error_shows_the_place(box):
    executed = await box.exec("x = 1\ny = = 2")
    assert raised(executed) == "SyntaxError"
    assert executed.error.traceback.startswith('  File "<cell 1>", line 2\n    y = = 2\n')


async def test_causes_groups_and_notes_are_told(plain):
    executed = await plain.exec("try: 1 / 0\nexcept Exception as e: raise ValueError('b') from e")
    assert "ZeroDivisionError" in executed.error.traceback
    assert "direct cause" in executed.error.traceback
    executed = await plain.exec("e = ExceptionGroup('g', [KeyError('k')]); e.add_note('noted'); raise e")
    assert "KeyError: 'k'" in executed.error.traceback
    assert "noted" in executed.error.traceback


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("raise SystemExit('bye')", "SystemExit"),
        ("exit()", "SystemExit"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise GeneratorExit", "GeneratorExit"),
        ("class Own(BaseException): pass\nraise Own", "Own"),
        ("class Own(Exception):\n    def __str__(self): raise Own\nraise Own", "Own"),
        ("class Own(Exception):\n    def __str__(self): return self.__str__()\nraise Own", "Own"),
        ("class Own(Exception):\n    def __str__(self): return 1\nraise Own", "Own"),
        ("class Value:\n    def __repr__(self): raise KeyError\nValue()", "KeyError"),
        ("class Value:\n    def __repr__(self): return 1\nValue()", "TypeError"),
        ("class Value:\n    def __repr__(self): return repr(self)\nValue()", "RecursionError"),
        ("def f(): f()\nf()", "RecursionError"),
        ("1 +", "SyntaxError"),
        ("  1", "IndentationError"),
        ("x = '", "SyntaxError"),
        ("x = 1\0", "SyntaxError" if sys.version_info >= (3, 11, 4) else "ValueError"),
        ("'\ud800'", "UnicodeEncodeError"),
        ("(" * 5000, "SyntaxError"),
        ("yield 1", "SyntaxError"),
        ("return 1", "SyntaxError"),
        ("input()", "EOFError"),
        ("import sys; sys.stdin.read(); sys.stdin.close(); input()", "ValueError"),
        ("raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [KeyError(2)])])", "ExceptionGroup"),
    ],
)
async def test_whatever_is_raised_is_told_and_the_session_goes_on(box, code, name):
    await box.exec("kept = 1")
    executed = await box.exec(code)
    if name == "IndentationError" and raised(executed) is None:
        assert executed.value == "1"  # IPython removes common indentation
    else:
        assert raised(executed) == name
    assert (await box.exec("kept")).value == "1"
    assert await fine(box)


async def test_a_name_that_is_no_name_and_text_that_is_no_text_are_told_as_what_they_are(box):
    executed = await box.exec(
        "class Text(str):\n"
        "    def __len__(self): 1 / 0\n"
        "    def __getitem__(self, at): 1 / 0\n"
        "    def encode(self, *args): 1 / 0\n"
        "class Kind(type):\n"
        "    __name__ = property(lambda self: 1 / 0)\n"
        "class Own(Exception, metaclass=Kind):\n"
        "    def __str__(self): return Text('told')\n"
        "raise Own"
    )
    assert (executed.error.name, executed.error.message) == ("Own", "told")


async def test_half_characters_are_written_as_what_they_are(box):
    executed = await box.exec("print('\\ud800 ä')\nraise ValueError('\\udfff')")
    assert executed.stdout == "\\ud800 ä\n"
    assert executed.error.message == "\\udfff"


async def test_what_is_too_long_is_cut_with_a_mark(box):
    executed = await box.exec("'ä' * 1_000_000")
    assert len(executed.value.encode()) < 66_000
    assert executed.value.endswith("… (1000002 characters)")
    executed = await box.exec("raise ValueError('x' * 1_000_000)")
    assert executed.error.message.endswith("… (1000000 characters)")


async def test_a_long_answer_is_whole(box):
    executed = await box.exec("''.join(chr(97 + n % 26) for n in range(60_000))")
    assert executed.value == repr("".join(chr(97 + n % 26) for n in range(60_000)))


# What it survives.


@pytest.mark.parametrize(
    "code",
    [
        "import sys, io; sys.stdout = io.StringIO()",
        "import sys; sys.stdout = sys.stderr = None",
        "import sys; sys.stdout.close(); sys.stderr.close()",
        "import sys; sys.stdout.detach()",
        "import sys; sys.stdout.write = sys.stdout.flush = None",
        "import sys\nclass Bad:\n    def flush(self): raise BaseException\nsys.stdout = Bad()",
        "import sys; del sys.stdout, sys.stderr",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import os; os.dup2(os.open('/dev/null', os.O_RDWR), 1)",
        "import sys; sys.setrecursionlimit(60)",
        "import sys; sys.settrace(lambda *args: 1 / 0)",
        "import sys; sys.setprofile(lambda *args: 1 / 0)",
        "import sys; sys.modules['__main__'] = None",
        "import sys; sys.displayhook = sys.excepthook = None",
        "import builtins; del builtins.print, builtins.repr, builtins.isinstance, builtins.BaseException",
        "import builtins; builtins.__dict__.clear()",
        "import builtins; builtins.repr = builtins.str = builtins.len = builtins.type = None",
        "import json, traceback, linecache; linecache.cache = None; del traceback.TracebackException",
        "import signal; signal.signal(signal.SIGINT, signal.SIG_DFL)",
        "import gc; gc.disable(); gc.set_threshold(1)",
        "import threading; t = threading.Thread(target=lambda: 1 / 0); t.start(); t.join()",
        "import os; os.chdir('/')",
        "import os, sys; os.environ.clear(); sys.path.clear(); sys.argv.clear()",
    ],
)
async def test_code_may_break_what_it_likes_and_the_next_code_still_works(plain, code):
    await plain.exec("kept = 1")
    assert not (await plain.exec(code)).state_lost
    executed = await plain.exec("print('out')\nimport sys\nprint('err', file=sys.stderr)\nkept")
    if "builtins.repr =" in code:
        executed = await plain.exec("print('out')\nimport sys\nprint('err', file=sys.stderr)\nkept")
    assert (executed.stdout, executed.stderr, executed.value) == ("out\n", "err\n", "1")


async def test_builtins_that_code_replaces_stay_replaced_for_code(plain):
    await plain.exec("import builtins\nold = print\nbuiltins.print = lambda *args: old('mine', *args)")
    assert (await plain.exec("print(1)")).stdout == "mine 1\n"


async def test_an_interrupt_stops_code_and_nothing_else(plain):
    pid = int((await plain.exec("import os; os.getpid()")).value)
    for _ in range(50):
        os.kill(pid, signal.SIGINT)
    assert await fine(plain)
    running = asyncio.ensure_future(plain.exec("print('begun')\nwhile True: pass"))
    for _ in range(200):
        await asyncio.sleep(0.01)
        os.kill(pid, signal.SIGINT)
        if running.done():
            break
    assert raised(await running) == "KeyboardInterrupt"
    assert await fine(plain)


async def test_an_interrupt_at_any_moment_leaves_the_interpreter_alive(plain):
    """Signals rain on short code: each piece either ends or reports an interrupt."""
    pid = int((await plain.exec("import os; os.getpid()")).value)

    async def rain() -> None:
        while True:
            os.kill(pid, signal.SIGINT)
            await asyncio.sleep(0.0003)

    raining = asyncio.ensure_future(rain())
    try:
        outcomes = [await plain.exec(f"x = sum(range(20000))\nprint('{n}')\nx") for n in range(300)]
    finally:
        raining.cancel()
    assert {raised(executed) for executed in outcomes} <= {None, "KeyboardInterrupt"}
    assert any(executed.error is None for executed in outcomes)
    assert await fine(plain)


@pytest.mark.parametrize(
    "code",
    first(
        [
            "while True: pass",
            "class Value:\n    def __repr__(self):\n        while True: pass\nValue()",
            "class Own(Exception):\n    def __str__(self):\n        while True: pass\nraise Own",
            "import time; time.sleep(60)",
            "import asyncio; await asyncio.sleep(60)",
            "import signal; signal.pthread_sigmask(signal.SIG_UNBLOCK, [2]); signal.pause()",
            "import threading; threading.Event().wait()",
            "import subprocess; subprocess.run(['sleep', '60'])",
            "import os; os.system('sleep 60')",
        ]
    ),
)
async def test_whatever_hangs_is_interrupted_and_the_session_goes_on(box, code):
    await box.exec("kept = 1")
    executed = await box.exec(code, timeout=0.5)
    assert executed.killed_by == "wall"
    assert not executed.state_lost
    assert (await box.exec("kept")).value == "1"


async def test_a_child_that_code_forks_ends_where_the_code_ends(box):
    executed = await box.exec(
        "import os\nif os.fork() == 0:\n    raise SystemExit(4)\nos.waitstatus_to_exitcode(os.wait()[1])"
    )
    assert executed.value == "4"
    executed = await box.exec("if os.fork() == 0:\n    1 / 0\nos.waitstatus_to_exitcode(os.wait()[1])")
    assert executed.value == "1"
    assert executed.stderr.endswith("ZeroDivisionError: division by zero\n")
    executed = await box.exec("pid = os.fork()\nif pid: os.wait()\nprint('parent' if pid else 'child')")
    assert sorted(executed.stdout.split()) == ["child", "parent"]
    assert await fine(box)


# Ordinary Python.


async def test_the_namespace_is_a_module_that_pickles_classes_and_gives_them_to_processes(box):
    executed = await box.exec(
        "import pickle, dataclasses, multiprocessing\n"
        "@dataclasses.dataclass\nclass Point:\n    x: int\n"
        "def double(point): return Point(point.x * 2)\n"
        "with multiprocessing.get_context('fork').Pool(2) as pool:\n    made = pool.map(double, [Point(1), Point(2)])\n"
        "made == pickle.loads(pickle.dumps(made)), __name__, made"
    )
    assert executed.value == "(True, '__main__', [Point(x=2), Point(x=4)])"


async def test_the_future_of_annotations_holds_for_later_code(plain):
    await plain.exec("from __future__ import annotations")
    executed = await plain.exec("def f(x: unknown): pass\nf.__annotations__")
    assert executed.value == "{'x': 'unknown'}"


async def test_code_awaits_in_a_loop_that_lasts(box):
    await box.exec("import asyncio\nqueue = asyncio.Queue()\nasync def put(): await queue.put('late')")
    await box.exec("putting = asyncio.create_task(put())\nawait asyncio.sleep(0)")
    assert (await box.exec("await queue.get()")).value == "'late'"
    assert raised(await box.exec("await asyncio.sleep(0, exit())")) == "SystemExit"
    assert raised(await box.exec("async def fail(): raise KeyError\nawait fail()")) == "KeyError"
    assert (await box.exec("[n async for n in aiter_of(3)]")).error.name == "NameError"
    assert await fine(box)


async def test_source_is_there_for_who_asks(plain):
    await plain.exec("def f():\n    return 'body'")
    assert "return 'body'" in (await plain.exec("import inspect\nprint(inspect.getsource(f))")).stdout


# IPython.


async def test_ipython_has_its_magic_and_writes_nothing_by_itself(ipython):
    executed = await ipython.exec("!echo shell")
    assert (executed.stdout, executed.error) == ("shell\n", None)
    executed = await ipython.exec("x = !echo captured\nx[0]")
    assert (executed.value, executed.stdout) == ("'captured'", "")
    assert (await ipython.exec("%%bash\necho cell")).stdout == "cell\n"
    assert (await ipython.exec("int?")).error is None
    executed = await ipython.exec("1 / 0")
    assert (executed.stdout, executed.stderr) == ("", "")
    executed = await ipython.exec("%nosuchmagic")
    assert executed.value is None
    assert await ipython.list() == []


# By itself.


async def test_it_needs_nothing_but_its_own_text():
    text = inspect.getsource(interpreter)
    process = subprocess.run(  # noqa: ASYNC221
        [sys.executable, "-I", "-S", "-c", text],
        input=b"".join(
            json.dumps({"mark": f"m{n}", "code": code}).encode() + b"\n"
            for n, code in enumerate(["x = 1", "x", "1 / 0"])
        ),
        capture_output=True,
        timeout=30,
        check=True,
    )
    lines = process.stdout.decode().splitlines()
    answers = [json.loads(line[3:]) for line in lines]
    assert [line[:3] for line in lines] == ["m0=", "m1=", "m2="]
    assert [answer["value"] for answer in answers] == [None, "1", None]
    assert answers[2]["error"]["name"] == "ZeroDivisionError"
    assert process.stderr == b"m0=\nm1=\nm2=\n"


async def test_warming_up_leaves_nothing_behind(box):
    assert (await box.exec("[name for name in dir() if 'arm' in name]")).value == "[]"
    assert raised(await box.exec("_")) in ("NameError", None)
