"""Drives untrusted Python from outside: run a program in a sandbox, then call its functions with plain data.

    async with driven(code) as program:
        assert await program.call("add", 1, 2) == 3

What comes back is a value of exact built-in types, whatever the program does to its own process, or an `Opaque`. So the
caller can compare it with what only the caller knows: nothing of that ever enters the sandbox.
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
from toolyard.sandboxes.plain import LONGEST, TooLarge, write
from toolyard.sandboxes.plain_reader import NotPlain, Reader
from toolyard.sandboxes.program import Ran
from toolyard.sandboxes.provider import interpreter_once
from toolyard.sandboxes.proving import UNTESTED
from toolyard.sandboxes.proxies import restore

SECONDS = 10.0
_SHORT = 4_000
"""Characters that the event loop reads by itself; a thread reads more."""
_GIVEN_MOST = 64 * 2**20
"""Characters of what is asked of a program."""
_OUTPUT_MOST = 128 * 1024
Kind: TypeAlias = Literal["returned", "raised", "asks", "ready", "ended", "failed", "passed"]


@dataclass(frozen=True, slots=True)
class Opaque:
    """An object that stays in the program's sandbox. It can be passed back as an argument, and equals only itself."""

    number: int
    kind: str
    """The name of its class, as the program says."""

    def __repr__(self) -> str:
        return f"<{self.kind} object>"


class ProgramRaised(Exception):
    """The program's function raised this; `name` is the built-in exception that it is, or comes from."""

    def __init__(self, name: str, args: tuple[Any, ...], traceback: str) -> None:
        super().__init__(traceback.strip().rpartition("\n")[2] or name)
        self.name = name
        self.given = args
        """The arguments of the exception."""
        self.traceback = traceback


class ProgramEnded(Exception):
    """The program is over, and answers no more: it failed, ended itself, or exceeded a limit. `ran` says how."""

    def __init__(self, ran: Ran) -> None:
        super().__init__(f"{ran.stderr}{ran.note}".strip().rpartition("\n")[2] or UNTESTED)
        self.ran = ran


class Clock:
    """The time that the code of one piece of work may take, in all of its sandboxes together."""

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
        """Have a function of a module run that is inside, and take what it says. Raises ProgramEnded if it says nothing
        sensible, as when it was ended."""
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
        if not rest.isdecimal() or int(rest) > LONGEST // 1024:
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
        """For whoever finds that it is over."""
        return ProgramEnded(Ran(self.stdout, self.stderr, 1, note, False, ran.isolation if ran else None))


_ABSENT = "0"
_LOAD = f"{program.INSTALL}\n{inside.installation()}"
"""For an interpreter that comes from no template. Run as expressions, so that a program finds no name of ours."""


class Driven:
    """A program, which begins when something is first asked of it."""

    def __init__(self, interpreter: Interpreter, code: str, stdin: str = "", *, clock: Clock | None = None) -> None:
        self._code = code
        self._stdin = stdin.encode(errors="surrogatepass")
        self.end = End(interpreter, clock or Clock())
        self._begun = False
        self.answered = 0
        """Characters of the last answer."""

    async def call(self, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a function of the program, or make an instance of a class. If it changes a list, dict or set that it was
        given, that is changed here too.

        Raises `ProgramRaised` if it raises, and `ProgramEnded` if the program does not live to answer.
        """
        return await self.ask("chain", name, True, [[list(args), keywords]])

    async def method(self, item: Opaque, name: str, *args: Any, **keywords: Any) -> Any:
        """Call a method of an object of the program's."""
        return await self.ask("chain", item, False, [[name], [list(args), keywords]])

    async def get(self, item: Opaque, name: str) -> Any:
        """Read an attribute of an object of the program's."""
        return await self.ask("chain", item, False, [[name]])

    async def ask(self, *request: Any) -> Any:
        """Have the program's side do something of `sides.Deeds`."""
        try:
            message = await self.serve(write(request, _referred, longest=_GIVEN_MOST))
        except TooLarge:
            raise ValueError(f"the arguments are longer than {_GIVEN_MOST:,} characters") from None
        value = await self._read(message)
        return self.outcome((None, None, value) if message.kind == "raised" else value, request[-1][-1])

    async def several(self, requests: Sequence[Any]) -> Sequence[Any]:
        """Ask for one thing after the other in one message. What `outcome` takes, of the first or of all of them: the
        program stops at one that raises or gives no plain data."""
        answers = await self.ask("several", requests)
        if type(answers) is not list:
            raise self.end.ended(UNTESTED)
        return answers

    def outcome(self, answer: Any, given: Any = None) -> Any:
        """The value of an answer; what was given for it becomes what the program made of it. The answer is the
        program's word, so its form is checked."""
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
        """Run the program, if nothing was asked of it yet."""
        if not self._begun:
            await self.serve(())

    async def serve(self, chunks: Sequence[str]) -> DrivenMessage:
        """Pass on a request as it is written. The answer is the program's word, and may be anything."""
        if self._begun:
            message = await self.end.say(inside.SIDES, "side.serve", chunks)
        else:
            self._begun = True
            message = await self.end.say(inside.SIDES, "begin", self._code, self._stdin, chunks)
        return self._checked(message)

    async def resume(self, message: DrivenMessage) -> DrivenMessage:
        """Pass on the answer to a question of the program's."""
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
    """A program to be called from outside: in a sandbox of its own, or in the interpreter of one that is given.

    `seconds` is what the program may take for everything that is asked of it. An interpreter runs one program.
    """
    if interpreter is not None:
        yield Driven(interpreter, code, stdin, clock=Clock(seconds))
        return
    async with interpreter_once(limits, profiles.smallest(code)) as own:
        yield Driven(own, code, stdin, clock=Clock(seconds))
