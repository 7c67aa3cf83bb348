"""Judges a program in one sandbox by a test in another: the host carries calls from the test to the program, and back.

Neither sandbox's word counts for more than its role. The program can only send values, which the test's sandbox
rebuilds as exact built-in types; whether the test has passed is for the test's sandbox alone to say.
"""

from __future__ import annotations

from dataclasses import replace

from toolyard.sandboxes import inside
from toolyard.sandboxes.base import Interpreter
from toolyard.sandboxes.driving import Clock, Driven, End, Message, ProgramEnded
from toolyard.sandboxes.foresight import foreseen
from toolyard.sandboxes.plain import write
from toolyard.sandboxes.program import Ran


async def prove(program: Driven, test: str, interpreter: Interpreter, clock: Clock) -> Ran:
    """Run a test in an interpreter that is for nothing else. Its exit code is 0 only if the test came to its end, and
    the program too."""
    tester = End(interpreter, clock)
    try:
        passed = await _carried(program, tester, test)
        if passed:
            await program.begin()
        ran = Ran("", "", int(not passed), "", timed_out=False, isolation=None)
    except ProgramEnded as error:
        ran = error.ran
    return replace(ran, stdout=program.end.stdout + tester.stdout, stderr=program.end.stderr + tester.stderr)


async def _carried(program: Driven, tester: End, test: str) -> bool:
    """Whether the test has passed. Questions and answers take turns: who asks waits until the other has answered."""
    seen = foreseen(test)
    requests, answers = [write(request, str) for request in seen.requests], Message("returned", ())
    if requests:
        answers = await program.serve(write(("several", seen.requests), str))
    said = await tester.say(inside.PROVING, "begin", test, requests, answers.chunks, seen.everything)
    while said.kind not in ("passed", "failed"):
        answer = await (program.serve(said.chunks) if said.kind == "asks" else program.resume(said))
        said = await _passed_on(tester, answer)
    return said.kind == "passed"


async def _passed_on(tester: End, answer: Message) -> Message:
    if answer.kind == "asks":
        return await tester.say(inside.PROVING, "side.serve", answer.chunks)
    return await tester.say(inside.PROVING, "side.resume", answer.kind, answer.chunks)
