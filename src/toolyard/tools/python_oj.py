"""`python_oj`: an online judge. Runs a program against the trainer's tests, each in a new sandbox."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any

from toolyard.core.environment import Toolset
from toolyard.core.errors import ToolError
from toolyard.core.output import JsonObject, TextBlock, ToolOutput
from toolyard.core.tool import Given, tool
from toolyard.sandboxes.crossing import Prover
from toolyard.sandboxes.program import Ran
from toolyard.tools.judge_tests import AssertTest, CallTest, InputTest, JudgeTest
from toolyard.tools.python_code import BLOCKED, LONGEST, CodeForm, is_blocked

AT_ONCE = 4
"""How many tests of one call run at the same time."""
PASSED = "All public test cases passed!"


@dataclass(frozen=True, slots=True)
class SolutionForm:
    """Reads code as `python_code` does; the answer is the bare verdict."""

    shown: Sequence[str] = ()

    def read(self, text: str) -> JsonObject | None:
        read = CodeForm().read(text)
        return None if read is None else {"code": read["code"]}

    def answer(self, text: str, result: str) -> str:
        return result


class PythonOJ(Toolset):
    """A judge without state."""

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
            failure = tests[0].told(Ran.refused(BLOCKED)) if tests else ""
        else:
            failure = await first_failure(tests, code)
        text = (failure or passed)[:LONGEST]
        return ToolOutput(blocks=[TextBlock(text=text)], metadata={"tests": len(tests)}, finished=not failure)


async def first_failure(tests: Sequence[JudgeTest], code: str) -> str:
    """The message of the first failing test, in order. A few run at once; none begins after a failure."""
    waiting = iter(tests)
    running = [asyncio.ensure_future(test.failure(code)) for test in islice(waiting, AT_ONCE)]
    try:
        while running:
            if failure := await running.pop(0):
                return failure
            running += [asyncio.ensure_future(test.failure(code)) for test in islice(waiting, 1)]
        return ""
    finally:
        for test in running:
            test.cancel()
        await asyncio.gather(*running, return_exceptions=True)


def read_tests(given: object) -> tuple[Sequence[JudgeTest], str]:
    """The tests, and the message for a program that passes them all."""
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except ValueError as error:
            raise ToolError(f"public_tests is not JSON: {error}") from None
    match given:
        case list():
            statements = [*map(str, given)]
            prover = Prover(statements)
            return [AssertTest(statement, prover) for statement in statements], f"\n{PASSED}"
        case {"inputs": list(inputs), "outputs": list(outputs), **more} if len(inputs) <= len(outputs):
            name = str(more.get("fn_name") or "")
            pairs = zip(inputs, outputs, strict=False)  # some data sets have too many outputs
            return [_call_test(name, *pair) if name else _input_test(*pair) for pair in pairs], f"{PASSED}\n"
    raise ToolError("public_tests is neither a list of asserts nor an object with an output for each input")


def _input_test(given: object, expected: object) -> JudgeTest:
    stdin, stdout = _lines(given), _lines(expected)
    return InputTest(stdin, stdout, accepted=[stdout])


def _lines(value: object) -> str:
    if not isinstance(value, list):
        return str(value)
    return "\n".join(str(line) for line in value if str(line).strip())


def _call_test(name: str, given: object, expected: object) -> JudgeTest:
    return CallTest(given, expected, accepted=_printed(expected), name=name, arguments=_arguments(given))


def _arguments(given: object) -> Sequence[Any] | str:
    """The items of a list, or the JSON of each line, or else the text itself: source that the program's sandbox
    evaluates."""
    if isinstance(given, list):
        return given
    if not isinstance(given, str):
        return [given]
    for written in ([given], given.splitlines()):
        try:
            return [json.loads(one) for one in written if one.strip()]
        except ValueError:
            continue
    return given


def _printed(expected: object) -> Sequence[str]:
    """The accepted printed values. JSON has no tuples, and some data sets wrap the value in a list."""
    if isinstance(expected, str):
        try:
            value = json.loads(expected)
        except ValueError:
            return [expected]
        return [expected, str(value), str(tuple(value)) if isinstance(value, list) else expected]
    if isinstance(expected, list):
        return [str(expected), str(tuple(expected)), *(str(value) for value in expected[: len(expected) == 1])]
    return [str(expected)]
