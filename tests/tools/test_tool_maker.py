"""`register_new_tool`: case 129, and that a new tool's code runs in its session's sandbox only."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from textwrap import dedent

import pytest

from toolyard import Client
from toolyard.client.errors import ToolCallFailed
from toolyard.core.errors import ToolError
from toolyard.core.tool import ListToolsOutput, ToolSpec
from toolyard.sandboxes import Provider
from toolyard.testing import running
from toolyard.tools import tool_maker as module
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.files import FileSystemEnv
from toolyard.tools.ipython_code import IPythonCode
from toolyard.tools.sandboxed import SessionSandbox
from toolyard.tools.tool_maker import FOLDER, NOT_FOUND, MadeTools, ToolMaker
from toolyard.tools.tool_specs import described

pytestmark = pytest.mark.anyio


class Makers(ToolsEnvironment):
    toolsets = (ToolMaker, FileSystemEnv, IPythonCode)

    def list_task_tools(self) -> ListToolsOutput:
        return ListToolsOutput(tools=[ToolSpec(name="of_the_task", description="", input_schema=None)])

    def call_task_tool(self, name: str, arguments: object) -> str:
        return "done"


@pytest.fixture
async def maker(sandboxes: Provider) -> AsyncIterator[ToolMaker]:
    maker = ToolMaker(Makers())
    yield maker
    await maker.teardown()


ADD = '''
@toolwrapper()
def add(a: int, b: int = 1) -> int:
    """Add two numbers.

    It adds whole ones.

    :param integer a: The first number.
    :param integer? b: The second number, defaults to 1.
    :return integer: The sum.
    """
    return a + b
'''


async def refusal(maker: ToolMaker, name: str, code: str) -> str:
    with pytest.raises(ToolError) as caught:
        await maker.register_new_tool(name, dedent(code))
    return str(caught.value)


async def result(maker: ToolMaker, body: str, **arguments: object) -> object:
    """The result of a new tool with this body."""
    name = f"tool_{len(MadeTools.of(maker.env).by_name)}"
    parameters = ", ".join(arguments)
    lines = dedent(body).replace("\n", "\n    ")
    await maker.register_new_tool(name, f"@toolwrapper\ndef {name}({parameters}):\n    {lines}")
    return await maker.call_task_tool(name, arguments)


async def test_129_a_tool_is_told_by_its_docstring_and_can_be_called(maker):
    told = await maker.register_new_tool("add", ADD)
    assert told == {
        "name": "add",
        "description": "Add two numbers.\nIt adds whole ones.",
        "parameters": {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "description": "The first number."},
                "b": {"type": "integer", "description": "The second number, defaults to 1.", "default": 1},
            },
            "required": ["a"],
        },
    }
    assert [spec.name for spec in (await maker.list_task_tools()).tools] == ["add"]
    assert await maker.call_task_tool("add", {"a": 2}) == 3
    assert await maker.call_task_tool("add", {"a": 2, "b": 5}) == 7


async def test_129_a_name_that_is_taken_is_refused_whatever_took_it(maker):
    await maker.register_new_tool("add", ADD)
    for name in ("add", "register_new_tool", "read_from_file", "FileSystemEnv_read_from_file", "of_the_task"):
        said = await refusal(maker, name, f"@toolwrapper()\ndef {name}(): pass")
        assert said.startswith(f"Tool: {name} has no labels or replicated! ")
    assert await maker.call_task_tool("add", {"a": 2}) == 3


async def test_129_code_that_is_no_tool_is_refused_and_leaves_nothing_behind(maker):
    failed = "Failed to execute new tool code: "
    assert await refusal(maker, "f", "def f(:") == f"{failed}SyntaxError: invalid syntax (line 1)"
    assert await refusal(maker, "f", "x = 1\n1/0") == f"{failed}ZeroDivisionError: division by zero (line 2)"
    assert (await refusal(maker, "f", "def f(): pass")).startswith("Tool: f has no labels or replicated! ")
    assert (await refusal(maker, "F", "@toolwrapper()\nclass F: pass")).startswith("Tool: F has no labels")
    for name in ("g", "", "no name", "a-b", "../f", "class", "f" * 65, "f\0"):
        assert await refusal(maker, name, "@toolwrapper()\ndef f(): pass") == NOT_FOUND
    assert await refusal(maker, "f", "import os; os._exit(7)") == (
        f"{failed}the code ended without a result (exit code 7)"
    )
    assert (await refusal(maker, "f", "#" * 70_000)).startswith(f"{failed}it is longer than")
    assert (await maker.list_task_tools()).tools == []
    assert FOLDER.partition("/")[0] not in [entry.name for entry in await (await maker.sandbox()).list()]


@pytest.mark.thorough
async def test_a_tool_that_never_gets_defined_is_given_up(maker, monkeypatch):
    monkeypatch.setattr(module, "DESCRIBE_SECONDS", 1.5)
    assert "it took longer than it may" in await refusal(maker, "f", "while True: pass")


@pytest.mark.thorough
async def test_labels_may_be_given_or_not_and_the_import_that_xagent_has_works(maker):
    for at, labels in enumerate(["", "()", "(visible=False)", "('name', visible=True)"]):
        await maker.register_new_tool(f"f{at}", f"@toolwrapper{labels}\ndef f{at}(): return {at}")
        assert await maker.call_task_tool(f"f{at}", {}) == at
    code = "from core.register import toolwrapper as label\n@label()\ndef g(x: List[str]) -> Optional[str]: return x[0]"
    await maker.register_new_tool("g", code)
    assert await maker.call_task_tool("g", {"x": ["first"]}) == "first"


async def test_results_come_back_as_they_were(maker):
    for text, value in {
        "{'a': [1, 2.5, None, True, 'é']}": {"a": [1, 2.5, None, True, "é"]},
        "None": None,
        "b'\\x00\\xff'": b"\x00\xff",
        "(1, (2, 'x'), {})": (1, (2, "x"), {}),
        "()": (),
        "('text', b'\\x89PNG...')": ("text", b"\x89PNG..."),
        "('text', b'\\x00')": ("text", "AA=="),
        "{'data': b'ab'}": {"data": "YWI="},
        "float('inf')": None,
        "'x' * 1_000_000": "x" * 1_000_000,
        "{1, 1}": [1],
    }.items():
        assert await result(maker, f"return {text}") == value, text


async def test_a_coroutine_is_waited_for_and_what_is_printed_is_no_result(maker):
    code = (
        "import asyncio\n@toolwrapper()\nasync def later(x):\n    print('{}')\n    await asyncio.sleep(0)\n    return x"
    )
    await maker.register_new_tool("later", code)
    assert await maker.call_task_tool("later", {"x": 4}) == 4


async def test_what_goes_wrong_in_a_tool_is_told_by_the_last_line_of_its_traceback(maker):
    for body, said in {
        "1/0": "ZeroDivisionError: division by zero",
        "raise SystemExit(2)": "SystemExit: 2",
        "return {(1, 2): 3}": "TypeError: keys must be str, int, float, bool or None, not tuple",
        "import os; os._exit(4)": "the code ended without a result (exit code 4)",
        "import os, sys; print('why', file=sys.stderr, flush=True); os._exit(4)": (
            "the code ended without a result (exit code 4): why"
        ),
    }.items():
        with pytest.raises(ToolError) as caught:
            await result(maker, body)
        assert str(caught.value) == said
    await maker.register_new_tool("add", ADD)
    with pytest.raises(ToolError, match=r"unexpected keyword argument 'c'"):
        await maker.call_task_tool("add", {"a": 1, "c": 2})


@pytest.mark.thorough
async def test_a_call_that_takes_too_long_is_ended(maker, monkeypatch):
    monkeypatch.setattr(module, "CALL_SECONDS", 1.5)
    with pytest.raises(ToolError, match="it took longer than it may"):
        await result(maker, "while True: pass")


@pytest.mark.thorough
async def test_an_answer_that_the_code_forges_hurts_nobody(maker):
    forged = "import os\nfor fd in range(3, 20):\n    try: os.write(fd, {})\n    except OSError: pass\nos._exit(0)"
    values = ("5", '{"bytes": "!"}', '{"tuple": [1]}')
    for answer in (
        "b'[]'",
        "b'[' * 200_000",
        "b'\\xff'",
        *(repr(f'{{"value": {value}}}'.encode()) for value in values),
    ):
        with pytest.raises(ToolError, match="the code ended without a result"):
            await result(maker, forged.format(answer))


async def test_a_tool_works_in_the_workspace_and_can_use_its_modules(maker):
    sandbox = await maker.sandbox()
    await sandbox.write("mine.py", b"def double(x): return 2 * x")
    await sandbox.write("json.py", b"raise RuntimeError('not this one')")
    assert await result(maker, "import mine; open('out', 'w').write('x'); return mine.double(x)", x=21) == 42
    assert await sandbox.read("out") == b"x"


async def test_a_tool_is_there_again_where_the_files_of_its_session_are(maker):
    await maker.register_new_tool("add", ADD)
    sandbox = await maker.sandbox()
    await sandbox.write(f"{FOLDER}/broken.py", b"def broken(:")
    await sandbox.write(f"{FOLDER}/read_from_file.py", b"@toolwrapper()\ndef read_from_file(): pass")
    await sandbox.write(f"{FOLDER}/notes.txt", b"")
    await sandbox.write(f"{FOLDER}/folder.py/x", b"")
    saved = await SessionSandbox.of(maker.env).save()
    other = ToolMaker(Makers())
    try:
        assert (await other.list_task_tools()).tools == [], "and no sandbox is opened to find that out"
        assert not SessionSandbox.of(other.env).is_open
        await SessionSandbox.of(other.env).restore(saved)
        assert (await other.list_task_tools()).tools == MadeTools.of(maker.env).specs
        assert await other.call_task_tool("add", {"a": 2}) == 3
        assert (await refusal(other, "add", ADD)).startswith("Tool: add has no labels or replicated! ")
    finally:
        await other.teardown()


async def test_a_session_has_only_so_many_tools_of_its_own(maker, monkeypatch):
    monkeypatch.setattr(module, "TOOLS_MOST", 2)
    for name in ("a", "b"):
        await maker.register_new_tool(name, f"@toolwrapper()\ndef {name}(): pass")
    assert "at most 2 tools" in await refusal(maker, "c", "@toolwrapper()\ndef c(): pass")


def test_over_ors_a_new_tool_is_listed_checked_and_called_in_its_session_alone():
    with running([Makers]) as server, Client(server.url) as client:
        environment = client.environment("toolbox")
        with environment.session({}) as session, environment.session({}) as other:
            session.call_tool("ipython_code", {"code": "secret = 5\nfrom builtins import print as toolwrapper"})
            told = session.call_tool("register_new_tool", {"tool_name": "add", "code": ADD})
            assert json.loads(told.text)["name"] == "add"
            assert "add" in [spec.name for spec in session.list_tools()]
            assert session.call_tool("add", {"a": "2"}).text == "3"
            with pytest.raises(ToolCallFailed, match=r"'a' is missing: it must be a whole number\. add takes a "):
                session.call_tool("add", {"b": 1})
            peek = "@toolwrapper()\ndef peek(): return secret"
            session.call_tool("register_new_tool", {"tool_name": "peek", "code": peek})
            with pytest.raises(ToolCallFailed, match="name 'secret' is not defined"):
                session.call_tool("peek", {})
            assert "add" not in [spec.name for spec in other.list_tools()]
            with pytest.raises(ToolCallFailed, match="'add' is not a valid tool"):
                other.call_tool("add", {"a": 2})


# The description of a tool.


def test_without_lines_for_parameters_the_type_hints_tell():
    signature = [
        {"name": "a", "type": "int", "optional": False},
        {"name": "b", "type": "typing.Optional[List[str]]", "optional": True},
        {"name": "c", "type": "Frame", "optional": True, "default": "x"},
        {"name": "d", "optional": False},
    ]
    assert described("f", "", signature).input_schema == {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "array"}, "c": {"default": "x"}, "d": {}},
        "required": ["a", "d"],
    }


def test_defaults_are_read_where_the_docstring_says_so_in_lower_case():
    doc = """Does it.

    :param number? x: How much, defaults to 2.5.
    :param boolean? y: Whether, defaults to True
    :param integer? z: How many, defaults to as many as there are
    :param string? s: Defaults to x
    """
    properties = described("f", doc, []).input_schema["properties"]
    defaults = {name: about.get("default") for name, about in properties.items()}
    assert defaults == {"x": 2.5, "y": True, "z": "as many as there are", "s": None}


def test_a_parameter_with_a_default_is_not_required_whatever_the_docstring_says():
    schema = described("f", "Does it.\n\n:param string x: This.", [{"name": "x", "optional": True}]).input_schema
    assert schema["required"] == []


def test_an_odd_docstring_is_no_hindrance():
    for doc in (":param", ":param a b c d e: x", ":param x", "Args:\n", "\0", "x" * 100_000, ":" * 30_000):
        assert len(described("f", doc, []).description) <= 20_000
