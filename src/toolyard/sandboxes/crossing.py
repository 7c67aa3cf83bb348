"""Judges a program in one sandbox by a test in another: the host carries calls from the test to the program, and back.

Each sandbox is trusted only in its role. The program can only send values, which the test's sandbox rebuilds as exact
built-in types. Only the test's sandbox says whether the test has passed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from toolyard.sandboxes import inside
from toolyard.sandboxes.base import Interpreter
from toolyard.sandboxes.driving import Driven, DrivenMessage, End, ProgramEnded
from toolyard.sandboxes.foresight import Foreseen, foreseen
from toolyard.sandboxes.inside.plain import write
from toolyard.sandboxes.profiles import smallest
from toolyard.sandboxes.program import Ran
from toolyard.sandboxes.provider import interpreter_again, interpreter_once, usual_limits


class Prover:
    """Runs the test statements of one call, each against its own program.

    Statements that leave nothing behind share an interpreter, one at a time. A statement that fails ends that
    interpreter: it may have left something running. A statement that may change more than its own names and objects,
    such as one that imports `os`, runs in its own sandbox.
    """

    def __init__(self, statements: Sequence[str]) -> None:
        self._profile = smallest("\n".join(statements))
        self._turn = asyncio.Lock()

    async def prove(self, program: Driven, test: str) -> Ran:
        """The exit code is 0 only if the test and the program both ran to their end. The program's clock counts the
        time of both."""
        ends = [program.end]
        seen = foreseen(test)
        answers = DrivenMessage("returned", ())
        try:
            if seen.requests:
                answers = await program.serve(write(("several", seen.requests), str))
            async with self._tester(test, alone=not seen.is_neat or usual_limits().cpu_seconds is not None) as tester:
                ends.append(End(tester, program.end.clock))
                await _pass(ends[1], program, test, seen, answers)
            await program.begin()
            ran = Ran("", "", 0, "", timed_out=False, isolation=None)
        except ProgramEnded as error:
            ran = error.ran
        return replace(ran, stdout="".join(end.stdout for end in ends), stderr="".join(end.stderr for end in ends))

    @asynccontextmanager
    async def _tester(self, test: str, *, alone: bool) -> AsyncIterator[Interpreter]:
        if alone:
            async with interpreter_once(profile=smallest(test)) as tester:
                yield tester
        else:
            async with self._turn, interpreter_again(self._profile) as tester:
                yield tester


async def _pass(tester: End, program: Driven, test: str, seen: Foreseen, answers: DrivenMessage) -> None:
    """Pass questions and answers back and forth: each side waits for the other's answer. Raises ProgramEnded if the
    test fails."""
    requests = [write(request, str) for request in seen.requests]
    said = await tester.say(inside.PROVING, "begin", test, requests, answers.chunks, seen.everything)
    while said.kind not in ("passed", "failed"):
        answer = await (program.serve(said.chunks) if said.kind == "asks" else program.resume(said))
        said = await _passed_on(tester, answer)
    if said.kind == "failed":
        raise tester.ended()


async def _passed_on(tester: End, answer: DrivenMessage) -> DrivenMessage:
    if answer.kind == "asks":
        return await tester.say(inside.PROVING, "side.serve", answer.chunks)
    return await tester.say(inside.PROVING, "side.resume", answer.kind, answer.chunks)
