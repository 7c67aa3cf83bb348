"""Limits: what ends a program, and what it runs into."""

from __future__ import annotations

from dataclasses import replace

from toolyard.sandboxes.base import Limits, Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, rule_of, sh

RULES: list[Rule] = []


@rule_of(RULES, "limits")
async def _(box: Sandbox, case: Case) -> None:
    """A program that takes too long ends, and its output so far is kept."""
    done = await box.run(sh("echo begun; sleep 50; echo ended"), timeout=0.7)
    case.same("how it ended", (done.killed_by, done.timed_out, done.exit_code), ("wall", True, 124))
    case.same("its output", done.stdout, b"begun\n")
    if not 0.6 <= done.usage.wall_seconds <= 6:
        case.problem(f"it reports {done.usage.wall_seconds:.2f} s")
    done = await box.run(["sleep", "50"], limits=replace(box.limits, wall_seconds=0.3))
    case.same("by its own limits", done.killed_by, "wall")
    if done.usage.wall_seconds > 6:
        case.problem(f"by its own limits it took {done.usage.wall_seconds:.2f} s")


@rule_of(RULES, "limits", limits=Limits(cpu_seconds=0.6, wall_seconds=30))
async def _(box: Sandbox, case: Case) -> None:
    """A program that uses too much processor time ends."""
    busy = "while :; do :; done"
    done = await box.run(sh(busy))
    case.same("of a program", (done.killed_by, done.exit_code), ("cpu", 124))
    await box.exec("kept = 1")
    case.same("of Python", (await box.exec("while True: pass")).killed_by, "cpu")
    case.same("of the shell", (await box.shell(busy)).killed_by, "cpu")
    for _ in range(3):
        case.same("of a little", (await box.exec("x = sum(range(2000000))")).killed_by, None)


@rule_of(RULES, "limits", limits=Limits(output_bytes=10_000))
async def _(box: Sandbox, case: Case) -> None:
    """A program that writes without end is ended, and what it wrote first is kept."""
    for program, streams in ("yes ab", "stdout"), ("yes ab >&2", "stderr"):
        done = await box.run(sh(program))
        case.same(f"the limit of {streams}", done.killed_by, "output")
        if done.exit_code in (0, 124):
            case.problem(f"the exit code of one that wrote without end is {done.exit_code}")
        case.same(f"what is kept of {streams}", getattr(done, streams), b"ab\n" * 3333 + b"a")
    executed = await box.exec("while True: print('ab')")
    case.same("the limit of Python", executed.killed_by, "output")
    case.same("what is kept of Python", executed.stdout, "ab\n" * 3333 + "a")
    done = await box.shell("yes ab")
    case.same("of the shell", (done.killed_by, done.stdout), ("output", b"ab\n" * 3333 + b"a"))
    case.same("afterwards", (await box.run(sh("echo fine"))).stdout, b"fine\n")


@rule_of(RULES, "limits", limits=Limits(file_bytes=100_000))
async def _(box: Sandbox, case: Case) -> None:
    """A file that grows too large ends the program."""
    done = await box.run(["dd", "if=/dev/zero", "of=large", "bs=1000", "count=1000"])
    case.same("the limit", done.killed_by, "file_size")
    if (size := len(await box.read("large"))) > 100_000:
        case.problem(f"the file has {size} bytes")


@rule_of(RULES, "limits", limits=Limits(open_files=100))
async def _(box: Sandbox, case: Case) -> None:
    """A process can open only so many files."""
    executed = await box.exec("files = [open('/dev/null') for _ in range(150)]")
    case.same("the error", executed.error and executed.error.name, "OSError")


@rule_of(RULES, "limits", limits=Limits(memory_bytes=200 * 2**20), layer="memory")
async def _(box: Sandbox, case: Case) -> None:
    """A program can use only so much memory."""
    done = await box.run(["python3", "-c", "x = bytearray(400 * 2**20); print(len(x))"])
    if done.exit_code == 0:
        case.problem("a program had twice as much")
    if done.killed_by not in (None, "memory"):
        case.problem(f"the result names the limit {done.killed_by}")
    if done.killed_by == "memory" and done.exit_code != 137:
        case.problem(f"the exit code is {done.exit_code}")
    executed = await box.exec("x = bytearray(400 * 2**20)")
    if executed.error is None and executed.killed_by is None:
        case.problem("Python had twice as much")
    case.same("afterwards", (await box.exec("6 * 7")).value, "42")


@rule_of(RULES, "limits", limits=Limits(processes=20), layer="number of processes")
async def _(box: Sandbox, case: Case) -> None:
    """A program can start only so many processes, and others do not notice."""
    code = "import os, time\ntry:\n  for n in range(60):\n    if not os.fork(): time.sleep(9)\nexcept OSError: print(n)"
    done = await box.run(["python3", "-c", code])
    if not done.stdout.strip().isdigit() or int(done.stdout) > 20:
        case.problem(f"it said {done.stdout!r} {done.stderr[-200:]!r}")
    case.same("afterwards", (await box.run(["echo", "fine"])).stdout, b"fine\n")


@rule_of(RULES, "limits", limits=Limits(disk_bytes=4 * 2**20), layer="disk")
async def _(box: Sandbox, case: Case) -> None:
    """The workspace holds only so much."""
    done = await box.run(["dd", "if=/dev/zero", "of=large", "bs=1048576", "count=8"])
    if done.exit_code == 0:
        case.problem("twice as much could be written")
