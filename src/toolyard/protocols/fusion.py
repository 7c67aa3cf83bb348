"""SandboxFusion's endpoint: one POST carries a program in one of many languages; the answer has its output."""

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

from toolyard.asgi import Disconnected, HttpError, HttpOptions, Request, decode, unprocessable, wrong_method
from toolyard.core.errors import SandboxError, WorkspaceError
from toolyard.core.stalls import first_of
from toolyard.runtime.runtime import Runtime
from toolyard.sandboxes import languages
from toolyard.sandboxes.base import Finished, Limits, Sandbox
from toolyard.sandboxes.languages import Languages, LanguageUnavailable, Toolchain
from toolyard.sandboxes.output import ended_by
from toolyard.sandboxes.provider import open_once, usual_limits

log = logging.getLogger("toolyard.fusion")

SECONDS_MOST = 300.0
"""The limit of one step, even if a client asks for more."""
FETCHED_MOST = 16 * 2**20
"""Bytes of all fetched files together."""
FILES_MOST = 1000

_IGNORED = "IGNORE_THIS_FILE"
"""Clients send files with this in the name that are not to be written."""

Language: TypeAlias = Literal[
    "python", "python2", "cpp", "nodejs", "go", "go_test", "java", "php", "csharp", "bash", "typescript", "sql", "rust",
    "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia", "pytest", "junit", "kotlin_script", "jest",
    "verilog", "python_gpu", "lean", "swift", "racket", "gtest", "react",
]  # fmt: skip
"""All languages that clients know."""

Outcome: TypeAlias = dict[str, Any]
"""A step, or all of them, as JSON."""


class RunCode(BaseModel):
    """What clients post."""

    code: str
    language: Language
    stdin: str | None = None
    compile_timeout: float = Field(10, allow_inf_nan=False)
    run_timeout: float = Field(10, allow_inf_nan=False)
    memory_limit_MB: int = -1
    files: dict[str, str | None] = Field({}, max_length=FILES_MOST)
    """Contents in base64, by path."""
    fetch_files: list[str] = Field([], max_length=FILES_MOST)


class Unusable(Exception):
    """A file of the request cannot be read."""


@dataclass(frozen=True, slots=True)
class Options(HttpOptions):
    """`settings.py` explains each."""

    protocol: tuple[str, ...]
    max_concurrent_calls: int
    max_queued_calls: int
    call_seconds: float


def routes(runtime: Runtime, options: Options) -> list[BaseRoute]:
    return [Fusion(runtime, options)]


class Fusion(BaseRoute):
    def __init__(self, runtime: Runtime, options: Options) -> None:
        self._runtime = runtime
        self._options = options
        self._turn = asyncio.Semaphore(options.max_concurrent_calls)
        self._requests = 0
        self._languages = Languages()
        endpoints: dict[str, tuple[str, Callable[[Request], Awaitable[None]]]] = {"/run_code": ("POST", self.run_code)}
        if options.protocol == ("fusion",):  # the only protocol has the paths of the original
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
            raise wrong_method(method)
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
            outcome = await self._wanted(request, asked)
        finally:
            self._requests -= 1
        await request.answer_json(outcome)

    async def _wanted(self, request: Request, asked: RunCode) -> Outcome:
        """Run the program. If that takes too long, or the client hangs up, end the program or take it off the queue."""
        seconds = self._options.call_seconds
        running = asyncio.ensure_future(self._in_turn(asked))
        leaving = asyncio.ensure_future(request.until_gone())
        try:
            await first_of((running, leaving), seconds)
            if running.done():
                return running.result()
            if leaving.done():
                raise Disconnected
            return answer("SandboxError", f"no answer within {seconds:g} s, so it was stopped; it may only have waited")
        finally:
            running.cancel()
            leaving.cancel()
            await asyncio.wait((running, leaving))

    async def _in_turn(self, asked: RunCode) -> Outcome:
        async with self._turn:
            return await self._answer(asked)

    async def _answer(self, asked: RunCode) -> Outcome:
        """Answer a failure that is not the program's fault as SandboxError: clients try again, then report it."""
        try:
            return await self._run(asked)
        except (SandboxError, WorkspaceError, LanguageUnavailable, Unusable) as error:
            log.warning("a program in %s could not be run: %s", asked.language, error)
            return answer("SandboxError", str(error))

    async def _run(self, asked: RunCode) -> Outcome:
        toolchain = await self._languages.toolchain(asked.language)
        files = await asyncio.to_thread(decoded, asked.files) if asked.files else {}
        async with open_once() as sandbox:
            for path, data in files.items():
                await sandbox.write(path, data)
            return await run(sandbox, toolchain, asked)


def parse(body: bytes) -> RunCode:
    value = decode(body)
    try:
        return RunCode.model_validate(value)
    except ValidationError as error:
        raise unprocessable(error) from None


def decoded(files: Mapping[str, str | None]) -> dict[str, bytes]:
    try:
        return {
            path: base64.b64decode(data) for path, data in files.items() if data is not None and _IGNORED not in path
        }
    except ValueError as error:
        raise Unusable(f"a file is not base64: {error}") from None


async def run(sandbox: Sandbox, toolchain: Toolchain, asked: RunCode) -> Outcome:
    """Run the program, and fetch the files that it left."""
    program = languages.LanguageProgram(
        source(asked),
        stdin=(asked.stdin or "").encode(errors="surrogatepass"),
        compile_seconds=within(asked.compile_timeout),
        run_seconds=within(asked.run_timeout),
        limits=limits(asked),
    )
    ran = await languages.run(sandbox, toolchain, program, name=free_name(toolchain, asked.files))
    files, left_out = await fetched(sandbox, asked.fetch_files)
    ended = [ended_by(step.killed_by, step.usage.wall_seconds) for step in ran.steps if step.killed_by is not None]
    message = "; ".join([*ended, *left_out])
    return answer("Success" if ran.well else "Failed", message, ran.compiled, ran.ran, files)


def free_name(toolchain: Toolchain, files: Collection[str]) -> str:
    """A name for the program that no file of the client has."""
    name = toolchain.name
    while toolchain.name == "main" and f"{name}{toolchain.ending}" in files:
        name += "_"
    return name


def source(asked: RunCode) -> str:
    if asked.language == "php" and "<?" not in asked.code:
        return f"<?php\n{asked.code}"
    return asked.code


def limits(asked: RunCode) -> Limits | None:
    """Limits with less memory than usual, if the client asks for that. They do not apply to compilers."""
    if asked.memory_limit_MB <= 0:
        return None
    usual = usual_limits()
    return dataclasses.replace(usual, memory_bytes=min(asked.memory_limit_MB * 2**20, usual.memory_bytes))


def within(seconds: float) -> float:
    return min(max(seconds, 0.001), SECONDS_MOST)


async def fetched(sandbox: Sandbox, paths: Sequence[str]) -> tuple[Mapping[str, str], Sequence[str]]:
    """The files that exist, as base64, and a message for each that is too large."""
    files: dict[str, str] = {}
    left_out: list[str] = []
    room = FETCHED_MOST
    for path in dict.fromkeys(paths):
        try:
            data = await sandbox.read(path)
        except WorkspaceError:  # left out, as in the original
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
        "return_code": None if late else -finished.signal if finished.signal else finished.exit_code,
        "stdout": finished.stdout.decode(errors="replace"),
        "stderr": finished.stderr.decode(errors="replace"),
    }
