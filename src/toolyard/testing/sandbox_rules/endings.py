"""Branches, and the end of a sandbox."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from toolyard.core.errors import SandboxLost
from toolyard.sandboxes.base import Sandbox
from toolyard.testing.sandbox_rules.rule import Case, Rule, a_number, rule_of

RULES: list[Rule] = []

Attempt: TypeAlias = Callable[[], Coroutine[Any, Any, object]]


@rule_of(RULES, "fork")
async def _(box: Sandbox, case: Case) -> None:
    """Each branch goes on from the same variables and files, apart from the others and from its origin."""
    await box.exec("values = [1]; open('written', 'w').write('before')")
    await box.exec("open('log', 'a').write('once')")
    await box.write("given/file", b"given")
    branches = await box.fork(2)
    for number, branch in enumerate(branches):
        executed = await branch.exec(f"values.append({number}); open('written', 'w').write('{number}'); values")
        case.same(f"branch {number}", executed.value, f"[1, {number}]")
        case.same("its files", [await branch.read(n) for n in ("given/file", "log")], [b"given", b"once"])
    case.same("where they came from", (await box.exec("values")).value, "[1]")
    await box.exec("values.append('later')")
    for owner, wanted in (box, b"before"), (branches[0], b"0"), (branches[1], b"1"):
        case.same("a file", await owner.read("written"), wanted)
    await box.close()
    (again,) = await branches[1].fork()
    case.same("a branch of a branch", (await again.exec("values")).value, "[1, 1]")
    for sandbox in again, *branches:
        await sandbox.close()


@rule_of(RULES, "end")
async def _(box: Sandbox, case: Case) -> None:
    """Closing ends what runs, also for those who wait for it, and a closed sandbox says that it is closed."""
    number = a_number()
    await box.exec("1")
    attempts: dict[str, Attempt] = {
        "run": lambda: box.run(["sleep", number]),
        "shell": lambda: box.shell(f"sleep {number}"),
        "exec": lambda: box.exec("while True: pass"),
        "read": lambda: box.read("x"),
        "write": lambda: box.write("x", b""),
        "list": box.list,
        "fork": box.fork,
    }
    waiting = [asyncio.ensure_future(attempts[name]()) for name in ("run", "shell", "exec")]
    await asyncio.sleep(0.5)
    await box.close()
    for done in await asyncio.gather(*waiting, return_exceptions=True):
        if not isinstance(done, SandboxLost):
            case.problem(f"what waited got {done!r:.200}")
    await box.close()
    for name, attempt in attempts.items():
        try:
            await attempt()
        except SandboxLost:
            continue
        case.problem(f"{name}() of a closed sandbox did not raise SandboxLost")
    await case.nothing_left(number)


@rule_of(RULES, "end")
async def _(box: Sandbox, case: Case) -> None:
    """A caller that gives up waiting ends the program, and the session can go on."""
    number = a_number()
    await box.exec("import subprocess")
    attempts: Sequence[Attempt] = [
        lambda: box.run(["sleep", number]),
        lambda: box.shell(f"sleep {number}"),
        lambda: box.exec(f"subprocess.run(['sleep', '{number}'])"),
    ]
    for attempt in attempts:
        waiting = asyncio.ensure_future(attempt())
        await asyncio.sleep(0.5)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    got = (await box.run(["echo", "1"])).stdout, (await box.shell("echo 2")).stdout, (await box.exec("3")).value
    case.same("afterwards", got, (b"1\n", b"2\n", "3"))
    await case.nothing_left(number)


@rule_of(RULES, "end")
async def _(box: Sandbox, case: Case) -> None:
    """Sandboxes share nothing."""
    await box.write("file", b"of the one")
    await box.exec("mine = 1")
    await box.shell("mine=1")
    async with await case.backend.open() as other:
        case.same("the other's files", list(await other.list()), [])
        executed = await other.exec("mine")
        case.same("the other's variable", executed.error and executed.error.name, "NameError")
        case.same("the other's shell", (await other.shell("echo $mine")).stdout, b"\n")
        await box.close()
        case.same("when the one is closed", (await other.exec("1")).value, "1")
