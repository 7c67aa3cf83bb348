"""Programming languages: how a sandbox compiles and runs their programs, and a hello-world that proves that it can.

A language whose compiler is installed may still fail every program, because of the host. So each language must run its
hello-world before any user's program. If that fails, the server is to blame, not the program.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from toolyard.core.errors import SandboxError
from toolyard.sandboxes.base import Finished, Limits, Sandbox
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.provider import open_once, usual_limits

LOOK_SECONDS = 10.0
"""For checking whether the sandbox has a program."""
TRIAL_SECONDS = 60.0
"""For each step of a hello-world, on a host that may be busy."""
TRY_AGAIN_SECONDS = 60.0
"""When to try a failed language again: the host may have been short of something."""
NO_PROGRAM = "there is no "
"""How the problem begins of a language that is not installed."""
_WORDS_MOST = 300
"""Characters of a message from a compiler or a run-time."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How to run programs of one language.

    `{file}` is the program, `{out}` what the compiler makes of it, `{memory}` how many bytes it may use.
    """

    ending: str
    run: Sequence[str]
    compile: Sequence[str] = ()
    name: str = "main"
    hello: str = ""
    """A program that prints `says`, and uses a little of its standard library."""
    says: str = "hello"

    @property
    def needs(self) -> str:
        """The program that must be installed."""
        return (self.compile or self.run)[0]


_JAVA_MEMORY = ("-XX:MaxRAM={memory}", "-XX:MaxRAMPercentage=75")
"""Without these, Java would size its heap by the host's memory: it cannot see the sandbox's limit."""

TOOLCHAINS: Mapping[str, Toolchain] = {
    "python": Toolchain(".py", ["python3", "{file}"], hello="import json\nprint(json.loads('\"hello\"'))"),
    "pytest": Toolchain(".py", ["pytest", "{file}"], hello="def test_hello():\n    assert True", says="1 passed"),
    "bash": Toolchain(".sh", ["bash", "{file}"], hello="echo hello | cat"),
    "cpp": Toolchain(
        ".cpp",
        ["./{out}"],
        ["g++", "-std=c++17", "{file}", "-o", "{out}", "-lpthread"],
        hello='#include <iostream>\nint main() { std::cout << "hello" << std::endl; }',
    ),
    "nodejs": Toolchain(".js", ["node", "{file}"], hello='console.log(require("path").basename("/a/hello"))'),
    "typescript": Toolchain(".ts", ["tsx", "{file}"], hello='const word: string = "hello"\nconsole.log(word)'),
    "go": Toolchain(
        ".go",
        ["./{out}"],
        ["go", "build", "-o", "{out}", "{file}"],
        hello='package main\n\nimport "fmt"\n\nfunc main() { fmt.Println("hello") }',
    ),
    "java": Toolchain(
        ".java",
        ["java", *_JAVA_MEMORY, "-cp", ".", "-ea", "Main"],
        ["javac", *(f"-J{flag}" for flag in _JAVA_MEMORY), "-cp", ".", "{file}"],
        name="Main",
        hello='class Main { public static void main(String[] words) { System.out.println("hello"); } }',
    ),
    "php": Toolchain(".php", ["php", "-f", "{file}"], hello='<?php echo implode("l", ["he", "lo"]);'),
    "rust": Toolchain(
        ".rs", ["./{out}"], ["rustc", "{file}", "-o", "{out}"], hello='fn main() { println!("{}", "hello"); }'
    ),
    "lua": Toolchain(".lua", ["lua", "{file}"], hello='print(string.lower("HELLO"))'),
    "R": Toolchain(".R", ["Rscript", "{file}"], hello='stopifnot(median(1:3) == 2)\ncat("hello\\n")'),
    "perl": Toolchain(".pl", ["perl", "{file}"], hello='use List::Util "first";\nprint first { $_ } "hello";'),
    "D_ut": Toolchain(
        ".d",
        ["./{out}"],
        ["dmd", "{file}", "-unittest", "-of={out}"],
        hello='import std.stdio;\nunittest { writeln("hello"); }\nvoid main() {}',
    ),
    "ruby": Toolchain(".rb", ["ruby", "{file}"], hello='require "set"\nputs Set["hello"].first'),
    "julia": Toolchain(".jl", ["julia", "{file}"], hello='println("hello")'),
    "swift": Toolchain(".swift", ["./{out}"], ["swiftc", "{file}", "-o", "{out}"], hello='print("hello")'),
}
"""`Languages` finds out which of them work, when each is first requested."""


class LanguageUnavailable(Exception):
    """This server cannot run the language, whatever the program."""


@dataclass(frozen=True, slots=True)
class LanguageProgram:
    """One program of a user, and what it may use."""

    text: str
    stdin: bytes = b""
    compile_seconds: float = TRIAL_SECONDS
    run_seconds: float = TRIAL_SECONDS
    limits: Limits | None = None
    """While it runs; compilers have the sandbox's limits."""


@dataclass(frozen=True, slots=True)
class ProgramSteps:
    """The results of a program. A step that was not needed, or not reached, is None."""

    compiled: Finished | None
    ran: Finished | None

    @property
    def steps(self) -> Sequence[Finished]:
        return [step for step in (self.compiled, self.ran) if step is not None]

    @property
    def well(self) -> bool:
        return all(map(_is_well, self.steps))


async def run(sandbox: Sandbox, toolchain: Toolchain, program: LanguageProgram, *, name: str = "") -> ProgramSteps:
    """Compile the program if it needs that, and run it if that succeeded. `name` names its file."""
    stem = name or toolchain.name
    words = {"file": f"{stem}{toolchain.ending}", "out": f"{stem}.out"}
    await sandbox.write(words["file"], program.text.encode(errors="surrogatepass"))
    compiled = None
    if toolchain.compile:
        argv = _filled(toolchain.compile, words, usual_limits())
        compiled = await sandbox.run(argv, timeout=program.compile_seconds)
        if not _is_well(compiled):
            return ProgramSteps(compiled, None)
    argv = _filled(toolchain.run, words, program.limits or usual_limits())
    ran = await sandbox.run(argv, stdin=program.stdin, timeout=program.run_seconds, limits=program.limits)
    return ProgramSteps(compiled, ran)


def _is_well(step: Finished) -> bool:
    return step.exit_code == 0 and step.killed_by is None


def _filled(argv: Sequence[str], words: Mapping[str, str], limits: Limits) -> Sequence[str]:
    return [word.format_map({**words, "memory": str(limits.memory_bytes)}) for word in argv]


@dataclass(slots=True)
class LanguageTrial:
    """What is known of one language on this host."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Later requests wait here while the language is tried."""
    problem: str | None = None
    """None before it was tried, empty if it works."""
    until: float = 0.0
    """When to try a failed language again."""

    @property
    def known(self) -> bool:
        return self.problem == "" or (self.problem is not None and time.monotonic() < self.until)


class Languages:
    """The languages that one server offers. It tries each when it is first requested and remembers the result."""

    def __init__(self, toolchains: Mapping[str, Toolchain] = TOOLCHAINS) -> None:
        self._toolchains = toolchains
        self._trials: dict[str, LanguageTrial] = {}

    @property
    def offered(self) -> Iterator[str]:
        """All languages that are not known to fail."""
        return (name for name in self._toolchains if not (name in self._trials and self._trials[name].problem))

    async def toolchain(self, language: str) -> Toolchain:
        """The toolchain of a language that works here. Raises `LanguageUnavailable`."""
        toolchain = self._toolchains.get(language)
        if toolchain is None:
            raise LanguageUnavailable(f"{language} is not offered here; there are {', '.join(self.offered)}")
        trial = self._trials.setdefault(language, LanguageTrial())
        if not trial.known:
            async with trial.turn:
                if not trial.known:
                    trial.problem = await problem_of(toolchain)
                    trial.until = time.monotonic() + TRY_AGAIN_SECONDS
        if trial.problem:
            raise LanguageUnavailable(f"{language} is not available here: {trial.problem}")
        return toolchain


async def problem_of(toolchain: Toolchain) -> str:
    """Why a language does not work in the sandboxes here; empty if its hello-world runs.

    Raises `SandboxError` if the trial itself failed.
    """
    async with open_once() as sandbox:
        looked = await sandbox.run(["sh", "-c", 'command -v "$0" >/dev/null', toolchain.needs], timeout=LOOK_SECONDS)
        _check_time(looked, f"looking for {toolchain.needs}")
        if looked.exit_code:
            return f"{NO_PROGRAM}{toolchain.needs} in the sandbox"
        tried = await run(sandbox, toolchain, LanguageProgram(toolchain.hello))
    for step in tried.steps:
        _check_time(step, f"trying {toolchain.needs}")
    if tried.well and toolchain.says in tried.steps[-1].stdout.decode(errors="replace"):
        return ""
    return f"{toolchain.needs} fails even a hello-world in the sandbox: {_words(tried.steps[-1])}"


def _check_time(step: Finished, doing: str) -> None:
    """A timeout says nothing of the language, so it must not be remembered."""
    if step.killed_by in ("wall", "cpu"):
        raise SandboxError(f"{ended_by(step.killed_by, step.usage.wall_seconds)}, {doing}")


def _words(step: Finished) -> str:
    """Why a step failed, on one line."""
    if step.killed_by is not None:
        return ended_by(step.killed_by, step.usage.wall_seconds)
    said = " ".join((step.stderr or step.stdout).decode(errors="replace").split())
    shown = f"{said[:_WORDS_MOST]} …" if len(said) > _WORDS_MOST else said
    return f"exit code {step.exit_code}" + f", {shown}" * bool(shown)
