"""`python_oj`: cases 86 and 87, its exact verdicts, and programs that try to pass without being right."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from tests.wires.verl_wire import Observed, Trainer
from toolyard import Client
from toolyard.testing import Running, running
from toolyard.tools import judge_tests
from toolyard.tools.agreement import agrees
from toolyard.tools.environment import named_toolsets, toolbox
from toolyard.tools.python_oj import AT_ONCE, SolutionForm

pytestmark = pytest.mark.anyio

PASSED = Observed("All public test cases passed!\n", done=True, valid=True)
ASSERTS_PASSED = Observed("\nAll public test cases passed!", done=True, valid=True)
DOUBLE = "print(2 * int(input()))"


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with running([], tools="python_oj") as server:
        yield server


@pytest.fixture
async def trainer(server: Running) -> AsyncIterator[Trainer]:
    async with Trainer(server.url) as trainer:
        yield trainer


async def judged(trainer: Trainer, code: str, public_tests: Any) -> Observed:
    return await trainer.act("t", f"<python>{code}</python>", {"public_tests": public_tests})


def cases(*pairs: tuple[Any, Any], **more: Any) -> dict[str, Any]:
    return {"inputs": [given for given, _ in pairs], "outputs": [expected for _, expected in pairs], **more}


def failed(kind: str, text: str) -> Observed:
    return Observed(f"The above code is incorrect and got {kind}.\n{text}", done=False, valid=True)


@pytest.mark.parametrize("text", ["<python>a</python>", "```python\na\n```", "```py\na\n```\n```input\n5\n```"])
def test_a_solution_is_written_as_any_python_and_the_verdict_stands_as_it_is(text):
    assert SolutionForm().read(text) == {"code": "a"}
    assert SolutionForm().answer(text, "\nverdict\n") == "\nverdict\n"


# Programs that read and write.


async def test_87_a_program_that_passes_is_done_and_one_that_fails_is_told_how(trainer):
    assert await judged(trainer, DOUBLE, cases(("1", "2"), ("5", "10"))) == PASSED
    wrong = failed("a wrong answer", "Input: 5\nGenerated Output: 10\n\nExpected: 11")
    assert await judged(trainer, DOUBLE, cases(("1", "2"), ("5", "11"), ("6", "0"))) == wrong


async def test_86_tests_may_stand_beside_the_actions_and_may_be_text(trainer):
    text = json.dumps(cases(("1", "2")))
    assert await trainer.act("t", f"<python>{DOUBLE}</python>", public_tests=[text]) == PASSED
    assert await judged(trainer, DOUBLE, text) == PASSED


async def test_lines_of_input_and_output_may_be_lists_and_values(trainer):
    code = "a = int(input())\nb = int(input())\nprint(a)\nprint(b)"
    assert await judged(trainer, code, cases((["1", "", "2"], ["1", "2"]), ([3, 4], "3\n4"))) == PASSED
    wrong = failed("a wrong answer", "Input: 1\n2\nGenerated Output: 1\n2\n\nExpected: 1\n3")
    assert await judged(trainer, code, cases(([1, 2], [1, 3]))) == wrong
    assert await judged(trainer, DOUBLE, cases((4, 8))) == PASSED


async def test_outputs_to_spare_do_no_harm(trainer):
    """One of verl-tool's test scripts sends some."""
    assert await judged(trainer, DOUBLE, {"inputs": ["1"], "outputs": ["2", "7"]}) == PASSED


async def test_a_runtime_error_is_told_with_its_traceback(trainer):
    seen = await judged(trainer, "x = int(input())\nprint(1 / x)", cases(("1", "1"), ("0", "0")))
    assert seen == failed(
        "a runtime error",
        "Input: 0\nExpected: 0\nTraceback (most recent call last):\n"
        '  File "main.py", line 2, in <module>\n    print(1 / x)\n          ~~^~~\n'
        "ZeroDivisionError: division by zero\n",
    )
    assert (await judged(trainer, "exit(1)", cases(("1", "")))).text.startswith(
        "The above code is incorrect and got a run"
    )


async def test_a_syntax_error_is_told_as_one(trainer):
    seen = await judged(trainer, "print(1", cases(("1", "1")))
    assert seen == failed(
        "a syntax error",
        'Input: 1\nExpected: 1\n  File "main.py", line 1\n    print(1\n         ^\n'
        "SyntaxError: '(' was never closed\n",
    )


async def test_a_program_that_takes_too_long_exceeded_the_time_limit(trainer, monkeypatch):
    assert judge_tests.SECONDS == 10
    monkeypatch.setattr(judge_tests, "SECONDS", 2)
    began = time.monotonic()
    slow = "import time\nif int(input()):\n    time.sleep(30)\nprint(0)"
    seen = await judged(trainer, slow, cases(("0", "0"), ("1", "0"), ("1", "0"), ("0", "0"), ("1", "0"), ("0", "1")))
    text = "Execution timed out after 2 seconds.\nInput: 1\nExpected: 0"
    assert seen == failed("time limit exceeded", text)
    assert 1.9 < time.monotonic() - began < 6


async def test_too_much_memory_is_a_runtime_error(trainer):
    seen = await judged(trainer, "x = [b'x' * (10**7 + n) for n in range(200)]", cases(("", "")))
    assert "a runtime error" in seen.text
    assert "more memory than it may" in seen.text or "MemoryError" in seen.text


async def test_what_is_written_to_standard_error_is_no_error(trainer):
    code = "import sys, warnings\nwarnings.warn('old')\nprint('debug', file=sys.stderr)\nprint(input())"
    assert await judged(trainer, code, cases(("a", "a"))) == PASSED


async def test_exit_and_input_blocks_do_not_disturb_a_right_program(trainer):
    code = "import sys\nprint(input())\nexit()"
    text = f"```python\n{code}\n```\nFor example:\n```input\n99\n```"
    assert await trainer.act("t", text, {"public_tests": cases(("a", "a"))}) == PASSED
    assert await judged(trainer, "import os\nprint(input(), flush=True)\nos._exit(0)", cases(("a", "a"))) == PASSED


@pytest.mark.parametrize(
    ("output", "expected", "same"),
    [
        ("1", "1", True),
        ("1\n", " 1 ", True),
        ("1 \n 2\n", "1\n2", True),
        ("1\n\n2", "1\n2", True),
        ("1\r\n2", "1\n2", True),
        ("0.30000000000000004", "0.3", True),
        ("1.0 2", "1 2.0", True),
        ("1e3", "1000", True),
        ("007", "7", True),
        ("", "", True),
        ("12345678901234567890", "12345678901234567891", False),
        ("100000", "100001", False),
        ("1.5", "1.6", False),
        ("1 2", "12", False),
        ("1\n2", "1 2", False),
        ("1", "1\n2", False),
        ("1 2", "1", False),
        ("", "0", False),
        ("yes", "YES", False),
        ("nan", "nan", True),
        ("nan", "1", False),
    ],
)
def test_output_agrees_but_for_space_and_how_numbers_are_written(output, expected, same):
    assert agrees(output, expected) is same


@pytest.mark.parametrize("sign", ["", "-", "+", "000"])
def test_numbers_of_any_length_are_compared_to_the_last_digit(sign):
    long = "9" * 10_000
    assert agrees(f"{sign}{long}", long) is (sign != "-")
    assert agrees(f"{sign}{long}", f"{long[:-1]}8") is False


async def test_a_long_number_that_is_wrong_is_a_wrong_answer(trainer):
    assert await judged(trainer, "print('1' * 5000)", cases(("", "2" * 5000))) == failed(
        "a wrong answer", f"Input: \nGenerated Output: {'1' * 5000}\n\nExpected: {'2' * 5000}"
    )


# Functions.


@pytest.mark.parametrize(
    ("code", "given", "expected"),
    [
        ("def f(a, b): return a + b", [1, 2], 3),
        ("def f(a, b): return a + b", [1, 2], [3]),
        ("def f(a, b): return a + b", ["x", "y"], "xy"),
        ("def f(a): return a", [[1, 2]], [1, 2]),
        ("def f(a): return a", [[1, 2]], [[1, 2]]),
        ("def f(a): return a", "[1, 2]", "[1, 2]"),
        ("def f(a): return tuple(a)", "[1, 2]", "[1, 2]"),
        ("def f(a): return not a", "false", "true"),
        ("def f(a): return a is None", [None], [True]),
        ("def f(a, k): return a[k]", "[5, 6]\n1", "6"),
        ("def f(a, k): return a * k", "'x', k=3", "xxx"),
        ("def f(): return 1", [], 1),
        ("def f(a): return a / 10", [3], 0.3),
        ("def f(a): return a", {"x": 1}, "{'x': 1}"),
        ("class Solution:\n    def f(self, a): return a + 1", [1], 2),
    ],
)
async def test_a_function_is_called_with_arguments_in_every_way_of_writing_them(trainer, code, given, expected):
    assert await judged(trainer, code, cases((given, expected), fn_name="f")) == PASSED


async def test_a_function_that_fails_is_told_how(trainer):
    wrong = failed("a wrong answer", "Input: [1, 2]\nGenerated Output: -1\n\nExpected: [3]")
    assert await judged(trainer, "def f(a, b): return a - b", cases(([1, 2], [3]), fn_name="f")) == wrong
    seen = await judged(trainer, "def f(a): return 1 / a", cases(([0], [0]), fn_name="f"))
    assert seen.text.startswith(
        "The above code is incorrect and got a runtime error.\nInput: [0]\nExpected: [0]\nTraceback"
    )
    seen = await judged(trainer, "def g(a): return 1", cases(([0], [0]), fn_name="f"))
    assert "NameError: name 'Solution' is not defined" in seen.text


async def test_a_program_cannot_get_around_the_call_of_its_function(trainer):
    seen = await judged(trainer, "print(3)\nexit()", cases(([1, 2], [3]), fn_name="f"))
    assert seen.text.startswith("The above code is incorrect and got a runtime error.")
    assert "The program ended before the test had ended." in seen.text


# Asserts.


async def test_87_asserts_that_hold_are_passed_and_the_first_that_does_not_is_shown(trainer):
    code = "def f(a):\n    print('called')\n    return a + 1"
    assert await judged(trainer, code, ["assert f(1) == 2", "assert f(2) == 3"]) == ASSERTS_PASSED
    assert await judged(trainer, code, json.dumps(["assert f(1) == 2"])) == ASSERTS_PASSED
    seen = await judged(trainer, code, ["assert f(1) == 2", "assert f(2) == 4", "assert f(3) == 5"])
    assert seen == Observed(
        "The above code is incorrect. \nFailed test case: assert f(2) == 4\nError:called\n\n"
        "Traceback (most recent call last):\n"
        '  File "test.py", line 1, in <module>\n    assert f(2) == 4\n           ^^^^^^^^^\nAssertionError\n',
        done=False,
        valid=True,
    )


CHECK = (
    "METADATA = {}\n\ndef check(candidate):\n    assert candidate(1) == 2\n    assert candidate(2) == 4, 'no'\ncheck(f)"
)
ONE_BY_ONE = CHECK.replace("METADATA = {}\n", "METADATA = []\nMETADATA.append(1)")
"""The same to a reader, but the server must run it in a second sandbox."""


@pytest.mark.parametrize("statement", [CHECK, ONE_BY_ONE])
async def test_a_check_function_that_fails_is_shown_as_python_would(trainer, statement):
    frames = '  File "test.py", line 6, in <module>\n    check(f)\n  File "test.py", line 5, in check\n'
    seen = await judged(trainer, "def f(a):\n    print('called')\n    return a + 1", [statement])
    assert seen.text == (
        f"The above code is incorrect. \nFailed test case: {statement}\nError:called\ncalled\n\n"
        f"Traceback (most recent call last):\n{frames}"
        "    assert candidate(2) == 4, 'no'\n           ^^^^^^^^^^^^^^^^^\nAssertionError: no\n"
    )
    seen = await judged(trainer, "def f(a):\n    return [2][a - 1]", [statement])
    assert seen.text.endswith(
        f"Traceback (most recent call last):\n{frames}    assert candidate(2) == 4, 'no'\n           ^^^^^^^^^^^^\n"
        '  File "main.py", line 2, in f\n    return [2][a - 1]\n           ~~~^^^^^^^\n'
        "IndexError: list index out of range\n"
    )


@pytest.mark.parametrize(
    "code",
    [
        "exit(0)",
        "import os\nos._exit(0)",
        "raise SystemExit",
        "def f(): \\",
        "if False:",
        "'''",
        "import os\nif os.fork(): os.wait(); os._exit(0)",
        "import os\nos.kill(os.getpid(), 9)",
        "import sys\nsys.modules['__main__'].__dict__.clear()",
        "def f(a): exit()",
        "import builtins\nbuiltins.exec = builtins.compile = lambda *args, **more: None",
        "import sys\nsys.modules['toolyard_program'].execute = lambda *args: None",
        "import atexit, os\natexit.register(os._exit, 0)",
        "def f(a):\n    import os\n    os._exit(0)",
    ],
)
async def test_a_program_that_ends_before_its_assert_has_not_passed_it(trainer, code):
    seen = await judged(trainer, code, ["assert f(1) == 2"])
    assert seen.done is False
    assert seen.text.startswith("The above code is incorrect. \nFailed test case: assert f(1) == 2\nError:")


# Test statements.


async def test_without_tests_nothing_is_run_and_the_trajectory_is_over(trainer):
    assert await trainer.act("none", "<python>1/0</python>", {}) == Observed("", done=True, valid=True)


@pytest.mark.parametrize(
    "tests",
    ["no JSON", {"inputs": ["1"], "outputs": []}, {"inputs": "1"}, 5, {"inputs": "1", "outputs": "1"}],
)
async def test_tests_that_cannot_be_read_are_told(trainer, tests):
    seen = await judged(trainer, "1", tests)
    assert seen.text.startswith("Tool 'python_oj' failed: public_tests is ")
    assert (seen.done, seen.valid) == (False, True)


async def test_tests_know_nothing_of_each_other_and_some_run_at_once(trainer):
    code = (
        "import os, time\ninput()\ntime.sleep(0.5)\nprint(os.listdir('.'), os.listdir('/tmp'))\nopen('f', 'w').close()"
    )
    began = time.monotonic()
    assert await judged(trainer, code, cases(*[(str(n), "[] []") for n in range(2 * AT_ONCE)])) == PASSED
    assert time.monotonic() - began < AT_ONCE * 0.5 + 2


async def test_the_first_failure_in_their_order_is_told_even_if_another_is_faster(trainer):
    code = "import time\nx = int(input())\ntime.sleep(x)\nprint('wrong')"
    assert "\nInput: 1\n" in (await judged(trainer, code, cases(("1", "a"), ("0", "b")))).text


async def test_a_verdict_is_cut_to_100_000_characters(trainer):
    seen = await judged(trainer, "print('a' * 200_000)", cases(("", "b")))
    assert len(seen.text) == 100_000


async def test_two_trajectories_are_judged_by_their_own_tests(trainer):
    tests = [{"public_tests": cases(("1", "2"))}, {"public_tests": cases(("1", "3"))}]
    seen = await trainer.batch(["a", "b"], [f"<python>{DOUBLE}</python>"] * 2, extra_fields=tests)
    assert [one.done for one in seen] == [True, False]


async def test_the_model_cannot_bring_tests_of_its_own(trainer):
    arguments = {"code": "print(1)", "public_tests": cases(("", "1"))}
    call = f"<tool_call>{json.dumps({'name': 'python_oj', 'arguments': arguments})}</tool_call>"
    seen = await trainer.act("own", call, {"public_tests": cases(("", "2"))})
    assert seen.text.endswith("Generated Output: 1\n\nExpected: 2")


def test_over_ors_the_task_has_the_tests(server):
    task = {"public_tests": cases(("1", "2"))}
    with Client(server.url) as client, client.environment("toolbox").session(task) as session:
        (spec,) = session.list_tools()
        assert (spec.name, list(spec.input_schema["properties"])) == ("python_oj", ["code"])
        failure = session.call_tool("python_oj", {"code": "print(0)"})
        assert (failure.finished, failure.metadata["tests"]) == (False, 1)
        passed = session.call_tool("python_oj", {"code": DOUBLE})
        assert (passed.finished, passed.blocks[0].text) == (True, "All public test cases passed!\n")


def test_a_program_that_changes_its_arguments_leaves_the_tests_of_the_task_as_they_are(server):
    tests = {"inputs": [[[3, 1, 2]]], "outputs": [3], "fn_name": "f"}
    with Client(server.url) as client, client.environment("toolbox").session({"public_tests": tests}) as session:
        first = session.call_tool("python_oj", {"code": "def f(xs):\n    xs.clear()\n    return 0"})
        assert "Input: [[3, 1, 2]]" in first.text
        assert session.call_tool("python_oj", {"code": "def f(xs):\n    return len(xs)"}).finished


async def test_words_are_refused_only_where_the_list_is_on(trainer):
    code, tests = "import subprocess\nprint(input())", cases(("1", "1"))
    with running([toolbox(named_toolsets("python_oj"), block_lists=True)]) as dropin:
        async with Trainer(dropin.url) as other:
            blocked = "Execution blocked: Code contains potentially dangerous operations or imports."
            assert await judged(other, code, tests) == failed("a runtime error", f"Input: 1\nExpected: 1\n{blocked}")
    assert await judged(trainer, code, tests) == PASSED
