"""Programs: their input, their output, their end."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace

from toolyard.sandboxes.base import Sandbox
from toolyard.testing.sandbox_rules.rule import SECRET, Case, Rule, a_number, rule_of, sh

RULES: list[Rule] = []


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """A program's exit code, output and errors arrive unchanged, to the byte."""
    done = await box.run(sh("printf 'out\\000\\377'; printf err >&2; exit 3"))
    case.same("the result", (done.exit_code, done.stdout, done.stderr), (3, b"out\0\xff", b"err"))
    case.same("the limit", done.killed_by, None)


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """If a signal ends a program, the exit code is 128 plus its number, as in a shell, and the result names it."""
    for number in (9, 15, 6):
        done = await box.run(sh(f"kill -{number} $$"))
        case.same("the exit code and the signal", (done.exit_code, done.signal), (128 + number, number))
    done = await box.run(sh("exit 137"))
    case.same("of one that gives it itself", (done.exit_code, done.signal), (137, None))
    case.same("of a command in the shell", (await box.shell("sh -c 'kill -11 $$'")).exit_code, 139)


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """A missing program has exit code 127, and a file that is no program 126."""
    await box.write("text", b"no program\n")
    for argv, wanted in (["no-such-program"], 127), (["./no/such/program"], 127), (["./text"], 126):
        case.same(f"that of {argv[0]}", (await box.run(argv)).exit_code, wanted)
    for argv in [], ["echo", "a\0b"], ["echo", "\ud800"]:
        if not (await box.run(argv)).exit_code:
            case.problem(f"what cannot be asked for, {argv!r}, ended well")


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """A program reads all of its input, or as much as it wants to."""
    data = os.urandom(300_000)
    done = await box.run(["cat"], stdin=data, limits=replace(box.limits, output_bytes=1_000_000))
    case.same("what came back", len(done.stdout), len(data))
    if done.stdout != data:
        case.problem("it came back changed")
    case.same("without reading", (await box.run(["true"], stdin=data)).exit_code, 0)
    case.same("without input", (await box.run(["cat"])).stdout, b"")


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """A program's environment is small: what was added, and nothing of the server's."""
    done = await box.run(["env"], env={"ADDED": "yes and no"})
    found = dict(line.split("=", 1) for line in done.stdout.decode().splitlines() if "=" in line)
    case.same("what was added", found.get("ADDED"), "yes and no")
    for name in ("PATH", "HOME"):
        if not found.get(name):
            case.problem(f"there is no {name}")
    everywhere = [
        done.stdout.decode(),
        (await box.exec("import os; print(dict(os.environ))")).stdout,
        (await box.shell("env; cat /proc/self/environ /proc/$PPID/environ")).stdout.decode(errors="replace"),
    ]
    if any(SECRET in text for text in everywhere):
        case.problem("a variable of the server's is there")
    if "ADDED" in (await box.run(["env"])).stdout.decode():
        case.problem("what was added for one program is there for the next")


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """Programs, Python and the shell begin in the workspace and share its files."""
    await box.run(sh("echo program > program"))
    await box.exec("open('python', 'w').write('python\\n')")
    await box.shell("echo shell > shell")
    case.same(
        "what read() sees",
        [await box.read(name) for name in ("program", "python", "shell")],
        [b"program\n", b"python\n", b"shell\n"],
    )
    case.same(
        "what a program sees", (await box.run(sh("cat program python shell"))).stdout, b"program\npython\nshell\n"
    )


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """When a program ends, so does everything that it started, without a wait."""
    number = a_number()
    began = asyncio.get_running_loop().time()
    started = f"sleep {number} & setsid sleep {number} & (setsid sleep {number} >/dev/null 2>&1 </dev/null &) ; echo on"
    done = await box.run(sh(started))
    case.same("its output", done.stdout, b"on\n")
    if asyncio.get_running_loop().time() - began > 5:
        case.problem("it took more than 5 s")
    await case.nothing_left(number)


@rule_of(RULES, "run")
async def _(box: Sandbox, case: Case) -> None:
    """Programs can run at the same time."""
    runs = [box.run(sh(f"echo {number}; exit {number}")) for number in range(12)]
    for number, done in enumerate(await asyncio.gather(*runs)):
        case.same(f"run {number}", (done.exit_code, done.stdout), (number, f"{number}\n".encode()))
