"""`python_oj`: an online judge. Runs a program against the tests that the trainer gave, each in a new sandbox."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Protocol

from toolyard.core.environment import Toolset
from toolyard.core.errors import ToolError
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.program import Ran, run_program
from toolyard.sandboxes.provider import interpreter_once
from toolyard.tools.python_code import BLOCKED, LONGEST, SECONDS, CodeForm, is_blocked

AT_ONCE = 4
"""Tests of one call that run at the same time."""
PASSED = "All public test cases passed!"

_SYNTAX_ERROR = re.compile(r"^(?:Syntax|Indentation|Tab)Error: ", re.MULTILINE)
_WHOLE_NUMBER = re.compile(r"([+-]?)0*([0-9]+)")


@dataclass(frozen=True, slots=True)
class SolutionForm:
    """Written as for `python_code`; the verdict follows as it is."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        read = CodeForm().read(text)
        return None if read is None else {"code": read["code"]}

    def answer(self, text: str, result: str) -> str:
        return result


class JudgeTest(Protocol):
    """Tests bring their own input: what a model writes beside its code is none."""

    stdin: str
    code: str
    """To be run after the program."""

    def failure(self, ran: Ran) -> str:
        """What a model is told of a program that failed; empty if it did not."""


@dataclass(slots=True)
class OutputTest:
    """What the program reads, or how its function is called, and what it has to write then."""

    given: object
    expected: object
    accepted: Sequence[str]
    stdin: str = ""
    code: str = ""

    def failure(self, ran: Ran) -> str:
        about, error = f"Input: {self.given}\nExpected: {self.expected}", ran.stderr + ran.note
        if ran.timed_out:
            return f"The above code is incorrect and got time limit exceeded.\n{error}\n{about}"
        if ran.exit_code or ran.note:
            kind = "a syntax error" if _SYNTAX_ERROR.search(error) else "a runtime error"
            return f"The above code is incorrect and got {kind}.\n{about}\n{error}"
        if any(agrees(ran.stdout, expected) for expected in self.accepted):
            return ""
        return (
            f"The above code is incorrect and got a wrong answer.\n"
            f"Input: {self.given}\nGenerated Output: {ran.stdout}\nExpected: {self.expected}"
        )


@dataclass(slots=True)
class AssertTest:
    """A statement that has to hold after the program has run."""

    code: str
    stdin: str = ""

    def failure(self, ran: Ran) -> str:
        if ran.exit_code == 0 and not ran.note:
            return ""
        error = f"{ran.stdout}\n{ran.stderr}{ran.note}"
        return f"The above code is incorrect. \nFailed test case: {self.code}\nError:{error}"


class PythonOJ(Toolset):
    """A judge that keeps nothing from one call to the next."""

    uses_sandbox = True

    @tool(form=SolutionForm(), concurrent=True)
    async def python_oj(self, code: str, public_tests: Annotated[Any, Given()] = None) -> ToolOutput:  # any JSON
        """Judge a Python program by the tests of the task. The first test that fails is shown.

        Args:
            code: The whole program, or the function that the task asks for.
        """
        if public_tests is None:
            return ToolOutput(finished=True)
        tests, passed = read_tests(public_tests)
        if getattr(self.env, "block_lists", False) and is_blocked(code):
            failure = tests[0].failure(Ran.refused(BLOCKED)) if tests else ""
        else:
            failure = await first_failure(tests, code)
        text = (failure or passed)[:LONGEST]
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"tests": len(tests)}, finished=not failure)


async def first_failure(tests: Sequence[JudgeTest], code: str) -> str:
    """Of the first test that fails, in their order. A few run at once; none is begun after a failure."""
    waiting = iter(tests)
    running = [asyncio.ensure_future(_failure(test, code)) for test in islice(waiting, AT_ONCE)]
    try:
        while running:
            if failure := await running.pop(0):
                return failure
            running += [asyncio.ensure_future(_failure(test, code)) for test in islice(waiting, 1)]
        return ""
    finally:
        for test in running:
            test.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _failure(test: JudgeTest, code: str) -> str:
    async with interpreter_once(profile=smallest(code)) as interpreter:
        return test.failure(await run_program(interpreter, code, test.stdin, test=test.code, seconds=SECONDS))


def read_tests(given: object) -> tuple[Sequence[JudgeTest], str]:
    """The tests, and what is said if all of them pass."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ToolError(f"public_tests is not JSON: {error}") from None
    match given:
        case list():
            return [AssertTest(str(statement)) for statement in given], f"\n{PASSED}"
        case {"inputs": list(inputs), "outputs": list(outputs), **more} if len(inputs) <= len(outputs):
            name = str(more.get("fn_name") or "")
            pairs = zip(inputs, outputs, strict=False)  # data sets have outputs to spare
            return [_call_test(name, *pair) if name else _input_test(*pair) for pair in pairs], f"{PASSED}\n"
    raise ToolError("public_tests is neither a list of asserts nor an object with an output for each input")


def _input_test(given: object, expected: object) -> JudgeTest:
    stdin, stdout = _lines(given), _lines(expected)
    return OutputTest(stdin, stdout, accepted=[stdout], stdin=stdin)


def _lines(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return "\n".join(str(line) for line in value if str(line).strip())


def _call_test(name: str, given: object, expected: object) -> JudgeTest:
    """LeetCode's solutions have the function as a method of a class."""
    function = f"({name} if {name!r} in globals() else Solution().{name})"
    return OutputTest(
        given, expected, accepted=_printed(expected), code=f"print({function}({', '.join(_arguments(given))}))"
    )


def _arguments(given: object) -> Sequence[str]:
    """As code: each of a list, each line of JSON, or else the text as it is."""
    if isinstance(given, list):
        return [repr(value) for value in given]
    if not isinstance(given, str):
        return [repr(given)]
    for written in ([given], given.splitlines()):
        try:
            return [repr(json.loads(one)) for one in written if one.strip()]
        except ValueError:
            continue
    return [given]


def _printed(expected: object) -> Sequence[str]:
    """What a right function's value may look like when it is printed. JSON has no tuples, and some put it in a list."""
    if isinstance(expected, str):
        try:
            value = json.loads(expected)
        except ValueError:
            return [expected]
        return [expected, str(value), str(tuple(value)) if isinstance(value, list) else expected]
    if isinstance(expected, list):
        return [str(expected), str(tuple(expected)), *(str(value) for value in expected[: len(expected) == 1])]
    return [str(expected)]


def agrees(output: str, expected: str) -> bool:
    """Whether it is the same but for space around lines, and for how numbers are written."""
    ours, theirs = ([line.strip() for line in text.strip().splitlines()] for text in (output, expected))
    if ours == theirs:
        return True
    ours, theirs = ([line for line in lines if line] for lines in (ours, theirs))
    return len(ours) == len(theirs) and all(map(_line_agrees, ours, theirs))


def _line_agrees(ours: str, theirs: str) -> bool:
    pairs = list(zip(ours.split(), theirs.split(), strict=False))
    return len(ours.split()) == len(theirs.split()) and all(_word_agrees(*pair) for pair in pairs)


def _word_agrees(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    whole = _WHOLE_NUMBER.fullmatch(ours), _WHOLE_NUMBER.fullmatch(theirs)
    if whole[0] and whole[1]:  # by their digits: Python makes no numbers of very long ones
        return _sign(whole[0]) == _sign(whole[1]) and whole[0][2] == whole[1][2]
    try:
        return math.isclose(float(ours), float(theirs), rel_tol=1e-5, abs_tol=1e-8)
    except ValueError:
        return False


def _sign(whole: re.Match[str]) -> bool:
    """Whether it is below zero."""
    return whole[1] == "-" and whole[2] != "0"
