"""The tests that `python_oj` judges by. Each runs the program in a new sandbox, where nothing of what it expects is."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

from toolyard.sandboxes.crossing import prove
from toolyard.sandboxes.driving import Clock, Driven, Opaque, ProgramEnded, ProgramRaised
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.program import Ran, run_program
from toolyard.sandboxes.provider import interpreter_once
from toolyard.tools.agreement import agrees
from toolyard.tools.plain_asserts import PlainAssert, plain_assert
from toolyard.tools.python_code import SECONDS

T = TypeVar("T")

_SHORT = 4_000
"""Characters that the event loop compares by itself; a thread compares more."""
_SYNTAX_ERROR = re.compile(r"^(?:Syntax|Indentation|Tab)Error: ", re.MULTILINE)


class JudgeTest(Protocol):
    """Tests bring their own input: what a model writes beside its code is none."""

    async def failure(self, code: str) -> str:
        """What a model is told of a program that fails the test; empty if it does not."""

    def told(self, ran: Ran) -> str:
        """What a model is told of a program that has ended like this."""


@dataclass(slots=True)
class OutputTest:
    """What the program is given, and what comes of it if it is right."""

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
    """What the program reads, and what it has to write then."""

    async def failure(self, code: str) -> str:
        async with interpreter_once(profile=smallest(code)) as interpreter:
            ran = await run_program(interpreter, code, str(self.given), seconds=SECONDS)
        is_right = not (ran.exit_code or ran.note) and await self._is_right(ran.stdout)
        return "" if is_right else self.told(ran)


@dataclass(slots=True)
class CallTest(OutputTest):
    """How the program's function is called, and what its value looks like when it is printed."""

    name: str
    arguments: Sequence[Any] | str

    async def failure(self, code: str) -> str:
        async with interpreter_once(profile=smallest(code)) as interpreter:
            program = Driven(interpreter, code, clock=Clock(SECONDS))
            try:
                value = await program.ask("entry", self.name, [[self.arguments, {}]])
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
    """A statement that has to hold after the program has run.

    The host compares what `assert f(1) == 2` is about. Any other statement runs in a second sandbox, whose calls of the
    program's functions the host carries to the first.
    """

    statement: str

    async def failure(self, code: str) -> str:
        plain = plain_assert(self.statement)
        async with interpreter_once(profile=smallest(code)) as interpreter:
            clock = Clock(SECONDS)
            program = Driven(interpreter, code, clock=clock)
            if plain is not None:
                ran = await _compared(program, plain)
            else:
                async with interpreter_once(profile=smallest(self.statement)) as other:
                    ran = await prove(program, self.statement, other, clock)
        return self.told(ran) if ran.exit_code or ran.note else ""

    def told(self, ran: Ran) -> str:
        error = f"{ran.stdout}\n{ran.stderr}{ran.note}"
        return f"The above code is incorrect. \nFailed test case: {self.statement}\nError:{error}"


async def _compared(program: Driven, plain: PlainAssert) -> Ran:
    try:
        value = await program.ask("chain", plain.name, True, plain.steps)
    except ProgramRaised as error:
        return _stopped(program, plain.traceback(error.traceback))
    except ProgramEnded as error:
        return error.ran
    if await _beside(program.answered, lambda: plain.holds(value)):
        return replace(_stopped(program, ""), exit_code=0)
    return _stopped(program, plain.traceback())


def _stopped(program: Driven, traceback: str) -> Ran:
    end = program.end
    return Ran(end.stdout, end.stderr + traceback, 1, "", timed_out=False, isolation=None)


def _printed(value: object) -> str:
    try:
        return str(value)
    except ValueError:  # Python prints no integer of more than a few thousand digits
        return f"an integer of more than {sys.get_int_max_str_digits()} digits"


async def _beside(size: int, work: Callable[[], T]) -> T:
    """Do it at once if it is little, and beside the event loop if it is much."""
    return work() if size < _SHORT else await asyncio.to_thread(work)
