"""Drives untrusted Python from outside: run a program in a sandbox, then call its functions with plain data.

    async with driven(code) as program:
        assert await program.call("add", 1, 2) == 3

Results are values of exact built-in types, no matter what the program does to its own process, or an `Opaque`. So the
caller can compare them with its own secrets, which never enter the sandbox.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast

from toolyard.sandboxes import inside, profiles, program
from toolyard.sandboxes.base import Interpreter, Limits
from toolyard.sandboxes.inside.plain import LONGEST, TooLarge, write
from toolyard.sandboxes.inside.plain_reader import NotPlain, Reader
from toolyard.sandboxes.inside.proving import UNTESTED
from toolyard.sandboxes.inside.proxies import restore
from toolyard.sandboxes.program import Ran
from toolyard.sandboxes.provider import interpreter_once

SECONDS = 10.0
_SHORT = 4_000
"""Characters that the event loop parses itself; a thread parses longer texts."""
_GIVEN_MOST = 64 * 2**20
"""Characters of one request to a program."""
_OUTPUT_MOST = 128 * 1024
Kind: TypeAlias = Literal["returned", "raised", "asks", "ready", "ended", "failed", "passed"]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that stays in the program's sandbox. It can be passed back as an argument, and equals only itself."""

    number: int
    kind: str
    """The name of its class, as the program reports it."""

    def __repr__(self) -> str:
        return f"<{self.kind} object>"


class ProgramRaised(Exception):
    """The program's function raised an exception. `name` is its class, or the nearest built-in base."""

    def __init__(self, name: str, args: tuple[Any, ...], traceback: str) -> None:
        super().__init__(traceback.strip().rpartition("\n")[2] or name)
        self.name = name
        self.given = args
        """The arguments of the exception."""
        self.traceback = traceback


class ProgramEnded(Exception):
    """The program has ended: it failed, exited, or exceeded a limit. `ran` says how."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(f"{ran.stderr}{ran.note}".strip().rpartition("\n")[2] or UNTESTED)
        self.ran = ran


class Clock:
    """The time left for one piece of work, in all of its sandboxes together."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self.seconds = seconds
        self.left = seconds


@dataclass(frozen=True, slots=True)
class DrivenMessage:
    kind: Kind
    chunks: Sequence[str]


class End:
    """The host's end of a `Side` in a sandbox."""

    def __init__(self, interpreter: Interpreter, clock: Clock) -> None:
        self._interpreter = interpreter
        self.clock = clock
        self._is_loaded = False
        self.stdout = ""
        self.stderr = ""

    async def say(self, module: str, function: str, *args: object) -> DrivenMessage:
        """Call a function of a module inside, and return its message. Raises ProgramEnded if there is none that makes
        sense, for example because the program was ended."""
        modules = "__import__('sys').modules"
        call = f"{modules}[{module!r}].{function}({', '.join(map(repr, args))})"
        if self._is_loaded:
            text = await self._told(call)
        elif (text := await self._told(f"{call} if {module!r} in {modules} else {_ABSENT}")) == _ABSENT:
            text = await self._told(f"exec({_LOAD!r}, {{}})\n{call}")
        self._is_loaded = True
        head, _, chunk = text.partition("\n")
        kind, _, rest = head.partition(" ")
        chunks = [chunk]
        if not rest.isdecimal() or len(rest) > 9 or int(rest) > LONGEST // 1024:  # Python refuses very long integers
            raise self._ended()
        for _ in range(int(rest)):
            chunks.append(await self._told(f"__import__('sys').modules[{module!r}].side.more()"))
            if sum(map(len, chunks)) > 2 * LONGEST:
                raise self._ended()
        return DrivenMessage(cast(Kind, kind), chunks)

    async def _told(self, code: str) -> str:
        if self.clock.left <= 0:
            note = f"Execution timed out after {self.clock.seconds:g} seconds."
            raise ProgramEnded(Ran(self.stdout, self.stderr, 1, note, timed_out=True, isolation=None))
        executed = await self._interpreter.exec(code, timeout=self.clock.left)
        self.clock.left -= executed.usage.wall_seconds
        ran = Ran.of(executed, self.clock.seconds)
        self.stdout = (self.stdout + ran.stdout)[:_OUTPUT_MOST]
        self.stderr = (self.stderr + ran.stderr)[:_OUTPUT_MOST]
        if executed.killed_by or executed.state_lost or executed.error or executed.value is None:
            raise self._ended(ran)
        return executed.value

    def _ended(self, ran: Ran | None = None) -> ProgramEnded:
        if ran is None or not (ran.note or ran.stderr):
            return self.ended(UNTESTED, ran)
        return ProgramEnded(dataclasses.replace(ran, stdout=self.stdout, stderr=self.stderr, exit_code=1))

    def ended(self, note: str = "", ran: Ran | None = None) -> ProgramEnded:
        """The exception for a caller that finds that the program has ended."""
        return ProgramEnded(Ran(self.stdout, self.stderr, 1, note, False, ran.isolation if ran else None))


_ABSENT = "0"
_LOAD = f"{program.INSTALL}\n{inside.installation()}"
"""For an interpreter that comes from no template. It runs as expressions, so that a program finds none of our names."""


class Driven:
    """A program. It starts with the first request."""

    def __init__(self, interpreter: Interpreter, code: str, stdin: str = "", *, clock: Clock | None = None) -> None:
        self._code = code
        self._stdin = stdin.encode(errors="surrogatepass")
        self.end = End(interpreter, clock or Clock())
        self._begun = False
        self.answered = 0
        """Characters of the last answer."""

    async def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a function of the program, or instantiate a class. If it changes a list, dict or set among the
        arguments, the caller's object changes too.

        Raises `ProgramRaised` if it raises, and `ProgramEnded` if the program ends before it answers.
        """
        return await self.ask("chain", name, True, [[list(args), keywords]])

    async def method(self, item: Opaque, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a method of an object in the program."""
        return await self.ask("chain", item, False, [[name], [list(args), keywords]])

    async def get(self, item: Opaque, name: str) -> Any:
        """Read an attribute of an object in the program."""
        return await self.ask("chain", item, False, [[name]])

    async def ask(self, *request: Any) -> Any:
        """Have the program's side perform an operation of `sides.Deeds`. Its arguments change as the program changes
        them."""
        return self.outcome(await self.answer(*request), request[-1][-1])

    async def answer(self, *request: Any) -> Any:
        """The answer to a request, for `outcome`. The arguments stay as they are."""
        try:
            message = await self.serve(write(request, _referred, longest=_GIVEN_MOST))
        except TooLarge:
            raise ValueError(f"the arguments are longer than {_GIVEN_MOST:,} characters") from None
        value = await self._read(message)
        return (None, None, value) if message.kind == "raised" else value

    async def several(self, requests: Sequence[Any]) -> Sequence[Any]:
        """Send several requests in one message. Returns the answers, each for `outcome`: all of them, or those up to
        the first that raises or is not plain data, where the program stops."""
        answers = await self.ask("several", requests)
        if type(answers) is not list:
            raise self.end.ended(UNTESTED)
        return answers

    def outcome(self, answer: Any, given: Any = None) -> Any:
        """The value of an answer. Updates `given` to what the program made of it. The program wrote the answer, so
        check its form."""
        try:
            result, changed, error = answer
            if error is None:
                if changed is not None and given is not None:
                    restore(given, changed)
                return result
            lineage, args, text = map(_exact, error, (str, tuple, str))
        except (TypeError, ValueError, KeyError, IndexError):
            raise self.end.ended(UNTESTED) from None
        raise ProgramRaised(lineage.partition("|")[0], args, text)

    async def begin(self) -> None:
        """Run the program, unless it has started."""
        if not self._begun:
            await self.serve(())

    async def serve(self, chunks: Sequence[str]) -> DrivenMessage:
        """Pass on a request as written. The program writes the answer: it may be anything."""
        if self._begun:
            message = await self.end.say(inside.SIDES, "side.serve", chunks)
        else:
            self._begun = True
            message = await self.end.say(inside.SIDES, "begin", self._code, self._stdin, chunks)
        return self._checked(message)

    async def resume(self, message: DrivenMessage) -> DrivenMessage:
        """Pass on the answer to a question from the program."""
        return self._checked(await self.end.say(inside.SIDES, "side.resume", message.kind, message.chunks))

    def _checked(self, message: DrivenMessage) -> DrivenMessage:
        if message.kind in ("returned", "raised", "asks", "ready"):
            return message
        raise self.end.ended("" if message.kind == "failed" else UNTESTED)

    async def _read(self, message: DrivenMessage) -> Any:
        reader = Reader(_resolved)
        try:
            self.answered = sum(map(len, message.chunks))
            for chunk in message.chunks:
                if len(chunk) < _SHORT:
                    reader.feed(chunk)
                else:
                    await asyncio.to_thread(reader.feed, chunk)
            value = reader.value
        except NotPlain:
            raise self.end.ended(UNTESTED) from None
        if message.kind == "asks":
            raise self.end.ended(UNTESTED)
        return value


def _exact(part: Any, kind: type) -> Any:
    if type(part) is not kind:
        raise TypeError(part)
    return part


def _referred(item: object) -> str:
    if isinstance(item, Opaque):
        return f"r{item.number}"
    raise TypeError(f"{type(item).__name__} is no plain data: give numbers, text, bytes, None or containers of them")


def _resolved(token: str) -> Opaque:
    number, _, kind = token[1:].partition(" ")
    if token[:1] != "h" or len(number) > 9 or len(kind) > 200:
        raise NotPlain(token[:20])
    return Opaque(int(number), kind[1:] if kind[1:].isidentifier() else "object")


@asynccontextmanager
async def driven(
    code: str,
    stdin: str = "",
    *,
    interpreter: Interpreter | None = None,
    seconds: float = SECONDS,
    limits: Limits | None = None,
) -> AsyncIterator[Driven]:
    """Drive a program from outside, in its own sandbox or in the given interpreter.

    `seconds` limits the program's time for all requests together. An interpreter runs one program.
    """
    if interpreter is not None:
        yield Driven(interpreter, code, stdin, clock=Clock(seconds))
        return
    async with interpreter_once(limits, profiles.smallest(code)) as own:
        yield Driven(own, code, stdin, clock=Clock(seconds))
