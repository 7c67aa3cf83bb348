"""`python_code`: those of cases 66 to 76 that depend on the tool, and what models really write."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.wires.verl_wire import Observed, Trainer, observed
from toolyard import Client
from toolyard.testing import Running, running
from toolyard.tools import python_code
from toolyard.tools.environment import named_toolsets, toolbox
from toolyard.tools.python_code import CodeForm

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], tools="python_code") as server:
        yield server


@pytest.fixture
async def trainer(server: Running) -> AsyncIterator[Trainer]:
    async with Trainer(server.url) as trainer:
        yield trainer


async def ran(trainer: Trainer, code: str, **extra: object) -> str:
    seen = await trainer.act("t", f"<python>{code}</python>", extra)
    assert (seen.done, seen.valid) == (False, True)
    assert seen.text.startswith("\n<result>\n")
    assert seen.text.endswith("\n</result>\n")
    return seen.text.removeprefix("\n<result>\n").removesuffix("\n</result>\n")


# The form of calls and results.


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<python>a</python>", "a"),
        ("<python> a\n</python> and <python>\n\tb </python>", "a\nb"),
        ("<python></python>", ""),
        ("```python\na\n```", "a"),
        ("```\npython\na\n```", "a"),
        ("```python3\na\n```", "3\na"),
        ("```python\na\n```\n```python\nb\n```", "a\nb"),
        ("```python\r\na\r\nb\r\n```", "a\r\nb"),
        ("```py\na\n```", "a"),
        ("```py\na\n```\n<python>b</python>", "b"),
        ("```py\na\n```\n```python\nb\n```", "b"),
        ("<python>é = '→'</python>", "é = '→'"),
        ("```Python\na\n```", None),
        ("```python\na\n", None),
        ("<python>a", None),
        ("<Python>a</Python>", None),
        ("", None),
    ],
)
def test_code_is_found_in_tags_or_else_in_fences(text, code):
    assert CodeForm().read(text) == (None if code is None else {"code": code})


@pytest.mark.parametrize(
    ("text", "stdin"),
    [
        ("<python>a</python>\n```input\n1\n2\n```", "1\n2"),
        ("```input\nx\n```\n```input\ny\n```<python>a</python>", "x"),
        ("<python>a</python>\n```input\n```", None),
    ],
)
def test_the_first_input_block_is_standard_input(text, stdin):
    read = CodeForm().read(text)
    assert read is not None
    assert read.get("stdin") == stdin


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```python\na\n```", "\n```result\nR\n```\n"),
        ("```python\na\n```\n```output", "\nR\n```\n"),
        ("```python\na\n```\n```output\n", "\nR\n```\n"),
        ("```python\na\n```\n```output\n1\n```\n```python\nb\n```", "\n```result\nR\n```\n"),
        ("<python>a</python>```output", "\nR\n```\n"),
        ("```py\na\n```", "\n<result>\nR\n</result>\n"),
        ("<python>a</python><tool_call></tool_call>", "\n<tool_response>\n```result\nR\n```\n</tool_response>\n"),
        ("```python\na\n```</tool_call>", "\n```result\nR\n```\n"),
        ("<python>a</python>\n<result>", "\nR\n</result>\n"),
        ("<python>a</python>\n<result> \n\n", "\nR\n</result>\n"),
        ("<python>a</python>\n<result>1</result>", "\n<result>\nR\n</result>\n"),
        ("<python>a</python>", "\n<result>\nR\n</result>\n"),
        ("```\npython\na\n```", "\n<result>\nR\n</result>\n"),
    ],
)
def test_the_result_is_wrapped_as_the_text_asks(text, answer):
    assert CodeForm().answer(text, "R") == answer


# The program.


async def test_72_nothing_is_kept_from_one_call_to_the_next(trainer):
    assert await ran(trainer, "x = 1; open('f', 'w').write('x')") == ""
    assert (await ran(trainer, "print(x)")).endswith("NameError: name 'x' is not defined")
    assert await ran(trainer, "import os; print(os.listdir())") == "[]"


async def test_73_standard_input_comes_from_the_trainer_or_from_an_input_block(trainer):
    assert await ran(trainer, "print(input() + '!')", stdin="hey") == "hey!"
    text = "<python>print(input())</python>\n```input\nblock\n```"
    assert (await trainer.act("t", text, {"stdin": "field"})).text == "\n<result>\nblock\n</result>\n"
    assert (await ran(trainer, "input()")).endswith("EOFError: EOF when reading a line")
    assert await ran(trainer, "import sys; print(sys.stdin.buffer.read())", stdin="é\n") == r"b'\xc3\xa9\n'"


async def test_75_a_program_that_takes_too_long_is_stopped_and_what_it_printed_is_kept(trainer, monkeypatch):
    assert python_code.SECONDS == 10
    monkeypatch.setattr(python_code, "SECONDS", 2)
    began = time.monotonic()
    text = await ran(trainer, "import time\nprint('before', flush=True)\ntime.sleep(30)")
    assert text == "before\n\nExecution timed out after 2 seconds."
    assert 1.9 < time.monotonic() - began < 5


async def test_76_output_is_cut_to_100_000_characters(trainer):
    assert await ran(trainer, "print('a' * 200_000)") == "a" * 100_000
    assert await ran(trainer, "print('é' * 200_000)") == "é" * 100_000
    assert await ran(trainer, "print('a' * 99_999 + 'b', end='')") == "a" * 99_999 + "b"


async def test_output_without_end_is_stopped(trainer):
    began = time.monotonic()
    assert await ran(trainer, "while True: print('a' * 1000)") == (f"{'a' * 1000}\n" * 100)[:100_000]
    assert time.monotonic() - began < 8


async def test_space_and_line_ends_around_the_output_are_dropped_and_nothing_else(trainer):
    assert await ran(trainer, "print('\\n  a\\n b\\t\\n\\n')") == "a\n b\t"
    assert await ran(trainer, "print('a\\0b\\r\\nc')") == "a\0b\r\nc"
    assert await ran(trainer, "import os; os.write(1, b'\\xff')") == "\N{REPLACEMENT CHARACTER}"


async def test_errors_are_told_as_python_tells_them(trainer):
    assert await ran(trainer, "print('a')\n\ndef f(n):\n    return 1 / n\n\nf(0)") == (
        "a\n"
        "\n"
        "Traceback (most recent call last):\n"
        '  File "main.py", line 6, in <module>\n'
        "    f(0)\n"
        '  File "main.py", line 4, in f\n'
        "    return 1 / n\n"
        "           ~~^~~\n"
        "ZeroDivisionError: division by zero"
    )
    assert (await ran(trainer, "print('never')\ndef f(:")).startswith('File "main.py", line 2\n    def f(:')
    assert (await ran(trainer, "raise KeyboardInterrupt")).splitlines()[1] == '  File "main.py", line 1, in <module>'


async def test_a_program_that_recurses_without_end_is_told_so_and_deep_recursion_works(trainer):
    told = await ran(trainer, "def f():\n    f()\nf()")
    assert told.endswith("RecursionError: maximum recursion depth exceeded")
    assert len(told) < 2000
    assert await ran(trainer, "def f(n):\n    return n and 1 + f(n - 1)\nprint(f(100_000))") == "100000"


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("print('a'); exit(); print('b')", "a"),
        ("print('a'); quit(1)", "a"),
        ("import sys; sys.exit('because')", "because"),
        ("import os; print('a', flush=True); os._exit(3)", "a"),
        ("import ctypes; print('a', flush=True); ctypes.string_at(0)", "a\n\nExecution was ended by SIGSEGV."),
        ("import os; print('a', flush=True); os.kill(os.getpid(), 9); print('b')", "a\nb"),  # the code is process 1
        ("import atexit; atexit.register(print, 'bye'); print('a')", "a\nbye"),
        ("import threading, time\nthreading.Thread(target=lambda: (time.sleep(0.2), print('late'))).start()", "late"),
        (
            "from concurrent.futures import ThreadPoolExecutor\nprint(ThreadPoolExecutor().submit(lambda: 5).result())",
            "5",
        ),
        ("import sys; print('e', file=sys.stderr); print('o')", "o\n\ne"),
        (
            "import pickle\nclass A: x = 1\nprint(pickle.loads(pickle.dumps(A())).x, __name__, __file__)",
            "1 __main__ main.py",
        ),
        ("import asyncio\nasync def f(): return 1\nprint(asyncio.run(f()))", "1"),
        ("42", ""),
    ],
)
async def test_it_runs_and_ends_like_a_program_of_its_own(trainer, code, text):
    assert await ran(trainer, code) == text


async def test_the_usual_modules_and_their_names_need_no_import(trainer):
    code = (
        "print(sqrt(4), Counter('aa')['a'], math.floor(1.5), json.dumps([1]), datetime.date(2020, 1, 2))\n"
        "print(reduce(add, [1, 2]), pow(2, 3, 5), heappop([1]), List[int], re.sub('a', 'b', 'a'), random.randint(3, 3))"
    )
    assert await ran(trainer, code) == "2.0 2 1 [1] 2020-01-02\n3 3 1 typing.List[int] b 3"


async def test_what_is_no_text_is_refused_in_words(trainer):
    assert "null bytes" in await ran(trainer, "print(1)\0")
    half = json.dumps({"trajectory_ids": ["t"], "actions": ["<python>x = '\ud800'</python>"]})
    (seen,) = observed(await trainer.post("/get_observation", content=half), 1)
    assert "surrogates not allowed" in seen.text


async def test_on_a_backend_without_templates_a_program_is_the_same():
    with running([], tools="python_code", sandbox="subprocess", min_isolation="L0") as server:
        async with Trainer(server.url) as trainer:
            told = await ran(trainer, "print(input(), floor(1.5))\nmath.none", stdin="hey")
            assert told.startswith("hey 1\n\nTraceback")
            assert told.endswith("AttributeError: module 'math' has no attribute 'none'")


async def test_a_program_finds_no_name_of_ours(trainer):
    told = await ran(trainer, "print(sorted(name for name in globals() if name not in dir(__import__('builtins'))))")
    names = set(eval(told))
    assert {"math", "sqrt", "__file__"} <= names
    assert not {name for name in names if "toolyard" in name or name in ("names", "source", "linecache", "os")}


async def test_two_trajectories_do_not_meet(trainer):
    code = "<python>import os, time\nopen('mine', 'w').close()\ntime.sleep(0.3)\nprint(os.listdir('.'))</python>"
    seen = await trainer.batch(["a", "b"], [code, code.replace("mine", "other")])
    assert [one.text for one in seen] == ["\n<result>\n['mine']\n</result>\n", "\n<result>\n['other']\n</result>\n"]


async def test_calls_of_one_session_overlap(server):
    async with Trainer(server.url) as wire:
        sid = await wire.open(env_name="toolbox")
        began = time.monotonic()
        code = "import time; time.sleep(1); print('x')"
        calls = [wire.call(sid, "python_code", {"code": code}, env="toolbox") for _ in range(3)]
        assert [answer.text for answer in await asyncio.gather(*calls)] == ["x"] * 3
        assert time.monotonic() - began < 2.5
        await wire.end(sid)


def test_over_ors_it_is_a_tool_like_any_other(server):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:
        (spec,) = session.list_tools()
        assert spec.name == "python_code"
        assert list(spec.input_schema["properties"]) == ["code", "stdin"]
        output = session.call_tool("python_code", {"code": "print(input())", "stdin": "hello"})
        assert output.blocks[0].text == "hello"
        assert output.metadata["exit_code"] == 0
        assert not output.finished
        assert session.call_tool("python_code", {"code": "exit(3)"}).metadata["exit_code"] == 3


# verl-tool's list of words.


@pytest.mark.parametrize(
    "code",
    [
        "import subprocess",
        "from socket import *",
        "import os; os.system('ls')",
        "import sys\nsys.exit()",
        "os._exit(0)",
    ],
)
async def test_74_words_are_refused_only_where_the_list_is_on(trainer, code):
    blocked = "\n<result>\nExecution blocked: Code contains potentially dangerous operations or imports.\n</result>\n"
    with running([toolbox(named_toolsets("python_code"), block_lists=True)]) as dropin:
        async with Trainer(dropin.url) as other:
            assert await other.act("t", f"<python>{code}</python>") == Observed(blocked, False, True)
            assert (await other.act("t", "<python>import resources</python>")).text != blocked
    assert (await trainer.act("t", f"<python>{code}</python>")).text != blocked
