"""`run_interpreter`: case 135, and file names and commands that are not what they seem."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolyard.core.errors import ToolError
from toolyard.sandboxes import Provider
from toolyard.tools import run_interpreter as module
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.run_interpreter import CodeInterpreter

pytestmark = pytest.mark.anyio


class Interpreters(ToolsEnvironment):
    toolsets = (CodeInterpreter,)


@pytest.fixture
async def interpreter(sandboxes: Provider) -> AsyncIterator[CodeInterpreter]:
    toolset = CodeInterpreter(Interpreters())
    yield toolset
    await toolset.teardown()


async def test_135_new_code_replaces_the_old(interpreter):
    assert await interpreter.run_interpreter("print(1)\nprint(2)") == {"ReturnCode": 0, "Output": "1\n2\n"}
    assert await interpreter.run_interpreter("print(3)") == {"ReturnCode": 0, "Output": "3\n"}
    assert await (await interpreter.sandbox()).read("code.py") == b"print(3)"


async def test_without_code_the_file_is_run_as_it_is(interpreter):
    await interpreter.run_interpreter("print('again')")
    assert await interpreter.run_interpreter() == {"ReturnCode": 0, "Output": "again\n"}
    assert (await interpreter.run_interpreter(filename="none.py"))["ReturnCode"] == 2


async def test_a_program_that_fails_is_a_result_with_its_errors(interpreter):
    told = await interpreter.run_interpreter("print('o')\n1/0")
    assert (told["ReturnCode"], told["Output"]) == (1, "o\n")
    assert told["Error"].endswith("ZeroDivisionError: division by zero\n")
    assert await interpreter.run_interpreter("import sys; sys.exit(5)") == {"ReturnCode": 5}


async def test_any_command_can_run_the_file_wherever_it_is(interpreter):
    told = await interpreter.run_interpreter("echo $0 $1", "sh {filename} one; cat {filename}", "some where/a b.sh")
    assert told == {"ReturnCode": 0, "Output": "some where/a b.sh one\necho $0 $1"}
    assert await interpreter.run_interpreter("x", "echo {filename} {other}", "a") == {
        "ReturnCode": 0,
        "Output": "a {other}\n",
    }


async def test_a_file_name_is_never_read_as_a_command(interpreter):
    names = ["$(touch pwned).py", "'\"`touch pwned`.py", "-c.py", "a;touch pwned.py"]
    for name in names:
        assert await interpreter.run_interpreter("print('ran')", filename=name) == {"ReturnCode": 0, "Output": "ran\n"}
    assert sorted(entry.name for entry in await (await interpreter.sandbox()).list()) == sorted(names)


async def test_a_file_that_cannot_be_written_is_refused(interpreter):
    for name in ("../out.py", "/etc/out.py", "", ".", "a\0b", "x" * 5000):
        with pytest.raises(ToolError, match=r"^File .* cannot be written: "):
            await interpreter.run_interpreter("print(1)", filename=name)


async def test_a_command_that_cannot_be_run_is_a_result(interpreter):
    for command in ("no-such-program", "a\0b", "true " + "x" * 200_000):
        told = await interpreter.run_interpreter("print(1)", command)
        assert told["ReturnCode"] != 0
        assert told["Error"]
    assert await interpreter.run_interpreter("print(1)", "") == {"ReturnCode": 0}


async def test_a_program_that_takes_too_long_is_ended_and_what_it_said_is_told(interpreter, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1.5)
    told = await interpreter.run_interpreter("import time\nprint('begun', flush=True)\ntime.sleep(60)")
    assert told["Output"] == "begun\n"
    assert told["ReturnCode"] != 0
    assert told["Error"].startswith("[stopped after 1.")
