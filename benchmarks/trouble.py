"""Right programs on a host in trouble: how many answers are right, how many are lost, and how many wrong.

    python -m benchmarks.trouble [--at-once 4] [memory stopped blocked processes files]

A caller may retry a `lost` call. A wrong answer blames the agent, and there must be none. Each kind of trouble comes
from outside: a parent group with too little memory or too few processes, a stopped server, a blocked event loop, a
server that can open no more files. It needs control groups, and root to limit them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from benchmarks.servers import Contender, Started, running
from toolyard.client import AsyncClient
from toolyard.client.errors import ToolLost
from toolyard.sandboxes.native.cgroups import name_of_broker, own_hierarchies

LIMIT_SECONDS = 4.0
"""For each program. It allows for a busy machine, which is not the topic here."""
STALL_SECONDS = 5.5
BEGUN_SECONDS = 1.2
"""By then a program sent now is running."""
BYTES = 64 * 2**20
"""Bytes that each program holds, of its 256 MiB."""
PARENT_SHARE = 0.4
"""The group's share of the memory that all of them would need."""
PROCESSES_EACH = 1.6
"""Fewer than a program needs with its helpers."""
FILES_EACH = 5

PROGRAM = f"""
import subprocess, time
held = bytearray(b"x") * {BYTES}
time.sleep(1.5)
assert subprocess.run(["true"]).returncode == 0
print(len(held) * 2)
"""
EXPECTED = str(BYTES * 2)
FUNCTION = f"def doubled():\n{textwrap.indent(PROGRAM, '    ')}    return len(held) * 2\n"
COMMAND = f"python3 -c '{PROGRAM.strip()}'"

Way = Callable[[Started, int], Awaitable[str]]
"""Run the program once; returns whether the answer is right, lost or wrong."""
Trouble = Callable[[Started, int], AbstractAsyncContextManager[None]]
"""Cause it, for a server that gets so many programs."""


def told(text: str) -> str:
    return "right" if EXPECTED in text else f"wrong: {' '.join(text.split())[-200:]}"


def python_oj(code: str, tests: object) -> Way:
    """Over verl-tool's wire."""

    async def run(server: Started, number: int) -> str:
        extra = {"public_tests": json.dumps(tests)}
        body = {"trajectory_ids": [f"t{number}"], "actions": [f"<python>{code}</python>"], "extra_fields": [extra]}
        answer = await _post(server, "/get_observation", body)
        (observation,) = answer["observations"]
        if isinstance(observation, dict) and observation.get("retryable"):
            return "lost"
        return "right" if answer["dones"] == [True] and "passed" in str(observation) else told(str(observation))

    return run


async def run_code(server: Started, number: int) -> str:
    """Over SandboxFusion's wire."""
    body = {"code": PROGRAM, "language": "python", "run_timeout": LIMIT_SECONDS}
    answer = await _post(server, "/run_code", body)
    return "lost" if answer["status"] == "SandboxError" else told(str(answer["run_result"]))


def tool_call(name: str, arguments: Mapping[str, Any]) -> Way:
    """Over ORS."""

    async def call(server: Started, number: int) -> str:
        async with AsyncClient(_url(server)) as client:
            try:
                async with client.environment("toolbox").session({}) as session:
                    return told((await session.call_tool(name, arguments)).text)
            except ToolLost as error:
                return "lost" if error.reason != "timed_out" else f"wrong: {error}"

    return call


async def _post(server: Started, path: str, body: object) -> Any:
    async with httpx2.AsyncClient(timeout=120, trust_env=False) as client:
        return (await client.post(f"{_url(server)}{path}", json=body)).raise_for_status().json()


def _url(server: Started) -> str:
    return f"http://127.0.0.1:{server.port}"


WAYS: Mapping[str, Way] = {
    "python_oj, verl": python_oj(PROGRAM, {"inputs": [""], "outputs": [EXPECTED]}),
    "python_oj, test sandbox": python_oj(FUNCTION, [f"assert sorted([doubled(), 1]) == [1, {EXPECTED}]"]),
    "/run_code": run_code,
    "python_code, ORS": tool_call("python_code", {"code": PROGRAM}),
    "ipython_code, ORS": tool_call("ipython_code", {"code": PROGRAM}),
    "bash_terminal, ORS": tool_call("bash_terminal", {"command": COMMAND}),
}


@asynccontextmanager
async def too_little_memory(server: Started, count: int) -> AsyncIterator[None]:
    async with _limited(
        server, "memory", {1: "memory.limit_in_bytes", 2: "memory.max"}, int(count * BYTES * PARENT_SHARE)
    ):
        yield


@asynccontextmanager
async def too_few_processes(server: Started, count: int) -> AsyncIterator[None]:
    async with _limited(server, "pids", {1: "pids.max", 2: "pids.max"}, int(count * PROCESSES_EACH)):
        yield


@asynccontextmanager
async def stopped(server: Started, count: int) -> AsyncIterator[None]:
    """For longer than a program may take, when all of them have begun."""
    stopping = asyncio.ensure_future(_stop(server.pid))
    yield
    await stopping


async def _stop(pid: int) -> None:
    await asyncio.sleep(BEGUN_SECONDS)
    os.kill(pid, signal.SIGSTOP)
    try:
        await asyncio.sleep(STALL_SECONDS)
    finally:
        os.kill(pid, signal.SIGCONT)


@asynccontextmanager
async def blocked(server: Started, count: int) -> AsyncIterator[None]:
    """By the tool of another environment."""

    async def block() -> None:
        await asyncio.sleep(BEGUN_SECONDS)
        async with AsyncClient(_url(server)) as client, client.environment("blocking").session({}) as session:
            await session.call_tool("block", {"seconds": STALL_SECONDS})

    blocking = asyncio.ensure_future(block())
    yield
    await blocking


@asynccontextmanager
async def too_few_files(server: Started, count: int) -> AsyncIterator[None]:
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    most = max(map(int, os.listdir(f"/proc/{server.pid}/fd"))) + FILES_EACH * count
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (most, hard))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))


TROUBLES: Mapping[str, Trouble] = {
    "memory": too_little_memory,
    "stopped": stopped,
    "blocked": blocked,
    "processes": too_few_processes,
    "files": too_few_files,
}


@asynccontextmanager
async def _limited(server: Started, controller: str, files: Mapping[int, str], most: int) -> AsyncIterator[None]:
    """Limit the group around all sandboxes of the server. None of them is near its own limit."""
    path = _parent_group(server, controller, files)
    before = path.read_text()
    path.write_text(str(most))
    try:
        yield
    finally:
        path.write_text(before.strip() if before.strip() != "9223372036854771712" else "-1")


def _parent_group(server: Started, controller: str, files: Mapping[int, str]) -> Path:
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    for hierarchy in own_hierarchies():
        for broker in map(int, children):
            path = Path(hierarchy.own, name_of_broker(broker), files[hierarchy.version])
            if controller in hierarchy.controllers and path.exists():
                return path
    raise SystemExit(f"there are no control groups for {controller} here")


def contender() -> Contender:
    command = [sys.executable, "-m", "benchmarks.trouble_server", str(LIMIT_SECONDS)]
    return Contender("toolyard", "toolyard", Path(sys.executable), command, Path(__file__).parents[1])


async def warm_up(server: Started) -> None:
    """Make it load what each way needs, and check that all is well without trouble."""
    came = await asyncio.gather(*(run(server, -1) for run in WAYS.values()))
    assert set(came) == {"right"}, came


async def answers(server: Started, trouble: str, at_once: int) -> Mapping[str, Counter[str]]:
    """How often each answer came, by way; wrong ones with their text. All ways are in the same trouble."""
    numbers = range(at_once)
    async with TROUBLES[trouble](server, at_once * len(WAYS)):
        came = await asyncio.gather(*(asyncio.gather(*(run(server, n) for n in numbers)) for run in WAYS.values()))
    return {way: Counter(answers) for way, answers in zip(WAYS, came, strict=True)}


def wrong(answers: Counter[str]) -> Mapping[str, int]:
    return {answer: count for answer, count in answers.items() if answer.startswith("wrong")}


async def play(server: Started, troubles: Sequence[str], at_once: int) -> bool:
    """Whether there was no wrong answer."""
    well = True
    await warm_up(server)
    print(f"| trouble | way | right | lost | wrong |  of {at_once} each\n| --- | --- | --: | --: | --: |")
    for trouble in troubles:
        for way, came in (await answers(server, trouble, at_once)).items():
            row = (trouble, way, came["right"], came["lost"], sum(wrong(came).values()))
            print(f"| {' | '.join(map(str, row))} |  {next(iter(wrong(came)), '')}", flush=True)
            well = well and not wrong(came)
    return well


def main() -> None:
    parser = argparse.ArgumentParser(description="Right programs on a host in trouble.")
    parser.add_argument("troubles", nargs="*", metavar="trouble", help=", ".join(TROUBLES))
    parser.add_argument("--at-once", type=int, default=4)
    asked = parser.parse_args()
    with running(contender()) as server:
        raise SystemExit(not asyncio.run(play(server, asked.troubles or list(TROUBLES), asked.at_once)))


if __name__ == "__main__":
    main()
