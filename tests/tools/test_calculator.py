"""`calculator`: case 134, and that an expression is untrusted code."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from toolyard import Client
from toolyard.core.output import ValueOutput, as_output
from toolyard.sandboxes import Provider
from toolyard.testing import running
from toolyard.tools import calculator as module
from toolyard.tools.calculator import DONE, Calculator
from toolyard.tools.environment import ToolsEnvironment
from toolyard.tools.ipython_code import IPythonCode

pytestmark = pytest.mark.anyio


class Calculators(ToolsEnvironment):
    toolsets = (Calculator, IPythonCode)


@pytest.fixture
async def calculator(sandboxes: Provider) -> AsyncIterator[Calculator]:
    toolset = Calculator(Calculators())
    yield toolset
    await toolset.teardown()


VALUES = {
    "1+2": 3,
    " 2 ** 0.5 ": 2**0.5,
    "floor(pi) + math.gcd(4, 6)": 5,
    "10 // 3 == 3": True,
    "2 ** 100": 2**100,
    "[n * n for n in range(4)]": [0, 1, 4, 9],
    "{'a': (1, None)}": {"a": [1, None]},
    "'é' * 2": "éé",
    "(1, 'b')": (1, "b"),
    "b'\\x00\\xff'": b"\x00\xff",
    "1 + 2j": "(1+2j)",
    "None": None,
    "float('nan')": None,
    "{3}": [3],
    "print('{\"value\": 1}') or 7": 7,
    "x = 5": DONE,
    "x = 5\nprint(x)": DONE,
    "": DONE,
    "1/0": "Error: division by zero",
    "x": "Error: name 'x' is not defined",
    "y = x": "Error: name 'x' is not defined",
    "raise SystemExit(3)": "Error: 3",
    "raise ValueError": "Error: ValueError",
}

IN_WORDS = {
    "1 +": "Error: invalid syntax",
    "9 ** 99999": "Error: Exceeds the limit",
    "__import__('os')._exit(3)": "Error: the code ended without a result (exit code 3)",
    "'x' * 9_000_000": "Error: stopped after",
}


async def test_134_an_expression_gives_its_value_and_what_is_wrong_is_an_answer_too(calculator):
    for expression, value in VALUES.items():
        found = await calculator.calculator(expression)
        assert (found, type(found)) == (value, type(value)), expression


async def test_what_has_no_value_is_told_in_words(calculator):
    for expression, said in IN_WORDS.items():
        assert (await calculator.calculator(expression)).startswith(said), expression


@pytest.mark.thorough
async def test_an_expression_that_takes_too_long_is_ended(calculator, monkeypatch):
    monkeypatch.setattr(module, "SECONDS", 1.0)
    told = await calculator.calculator("9 ** 9 ** 9")
    assert told.startswith("Error: stopped after")
    assert told.endswith("it took longer than it may")


def test_it_runs_in_the_sandbox_of_the_session_but_not_in_its_interpreter():
    with (
        running([Calculators]) as server,
        Client(server.url) as client,
        client.environment("toolbox").session({}) as session,
    ):
        session.call_tool("ipython_code", {"code": "x = 1\nopen('here', 'w').close()"})
        assert session.call_tool("calculator", {"expression": "x"}).text == "Error: name 'x' is not defined"
        files = session.call_tool("calculator", {"expression": "__import__('os').listdir()"})
        assert files.text == '["here"]'
        assert session.call_tool("calculator", {"expression": "1+2"}).text == "3"


async def test_a_number_is_a_value_where_a_wire_carries_values(calculator):
    output = as_output(await calculator.calculator("1+2"))
    assert isinstance(output, ValueOutput)
    assert output.value == 3


async def test_a_value_with_many_parts_is_written_down_where_it_holds_up_nobody(calculator):
    written = await calculator.calculator("list(range(100_000))")
    assert isinstance(written, ValueOutput)
    assert written.value == list(range(100_000))
    assert await calculator.calculator("list(range(10))") == list(range(10))
