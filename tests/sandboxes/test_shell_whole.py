"""Ending a shell command ends it whole, and the result says so: none of its rest runs, in every backend."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

from tests.sandboxes.backends import backend, others
from toolyard.sandboxes.base import Backend, Finished, Limits, Sandbox
from toolyard.sandboxes.shell import may_wait_for_subshell

pytestmark = [pytest.mark.anyio, pytest.mark.thorough]

KEPT = {
    "list": "sleep 9; touch rest; echo rest",
    "and, or": "sleep 9 && touch rest || touch rest",
    "lines": "sleep 9\ntouch rest\nfor i in 1 2; do touch rest; done",
    "for": "for i in 1 2 3; do sleep 9; touch rest; done; touch rest",
    "until": "until false; do :; done; touch rest",
    "arithmetic": "while ((1)); do ((x++)); done; touch rest",
    "endless for": "for ((;;)); do x=1; done; touch rest",
    "if": "if sleep 9; then touch rest; else touch rest; fi",
    "not": "! sleep 9; touch rest",
    "case": "case $(sleep 9) in *) touch rest;; esac",
    "pipeline": "sleep 9 | cat; touch rest",
    "while in a pipeline": "yes | while read x; do sleep 9; touch rest; done; touch rest",
    "group": "sleep 9; { echo rest; } > rest",
    "substitution": "echo $(sleep 9; touch rest); touch rest",
    "assignment": "x=$(sleep 9); touch rest",
    "eval": "eval 'sleep 9; touch rest'; touch rest",
    "sourced": "echo 'sleep 9; touch rest' > file; . ./file; touch rest",
    "here document": "cat <<EOF; touch rest\n$(sleep 9)\nEOF\ntouch rest",
    "waits for input": "read x < <(sleep 9); touch rest",
    "nested bash": "bash -c 'sleep 9; touch rest'; touch rest",
    "job": "{ sleep 1.2; touch rest; } & sleep 9; touch rest",
    "orphan": "setsid bash -c 'sleep 1.2; touch rest' & disown; sleep 9; touch rest",
    "array": "x=(a b); sleep 9; touch rest",
    "wait": "sleep 9 & wait; touch rest",
    "INT ignored": "trap '' INT TERM; sleep 9; touch rest",
    "INT handled": "trap 'touch rest' INT TERM; sleep 9; touch rest",
    "EXIT handled": "trap 'touch rest' EXIT; sleep 9; touch rest; trap - EXIT",
    "ERR handled": "trap 'x=1' ERR; sleep 9; touch rest",
    "DEBUG handled": "trap 'x=1' DEBUG; sleep 9; touch rest",
    "catches SIGINT": """python3 -c "import signal, time; signal.signal(2, print); time.sleep(9)"; touch rest""",
    "output": "yes; touch rest",
}
"""Commands that do not cost the shell."""
LOST = {
    "function": "f() { sleep 9; touch rest; }; f; touch rest",
    "function in a loop": "f() { sleep 9; touch rest; }; while true; do f; touch rest; done; touch rest",
    "busy function": "f() { while :; do :; done; touch rest; }; g() { f; touch rest; }; g; touch rest",
    "set -e": "set -e; sleep 9; touch rest",
    "subshell": "(sleep 9; touch rest); touch rest",
    "small subshell": "if (sleep 9); then touch rest; else echo > rest; fi; touch rest",
    "exec": "exec sleep 9",
    "reads nothing": "mkfifo pipe; exec 9<>pipe; read x <&9; touch rest",
    "signals ignored": "trap '' $(seq 34 64); while :; do :; done; touch rest",
}
"""Commands that do, and the result says so."""
FEW = ("list", "small subshell", "for", "until", "group", "sourced", "job", "orphan", "output", "function", "exec")
COMMANDS = {
    "native": [*KEPT, *LOST],
    "bubblewrap": FEW,
    "landlock": FEW,
    "subprocess": FEW,
    "docker": ("list", "until"),
}

CPU, MEMORY = Limits(cpu_seconds=1), Limits(memory_bytes=128 * 2**20)
LIMITED = {
    "cpu of the shell": ("while :; do :; done; touch rest; echo rest", CPU, "cpu"),
    "cpu of a program": ("python3 -c 'while True: pass'; touch rest; echo rest", CPU, "cpu"),
    "cpu of many": ("while :; do /bin/true; done; touch rest; echo rest", CPU, "cpu"),
    "memory": ("x=x; while :; do x=$x$x; done; touch rest; echo rest", MEMORY, "memory"),
    "errors": ("yes >&2; touch rest; echo rest", Limits(output_bytes=4096), "output"),
    "output": ("head -c 99999 /dev/zero; sleep 0.5; touch rest; echo rest", Limits(output_bytes=4096), "output"),
}
"""Commands that exceed a limit other than their time."""

TIMEOUT = 0.8
LIMITS = Limits(output_bytes=4096)


async def ended(box: Sandbox, name: str) -> Sequence[str]:
    """What is wrong with how this command ends; empty if nothing is."""
    await box.shell("mkdir -p place; cd place; kept=1; sleep 99 & job=$!")
    await box.shell("sleep 0.1")  # ending a command spares the processes of older jobs
    done = await box.shell((KEPT | LOST)[name], timeout=TIMEOUT)
    found = problems_of(done, lost=name in LOST, limit="output" if name == "output" else "wall")
    after = await box.shell(
        'echo "$kept $(basename "$PWD")"; kill -0 $job && echo alive; for i in 1 2; do echo $i; done'
    )
    wanted = b"1 place\nalive\n1\n2\n" if name in KEPT else b"1\n2\n"
    if not after.stdout.endswith(wanted) or (name in LOST and b"place" in after.stdout):
        found.append(f"then: {after}")
    await asyncio.sleep(1.0)  # longer than any leftover needs
    if "rest" in {entry.name for entry in [*await box.list(), *await box.list("place")]}:
        found.append("its rest has run")
    return [f"{name}: {problem}" for problem in found]


def problems_of(done: Finished, *, lost: bool, limit: str) -> list[str]:
    got = done.killed_by, done.state_lost, done.exit_code != 0, b"rest" in done.stdout
    return [] if got == (limit, lost, True, False) else [str(done)]


@pytest.mark.parametrize("kind", ["native", *others("bubblewrap", "landlock", "subprocess", "docker")])
async def test_a_command_whose_time_is_over_is_ended_with_its_rest(kind, tmp_path):
    chosen = backend(kind, tmp_path)
    await chosen.start()
    try:
        async with contextlib.AsyncExitStack() as stack:
            opening = [chosen.open(LIMITS) for _ in COMMANDS[kind]]
            boxes = [await stack.enter_async_context(box) for box in await asyncio.gather(*opening)]
            told = await asyncio.gather(*(ended(*case) for case in zip(boxes, COMMANDS[kind], strict=True)))
        assert not any(told), "\n".join(problem for problems in told for problem in problems)
    finally:
        await chosen.close()


async def exceeding(chosen: Backend, name: str) -> Sequence[str]:
    command, limits, limit = LIMITED[name]
    async with await chosen.open(limits) as box:
        await box.shell("kept=1")
        found = problems_of(await box.shell(command, timeout=60), lost=name == "memory", limit=limit)
        await asyncio.sleep(0.7)
        after = await box.shell("echo $kept; ls")
    return [*found, *([] if after.stdout == (b"\n" if name == "memory" else b"1\n") else [f"{name}, then: {after}"])]


@pytest.mark.parametrize("kind", ["native", "subprocess"])
async def test_a_command_that_exceeds_another_limit_is_ended_with_its_rest(kind, tmp_path):
    chosen = backend(kind, tmp_path)
    await chosen.start()
    try:
        cases = [name for name in LIMITED if kind == "native" or name != "memory"]  # elsewhere the shell fails
        told = await asyncio.gather(*(exceeding(chosen, name) for name in cases))
        assert not any(told), "\n".join(problem for problems in told for problem in problems)
    finally:
        await chosen.close()


@pytest.mark.parametrize("kind", ["native", "subprocess"])
async def test_a_command_whose_caller_goes_away_is_ended_with_its_rest(kind, tmp_path):
    chosen = backend(kind, tmp_path)
    await chosen.start()
    try:
        async with await chosen.open() as box:
            await box.shell("kept=1")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await box.shell("for i in 1 2; do touch begun; sleep 0.9; touch rest; done; touch rest")
            assert (await box.shell("sleep 1.2; echo $kept; ls")).stdout == b"1\nbegun\n"
    finally:
        await chosen.close()


def test_only_what_begins_a_subshell_is_taken_for_one():
    for command in (
        "(a)",
        "a; (b)",
        "if (a); then b; fi",
        "f() (a)",
        "a # it's\n(b)",
        "eval $'(a)'",
        "eval $'x=\\047(\\047; (a)'",
    ):
        assert may_wait_for_subshell(command), command
    for command in (
        "a", "x=(1 2)", "f() { a; }", "((x++))", "echo $((1 + 2)) $(a)", "a <(b) >(c)", "python -c 'f()'",
        'python -c "f()"', "echo \\(", "a # (b)", "eval $'python -c \\047f()\\047'", "(\\builtin exit 3) || a",
    ):  # fmt: skip
        assert not may_wait_for_subshell(command), command
