"""SandboxFusion's endpoint: one POST carries a program in one of many languages, and brings back what it wrote."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from pydantic import BaseModel, Field, ValidationError
from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from toolyard.asgi import HttpError, HttpOptions, Request, decode
from toolyard.core.errors import SandboxError, WorkspaceError
from toolyard.runtime.runtime import Runtime
from toolyard.sandboxes.base import Finished, Limits, Sandbox
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.provider import open_once, usual_limits

log = logging.getLogger("toolyard.fusion")

SECONDS_MOST = 300.0
"""Of one step, whatever is asked for."""
LOOK_SECONDS = 10.0
"""For finding out whether the sandbox has a program."""
FETCHED_MOST = 16 * 2**20
"""Bytes of all files that are fetched."""
FILES_MOST = 1000

_IGNORED = "IGNORE_THIS_FILE"
"""In the name of a file that clients send and nobody wants."""

Language: TypeAlias = Literal[
    "python", "python2", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust",
    "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest",
    "verilog", "python_gpu", "lean", "swift", "racket", "gtest", "react",
]  # fmt: skip
"""All that clients know."""

Outcome: TypeAlias = dict[str, Any]
"""A step, or all of them, as JSON."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """How programs of one language are run. `{file}` is the program, `{out}` what the compiler makes of it."""

    ending: str
    run: Sequence[str]
    compile: Sequence[str] = ()
    name: str = "main"

    @property
    def needs(self) -> str:
        """The program without which nothing works."""
        return (self.compile or self.run)[0]


TOOLCHAINS: Mapping[str, Toolchain] = {
    "python": Toolchain(".py", ["python3", "{file}"]),
    "pytest": Toolchain(".py", ["pytest", "{file}"]),
    "bash": Toolchain(".sh", ["bash", "{file}"]),
    "cpp": Toolchain(".cpp", ["./{out}"], ["g++", "-std=c++17", "{file}", "-o", "{out}", "-lpthread"]),
    "nodejs": Toolchain(".js", ["node", "{file}"]),
    "typescript": Toolchain(".ts", ["tsx", "{file}"]),
    "go": Toolchain(".go", ["./{out}"], ["go", "build", "-o", "{out}", "{file}"]),
    "java": Toolchain(".java", ["java", "-cp", ".", "-ea", "Main"], ["javac", "-cp", ".", "{file}"], name="Main"),
    "php": Toolchain(".php", ["php", "-f", "{file}"]),
    "rust": Toolchain(".rs", ["./{out}"], ["rustc", "{file}", "-o", "{out}"]),
    "lua": Toolchain(".lua", ["lua", "{file}"]),
    "R": Toolchain(".R", ["Rscript", "{file}"]),
    "perl": Toolchain(".pl", ["perl", "{file}"]),
    "D_ut": Toolchain(".d", ["./{out}"], ["dmd", "{file}", "-unittest", "-of={out}"]),
    "ruby": Toolchain(".rb", ["ruby", "{file}"]),
    "julia": Toolchain(".jl", ["julia", "{file}"]),
    "swift": Toolchain(".swift", ["./{out}"], ["swiftc", "{file}", "-o", "{out}"]),
}
"""Which of them are really there, the sandbox tells when it is first asked."""


class RunCode(BaseModel):
    """What clients post."""

    code: str
    language: Language
    stdin: str | None = None
    compile_timeout: float = Field(10, allow_inf_nan=False)
    run_timeout: float = Field(10, allow_inf_nan=False)
    memory_limit_MB: int = -1
    files: dict[str, str | None] = Field({}, max_length=FILES_MOST)
    """By path: base64."""
    fetch_files: list[str] = Field([], max_length=FILES_MOST)


class Unavailable(Exception):
    """This server cannot do what is asked, whatever the program is."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """Settings say what each is for."""

    protocol: tuple[str, ...]
    max_concurrent_calls: int
    max_queued_calls: int


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Fusion(runtime, options)]


class Fusion(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._turn = asyncio.Semaphore(options.max_concurrent_calls)
        self._requests = 0
        self._found: dict[str, bool] = {}
        """Whether the sandbox has a program."""
        endpoints: dict[str, tuple[str, Callable[[Request], Awaitable[None]]]] = {"/run_code": ("POST", self.run_code)}
        if options.protocol == ("fusion",):  # alone at the root, as the original
            endpoints |= {"/health": ("GET", self.health), "/v1/ping": ("GET", self.ping)}
        self._endpoints: Mapping[str, tuple[str, Callable[[Request], Awaitable[None]]]] = endpoints

    @property
    def paths(self) -> Collection[str]:
        return self._endpoints

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        return (Match.FULL if scope["path"].rstrip("/") in self._endpoints else Match.NONE), {}

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        method, endpoint = self._endpoints[scope["path"].rstrip("/")]
        if scope["method"] != method:
            raise HttpError(405, "Method Not Allowed", [(b"allow", method.encode())])
        await endpoint(Request(scope, receive, send, self._options))

    async def health(self, request: Request) -> None:
        draining = self._runtime.draining
        await request.answer_json({"status": "draining" if draining else "healthy"}, 503 if draining else 200)

    async def ping(self, request: Request) -> None:
        await request.answer_json("pong")

    async def run_code(self, request: Request) -> None:
        asked = parse(await request.body())
        if self._runtime.draining:
            raise HttpError(503, "the server is shutting down", [(b"retry-after", b"1")])
        if self._requests >= self._options.max_concurrent_calls + self._options.max_queued_calls:
            raise HttpError(503, f"{self._requests} programs are waiting or running", [(b"retry-after", b"1")])
        self._requests += 1
        try:
            async with self._turn:
                outcome = await self._answer(asked)
        finally:
            self._requests -= 1
        await request.answer_json(outcome)

    async def _answer(self, asked: RunCode) -> Outcome:
        """What is not the program's fault is a SandboxError: clients then try again, and say so in the end."""
        try:
            return await self._run(asked)
        except (SandboxError, WorkspaceError, Unavailable) as error:
            log.warning("a program in %s could not be run: %s", asked.language, error)
            return answer("SandboxError", str(error))

    async def _run(self, asked: RunCode) -> Outcome:
        toolchain = TOOLCHAINS.get(asked.language)
        if toolchain is None:
            raise Unavailable(f"{asked.language} is not offered here; there are {', '.join(TOOLCHAINS)}")
        files = await asyncio.to_thread(decoded, asked.files) if asked.files else {}
        async with open_once() as sandbox:
            await self._check(sandbox, asked.language, toolchain)
            for path, data in files.items():
                await sandbox.write(path, data)
            return await run(sandbox, toolchain, asked)

    async def _check(self, sandbox: Sandbox, language: str, toolchain: Toolchain) -> None:
        program = toolchain.needs
        if program not in self._found:
            looked = await sandbox.run(["sh", "-c", 'command -v "$0"', program], timeout=LOOK_SECONDS)
            if looked.killed_by is not None:  # which says nothing of the program, and must not be remembered
                raise SandboxError(f"{ended_by(looked.killed_by, looked.usage.wall_seconds)}, looking for {program}")
            self._found[program] = looked.exit_code == 0
        if not self._found[program]:
            raise Unavailable(f"{language} is not available here: there is no {program} in the sandbox")


def parse(body: bytes) -> RunCode:
    value = decode(body)
    try:
        return RunCode.model_validate(value)
    except ValidationError as error:
        problems = error.errors(include_url=False, include_input=False, include_context=False)
        raise HttpError(422, [{**problem, "loc": ["body", *problem["loc"]]} for problem in problems]) from None


def decoded(files: Mapping[str, str | None]) -> dict[str, bytes]:
    try:
        return {
            path: base64.b64decode(data) for path, data in files.items() if data is not None and _IGNORED not in path
        }
    except ValueError as error:
        raise Unavailable(f"a file is not base64: {error}") from None


async def run(sandbox: Sandbox, toolchain: Toolchain, asked: RunCode) -> Outcome:
    """Compile the program if it needs that, run it if that went well, and fetch what it left behind."""
    name = toolchain.name
    while toolchain.name == "main" and f"{name}{toolchain.ending}" in asked.files:
        name += "_"  # clients' files may be called as they like
    words = {"file": f"{name}{toolchain.ending}", "out": f"{name}.out"}
    await sandbox.write(words["file"], source(asked).encode(errors="surrogatepass"))
    compiled = ran = None
    if toolchain.compile:
        compiled = await sandbox.run(filled(toolchain.compile, words), timeout=within(asked.compile_timeout))
    if compiled is None or (compiled.exit_code == 0 and compiled.killed_by is None):
        ran = await sandbox.run(
            filled(toolchain.run, words),
            stdin=(asked.stdin or "").encode(errors="surrogatepass"),
            timeout=within(asked.run_timeout),
            limits=limits(asked),
        )
    files, left_out = await fetched(sandbox, asked.fetch_files)
    steps = [step for step in (compiled, ran) if step is not None]
    well = all(step.exit_code == 0 and step.killed_by is None for step in steps)
    ended = [ended_by(step.killed_by, step.usage.wall_seconds) for step in steps if step.killed_by is not None]
    message = "; ".join([*ended, *left_out])
    return answer("Success" if well else "Failed", message, compiled, ran, files)


def source(asked: RunCode) -> str:
    if asked.language == "php" and "<?" not in asked.code:
        return f"<?php\n{asked.code}"
    return asked.code


def filled(argv: Sequence[str], words: Mapping[str, str]) -> Sequence[str]:
    return [word.format_map(words) for word in argv]


def limits(asked: RunCode) -> Limits | None:
    """Less memory than usual, if that is asked for. Compilers are not meant."""
    if asked.memory_limit_MB <= 0:
        return None
    usual = usual_limits()
    return dataclasses.replace(usual, memory_bytes=min(asked.memory_limit_MB * 2**20, usual.memory_bytes))


def within(seconds: float) -> float:
    return min(max(seconds, 0.001), SECONDS_MOST)


async def fetched(sandbox: Sandbox, paths: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """The files that are there, as base64; and what is to be said of those that are too large."""
    files: dict[str, str] = {}
    left_out: list[str] = []
    room = FETCHED_MOST
    for path in dict.fromkeys(paths):
        try:
            data = await sandbox.read(path)
        except WorkspaceError:  # as the original: who misses it will see that
            continue
        if len(data) > room:
            left_out.append(f"{path} is left out: the files have more than {FETCHED_MOST} bytes together")
            continue
        room -= len(data)
        files[path] = (await asyncio.to_thread(base64.b64encode, data)).decode()
    return files, left_out


def answer(
    status: str,
    message: str,
    compiled: Finished | None = None,
    ran: Finished | None = None,
    files: Mapping[str, str] = {},
) -> Outcome:
    return {
        "status": status,
        "message": message,
        "compile_result": None if compiled is None else step(compiled),
        "run_result": None if ran is None else step(ran),
        "executor_pod_name": None,
        "files": files,
    }


def step(finished: Finished) -> Outcome:
    late = finished.killed_by in ("wall", "cpu")
    return {
        "status": "TimeLimitExceeded" if late else "Finished",
        "execution_time": finished.usage.wall_seconds,
        "cpu_time": finished.usage.cpu_seconds,
        "return_code": None if late else finished.exit_code,
        "stdout": finished.stdout.decode(errors="replace"),
        "stderr": finished.stderr.decode(errors="replace"),
    }
