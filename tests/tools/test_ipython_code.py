"""`ipython_code`: case 97, and an interpreter that lives as long as its trajectory."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace

import pytest

from tests.wires.verl_wire import Trainer
from tests.wires.wire import until
from toolyard import Client
from toolyard.core.errors import ToolError
from toolyard.sandboxes import Provider
from toolyard.sandboxes.installation import own, using
from toolyard.testing import Running, running
from toolyard.tools import ipython_code
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.ipython_code import CellForm, IPythonCode

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], tools="ipython_code,bash_terminal") as server:
        yield server


@pytest.fixture
async def trainer(server: Running) -> AsyncIterator[Trainer]:
    async with Trainer(server.url) as trainer:
        yield trainer


@pytest.fixture
async def trajectory(trainer: Trainer, request: pytest.FixtureRequest) -> AsyncIterator[str]:
    yield request.node.name
    await trainer.finish(request.node.name)


async def cell(trainer: Trainer, trajectory: str, code: str, *, ok: bool = True, late: bool = False) -> str:
    seen = await trainer.act(trajectory, f"<python>{code}</python>")
    assert (seen.done, seen.valid) == (False, True)
    metrics = {"code_success": ok, "code_lines": code.strip().count("\n") + 1}
    assert seen.observation == {"obs": seen.text, "metrics": metrics, "timeout": late}
    assert seen.text.startswith("\n<output>\n")
    assert seen.text.endswith("\n</output>\n")
    return seen.text.removeprefix("\n<output>\n").removesuffix("\n</output>\n")


# The form of calls and results.


def called(name: str, **arguments: object) -> str:
    return "<tool_call>" + json.dumps({"name": name, "arguments": arguments}) + "</tool_call>"


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("<python>a</python>..<python> b </python>", "a\nb"),
        ("<python></python>", ""),
        ("```python\na\n```", "a"),
        ("```py\na\n```", None),
        (called("python", code=" a "), "a"),
        ("<python>b</python>" + called("python", code="a"), "b"),
        (called("python", code=" "), None),
        (called("python", code=1), None),
        (called("other", code="a"), None),
        (called("other", code="a") + called("python", code="b"), None),
        ("<tool_call>no JSON</tool_call>", None),
        ("plain", None),
    ],
)
def test_code_is_found_in_tags_or_else_in_fences_or_else_in_a_call(text, code):
    assert CellForm().read(text) == (None if code is None else {"code": code})


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("```python\na\n```\n```output", "\nR\n```\n"),
        (called("python", code="a"), "R"),
        ("<python>a</python>\n<output>", "\nR\n</output>\n"),
        ("<python>a</python>", "\n<output>\nR\n</output>\n"),
        ("<python>a</python> and then", "\n<output>\nR\n</output>\n"),
        ("<python>a</python>\n```output", "\nR\n```\n"),
        ("```python\na\n```<|calling system for feedback|>", "\n```output\nR\n```\n"),
        ("<python>a<|calling system for feedback|>", "\n<output>\nR\n</output>\n"),
        ("a<|calling system for feedback|>", "\nR\n"),
        ("```python\na\n```", "\n```output\nR\n```\n"),
        ("```python\na\n``` \n", "\n```output\nR\n```\n"),
        ("```python\na\n```\n```", "output\nR\n```\n"),
        ("a", "\nR\n"),
        ("a```", "output\nR\n```\n"),
    ],
)
def test_the_result_is_wrapped_as_the_text_asks(text, answer):
    assert CellForm().answer(text, "R") == answer


# The interpreter.


async def test_97_variables_are_kept_and_the_last_value_is_shown(trainer, trajectory):
    assert await cell(trainer, trajectory, "x=41") == "Script executed successfully (no output)"
    assert await cell(trainer, trajectory, "x+1") == "Out[2]: 42"
    assert await cell(trainer, trajectory, "print('a')\nOut[2] + _") == "a\nOut[3]: 84"
    assert await cell(trainer, trajectory, "In[1:3]") == "Out[4]: ['x=41', 'x+1']"


async def test_functions_imports_and_files_are_kept_and_magics_work(trainer, trajectory):
    await cell(trainer, trajectory, "import os\ndef f():\n    return os.getcwd()")
    assert await cell(trainer, trajectory, "f()") == "Out[2]: '/home/work'"
    assert await cell(trainer, trajectory, "!echo from a shell") == "from a shell"
    assert await cell(trainer, trajectory, "%mkdir d\n%cd -q d\n%pwd") == "Out[4]: '/home/work/d'"
    assert await cell(trainer, trajectory, "import asyncio\nawait asyncio.sleep(0, 'awaited')") == "Out[5]: 'awaited'"


async def test_a_value_of_several_lines_begins_on_its_own(trainer, trajectory):
    shown = await cell(trainer, trajectory, "{'a' * 40: 1, 'b' * 40: 2}")
    assert shown == f"Out[1]: \n{{{'a' * 40!r}: 1,\n {'b' * 40!r}: 2}}"


async def test_errors_are_told_as_ipython_tells_them_and_cost_no_state(trainer, trajectory):
    await cell(trainer, trajectory, "x = 1")
    assert await cell(trainer, trajectory, "print('a')\n1/0", ok=False) == (
        "a\n"
        "Traceback (most recent call last)\n"
        "Cell In[2], line 2\n"
        "      1 print('a')\n"
        "----> 2 1/0\n"
        "\n"
        "ZeroDivisionError: division by zero"
    )
    assert "SyntaxError" in await cell(trainer, trajectory, "def f(:", ok=False)
    assert await cell(trainer, trajectory, "exit()", ok=False)
    assert await cell(trainer, trajectory, "x") == "Out[5]: 1"


async def test_an_error_that_cannot_be_shown_is_told_all_the_same(trainer, trajectory):
    await cell(trainer, trajectory, "get_ipython().showtraceback = None")
    assert "ZeroDivisionError: division by zero" in await cell(trainer, trajectory, "1/0", ok=False)


async def test_standard_error_comes_after_the_output(trainer, trajectory):
    code = "import sys\nprint('o')\nprint('e', file=sys.stderr)"
    assert await cell(trainer, trajectory, code) == "o\n\nWarnings: e"
    failed = await cell(trainer, trajectory, f"{code}\n1/0", ok=False)
    assert failed.startswith("o\nTraceback (most recent call last)")
    assert failed.endswith("ZeroDivisionError: division by zero\nStderr: e")
    assert await cell(trainer, trajectory, "print('e', file=sys.stderr)") == "Warnings: e"


async def test_a_cell_that_takes_too_long_is_stopped_and_variables_survive(trainer, trajectory, monkeypatch):
    assert ipython_code.SECONDS == 10
    monkeypatch.setattr(ipython_code, "SECONDS", 2)
    await cell(trainer, trajectory, "x = 1")
    began = time.monotonic()
    code = "import time\nx = 2\nprint('a')\ntime.sleep(30)"
    told = await cell(trainer, trajectory, code, ok=False, late=True)
    assert told == "Execution time out after 2 seconds"
    assert 1.9 < time.monotonic() - began < 5
    assert await cell(trainer, trajectory, "x") == "Out[3]: 2"


async def test_an_interpreter_that_ends_is_told_and_files_survive(trainer, trajectory):
    await cell(trainer, trajectory, "x = 1; _ = open('f', 'w').write('kept')")
    told = await cell(trainer, trajectory, "import os\nprint('last words', flush=True)\nos._exit(3)", ok=False)
    assert told == (
        "last words\nThe interpreter ended with code 3.\n"
        "[the interpreter starts afresh: variables are gone, files are kept]"
    )
    assert "NameError" in await cell(trainer, trajectory, "x", ok=False)
    assert await cell(trainer, trajectory, "open('f').read()") == "Out[2]: 'kept'"


async def test_too_much_memory_is_told(trainer, trajectory):
    told = await cell(trainer, trajectory, "x = [b'x' * (10**7 + n) for n in range(200)]", ok=False)
    assert "it needed more memory than it may" in told or "MemoryError" in told


async def test_what_models_also_write(trainer, trajectory):
    assert await cell(trainer, trajectory, "", ok=False) == "Error: script must be a non-empty string"
    assert await cell(trainer, trajectory, "print('a' * 200_000)") == "a" * 102_400
    assert await cell(trainer, trajectory, "print('a\\0b é')") == "a\0b é"
    assert await cell(trainer, trajectory, "x = 1\r\nx + 1") == "Out[3]: 2"
    assert "EOFError" in await cell(trainer, trajectory, "input()", ok=False)


async def test_on_a_backend_without_templates_an_interpreter_is_the_same():
    with running([], tools="ipython_code", sandbox="subprocess", min_isolation="L0") as server:
        async with Trainer(server.url) as trainer:
            await cell(trainer, "t", "x = 41")
            assert await cell(trainer, "t", "x + 1") == "Out[2]: 42"
            assert (await cell(trainer, "t", "1/0", ok=False)).startswith(
                "Traceback (most recent call last)\nCell In[3]"
            )


async def test_many_trajectories_at_once_have_their_own_variables(trainer):
    names = [f"many {n}" for n in range(16)]
    for code, shown in [("x = {}", None), ("x += 1", None), ("x", "Out[3]: {}")]:
        seen = await trainer.batch(names, [f"<python>{code.format(n)}</python>" for n in range(16)])
        for n, one in enumerate(seen):
            assert shown is None or one.text == f"\n<output>\n{shown.format(n + 1)}\n</output>\n"
    await trainer.finish(*names)


async def test_finish_and_the_last_step_free_the_state(trainer, server):
    sessions = server.server.runtime.sessions
    for end in ("finish", "is_last_step"):
        await cell(trainer, end, "x = 1")
        assert f"verl:{end}" in sessions
        if end == "finish":
            await trainer.finish(end)
        else:
            last = await trainer.act(end, "<python>x</python>", is_last_step=[True])
            assert last.text == "\n<output>\nOut[2]: 1\n</output>\n"
        assert f"verl:{end}" not in sessions
        assert "NameError" in await cell(trainer, end, "x", ok=False)
        await trainer.finish(end)
    await until(lambda: not sessions)


async def test_it_shares_its_workspace_with_the_shell_of_the_trajectory(trainer, trajectory):
    await cell(trainer, trajectory, "_ = open('f', 'w').write('from Python')")
    assert "\nfrom Python\n" in (await trainer.act(trajectory, "<bash>cat f</bash>")).text


async def test_it_can_be_called_as_json_by_both_of_its_names(trainer, trajectory):
    assert (await trainer.act(trajectory, called("python", code="1 + 1"))).text == "Out[1]: 2"
    assert (await trainer.act(trajectory, called("ipython_code", code="1 + 2"))).text == "Out[2]: 3"


def test_over_ors_it_is_a_tool_like_any_other(server):
    with Client(server.url) as client, client.environment("toolbox").session({}) as session:
        spec = next(spec for spec in session.list_tools() if spec.name == "ipython_code")
        assert list(spec.input_schema["properties"]) == ["code"]
        session.call_tool("ipython_code", {"code": "x = 41"})
        output = session.call_tool("ipython_code", {"code": "x + 1"})
        assert output.blocks[0].text == "Out[2]: 42"
        assert output.metadata["metrics"] == {"code_success": True, "code_lines": 1}


async def test_cells_of_one_session_run_one_after_the_other(server):
    async with Trainer(server.url) as wire:
        sid = await wire.open(env_name="toolbox")
        await wire.call(sid, "ipython_code", {"code": "import time; n = 0"}, env="toolbox")
        code = "m = n; time.sleep(0.05); n = m + 1"
        await asyncio.gather(*[wire.call(sid, "ipython_code", {"code": code}, env="toolbox") for _ in range(5)])
        assert (await wire.call(sid, "ipython_code", {"code": "n"}, env="toolbox")).text == "Out[7]: 5"
        await wire.end(sid)


def test_without_ipython_it_says_what_to_install():
    assert IPythonCode.missing() == ""
    with using(replace(own(), libraries={})):
        assert IPythonCode.missing() == "ipython is not installed: pip install 'toolyard[ipython]'"
    with using(replace(own(), libraries={}, executable="/srv/python")):
        assert IPythonCode.missing() == "ipython is not installed: /srv/python -m pip install ipython"


class Cells(ToolsEnvironment):
    toolsets = (IPythonCode,)


async def test_code_that_breaks_its_ipython_before_a_call_is_given_up_has_failed_and_is_not_lost(anyio_backend) -> None:
    async with Provider() as provider:
        token = provider.enter()
        tool = IPythonCode(Cells())
        try:
            await tool.ipython_code("get_ipython = None")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await tool.ipython_code("while True: pass")
            with pytest.raises(ToolError, match="IPython cannot be used as it is here"):
                await tool.ipython_code("1 + 1")
        finally:
            await tool.teardown()
            token.var.reset(token)
