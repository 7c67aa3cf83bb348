"""The tests of `python_oj`. Each runs the program in a new sandbox, which does not contain the expected results."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any, Protocol, TypeVar

from toolyard.sandboxes.crossing import Prover
from toolyard.sandboxes.driving import Clock, Driven, Opaque, ProgramEnded, ProgramRaised
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.program import Ran, run_program
from toolyard.sandboxes.provider import interpreter_once
from toolyard.tools.agreement import agrees
from toolyard.tools.plain_asserts import PlainAssert, plain_asserts
from toolyard.tools.python_code import SECONDS

T = TypeVar("T")

_SHORT = 4_000
"""Up to this many characters are compared on the event loop; more in a thread."""
_SYNTAX_ERROR = re.compile(r"^(?:Syntax|Indentation|Tab)Error: ", re.MULTILINE)


class JudgeTest(Protocol):
    """One test. It brings its own input; input blocks of a model are ignored."""

    async def failure(self, code: str) -> str:
        """Why a program fails the test, for the model; empty if it passes."""

    def told(self, ran: Ran) -> str:
        """How the program ended, for the model."""


@dataclass(slots=True)
class OutputTest:
    """An input, and the outputs that count as right."""

    given: object
    expected: object
    accepted: Sequence[str]

    def told(self, ran: Ran) -> str:
        about, error = f"Input: {self.given}\nExpected: {self.expected}", ran.stderr + ran.note
        if ran.timed_out:
            return f"The above code is incorrect and got time limit exceeded.\n{error}\n{about}"
        if ran.exit_code or ran.note:
            kind = "a syntax error" if _SYNTAX_ERROR.search(error) else "a runtime error"
            return f"The above code is incorrect and got {kind}.\n{about}\n{error}"
        return (
            f"The above code is incorrect and got a wrong answer.\n"
            f"Input: {self.given}\nGenerated Output: {ran.stdout}\nExpected: {self.expected}"
        )

    async def _is_right(self, output: str) -> bool:
        size = len(output) + sum(map(len, self.accepted))
        return await _beside(size, lambda: any(agrees(output, expected) for expected in self.accepted))


@dataclass(slots=True)
class InputTest(OutputTest):
    """A test by standard input and output."""

    async def failure(self, code: str) -> str:
        async with interpreter_once(profile=smallest(code)) as interpreter:
            ran = await run_program(interpreter, code, str(self.given), seconds=SECONDS)
        is_right = not (ran.exit_code or ran.note) and await self._is_right(ran.stdout)
        return "" if is_right else self.told(ran)


@dataclass(slots=True)
class CallTest(OutputTest):
    """A test by a call of the program's function and its printed value."""

    name: str
    arguments: Sequence[Any] | str

    async def failure(self, code: str) -> str:
        async with interpreter_once(profile=smallest(code)) as interpreter:
            program = Driven(interpreter, code, clock=Clock(SECONDS))
            try:
                # The arguments are the trainer's own: other programs are judged by them, too.
                value = program.outcome(await program.answer("entry", self.name, [[self.arguments, {}]]))
            except ProgramRaised as error:
                return self.told(_stopped(program, error.traceback))
            except ProgramEnded as error:
                return self.told(error.ran)
        printed = await _beside(program.answered, lambda: _printed(value))
        if not isinstance(value, Opaque) and await self._is_right(printed):
            return ""
        return self.told(Ran(f"{program.end.stdout}{printed}\n", "", 0, "", timed_out=False, isolation=None))


@dataclass(slots=True)
class AssertTest:
    """A statement that must hold after the program has run.

    The host itself judges statements such as `assert f(1) == 2`, and rows of them. Any other statement runs in a second
    sandbox; the host forwards its calls of the program's functions to the first.
    """

    statement: str
    prover: Prover

    async def failure(self, code: str) -> str:
        asserts = plain_asserts(self.statement)
        async with interpreter_once(profile=smallest(code)) as interpreter:
            program = Driven(interpreter, code, clock=Clock(SECONDS))
            if asserts:
                ran = await _compared(program, asserts)
            else:
                ran = await self.prover.prove(program, self.statement)
        return self.told(ran) if ran.exit_code or ran.note else ""

    def told(self, ran: Ran) -> str:
        error = f"{ran.stdout}\n{ran.stderr}{ran.note}"
        return f"The above code is incorrect. \nFailed test case: {self.statement}\nError:{error}"


async def _compared(program: Driven, asserts: Sequence[PlainAssert]) -> Ran:
    requests = [("chain", plain.name, True, plain.steps) for plain in asserts]
    plain = asserts[0]
    try:
        answers = await program.several(requests) if len(requests) > 1 else ()
        for plain, request, answer in zip_longest(asserts, requests, answers[: len(requests)]):
            value = await program.ask(*request) if answer is None else program.outcome(answer)
            if not await _beside(program.answered, partial(plain.holds, value)):
                return _stopped(program, plain.traceback())
    except ProgramRaised as error:
        return _stopped(program, plain.traceback(error.traceback))
    except ProgramEnded as error:
        return error.ran
    return replace(_stopped(program, ""), exit_code=0)


def _stopped(program: Driven, traceback: str) -> Ran:
    end = program.end
    return Ran(end.stdout, end.stderr + traceback, 1, "", timed_out=False, isolation=None)


def _printed(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # Python refuses to print integers of more than a few thousand digits
        return f"an integer of more than {sys.get_int_max_str_digits()} digits"


async def _beside(size: int, work: Callable[[], T]) -> T:
    """Do small work at once, and large work in a thread."""
    return work() if size < _SHORT else await asyncio.to_thread(work)
