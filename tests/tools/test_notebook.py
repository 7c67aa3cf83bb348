"""`PythonNotebook`: cases 122 and 123, misbehaving cells, and the file of a notebook."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import matplotlib
import nbformat
import pytest
from PIL import Image

from tests.tiers import first
from toolyard import Client
from toolyard.client import ToolCallFailed
from toolyard.core.errors import ToolError
from toolyard.core.output import ImageBlock, ToolOutput
from toolyard.sandboxes import Provider, cell_runner, profiles
from toolyard.sandboxes.installation import own, using
from toolyard.sandboxes.native import rootfs
from toolyard.sandboxes.native.backend import NativeBackend
from toolyard.sandboxes.view import View
from toolyard.testing import Running, running
from toolyard.tools import notebook, notebook_file
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.notebook import FILE, PythonNotebook

MOVED = rootfs.place(matplotlib.__file__) != matplotlib.__file__
"""Packages below /tmp have another path in a sandbox; then matplotlib is not preloaded."""

pytestmark = pytest.mark.anyio

FIGURE = "<Figure size 640x480 with 1 Axes>"
AFRESH = "the interpreter starts afresh: variables are gone, files are kept"


class Notebooks(ToolsEnvironment):
    toolsets = (PythonNotebook,)


@pytest.fixture(scope="module")
async def provider(anyio_backend: str) -> AsyncIterator[Provider]:
    async with Provider() as provider:
        yield provider


@asynccontextmanager
async def opened(provider: Provider, **files: bytes) -> AsyncIterator[PythonNotebook]:
    """A session's notebook, in a workspace with these files."""
    token = provider.enter()
    book = PythonNotebook(Notebooks())
    try:
        sandbox = await book.sandbox()
        for data in files.values():
            await sandbox.write(FILE, data)
        yield book
    finally:
        await book.teardown()
        token.var.reset(token)


@pytest.fixture
async def book(provider: Provider) -> AsyncIterator[PythonNotebook]:
    async with opened(provider) as book:
        yield book


async def shown(book: PythonNotebook, code: str, **more: Any) -> list[Any]:
    """A cell's answer after its number: texts, and pictures as such."""
    output = await book.execute_cell(code, **more)
    assert isinstance(output, ToolOutput)
    first, *blocks = output.blocks
    assert first.text.startswith("cell_index: ")
    return [picture(block) if isinstance(block, ImageBlock) else block.text for block in blocks]


async def failed(book: PythonNotebook, code: str, **more: Any) -> str:
    with pytest.raises(ToolError) as error:
        await book.execute_cell(code, **more)
    return str(error.value)


def picture(block: ImageBlock) -> Image.Image:
    image = Image.open(io.BytesIO(base64.b64decode(block.data)))
    assert block.mimeType == f"image/{image.format.lower()}"
    image.load()
    return image


def is_drawn(image: Image.Image) -> bool:
    return image.size > (400, 300) and len(image.convert("RGB").getcolors(10**6)) > 10


# Over a wire.


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([Notebooks]) as server:
        yield server


def test_122_cells_answer_with_their_number_and_what_they_show(server: Running):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:

        def cell(code: str, **more: Any) -> list[str]:
            return [block.text for block in session.call_tool("execute_cell", {"code": code, **more}).blocks]

        assert cell("print('hello world')") == ["cell_index: 0", "hello world\n"]
        assert cell("x=3") == ["cell_index: 1"]
        with pytest.raises(ToolCallFailed) as error:
            cell("1/0")
        assert "cell_index: 2\n-----" in str(error.value)
        assert "----> 1 1/0\n\nZeroDivisionError: division by zero" in str(error.value)
        assert cell("print('hello', x)", cell_index=0) == ["cell_index: 0", "hello 3\n"]
        printed = session.call_tool("print_notebook", {}).blocks[0].text
    assert printed.startswith(
        "= Cell 0 =\nprint('hello', x)\n= Output 0 =\nhello 3\n\n= Cell 1 =\nx=3\n= Cell 2 =\n1/0\n"
    )
    assert printed.endswith("ZeroDivisionError: division by zero\n")


def test_123_a_figure_is_its_name_and_its_picture_which_belong_together(server: Running):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:
        code = "import matplotlib.pyplot as plt\nplt.plot([1, 4, 9])\nplt.figure()\nplt.plot([3, 2])\nprint(1)"
        output = session.call_tool("execute_cell", {"code": code})
        printed = session.call_tool("print_notebook", {}).blocks[0].text
    kinds = [(block.type, block.detail) for block in output.blocks]
    one, two = {"group": 1}, {"group": 2}
    assert kinds == [("text", None), ("text", None), ("text", one), ("image", one), ("text", two), ("image", two)]
    assert [block.text for block in output.blocks if block.type == "text"][2:] == [FIGURE, FIGURE]
    assert all(is_drawn(picture(ImageBlock(**vars(block)))) for block in output.blocks if block.type == "image")
    assert printed.endswith(f"= Output 0 =\n1\n{FIGURE}\n`Wrapped`\n{FIGURE}\n`Wrapped`\n")


def test_tools_say_what_they_take(server: Running):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:
        specs = {spec.name: spec.input_schema for spec in session.list_tools()}
    assert list(specs) == ["execute_cell", "print_notebook"]
    assert list(specs["execute_cell"]["properties"]) == ["code", "cell_index", "reset"]
    assert specs["execute_cell"]["required"] == ["code"]


# What cells show.


async def test_what_is_written_and_shown_comes_in_order(book: PythonNotebook):
    code = """
import sys
from IPython.display import display
print("a")
print("b", file=sys.stderr)
display(1)
print("c", end="")
!echo d; echo e >&2
import os
os.system("echo f >&2")
"""
    assert await shown(book, code) == ["a\n", "b\n", "1", "cd\ne\nf\n", "0"]


async def test_of_several_forms_of_a_value_a_model_sees_those_that_it_can_read(book: PythonNotebook):
    assert await shown(book, "import sympy\nsympy.Symbol('x') ** 2") == ["x**2", "$\\displaystyle x^{2}$"]
    table = await shown(book, "import pandas\npandas.DataFrame({'a': [1]})")
    assert table == ["   a\n0  1"]
    code = "from IPython.display import *\ndisplay({'text/html': '<b>b</b>'}, raw=True)\ndisplay(JSON({'a': [1]}))"
    assert await shown(book, code) == ["<b>b</b>", "<IPython.core.display.JSON object>", '{"a": [1]}']
    named, pixels = await shown(book, "from PIL import Image\nImage.new('RGB', (3, 2), 'red')")
    assert named.startswith("<PIL.Image.Image image mode=RGB size=3x2")
    assert (pixels.size, pixels.getpixel((0, 0))) == ((3, 2), (255, 0, 0))
    assert await shown(book, "display({'image/png': b'no picture'}, raw=True)") == ["[image/png that is no picture]"]


async def test_streams_that_take_turns_too_often_become_one(provider: Provider, book: PythonNotebook):
    code = "import sys\nfor n in range(1000):\n  print(n)\n  print(-n, file=sys.stderr)"
    texts = await shown(book, code)
    assert len(texts) < 600
    assert "".join(texts) == "".join(f"{n}\n{-n}\n" for n in range(1000))
    printed = await book.print_notebook()
    async with opened(provider, file=await (await book.sandbox()).read(FILE)) as later:
        assert await later.print_notebook() == printed


async def test_outputs_can_be_cleared_and_shown_again(book: PythonNotebook):
    await shown(book, "from IPython.display import *")
    assert await shown(book, "print(1)\ndisplay(2)\nclear_output()\nprint(3)") == ["3\n"]
    assert await shown(book, "print(1)\nclear_output(wait=True)\nprint(3)") == ["3\n"]
    assert await shown(book, "print(1)\nclear_output(wait=True)") == ["1\n"]
    assert await shown(book, "d = display(1, display_id=True)\nprint(2)\nd.update(3)") == ["3", "2\n"]
    assert await shown(book, "d.update(4)") == []


async def test_a_notebook_is_an_ipython_that_nobody_has_used(book: PythonNotebook):
    names = "[name for name in dir() if not name.startswith('_')]"
    assert await shown(book, names) == ["['In', 'Out', 'exit', 'get_ipython', 'open', 'quit']"]
    assert await shown(book, "In, list(Out)") == [f"(['', {names!r}, 'In, list(Out)'],\n [1])"]
    loaded = "import sys\n[name in sys.modules for name in ('matplotlib.pyplot', 'numpy')]"
    assert await shown(book, loaded) == [f"[{not MOVED}, True]"]
    code = "import os, matplotlib\nsorted(os.listdir()), matplotlib.get_backend(), len(os.listdir('/proc/self/task'))"
    assert await shown(book, code) == [f"(['{FILE}'], 'module://matplotlib_inline.backend_inline', 1)"]


async def test_magics_awaits_and_semicolons_work_as_in_any_notebook(book: PythonNotebook):
    assert await shown(book, "%%capture held\nprint(1)\n2") == []
    assert await shown(book, "held.stdout") == ["'1\\n'"]
    assert await shown(book, "import asyncio\nawait asyncio.sleep(0, 'awaited')") == ["'awaited'"]
    assert await shown(book, "1;") == []
    named, figure = await shown(book, "%matplotlib inline\nimport matplotlib.pyplot as plt\nplt.plot([1, 2]);")
    assert (named, is_drawn(figure)) == (FIGURE, True)
    assert await shown(book, "get_ipython().run_cell('7').result") == ["7", "7"]
    assert await shown(book, "") == []


async def test_errors_are_told_without_colours_after_what_was_written(book: PythonNotebook):
    await shown(book, "1" if MOVED else "%colors linux")  # reads a file beside IPython's own
    text = await failed(book, "print('before')\n1/0")
    assert text.startswith("cell_index: 1\nbefore\n-----")
    assert text.endswith("----> 2 1/0\n\nZeroDivisionError: division by zero")
    assert "\x1b" not in text
    assert (await failed(book, "def f(:")).endswith("    def f(:\n          ^\nSyntaxError: invalid syntax")
    assert await failed(book, "%nothing") == "cell_index: 3\nUsageError: Line magic function `%nothing` not found."
    assert "SystemExit" in await failed(book, "exit()")
    assert "ExceptionGroup: both (1 sub-exception)" in await failed(book, "raise ExceptionGroup('both', [KeyError(1)])")
    assert await shown(book, "print(1)") == ["1\n"]


# Misbehaving cells.


@pytest.mark.parametrize(
    ("code", "told"),
    first(
        [
            (
                "import os; print('last words'); os._exit(3)",
                f"last words\n[the interpreter ended with code 3; {AFRESH}]",
            ),
            ("import os; os.kill(os.getpid(), 9)", f"[the interpreter was ended by SIGKILL; {AFRESH}]"),
            ("import ctypes; ctypes.string_at(0)", f"[the interpreter was ended by SIGSEGV; {AFRESH}]"),
            ("import os\nwhile True: os.fork()", "BlockingIOError: [Errno 11] Resource temporarily unavailable"),
            ("class R:\n  def __repr__(self): raise ValueError('no repr')\nR()", "ValueError: no repr"),
            ("class E(Exception):\n  def __str__(self): raise KeyError\nraise E", "Traceback (most recent call last)"),
            ("def f(): f()\nf()", "RecursionError"),
            ("!yes", "it wrote more output than it may, and the rest is not shown"),
            ("x = b'x' * 10**9", f"it needed more memory than it may; {AFRESH}]"),
            ("open('f', 'wb').write(b'x' * 10**8)", "it wrote a larger file than it may"),
            ("for n in range(30): open(f'f{n}', 'wb').write(b'x' * 10**7)", "No space left on device"),
            ("files = []\nwhile True: files.append(open('/dev/null'))", "OSError: [Errno 24] Too many open files"),
            ("class R:\n  def __repr__(self): 1/0\nfor n in range(300): display(R())", "more outputs were shown]"),
            ("import builtins\ndel builtins.len", "NameError: name 'len' is not defined"),
            ("get_ipython().events = None", "NoneType"),
        ]
    ),
)
async def test_a_cell_that_misbehaves_is_told_and_the_next_one_works(book: PythonNotebook, code: str, told: str):
    await shown(book, "x = 1")
    text = await asyncio.wait_for(failed(book, code), 20)
    assert told in text
    assert text.startswith("cell_index: 1\n")
    later = await shown(book, "print('next')", reset="None" in code)
    assert "next" in "".join(later)  # among what forks still write


@pytest.mark.parametrize(
    ("code", "answers"),
    [
        ("import os, sys\nos.close(1); os.close(2); sys.stdout.close()\n5", ["5"]),
        (
            "import os\nif os.fork(): os.wait()\nelse: print('child'); display(1)\nprint('both')\n2",
            ["child\n1\nboth\n2\nboth\n", "2"],
        ),
        ("import sys, os\nsys.stdout = sys.stderr = None\nos.mkdir('d'); os.chdir('d')\n5", ["5"]),
        ("%reset -f", []),
        ("del get_ipython, In, Out", []),
        ("'\\ud800', print('\\ud800')", ["\\ud800\n", "('\\ud800', None)"]),
        (
            "import threading\nt = threading.Thread(target=print, args=('in a thread',))\nt.start(); t.join()",
            ["in a thread\n"],
        ),
        ("print('\\x02x\\x03')", ["\x02x\x03\n"]),
        ("import json\njson.dumps = json.loads = None\n1", ["1"]),
    ],
)
async def test_what_a_cell_does_to_its_own_process_harms_no_other(book: PythonNotebook, code: str, answers: list[str]):
    assert await shown(book, code) == answers
    assert await shown(book, "print('next')\n7") == ["next\n", "7"]


async def test_code_that_is_no_text_is_refused_before_it_becomes_a_cell(book: PythonNotebook):
    assert await failed(book, "print('\ud800')") == "the code is not text: surrogates not allowed"
    assert await shown(book, "print('text')") == ["text\n"]
    assert await book.print_notebook() == "= Cell 0 =\nprint('text')\n= Output 0 =\ntext\n\n"


async def test_too_much_is_cut_and_costs_nothing_else(book: PythonNotebook):
    await shown(book, "x = 1")
    text, note = await shown(book, "print('x' * 10**8)")
    assert (set(text), 50_000 < len(text) < 10**5) == ({"x"}, True)
    assert note == f"[cut here: {10**8 + 1 - len(text):,} more characters were written]\n"
    (text,) = await shown(book, "class R:\n  def __repr__(self): return 'z' * 10**7\nR()")
    assert text.endswith("z\n[cut here: 10,000,000 characters]")
    *some, note = await shown(book, "for n in range(1000): display(n)")
    assert (some[-1], note) == ("199", "[cut here: 800 more outputs were shown]\n")
    text = await failed(book, "for n in range(250): display(n)\n1/0")
    assert text.endswith("division by zero\n[cut here: 50 more outputs were shown]\n")
    assert await shown(book, "x") == ["1"]


async def test_a_picture_comes_whole_however_large_and_one_that_is_too_large_is_named(book: PythonNotebook):
    noise = "numpy.random.default_rng(0).integers(0, 256, ({0}, {0}, 3), 'u1')"
    code = f"import numpy, PIL.Image\nPIL.Image.fromarray({noise})"
    _, image = await shown(book, code.format(700))
    assert image.size == (700, 700)
    assert len(set(image.convert("L").tobytes())) > 200
    text, image = await shown(book, code.format(1500))
    assert text.startswith("<PIL.Image.Image image mode=RGB size=1500x1500")
    assert "\n[image/png of 9,0" in text
    assert text.endswith(" characters is left out: too large]")
    assert (image.format, image.size) == ("JPEG", (1500, 1500))


async def test_a_cell_that_takes_too_long_is_interrupted_and_variables_are_kept(
    book: PythonNotebook, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(notebook, "SECONDS", 0.5)
    text = await failed(book, "import time\nx = 1\nprint('before')\nwhile True: time.sleep(0.01)")
    assert text.startswith("cell_index: 0\nbefore\n---")
    assert re.search("KeyboardInterrupt: \n.stopped after .* s: it took longer than it may; variables are kept]$", text)
    assert "interpreter.py" not in text
    assert await shown(book, "x") == ["1"]
    assert "variables are kept" in await failed(book, "!sleep 60")
    monkeypatch.setattr(notebook, "SECONDS", 300.0)
    assert await shown(book, "x") == ["1"]


async def test_one_that_cannot_be_interrupted_loses_its_variables_and_says_so(
    book: PythonNotebook, monkeypatch: pytest.MonkeyPatch
):
    await shown(book, "import time\nx = 1")
    monkeypatch.setattr(notebook, "SECONDS", 0.5)
    text = await failed(book, "print('a')\n" + "try:\n  while 1: time.sleep(0.01)\nexcept BaseException: pass\n" * 2)
    assert text.startswith("cell_index: 1\na\n[stopped after ")
    assert text.endswith(f"it took longer than it may; {AFRESH}]")
    monkeypatch.setattr(notebook, "SECONDS", 300.0)
    assert "NameError" in await failed(book, "x")


async def test_a_call_that_is_given_up_stops_its_cell_and_leaves_no_trace(book: PythonNotebook):
    await shown(book, "x = 1")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(book.execute_cell("while True: pass"), 0.3)
    assert await shown(book, "x") == ["1"]
    assert await book.print_notebook() == "= Cell 0 =\nx = 1\n= Cell 1 =\nx\n= Output 1 =\n1\n"


async def test_cells_that_come_at_once_run_one_after_the_other(book: PythonNotebook):
    await shown(book, "import time\nn = 0")
    code = "m = n\ntime.sleep(0.02)\nn = m + 1\nn"
    answers = await asyncio.gather(*[book.execute_cell(code) for _ in range(5)])
    assert sorted(tuple(block.text for block in answer.blocks) for answer in answers) == [
        (f"cell_index: {n}", str(n)) for n in range(1, 6)
    ]


ANSWERS = """
import json
class Answer:
    result = property(lambda self: self)
    def __init__(self, token):
        self.text = {0}
    def raise_error(self):
        pass
    def __repr__(self):
        return self.text
get_ipython().run_cell = lambda raw, **_: Answer(json.loads(raw[15:])["token"])
"""
"""A session that forges its answers, in any way it likes."""


def json_answer(items: object, **more: object) -> str:
    text = json.dumps({"items": items, "count": 1, "dropped": 0, "left_out": 0, **more})
    return ANSWERS.replace("{0}", f"f'{{token}} {len(text)} ' + {text!r}")


UNTELLABLE = "the output of the cell cannot be read: the code has changed how IPython shows values"


@pytest.mark.parametrize(
    ("tampering", "told"),
    [
        ("get_ipython().run_cell = None", "TypeError: 'NoneType' object is not callable"),
        ("get_ipython().run_cell = lambda *_, **__: None", "AttributeError: 'NoneType' object has no attribute"),
        (ANSWERS.replace("{0}", "'no answer'"), UNTELLABLE),
        (ANSWERS.replace("{0}", "f'{token} 1000000 x'"), UNTELLABLE),
        (ANSWERS.replace("{0}", "f'{token} 99999999 ' + 'x' * 60_000"), UNTELLABLE),
        (ANSWERS.replace("{0}", "f'{token} 50000 ' + '[' * 50_000"), UNTELLABLE),
        (ANSWERS.replace("{0}", "f'{token} 2 {{}}'"), UNTELLABLE),
        (json_answer(1), UNTELLABLE),
        (json_answer([1]), UNTELLABLE),
        (json_answer([{}] * 2000), UNTELLABLE),
        (json_answer([{"output_type": "stream", "name": "stdlog", "text": ""}]), UNTELLABLE),
        (json_answer([{"output_type": "display_data", "data": "x"}]), UNTELLABLE),
        (json_answer([{"output_type": "error", "ename": "", "evalue": "", "traceback": [1]}]), UNTELLABLE),
        (json_answer([], count=float("inf")), UNTELLABLE),
        (json_answer([], dropped="many"), UNTELLABLE),
        (json_answer([{"output_type": "display_data", "data": {"text/plain": "\ud800"}}]), UNTELLABLE),
    ],
)
async def test_a_session_that_tampers_with_how_it_is_run_is_told_so_and_hurts_only_itself(
    provider: Provider, book: PythonNotebook, tampering: str, told: str
):
    await shown(book, tampering)
    assert (await failed(book, "print(1)")).startswith("cell_index: 1\n")
    assert told in await failed(book, "2")
    nbformat.validate(nbformat.reads((await (await book.sandbox()).read(FILE)).decode(), as_version=4))
    async with opened(provider) as other:
        assert await shown(other, "print(1)") == ["1\n"]


async def test_what_a_session_says_itself_is_shown_if_it_has_the_form(book: PythonNotebook):
    data = {"image/png": "no base64", "text/plain": "a", "x": 1}
    await shown(book, json_answer([{"output_type": "display_data", "data": data, "more": 1}]))
    assert await shown(book, "1") == ["a", "[image/png that is no picture]"]
    assert "cannot be restarted" in await failed(book, "1", reset=True)
    assert "`Wrapped`" in await book.print_notebook()


async def test_the_runner_comes_back_when_others_have_ended_the_interpreter(book: PythonNotebook):
    await shown(book, "x = 1")
    await (await book.sandbox()).exec("import os; os._exit(0)")
    assert await shown(book, "print('x' in dir())") == ["False\n"]
    await (await book.sandbox()).exec("get_ipython().run_cell = type(get_ipython()).run_cell.__get__(get_ipython())")
    assert await shown(book, "print(1)\n2") == ["1\n", "2"]


async def test_other_tools_find_ipython_as_it_was(book: PythonNotebook):
    await shown(book, "x = 41")
    executed = await (await book.sandbox()).exec("print('plain')\nx + 1")
    assert (executed.stdout, executed.stderr, executed.value, executed.error) == ("plain\n", "", "42", None)
    assert "ZeroDivisionError" in (await (await book.sandbox()).exec("1/0")).error.traceback


# Cells and their numbers.


async def test_a_cell_replaces_another_and_it_is_that_one_which_runs(book: PythonNotebook):
    for code in ("print('zero')", "print('one')", "print('two')"):
        await shown(book, code)
    assert await shown(book, "print('new')", cell_index=0) == ["new\n"]
    output = await book.execute_cell("print('last')", cell_index=-1)
    assert [block.text for block in output.blocks] == ["cell_index: 2", "last\n"]
    output = await book.execute_cell("print('three')", cell_index=3)
    assert output.blocks[0].text == "cell_index: 3"
    printed = await book.print_notebook()
    assert [line for line in printed.split("\n") if line.startswith("print")] == [
        "print('new')", "print('one')", "print('last')", "print('three')",
    ]  # fmt: skip


@pytest.mark.parametrize("index", [2, 99, -2])
async def test_an_index_out_of_range_is_refused_and_changes_nothing(book: PythonNotebook, index: int):
    await shown(book, "x = 1")
    told = await failed(book, "x = 2", cell_index=index, reset=True)
    assert told == f"cell_index {index} is out of range: the notebook has 1 cells"
    assert await shown(book, "x") == ["1"]


async def test_a_reset_forgets_variables_and_keeps_cells_and_files(book: PythonNotebook):
    await shown(book, "x = 1\nwith open('f', 'w') as file: file.write('kept')")
    assert "NameError" in await failed(book, "x", reset=True)
    assert await shown(book, "open('f').read(), In[1]") == ["('kept', 'x')"]
    assert (await book.print_notebook()).startswith("= Cell 0 =\nx = 1\n")


async def test_a_notebook_that_is_full_says_what_to_do(book: PythonNotebook, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(notebook_file, "MOST", 4000)
    for _ in range(4):
        await shown(book, "print('x' * 1000)")
    printed = await book.print_notebook()
    assert printed.startswith(
        "= Cell 0 =\nprint('x' * 1000)\n= Output 0 =\n[the output is left out: the notebook is too large]\n\n= Cell 1"
    )
    assert printed.endswith("x" * 1000 + "\n\n")
    assert (await failed(book, "#" * 2000)).startswith("the notebook is full: replace a cell")
    assert await shown(book, "print(1)", cell_index=0) == ["1\n"]


# The file.


async def test_the_notebook_is_a_valid_file_of_the_workspace_with_everything_that_was_shown(book: PythonNotebook):
    code = "import sys, matplotlib.pyplot as plt\nprint(1)\nprint(2, file=sys.stderr)\nplt.plot([1, 2]);"
    await shown(book, code)
    await shown(book, "import pandas\npandas.DataFrame({'a': [1]})")
    await failed(book, "1/0")
    saved = nbformat.reads((await (await book.sandbox()).read(FILE)).decode(), as_version=nbformat.NO_CONVERT)
    nbformat.validate(saved)
    first, second, third = saved.cells
    assert (first.source, first.execution_count) == (code, 1)
    assert [(output.output_type, output.get("name")) for output in first.outputs] == [
        ("stream", "stdout"), ("stream", "stderr"), ("display_data", None),
    ]  # fmt: skip
    assert is_drawn(Image.open(io.BytesIO(base64.b64decode(first.outputs[2].data["image/png"]))))
    assert sorted(second.outputs[0].data) == ["text/html", "text/plain"]
    assert (third.outputs[0].ename, third.outputs[0].evalue) == ("ZeroDivisionError", "division by zero")


async def test_a_notebook_goes_on_where_its_file_ended(provider: Provider, book: PythonNotebook):
    await shown(book, "import matplotlib.pyplot as plt\nplt.plot([1]);\nprint('é')")
    await failed(book, "1/0")
    printed = await book.print_notebook()
    async with opened(provider, file=await (await book.sandbox()).read(FILE)) as later:
        assert await later.print_notebook() == printed
        assert (await later.execute_cell("1")).blocks[0].text == "cell_index: 2"
        assert "NameError" in await failed(later, "plt", cell_index=0)
        saved = nbformat.reads((await (await later.sandbox()).read(FILE)).decode(), as_version=4)
    nbformat.validate(saved)
    assert len(saved.cells) == 3


async def test_a_notebook_that_somebody_else_wrote_is_taken_over(provider: Provider):
    other = nbformat.v4.new_notebook(metadata={"mine": 1})
    other.cells = [
        nbformat.v4.new_markdown_cell("# Title"),
        nbformat.v4.new_code_cell("1\n2", outputs=[nbformat.v4.new_output("execute_result", {"text/plain": "2\n3"})]),
    ]
    async with opened(provider, file=nbformat.writes(other).encode()) as book:
        assert await book.print_notebook() == "= Cell 0 =\n# Title\n= Cell 1 =\n1\n2\n= Output 1 =\n2\n3\n"
        assert await shown(book, "3", cell_index=0) == ["3"]


def cells(*some: object) -> bytes:
    return json.dumps({"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": some}).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no JSON",
        b"\xff\xfe",
        b"[]",
        b'{"nbformat": 3, "worksheets": []}',
        b'{"nbformat": 4}',
        b'{"nbformat": 4, "cells": "all"}',
        b"[" * 100_000,
        cells(1),
        cells({}),
        cells({"cell_type": "code", "source": 1, "outputs": [], "execution_count": None}),
        cells({"cell_type": "code", "source": [1], "outputs": [], "execution_count": None}),
        cells({"cell_type": "code", "source": "", "outputs": {}, "execution_count": None}),
        cells({"cell_type": "code", "source": "", "outputs": [[]], "execution_count": None}),
        cells({"cell_type": "code", "source": "", "outputs": [], "execution_count": "one"}),
        cells({"cell_type": "code", "source": "\ud800", "outputs": [], "execution_count": None}),
        cells({"cell_type": "other", "source": ""}),
        cells({"cell_type": "code", "source": "", "outputs": [{"output_type": "stream"}], "execution_count": 1}),
        cells({"cell_type": "code", "source": "", "outputs": [{"output_type": "error"}], "execution_count": 1}),
        cells(*[{"cell_type": "raw", "source": ""}] * 2001),
        cells({"cell_type": "code", "source": "", "outputs": [{}] * 1001, "execution_count": None}),
        cells(*[{"outputs": [{}] * 1000}] * 101),
        cells(*[[]] * 2_000_000),
        b" " * (notebook_file.FILE_MOST + 1),
    ],
)  # fmt: skip
async def test_a_file_that_is_no_notebook_is_told_of_once_and_harms_nothing(provider: Provider, data: bytes):
    async with opened(provider, file=data) as book:
        assert f"[{FILE} cannot be read, so this is a new notebook: " in await book.print_notebook()
        first, told = await shown(book, "1")
        assert (first, told[: len(FILE) + 1]) == ("1", f"[{FILE}")
        assert await shown(book, "2") == ["2"]
        assert await book.print_notebook() == "= Cell 0 =\n1\n= Output 0 =\n1\n= Cell 1 =\n2\n= Output 1 =\n2\n"


@pytest.mark.parametrize(
    "hindrance",
    ["os.mkdir(name)", "os.symlink('/etc/passwd', name)", "os.symlink(name, name)", "os.mkfifo(name)"],
)
async def test_a_notebook_that_cannot_be_saved_still_answers(book: PythonNotebook, hindrance: str):
    answer, told = await shown(book, f"import os\nname = '{FILE}'\n{hindrance}\n1")
    assert (answer, told[:31]) == ("1", "[the notebook cannot be saved: ")
    await shown(book, "os.rmdir(name) if os.path.isdir(name) else os.remove(name)")
    assert await shown(book, "os.path.getsize(name) > 0") == ["True"]


# With fewer packages.


async def test_on_a_backend_without_templates_a_notebook_is_the_same():
    async with Provider("subprocess", "L0") as provider, opened(provider) as book:
        assert await shown(book, "print(1)\n2, len(In)") == ["1\n", "(2, 2)"]
        named, figure = await shown(book, "import matplotlib.pyplot as plt\nplt.plot([1, 2]);")
        assert (named, is_drawn(figure)) == (FIGURE, True)
        assert "Cell In[3], line 1" in await failed(book, "1/0")
        assert await shown(book, "import os\nsorted(os.listdir())") == [f"['{FILE}']"]
        assert "NameError" in await failed(book, "plt", reset=True)


async def test_without_matplotlib_there_is_a_notebook_all_the_same():
    libraries = {name: file for name, file in own().libraries.items() if name != "matplotlib"}
    backend = NativeBackend(templates=1, view=View(replace(own(), libraries=libraries)))
    await backend.start()
    try:
        async with await backend.open(profile="notebook") as sandbox:
            ran = await notebook.run_cell(sandbox, "import sys\n'matplotlib' in sys.modules", 10)
    finally:
        await backend.close()
    assert [output.data for output in ran.outputs] == [{"text/plain": "False"}]


def test_matplotlib_is_left_to_the_sandbox_where_it_lies_in_another_place_there():
    code = f"place = '/opt'.__add__\n{profiles._FIGURE_WARM}\nimport sys\nprint('matplotlib' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "False\n"


def test_without_its_packages_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    assert PythonNotebook.missing() == ""
    monkeypatch.setitem(sys.modules, "nbformat", None)  # as if it were missing
    assert PythonNotebook.missing() == "nbformat is not installed: pip install 'toolyard[notebook]'"
    with using(replace(own(), libraries={})):
        assert PythonNotebook.missing() == "ipython and nbformat are not installed: pip install 'toolyard[notebook]'"


def test_what_runs_inside_can_be_loaded_without_ipython():
    code = (
        f"import sys\nsys.modules['IPython'] = None\nexec(compile(open({cell_runner.__file__!r}).read(), 'f', 'exec'))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


async def test_a_cell_that_breaks_its_ipython_for_good_is_the_agent_s_failure_and_not_lost(provider: Provider) -> None:
    breaking = "vars(get_ipython()).pop('run_cell')\ncompile = 1"
    async with opened(provider) as book:
        await book.execute_cell(breaking)
        for _ in range(2):
            with pytest.raises(ToolError, match="IPython cannot be used as it is here: TypeError"):
                await book.execute_cell("1 + 1")
